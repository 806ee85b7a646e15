"""The files of a folder against its manifest: what is found, what is remembered, and what is read again."""

from __future__ import annotations

import os
import random
import time

import pytest

from retrievalkit import artifacts
from retrievalkit.artifacts import integrity, memory, reading
from retrievalkit.errors import ArtifactError
from retrievalkit.report import progress

REMEDY = "Make it again."


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of its own, and a process that remembers nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(integrity.VERIFY, raising=False)
    new_process(monkeypatch)
    memory._forget_oldest.cache_clear()
    return tmp_path / "cache" / "retrievalkit" / "verified"


@pytest.fixture
def folder(tmp_path):
    """Two files, large enough that samples do not cover them, written an hour ago."""
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for name in ("one.bin", "inner/two.bin"):
        (folder / name).write_bytes(random.Random(name).randbytes(300_000))
        age(folder / name)
    return folder


@pytest.fixture
def read(monkeypatch):
    """The names of the files whose bytes were all read, in order."""
    names, digest = [], integrity._digest
    monkeypatch.setattr(integrity, "_digest", lambda path, stop: (names.append(path.name), digest(path, stop))[1])
    return names


def age(path, seconds=3600):
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns - seconds * 10**9))


def new_process(monkeypatch):
    monkeypatch.setattr(memory, "_known", set())


def test_the_files_of_a_folder_are_described(folder):
    """By relative name; a nested folder with a manifest of its own is described by that."""
    (folder / ".hidden").write_text("x")
    (folder / "README.md").write_text("x")
    artifacts.write_manifest(folder, "index", command="index", options={})
    assert list(artifacts.describe_files(folder, skip=("README.md",))) == ["inner/two.bin", "one.bin"]
    assert artifacts.fingerprint_files(artifacts.describe_files(folder)) == artifacts.fingerprint_folder(
        folder, skip=("manifest.json",)
    )
    artifacts.write_manifest(folder / "inner", "vectors", command="encode", options={})
    described = artifacts.describe_files(folder)
    assert list(described) == ["README.md", "inner/manifest.json", "one.bin"]
    assert described["one.bin"] == {"bytes": 300_000, "blake2b": artifacts.fingerprint_file(folder / "one.bin")}


def test_files_beside_a_manifest_of_another_program_are_described_too(folder):
    """Milvus Lite names a file of its own so; a damaged manifest of ours still leaves out what it lists."""
    (folder / "inner" / "manifest.json").write_text('{"version": 2}')
    files = artifacts.describe_files(folder)
    assert list(files) == ["inner/manifest.json", "inner/two.bin", "one.bin"]
    (folder / "inner" / "more.bin").write_text("x")
    with pytest.raises(ArtifactError, match=r"inner/more\.bin' is no file of"):
        artifacts.check_unlisted(folder, files, remedy=REMEDY)
    del files["inner/two.bin"]
    artifacts.check_unlisted(folder, files, remedy=REMEDY)


@pytest.mark.parametrize(
    "damage", ["bytes", "cut", "longer", "gone", "swapped", "folder", "pipe", "link out", "parent"]
)
def test_damage_is_named(folder, tmp_path, damage):
    """Whatever became of a file, the message names it and says what to do."""
    files, path = artifacts.describe_files(folder), folder / "one.bin"
    artifacts.check_files(folder, files, remedy=REMEDY)
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
    with pytest.raises(ArtifactError, match=r"one\.bin' (was|has|is|lies) .*Make it again\."):
        artifacts.check_files(folder, files, remedy=REMEDY)


def test_bytes_are_read_once(folder, read, monkeypatch):
    """By this process and by later ones; and again after the file was written to."""
    files = artifacts.describe_files(folder)
    read.clear()
    artifacts.check_files(folder, files, remedy=REMEDY)
    assert sorted(read) == ["one.bin", "two.bin"]
    new_process(monkeypatch)
    artifacts.check_files(folder, files, remedy=REMEDY)
    assert len(read) == 2
    (folder / "one.bin").write_bytes((folder / "one.bin").read_bytes())
    artifacts.check_files(folder, files, remedy=REMEDY)
    assert read[2:] == ["one.bin"]


@pytest.mark.parametrize("again", ["--verify", "no cache folder"])
def test_bytes_are_read_again(folder, read, monkeypatch, tmp_path, again):
    """Where the user wants it, once in a process; and where nothing can be remembered."""
    files = artifacts.describe_files(folder)
    if again == "no cache folder":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    artifacts.check_files(folder, files, remedy=REMEDY)
    read.clear()
    new_process(monkeypatch)
    if again == "--verify":
        with artifacts.verifying():
            artifacts.check_files(folder, files, remedy=REMEDY)
            artifacts.check_files(folder, files, remedy=REMEDY)
        assert integrity.VERIFY not in os.environ
    else:
        artifacts.check_files(folder, files, remedy=REMEDY)
    assert sorted(read) == ["one.bin", "two.bin"]


@pytest.mark.parametrize("where", [0, 149_000, 299_999])
def test_a_write_that_hides_its_time_is_found(folder, where):
    """The time of the last change of the inode cannot be set."""
    files, path = artifacts.describe_files(folder), folder / "one.bin"
    artifacts.check_files(folder, files, remedy=REMEDY)
    times = path.stat()
    with path.open("r+b") as stream:
        stream.seek(where)
        stream.write(bytes([path.read_bytes()[where] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ArtifactError, match="was altered"):
        artifacts.check_files(folder, files, remedy=REMEDY)


def test_a_sample_is_read_always(folder, monkeypatch):
    """Blocks that changed on the disk leave the times of the file as they were."""
    path = folder / "one.bin"
    before = memory.state_of(path, "check")
    times = os.stat(path)
    with path.open("r+b") as stream:
        stream.seek(299_000)
        stream.write(b"rotten")
    monkeypatch.setattr(memory.os, "fstat", lambda _: times)
    assert memory.state_of(path, "check").mark != before.mark


def test_a_young_file_is_not_remembered(folder, cache):
    """A second write in the same tick of the clock would go unseen."""
    os.utime(folder / "one.bin")
    artifacts.check_files(folder, artifacts.describe_files(folder), remedy=REMEDY)
    assert len(list(cache.iterdir())) == 1


def test_a_link_is_as_whole_as_its_source(folder, read, tmp_path):
    """It changes the inode's time, but no byte; a source that was not checked is not taken for whole."""
    files = artifacts.describe_files(folder)
    checksum = files["one.bin"]["blake2b"]
    artifacts.link_file(folder / "one.bin", tmp_path / "first", checksum=checksum)
    artifacts.check_files(folder, files, remedy=REMEDY)
    assert "one.bin" in read
    read.clear()
    artifacts.link_file(folder / "one.bin", tmp_path / "second", checksum=checksum)
    artifacts.check_files(folder, files, remedy=REMEDY)
    assert read == []


def test_the_oldest_are_forgotten(folder, cache, monkeypatch):
    """So that the cache folder stays small."""
    cache.mkdir(parents=True)
    for number in range(10):
        (cache / f"{number}").touch()
        age(cache / f"{number}", 100 - number)
    monkeypatch.setattr(memory, "_MOST", 9)
    artifacts.check_files(folder, artifacts.describe_files(folder), remedy=REMEDY)
    assert sorted(path.name for path in cache.iterdir() if len(path.name) == 1) == list("56789")


def test_a_long_check_shows_how_far_it_has_come(folder, monkeypatch, capsys):
    """What is checked, and of how much; what was found whole before counts as read. A short one is silent."""
    files, digest = artifacts.describe_files(folder), integrity._digest
    monkeypatch.setattr(progress, "_FIRST_LINE", 0.0)
    artifacts.check_files(folder, files, remedy=REMEDY)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(reading, "_SILENT_SECONDS", 0.0)
    monkeypatch.setattr(reading, "_MEGABYTE", 100_000)
    monkeypatch.setattr(integrity, "_digest", lambda path, one: (digest(path, one), time.sleep(0.5))[0])
    (folder / "one.bin").touch()
    artifacts.check_files(folder, files, remedy=REMEDY)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"check '{folder}' 6/6 MB (100 %)")
    monkeypatch.setenv("RANK", "1")
    artifacts.describe_files(folder)
    assert capsys.readouterr().err == ""


def test_an_unlisted_file_is_refused(folder):
    """Lucene and transformers read whatever they find."""
    files = artifacts.describe_files(folder)
    artifacts.check_unlisted(folder, files, remedy=REMEDY)
    (folder / "inner" / "added_tokens.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"added_tokens\.json' is no file of .*Remove it"):
        artifacts.check_unlisted(folder, files, remedy=REMEDY)
    artifacts.check_unlisted(folder, files, skip=("added_tokens.json",), remedy=REMEDY)


def test_a_check_that_failed_is_repeated(folder):
    """Only what passed is remembered."""
    path, calls = folder / "one.bin", []

    def check():
        calls.append(1)
        if len(calls) < 3:
            msg = "wrong"
            raise ValueError(msg)

    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            artifacts.once(path, "check", check)
    for _ in range(3):
        artifacts.once(path, "check", check)
    assert len(calls) == 3
    artifacts.once(path, "another check", check)
    assert len(calls) == 4
