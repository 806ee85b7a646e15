"""Folders and files appear whole or not at all, and a manifest says what made them."""

from __future__ import annotations

import json

import pytest

from retrievalkit import storage
from retrievalkit.errors import ArtifactError, InputError, RetrievalkitError
from retrievalkit.storage import outputs


def everything_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def write(path, text="new", **options):
    with storage.write_folder(path, **options) as staging:
        assert not (path / "file").exists() or (path / "file").read_text() == "old"
        (staging / "file").write_text(text)


def ours(path, text="old"):
    """A folder that a command of ours has written."""
    path.mkdir(parents=True)
    (path / "file").write_text(text)
    storage.write_manifest(path, "vectors", command="encode", options={})
    return path


def test_a_folder_appears_at_the_end_with_its_parents(tmp_path):
    write(tmp_path / "a" / "b")
    assert everything_in(tmp_path) == ["a", "a/b", "a/b/file"]


def test_an_interrupted_folder_is_kept_for_those_who_resume(tmp_path):
    with pytest.raises(KeyboardInterrupt), storage.write_folder(tmp_path / "out", keep_partial=True) as staging:
        (staging / "first").write_text("half")
        raise KeyboardInterrupt
    assert not (tmp_path / "out").exists()
    with storage.write_folder(tmp_path / "out", keep_partial=True) as staging:
        assert (staging / "first").read_text() == "half"
    assert everything_in(tmp_path) == ["out", "out/first"]


@pytest.mark.parametrize(("error", "keep_partial"), [(RuntimeError, False), (InputError, True)])
def test_a_folder_that_failed_leaves_nothing(tmp_path, error, keep_partial):
    """Wrong input would fail again, so there is nothing to resume either."""
    with pytest.raises(error), storage.write_folder(tmp_path / "out", keep_partial=keep_partial) as staging:
        (staging / "first").write_text("half")
        raise error("a broken line")
    assert everything_in(tmp_path) == []


def test_those_who_do_not_resume_start_from_nothing(tmp_path):
    storage.partial_folder(tmp_path / "out").mkdir()
    (storage.partial_folder(tmp_path / "out") / "left").touch()
    write(tmp_path / "out")
    assert everything_in(tmp_path) == ["out", "out/file"]


def test_an_existing_folder_is_not_written_over(tmp_path):
    path = ours(tmp_path / "out")
    with pytest.raises(ArtifactError, match=r"exists already.*--overwrite"):
        write(path)
    assert (path / "file").read_text() == "old"


def test_overwriting_replaces_the_folder_at_the_end(tmp_path):
    path = ours(tmp_path / "out")
    with pytest.raises(RuntimeError), storage.write_folder(path, overwrite=True):
        raise RuntimeError
    assert (path / "file").read_text() == "old"
    write(path, overwrite=True)
    assert (path / "file").read_text() == "new"
    assert everything_in(tmp_path) == ["out", "out/file"]


def test_overwriting_spares_what_is_not_ours(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "file").write_text("old")
    with pytest.raises(ArtifactError, match=r"was not written by rkit.*Remove it"):
        write(tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos" / "file").read_text() == "old"


def test_the_current_folder_can_be_the_output(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    with storage.write_folder(".") as staging:
        (staging / "file").touch()
    assert everything_in(tmp_path) == ["out", "out/file"]


@pytest.mark.parametrize("writer", [storage.write_folder, storage.write_file])
def test_a_file_where_a_folder_should_be_is_an_error(tmp_path, writer):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ArtifactError, match=r"'.*taken' is a file"), writer(tmp_path / "taken" / "out"):
        pass
    with pytest.raises(ArtifactError, match="is a file"):
        storage.check_output(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_file_appears_at_the_end_and_keeps_its_suffix(tmp_path):
    with storage.write_file(tmp_path / "a" / "run.trec.gz") as staging:
        assert staging.name.endswith(".trec.gz")
        staging.write_text("whole")
        assert everything_in(tmp_path / "a") == [staging.name, ".run.trec.gz.lock"]
    assert everything_in(tmp_path) == ["a", "a/run.trec.gz"]


def test_a_file_that_failed_leaves_the_old_one(tmp_path):
    (tmp_path / "run").write_text("old")
    with pytest.raises(KeyboardInterrupt), storage.write_file(tmp_path / "run") as staging:
        staging.write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "run").read_text() == "old"
    assert everything_in(tmp_path) == ["run"]


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    inputs = {"texts": {"path": "corpus", "fingerprint": "0"}}
    written = storage.write_manifest(
        tmp_path, "vectors", command="encode", options={"side": "query"}, inputs=inputs, counts={"texts": 3}, more=["ä"]
    )
    assert storage.read_manifest(tmp_path, "vectors") == written
    assert written["options"] == {"side": "query"}
    assert written["inputs"] == inputs
    assert written["counts"] == {"texts": 3}
    assert written["more"] == ["ä"]
    assert written["versions"]["retrievalkit"]
    assert storage.kind_of(tmp_path) == "vectors"


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        *((text, r"no readable manifest\.json") for text in (None, "{", "[]", '{"kind": 3}')),
        ('{"kind": "index"}', "is an index folder, and a vectors folder was expected"),
        (json.dumps({"kind": "vectors", "format": storage.FORMAT + 1}), "newer retrievalkit"),
    ],
)
def test_a_folder_whose_manifest_cannot_be_read_is_refused(tmp_path, manifest, message):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(ArtifactError, match=message):
        storage.read_manifest(tmp_path, "vectors")


def test_the_fingerprint_of_a_value_does_not_depend_on_the_order_of_keys():
    assert storage.fingerprint_value({"a": 1, "b": 2}) == storage.fingerprint_value({"b": 2, "a": 1})
    assert storage.fingerprint_value({"a": 1}) != storage.fingerprint_value({"a": 2})
    assert len(storage.fingerprint_value(None)) == 32


def test_the_fingerprint_of_a_folder_sees_names_and_bytes_and_not_what_is_skipped(tmp_path):
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
    assert second != first
    (tmp_path / "sub" / "weights").rename(tmp_path / "sub" / "other")
    assert fingerprint() not in (first, second)


def test_an_input_is_described_by_its_absolute_path_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").touch()
    assert storage.describe_input("corpus", "0") == {"path": str(tmp_path / "corpus"), "fingerprint": "0"}
    assert storage.describe_input("hf:beir/nq", "0")["path"] == "hf:beir/nq"


def test_a_folder_that_lost_its_name_gets_it_back(tmp_path):
    """From the next command that writes there, though that one fails."""
    ours(tmp_path / ".out.old")
    with pytest.raises(RuntimeError), storage.write_folder(tmp_path / "out", overwrite=True):
        assert (tmp_path / "out" / "manifest.json").exists()
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_refused_rename_within_an_output_names_the_file(tmp_path, monkeypatch):
    """What it was complete with is of no use: the whole folder is written again."""

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
def test_a_refused_rename_loses_neither_the_old_folder_nor_the_new_one(tmp_path, monkeypatch, number):
    """EXDEV, EBUSY, ENOTEMPTY and ESTALE, as file servers answer."""
    ours(tmp_path / "out")
    original = type(tmp_path).rename

    def refuse(self, target):
        if self.name == ".out.partial":
            raise OSError(number, "refused")
        return original(self, target)

    monkeypatch.setattr(outputs.Path, "rename", refuse)
    with (
        pytest.raises(RetrievalkitError, match=r"was complete, but could not get its name \(refused\)"),
        storage.write_folder(tmp_path / "out", overwrite=True) as staging,
    ):
        (staging / "new").touch()
    assert (tmp_path / "out" / "manifest.json").exists()
    assert (tmp_path / ".out.partial" / "new").exists()
