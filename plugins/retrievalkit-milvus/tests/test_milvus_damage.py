"""Damage to the files of an index, which Milvus Lite trusts, shows when it is opened."""

import shutil
import tempfile

import pytest

from damage import check_damage
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.open_indexes import open_index


@pytest.fixture(scope="module")
def indexes(draw, store, tmp_path_factory):
    """Two indexes with all kinds of files, of other texts."""
    folder = tmp_path_factory.mktemp("indexes")
    for seed, name in enumerate(("one", "two")):
        source = store(draw(30, dim=6, m=3, varied=True, vocabulary=20, seed=seed))
        build_index(source.folder, indexer="milvus", output=folder / name)
    return folder


def test_damage_is_found_when_an_index_is_opened(indexes, tmp_path):
    check_damage(indexes / "one", indexes / "two", tmp_path, seeds=8)


def test_hidden_files_do_not_reach_milvus(indexes, tmp_path, monkeypatch):
    """No manifest lists them; one may be a link to a file or a device of this machine."""
    shutil.copytree(indexes / "one", tmp_path / "index")
    (tmp_path / "index" / "milvus.db" / ".more").symlink_to("/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    index = open_index(tmp_path / "index")
    (view,) = tmp_path.glob("rkit-milvus-*")
    assert not list(view.rglob(".more"))
    del index


def test_what_a_killed_search_left_is_removed_by_the_next(indexes, tmp_path, monkeypatch):
    """Its lock is held by nobody; that of a search under way is."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "rkit-milvus-left"
    left.mkdir()
    (left / ".lock").touch()
    (left / "manifest.json").touch()
    own = tmp_path / "rkit-results"
    own.mkdir()
    first = open_index(indexes / "one")
    assert not left.exists()
    assert own.exists(), "a folder of the user's, which has no lock"
    second = open_index(indexes / "one")
    assert len(list(tmp_path.glob("rkit-milvus-*"))) == 2
    del first, second
