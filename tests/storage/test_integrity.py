"""Files of a folder compared with its manifest: the damage reported, and the bytes read."""

from __future__ import annotations

import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from retrievalkit import storage
from retrievalkit.errors import ArtifactError
from retrievalkit.reporting import progress
from retrievalkit.storage import integrity

REMEDY = "Write it again."


@pytest.fixture
def folder(tmp_path):
    """Two files written an hour ago."""
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for name in ("one.bin", "inner/two.bin"):
        (folder / name).write_bytes(random.Random(name).randbytes(300_000))
        age(folder / name)
    return folder


@pytest.fixture
def read(monkeypatch):
    """The names of the files that were read, in order."""
    names, digest = [], integrity.fingerprint_file
    monkeypatch.setattr(
        integrity, "fingerprint_file", lambda path, *stop: (names.append(path.name), digest(path, *stop))[1]
    )
    return names


def age(path, seconds=3600):
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - seconds * 10**9))


def test_the_files_of_a_folder_are_described(folder):
    """Files are listed by relative name; a nested folder with its own manifest is listed by that manifest."""
    (folder / ".hidden").write_text("x")
    (folder / "README.md").write_text("x")
    storage.write_manifest(folder, "index", command="index", options={})
    assert list(storage.describe_files(folder, skip=("README.md",))) == ["inner/two.bin", "one.bin"]
    assert storage.fingerprint_files(storage.describe_files(folder)) == storage.fingerprint_folder(
        folder, skip=("manifest.json",)
    )
    storage.write_manifest(folder / "inner", "vectors", command="encode", options={})
    described = storage.describe_files(folder)
    assert list(described) == ["README.md", "inner/manifest.json", "one.bin"]
    assert described["one.bin"] == {"bytes": 300_000, "blake2b": storage.fingerprint_file(folder / "one.bin")}


def test_an_unlisted_file_is_refused(folder):
    """Lucene and transformers read any file in a folder, even next to another program's manifest, as Milvus Lite's."""
    (folder / "inner" / "manifest.json").write_text('{"version": 2}')
    files = storage.describe_files(folder)
    assert list(files) == ["inner/manifest.json", "inner/two.bin", "one.bin"]
    storage.check_unlisted(folder, files, remedy=REMEDY)
    (folder / "inner" / "more.bin").write_text("x")
    with pytest.raises(ArtifactError, match=r"inner/more\.bin' is not listed in .*Remove it"):
        storage.check_unlisted(folder, files, remedy=REMEDY)
    storage.check_unlisted(folder, files, skip=("more.bin",), remedy=REMEDY)
    del files["inner/two.bin"]  # as of a damaged manifest of ours, which leaves out what it lists
    storage.check_unlisted(folder, files, remedy=REMEDY)


def test_large_files_are_read_again_only_after_a_change(folder, read, monkeypatch):
    monkeypatch.setattr(integrity, "_LARGE", 300_000)
    monkeypatch.setattr(integrity, "_SETTLED", 0)
    before = storage.fingerprint_folder(folder)
    assert storage.fingerprint_folder(folder) == before
    assert sorted(read) == ["one.bin", "two.bin"]
    with storage.verifying():
        assert storage.fingerprint_folder(folder) == before
    assert len(read) == 4
    changed = (folder / "one.bin").stat()
    (folder / "one.bin").write_bytes(b"x" * 300_000)
    os.utime(folder / "one.bin", ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert storage.fingerprint_folder(folder) != before
    assert read[4:] == ["one.bin"]


@pytest.mark.parametrize("content", ["", "[]", "5", "null", '{"one.bin": 5}', "[" * 100_000, None])
def test_a_cached_fingerprint_is_believed_only_if_it_is_ours(folder, monkeypatch, tmp_path, content):
    """Fingerprints do not depend on the cache, and a pipe in the place of an entry does not block; None = a pipe."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(integrity, "_LARGE", 300_000)
    monkeypatch.setattr(integrity, "_SETTLED", 0)
    expected = storage.fingerprint_folder(folder)
    (entry,) = (tmp_path / "cache").rglob("*.json")
    planted = entry.read_text().replace(storage.fingerprint_file(folder / "one.bin"), "0" * 32)
    entry.write_text(planted)
    assert storage.fingerprint_folder(folder) == expected
    entry.unlink()
    os.mkfifo(entry) if content is None else entry.write_text(content)
    assert storage.fingerprint_folder(folder) == expected
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert storage.fingerprint_folder(folder) == expected


def test_a_fingerprint_reads_regular_files_to_their_size(tmp_path):
    """A pipe does not block, and a file of the kernel, which names no size and may have no end, counts as empty."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            storage.fingerprint_file(path)
    (tmp_path / "empty").touch()
    assert storage.fingerprint_file("/proc/self/pagemap") == storage.fingerprint_file(tmp_path / "empty")


@pytest.mark.parametrize(
    "damage", ["bytes", "cut", "longer", "gone", "swapped", "folder", "pipe", "link out", "parent"]
)
def test_damage_is_named(folder, tmp_path, damage):
    """The message has the file and the remedy."""
    files, path = storage.describe_files(folder), folder / "one.bin"
    storage.check_files(folder, files, remedy=REMEDY)
    content = path.read_bytes()
    match damage:
        case "bytes":
            path.write_bytes(content[:150_000] + b"?" + content[150_001:])
        case "cut":
            path.write_bytes(content[:-1])
        case "longer":
            path.write_bytes(content + b"?")
        case "swapped":
            path.write_bytes((folder / "inner" / "two.bin").read_bytes())
        case "parent":
            (tmp_path / "one.bin").write_bytes(content)
            files = {"../one.bin": files["one.bin"]}
        case _:
            path.unlink()
    match damage:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link out":
            (tmp_path / "elsewhere").write_bytes(content)
            path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"one\.bin' (was|has|is|lies) .*Write it again\."):
        storage.check_files(folder, files, remedy=REMEDY)


def test_files_that_may_have_changed_are_read(folder, read):
    """Files modified after their manifest are read; without a manifest, or with --verify, all files are."""
    files = storage.describe_files(folder)
    read.clear()
    storage.check_files(folder, files, remedy=REMEDY)
    assert sorted(read) == ["one.bin", "two.bin"]
    storage.write_manifest(folder, "index", command="index", options={}, files=files)
    read.clear()
    storage.check_files(folder, files, remedy=REMEDY)
    assert read == []
    age(folder / "one.bin", -7200)
    storage.check_files(folder, files, remedy=REMEDY)
    assert read == ["one.bin"]
    with storage.verifying():
        storage.check_files(folder, files, remedy=REMEDY)
    assert sorted(read[1:]) == ["one.bin", "two.bin"]
    assert not storage.verifies()


def test_a_long_check_shows_its_progress(folder, monkeypatch, capsys):
    """A short check is silent."""
    files, digest = storage.describe_files(folder), integrity.fingerprint_file
    monkeypatch.setattr(progress, "_FIRST_LINE", 0.0)
    storage.check_files(folder, files, remedy=REMEDY)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(integrity, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(integrity, "_MEGABYTE", 100_000)
    monkeypatch.setattr(integrity, "fingerprint_file", lambda path, one: (digest(path, one), time.sleep(0.5))[0])
    storage.check_files(folder, files, remedy=REMEDY)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"check '{folder}' 6/6 MB (100 %)")
    monkeypatch.setenv("RANK", "1")
    storage.describe_files(folder)
    assert capsys.readouterr().err == ""


def test_verification_of_a_command_does_not_reach_other_threads():
    with storage.verifying(), ThreadPoolExecutor(1) as other:
        assert storage.verifies()
        assert not other.submit(storage.verifies).result()
    assert not storage.verifies()
