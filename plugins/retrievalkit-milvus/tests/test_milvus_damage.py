"""Damaged files of an index, and temporary folders of searches."""

import shutil
import tempfile

import pytest
from milvus_cases import draw

from damage import check_damage
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.open_indexes import open_index


@pytest.fixture(scope="module")
def indexes(store, tmp_path_factory):
    """Two indexes of different texts, with all kinds of files."""
    folder = tmp_path_factory.mktemp("indexes")
    for seed, name in enumerate(("one", "two")):
        source = store(draw(30, dim=6, m=3, varied=True, vocabulary=20, seed=seed))
        build_index(source.folder, indexer="milvus", output=folder / name)
    return folder


def test_damage_is_detected_when_an_index_is_opened(indexes, tmp_path):
    check_damage(indexes / "one", indexes / "two", tmp_path, seeds=8)


def test_hidden_files_do_not_reach_milvus(indexes, tmp_path, monkeypatch):
    """Manifests do not list them, so they could be links to other files or devices."""
    shutil.copytree(indexes / "one", tmp_path / "index")
    (tmp_path / "index" / "milvus.db" / ".more").symlink_to("/dev/null")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    index = open_index(tmp_path / "index")
    (view,) = tmp_path.glob("rkit-milvus-*")
    assert not list(view.rglob(".more"))
    del index


def test_temporary_folders_of_killed_searches_are_removed(indexes, tmp_path, monkeypatch):
    """Running searches lock theirs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / "rkit-milvus-abandoned"
    abandoned.mkdir()
    (abandoned / ".lock").touch()
    (abandoned / "manifest.json").touch()
    other = tmp_path / "rkit-results"
    other.mkdir()
    first = open_index(indexes / "one")
    assert not abandoned.exists()
    assert other.exists(), "the user's folder, without a lock"
    second = open_index(indexes / "one")
    assert len(list(tmp_path.glob("rkit-milvus-*"))) == 2
    del first, second
