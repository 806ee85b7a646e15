"""Folders and files appear whole or not at all, and a manifest records their origin."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from retrievalkit import storage
from retrievalkit.errors import ArtifactError, InputError, RetrievalkitError
from retrievalkit.storage import outputs


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def ours(path):
    """Create a folder as a command writes it."""
    path.mkdir(parents=True)
    (path / "file").write_text("old")
    storage.write_manifest(path, "vectors", command="encode", options={})
    return path


def test_an_output_appears_at_the_end_with_its_parents(tmp_path, monkeypatch):
    """The current folder may be the output; a staging file keeps its suffix; an old staging folder is not reused."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    for place, whole in (("../c/d", tmp_path / "a" / "c" / "d"), (".", tmp_path / "a" / "b")):
        left = storage.partial_folder(place)
        left.mkdir(parents=True)
        (left / "left").touch()
        with storage.write_folder(place) as staging:
            (staging / "file").touch()
            assert not (whole / "file").exists()
    with storage.write_file(tmp_path / "e" / "run.trec.gz") as staging:
        assert staging.name.endswith(".trec.gz")
        staging.touch()
        assert everything_in(tmp_path / "e") == [staging.name, ".run.trec.gz.lock"]
    files = ["a/b/file", "a/c/d/file", "e/run.trec.gz"]
    assert everything_in(tmp_path) == sorted(["a", "a/b", "a/c", "a/c/d", "e", *files])


def test_an_interrupted_folder_is_kept_for_resuming(tmp_path):
    with pytest.raises(KeyboardInterrupt), storage.write_folder(tmp_path / "out", keep_partial=True) as staging:
        (staging / "first").write_text("half")
        raise KeyboardInterrupt
    assert not (tmp_path / "out").exists()
    with storage.write_folder(tmp_path / "out", keep_partial=True) as staging:
        assert (staging / "first").read_text() == "half"
    assert everything_in(tmp_path) == ["out", "out/first"]


@pytest.mark.parametrize(("error", "keep_partial"), [(RuntimeError, False), (InputError, True)])
def test_a_folder_that_failed_leaves_nothing(tmp_path, error, keep_partial):
    """After wrong input, keep_partial keeps nothing, as the same command would fail again."""
    with pytest.raises(error), storage.write_folder(tmp_path / "out", keep_partial=keep_partial) as staging:
        (staging / "first").write_text("half")
        raise error("a broken line")
    assert everything_in(tmp_path) == []


def test_only_a_whole_output_replaces_the_old_one(tmp_path):
    path = ours(tmp_path / "out")
    (tmp_path / "run").write_text("old")
    with pytest.raises(ArtifactError, match=r"exists already.*--overwrite"), storage.write_folder(path):
        pytest.fail("the command ran")
    with pytest.raises(RuntimeError), storage.write_folder(path, overwrite=True):
        raise RuntimeError
    with pytest.raises(KeyboardInterrupt), storage.write_file(tmp_path / "run") as staging:
        staging.write_text("half")
        raise KeyboardInterrupt
    assert (path / "file").read_text() == (tmp_path / "run").read_text() == "old"
    with storage.write_folder(path, overwrite=True) as staging:
        assert (path / "file").read_text() == "old"
        (staging / "file").write_text("new")
    assert (path / "file").read_text() == "new"
    assert everything_in(tmp_path) == ["out", "out/file", "run"]


def test_folders_and_files_of_others_are_not_replaced(tmp_path):
    """A folder without a manifest, and a file where a folder should be."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "file").touch()
    (tmp_path / "taken").touch()
    with pytest.raises(ArtifactError, match=r"was not written by rkit.*Remove it"):
        storage.write_folder(tmp_path / "photos", overwrite=True).__enter__()
    for writer in (storage.write_folder, storage.write_file):
        with pytest.raises(ArtifactError, match=r"'.*taken' is a file"):
            writer(tmp_path / "taken" / "out").__enter__()
    with pytest.raises(ArtifactError, match="is a file"):
        storage.check_output(tmp_path / "taken")
    assert everything_in(tmp_path) == ["photos", "photos/file", "taken"]


def test_a_manifest_is_read_as_it_was_written(tmp_path):
    given = {"options": {"side": "query"}, "inputs": {"texts": {"path": "corpus", "fingerprint": "0"}}}
    given |= {"counts": {"texts": 3}, "more": ["ä"]}
    written = storage.write_manifest(tmp_path, "vectors", command="encode", **given)
    assert storage.read_manifest(tmp_path, "vectors") == written
    assert written.items() >= given.items()
    assert written["versions"]["retrievalkit"]
    assert storage.kind_of(tmp_path) == "vectors"


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        *((text, r"no readable manifest\.json") for text in (None, "{", "[]", '{"kind": 3}')),
        ('{"kind": "index"}', "is an index folder, but should be a vectors folder"),
        (json.dumps({"kind": "vectors", "format": storage.FORMAT + 1}), "newer retrievalkit"),
    ],
)
def test_a_folder_whose_manifest_cannot_be_read_is_refused(tmp_path, manifest, message):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(ArtifactError, match=message):
        storage.read_manifest(tmp_path, "vectors")


def test_fingerprints_depend_on_names_and_bytes(tmp_path, monkeypatch):
    """They ignore the order of keys, skipped files and hidden files."""
    assert storage.fingerprint_value({"a": 1, "b": 2}) == storage.fingerprint_value({"b": 2, "a": 1})
    assert storage.fingerprint_value({"a": 1}) != storage.fingerprint_value({"a": 2})

    def fingerprint():
        return storage.fingerprint_folder(tmp_path, skip=("README.md", "logs"))

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights").write_bytes(b"1")
    first = fingerprint()
    for skipped in ("README.md", ".hidden", "logs/events", ".cache/file", "sub/README.md"):
        (tmp_path / skipped).parent.mkdir(exist_ok=True)
        (tmp_path / skipped).write_text("anything")
    assert fingerprint() == first
    (tmp_path / "sub" / "weights").write_bytes(b"2")
    second = fingerprint()
    (tmp_path / "sub" / "weights").rename(tmp_path / "sub" / "other")
    assert len({first, second, fingerprint()}) == 3
    monkeypatch.chdir(tmp_path)
    assert storage.describe_input("sub", "0") == {"path": str(tmp_path / "sub"), "fingerprint": "0"}
    assert storage.describe_input("hf:beir/nq", "0")["path"] == "hf:beir/nq"


@pytest.mark.parametrize("ending", ["partial", "old"])
@pytest.mark.parametrize("keep_partial", [True, False])
def test_links_and_pipes_in_the_place_of_an_unfinished_output_are_refused(tmp_path, ending, keep_partial):
    """Their target would be filled and emptied."""
    ours(tmp_path / "other")
    for create in (lambda path: path.symlink_to("other"), os.mkfifo, lambda path: path.write_text("x")):
        create(tmp_path / f".out.{ending}")
        refused = pytest.raises(ArtifactError, match=rf"\.out\.{ending}' is a link or a file.*Remove it")
        with refused, storage.write_folder(tmp_path / "out", keep_partial=keep_partial) as staging:
            (staging / "file").write_text("new")
        (tmp_path / f".out.{ending}").unlink()
    assert everything_in(tmp_path / "other") == ["file", "manifest.json"]


def test_a_folder_whose_replacement_was_killed_is_restored(tmp_path):
    """The next command that writes there restores it, even if the command fails."""
    ours(tmp_path / ".out.old")
    with pytest.raises(RuntimeError), storage.write_folder(tmp_path / "out", overwrite=True):
        assert (tmp_path / "out" / "manifest.json").exists()
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_refused_rename_within_an_output_names_the_file(tmp_path, monkeypatch):
    """The rest of the output is useless without it, so that the folder is written again."""

    def refuse(source, target):
        raise OSError(116, "Stale file handle", str(source), None, str(target))

    monkeypatch.setattr(outputs.os, "replace", refuse)
    with (
        pytest.raises(OSError, match=r"Stale file handle: .*\.partial\.part") as caught,
        storage.write_folder(tmp_path / "out") as staging,
    ):
        storage.write_json(staging / "part", 1)
    assert storage.was_written(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [18, 16, 39, 116])
def test_a_refused_rename_keeps_the_old_and_the_new_folder(tmp_path, monkeypatch, number):
    """EXDEV, EBUSY, ENOTEMPTY and ESTALE are errors of file servers."""
    ours(tmp_path / "out")
    original = type(tmp_path).rename

    def refuse(self, target):
        if self.name == ".out.partial":
            raise OSError(number, "refused")
        return original(self, target)

    monkeypatch.setattr(outputs.Path, "rename", refuse)
    with (
        pytest.raises(RetrievalkitError, match=r"is complete, but could not be renamed \(refused\)"),
        storage.write_folder(tmp_path / "out", overwrite=True) as staging,
    ):
        (staging / "new").touch()
    assert (tmp_path / "out" / "manifest.json").exists()
    assert (tmp_path / ".out.partial" / "new").exists()


@pytest.mark.parametrize("wait", [False, True])
def test_two_threads_never_hold_an_output_at_once(tmp_path, wait):
    """The second is refused, or waits; the writer's own threads and nested writes go through."""
    inside, refused = threading.Barrier(2), []

    def write():
        with storage.held(tmp_path / "out"):
            with storage.held(tmp_path / "out"), ThreadPoolExecutor(1) as own:
                own.submit(copy_context().run, storage.held(tmp_path / "out").__enter__).result()
            inside.wait(20)
            if not wait:
                inside.wait(20)

    def meet():
        inside.wait(20)
        try:
            with storage.held(tmp_path / "out", wait=wait):
                assert (tmp_path / ".out.lock").exists()
        except ArtifactError as error:
            refused.append(str(error))
        if not wait:
            inside.wait(20)

    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(write), pool.submit(meet)]:
            running.result()
    assert len(refused) == (not wait)
    assert all("another thread is writing" in message for message in refused)
    assert not (tmp_path / ".out.lock").exists()
