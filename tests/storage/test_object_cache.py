"""Places in a store: copies are fetched again after a change, and outputs appear whole."""

from __future__ import annotations

import fsspec
import pytest

from retrievalkit import storage
from retrievalkit.errors import ArtifactError
from retrievalkit.storage.places import named


def write(url, content="a", *, overwrite=False, name="part.bin"):
    with (
        storage.sent(url, overwrite=overwrite) as place,
        storage.write_folder(place, overwrite=overwrite) as staging,
    ):
        (staging / name).write_text(content)
        files = storage.describe_files(staging)
        storage.write_manifest(staging, "measurement", command="test", options={}, files=files)


def test_copies_are_fetched_once_and_again_when_the_store_has_changed(memory):
    """Copies of a folder with a manifest, of a folder without one, and of a file."""
    write("memory://store/ix", "one")
    first = storage.local("memory://store/ix")
    assert (first / "part.bin").read_text() == "one"
    memory.rm("/store/ix/part.bin")
    assert storage.local("memory://store/ix") == first
    write("memory://store/ix", "two", overwrite=True)
    assert (storage.local("memory://store/ix") / "part.bin").read_text() == "two"
    for content in (b"one", b"two"):
        memory.pipe({"/store/beir/corpus.jsonl": content, "/store/beir/qrels/test.tsv": content})
        copy = storage.local("memory://store/beir/corpus.jsonl")
        assert (copy.name, copy.read_bytes()) == ("corpus.jsonl", content)
        assert (storage.local("memory://store/beir") / "qrels" / "test.tsv").read_bytes() == content


def test_the_manifest_is_sent_last_and_old_objects_are_removed(memory, monkeypatch):
    write("memory://store/ix", name="old.bin")
    order, put = [], storage.Store.put
    monkeypatch.setattr(storage.Store, "put", lambda self, file, name: (order.append(name), put(self, file, name)))
    write("memory://store/ix", overwrite=True)
    assert order == [".ix.partial", ".partial/sent", "ix/part.bin", "ix/manifest.json"]
    assert sorted(memory.find("/store/ix")) == ["/store/ix/manifest.json", "/store/ix/part.bin"]


def test_a_folder_that_rkit_did_not_write_is_left_alone(memory):
    memory.pipe_file("/store/theirs/letter.txt", b"dear")
    with pytest.raises(ArtifactError, match=r"'memory://store/theirs' contains objects but no manifest.json"):
        write("memory://store/theirs", overwrite=True)


def test_an_output_that_cannot_be_sent_is_kept_and_its_place_reported(memory, monkeypatch, tmp_path):
    put = storage.Store.put

    def full(self, file, name):
        if name.endswith(".bin"):
            raise ArtifactError("the store is full.")
        put(self, file, name)

    with monkeypatch.context() as patched, pytest.raises(ArtifactError, match="The output is complete, in 'ix' of the"):
        patched.setattr(storage.Store, "put", full)
        write("memory://store/ix")
    assert list((tmp_path / "cache").rglob("ix/part.bin"))
    with pytest.raises(ArtifactError, match=r"an unsent output .* is in 'ix' of the folder"):
        write("memory://store/ix")


def test_a_failed_command_sends_nothing(memory, tmp_path):
    with pytest.raises(RuntimeError), storage.sent("memory://store/ix", overwrite=False):
        raise RuntimeError
    assert memory.find("/store") == []
    assert not list((tmp_path / "cache" / "retrievalkit" / "outputs").iterdir())


def test_a_store_that_cannot_be_written_to_is_refused_before_the_work(memory, monkeypatch, tmp_path):
    def forbidden(self, file, name):
        raise ArtifactError("access is denied.")

    monkeypatch.setattr(storage.Store, "put", forbidden)
    with pytest.raises(ArtifactError, match="access is denied"), storage.sent("memory://store/ix", overwrite=False):
        pytest.fail("the command ran")
    with pytest.raises(ArtifactError, match="is a whole bucket"), storage.sent("s3://bucket/", overwrite=False):
        pytest.fail("the command ran")
    assert not list((tmp_path / "cache").rglob("ix*"))


def test_names_that_lead_out_of_the_folder_are_refused(memory):
    memory.store["/store/evil/../../x"] = memory.store["/store/evil/a"] = fsspec.implementations.memory.MemoryFile(
        memory, "/store/evil/a", b"x"
    )
    with pytest.raises(ArtifactError, match="is not a valid file name"):
        storage.local("memory://store/evil")


def test_a_copy_is_named_by_its_address(memory, tmp_path):
    """An untrusted folder does not determine a store."""
    write("memory://store/ix")
    copy = storage.local("memory://store/ix")
    assert named(f"'{copy}/part.bin' is missing") == "'memory://store/ix/part.bin' is missing"
    assert storage.describe_input(copy, "f")["path"] == "memory://store/ix"
    assert storage.store_of(copy).url == "memory://store/ix"
    (tmp_path / ".store.json").write_text('{"url": "memory://theirs"}')
    assert storage.store_of(tmp_path) is None
