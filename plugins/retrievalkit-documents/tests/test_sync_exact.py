"""After any changes to a folder, and after kills, indexes return the hits and scores of new indexes."""

from __future__ import annotations

import json
import multiprocessing
import os
import pathlib
import re
import shutil
import signal

import pytest
from click.testing import CliRunner
from document_folders import write
from hypothesis import given, settings
from hypothesis import strategies as st
from retrievalkit_documents import collection as collection_module
from retrievalkit_documents import folder as folder_module

import retrievalkit as rk
from killed_processes import in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import ArtifactError
from retrievalkit.storage import read_manifest

NAMES = ("a.txt", "b.txt", "c.md", "sub/d.md", "sub/e.html", "f.docx", "g.csv", "sub/h.jsonl")
WORDS = ("tiber", "rome", "seine", "old", "castle")
NAME, TEXT = st.sampled_from(NAMES), st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
CHANGE = st.one_of(
    st.tuples(st.just("write"), NAME, TEXT),
    st.tuples(st.just("delete"), NAME, st.just("")),
    st.tuples(st.just("rename"), NAME, NAME),
    st.tuples(st.just("touch"), NAME, st.just("")),
)
STEPS = st.lists(st.lists(CHANGE, min_size=1, max_size=4), min_size=1, max_size=3)


def change(folder, what, name, other):
    path = folder / name
    if what == "write":
        write(path, other)
    elif path.exists() and what == "delete":
        path.unlink()
    elif path.exists() and what == "rename" and path.suffix == pathlib.Path(other).suffix:
        (folder / other).parent.mkdir(exist_ok=True)
        path.rename(folder / other)
    elif path.exists() and what == "touch":
        os.utime(path)


def hits(place):
    """The score of each text by id, for each word."""
    index = rk.Index.open(place)
    return [{hit.id: hit.score for hit in index.search(word, k=100, by="passage")} for word in (*WORDS, "old castle")]


def assert_as_new(collection, folder, model, anew, names=("dense", "bm25")):
    rk.sync(folder, anew, model=model, passages=2, stride=1)
    for name in names:
        ours, wanted = hits(collection / name), hits(anew / name)
        assert [hit.keys() for hit in ours] == [hit.keys() for hit in wanted], name
        for ranking, other in zip(ours, wanted, strict=True):
            assert ranking == pytest.approx(other, rel=1e-4, abs=1e-5)


@settings(max_examples=3)
@given(steps=STEPS)
def test_any_changes_of_a_folder(tmp_path_factory, tiny_model, steps):
    """Edits, deletions, renames and touches of five kinds of files; two files never change."""
    place = tmp_path_factory.mktemp("sync")
    for name, text in (("stays.txt", "old rome"), ("stays.md", "seine castle old")):
        write(place / "docs" / name, text)
    rk.sync(place / "docs", place / "index", model=tiny_model, passages=2, stride=1)
    for step in steps:
        for action in step:
            change(place / "docs", *action)
        rk.sync(place / "docs", place / "index")
    assert_as_new(place / "index", place / "docs", tiny_model, place / "anew")
    shutil.rmtree(place)


def interrupt_at_call(monkeypatch, owner, name, count):
    """End a sync as Ctrl-C does, at a call of a function; the function works again afterwards."""
    original, calls = getattr(owner, name), []

    def replaced(*arguments, **options):
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, replaced)


@pytest.fixture
def small_steps(monkeypatch):
    """A part of a reading for each file, and a step of the encoding for each twelve texts."""
    monkeypatch.setattr(folder_module, "_SECONDS", 0)
    monkeypatch.setattr(collection_module, "_AT_ONCE", 12)


def test_an_interrupted_first_sync_is_searched_and_continued(docs, tiny_model, tmp_path, monkeypatch, small_steps):
    """By words as soon as all is read; neither reading nor encoding begins again, although a file has changed."""
    index, options = tmp_path / "index", {"model": tiny_model, "passages": 2, "stride": 1, "name": "cities"}
    interrupt_at_call(monkeypatch, folder_module, "passage_of", 3)
    with pytest.raises(KeyboardInterrupt):
        rk.sync(docs, index, **options)
    interrupt_at_call(monkeypatch, collection_module.rk, "index", 4)  # bm25, and the second step of dense
    with pytest.raises(KeyboardInterrupt):
        rk.sync(docs, index, **options)
    manifest = read_manifest(index, "collection")
    total = manifest["counts"]["passages"]
    assert (manifest["indexes"], manifest["name"]) == (["bm25"], "cities")
    query = next(passage.text for passage in open_corpus(index) if passage.text.isalpha() and len(passage.text) > 1)
    found = CliRunner().invoke(main, ["search", str(index), "--query", query, "--json"])
    assert json.loads(found.stdout)["hits"]
    held = int(re.search(f"dense: ([0-9]+) of {total} passages have vectors", found.stderr)[1])
    assert 24 <= held < total
    write(docs / "london.docx", "The Thames has tides.")
    (report,) = rk.sync(docs, index)
    assert report.read == 1
    assert 0 < report.encoded <= report.total - 24
    assert read_manifest(index, "collection").get("notes") is None
    assert_as_new(index, docs, tiny_model, tmp_path / "anew")


def test_a_search_mixes_no_states_of_a_collection(docs, tiny_model, tmp_path, small_steps):
    """It is refused, if an index was opened before a sync and the other after it, or the sync was killed in between."""
    index, old = tmp_path / "index", tmp_path / "old"
    rk.sync(docs, index, model=tiny_model, passages=2, stride=1)
    shutil.copytree(index / "dense", old)
    opened = rk.Index.open(index / "dense")
    write(docs / "added.txt", " ".join(f"tiber{number}" for number in range(31)))
    rk.sync(docs, index)
    with pytest.raises(ArtifactError, match="rkit sync FOLDER"):
        rk.Hybrid([opened, index / "bm25"])
    arguments = ["search", str(index), "--query", "tiber"]
    found = CliRunner().invoke(main, arguments)
    assert (found.exit_code, found.stderr) == (0, "")
    (index / "dense").rename(tmp_path / "new")
    old.rename(index / "dense")
    manifest = json.loads((index / "manifest.json").read_text())
    (index / "manifest.json").write_text(json.dumps(manifest | {"replacing": ["bm25", "dense"]}))
    found = CliRunner().invoke(main, arguments)
    assert (found.exit_code, "rkit sync FOLDER" in found.stderr) == (2, True)
    rk.sync(docs, index)
    assert rk.Collection(index).open().search("tiber", k=1)


def test_an_interrupted_later_sync_changes_nothing_and_is_continued(
    docs, tiny_model, tmp_path, monkeypatch, small_steps
):
    """Both indexes answer as before until both are complete; then together as new ones."""
    index = tmp_path / "index"
    rk.sync(docs, index, model=tiny_model, passages=2, stride=1)
    before = {name: hits(index / name) for name in ("dense", "bm25")}
    write(docs / "added.txt", " ".join(f"tiber{number}" for number in range(31)))
    shutil.copytree(index, tmp_path / "control")
    (control,) = rk.sync(docs, tmp_path / "control")
    interrupt_at_call(monkeypatch, collection_module.rk, "index", 3)  # bm25, and the second step of dense
    with pytest.raises(KeyboardInterrupt):
        rk.sync(docs, index)
    assert before == {name: hits(index / name) for name in ("dense", "bm25")}
    (docs / "rome.txt").unlink()
    (report,) = rk.sync(docs, index)
    assert (report.read, report.documents.added) == (0, [])
    assert 0 < report.encoded < control.encoded
    assert_as_new(index, docs, tiny_model, tmp_path / "anew")


def kill_syncs(docs, model, place, moments):
    """Kill the first sync of a folder, or a later one, when a file gets its name; change the folder, and sync again.

    In a separate process: forks cannot use the Java machine of Lucene, which other tests start.
    """
    collection_module.names = lambda kind: ()
    collection_module._AT_ONCE, folder_module._SECONDS = 5, 0
    killed = 0
    owners = {"os": os, "pathlib": pathlib.Path, "retrievalkit.storage": storage}
    for number, (owner, name, count) in enumerate(moments):
        index, folder = place / f"index{number}", place / f"docs{number}"
        shutil.copytree(docs, folder)

        def sync(owner=owner, name=name, count=count, index=index, folder=folder):
            kill_at_call(owners[owner], name, count)
            rk.sync(folder, index, model=model, passages=2, stride=1)
            write(folder / "rome.txt", "old castle")
            (folder / "prague.html").rename(folder / "renamed.html")
            rk.sync(folder, index)

        killed += in_another_process(sync) == -signal.SIGKILL
        write(folder / "rome.txt", "seine old rome")
        rk.sync(folder, index, model=model, passages=2, stride=1)
        assert_as_new(index, folder, model, place / f"anew{number}", names=("dense",))
        left = {path.name for path in index.iterdir() if not path.name.startswith((".passages", ".files"))}
        assert left == {"manifest.json", "corpus.jsonl", "dense"}, (left, name, count)
    assert killed


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [
        [("os", "replace", count) for count in range(1, 160, 4)],
        [("pathlib", "rename", count) for count in range(1, 20)],
        [("retrievalkit.storage", "describe_file", count) for count in range(1, 16)],
    ],
    ids=["files", "folders", "descriptions"],
)
def test_a_sync_that_is_killed_is_done_by_the_next(docs, tiny_model, tmp_path, moments):
    process = multiprocessing.get_context("spawn").Process(
        target=kill_syncs, args=(docs, tiny_model, tmp_path, moments)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
