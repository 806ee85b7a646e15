"""The user's cache: damaged, foreign and planted entries count as missing, and no command needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrievalkit.errors import ArtifactError
from retrievalkit.reporting import notices
from retrievalkit.storage import cache, fingerprint_value, private_folder, read_entry, write_entry

KEY = ["a model", 1]
LARGE = 17 << 20


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(size=10, value="value", key=KEY):
    return write_entry("graphs", key, value, lambda folder: (folder / "weights.bin").write_bytes(b"x" * size))


def read(form=str, key=KEY):
    return read_entry("graphs", key, form)


def test_an_entry_is_read_as_written():
    assert read() is None
    written = write(value={"prefix": "é", "inf": float("inf")})
    assert read(dict) == written
    assert (written.folder / "weights.bin").read_bytes() == b"x" * 10


def test_folders_and_entries_are_private_to_the_user(home):
    entry = write()
    for folder in (home / "retrievalkit", home / "retrievalkit" / "graphs", entry.folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def truncate(path):
    os.truncate(path, 3)


def change(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def link(path):
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("size", [10, LARGE])
@pytest.mark.parametrize("name", ["weights.bin", "entry.json"])
@pytest.mark.parametrize("damage", [truncate, change, link, fifo, folder, os.unlink, lambda path: path.write_text("")])
def test_a_damaged_entry_is_missing_until_it_is_written_again(size, name, damage, capsys):
    entry = write(size)
    damage(entry.folder / name)
    assert read() is None
    assert read() is None
    assert capsys.readouterr().err.count("Note: ") <= 1
    assert write(size) == read() == entry


@pytest.mark.parametrize("text", ["[]", "5", "null", '{"value": 5}', "[" * 100_000, '{"value": "value", "files": []}'])
def test_a_record_of_another_form_is_missing(text):
    (write().folder / "entry.json").write_text(text)
    assert read() is None


def test_a_changed_value_is_noticed():
    record = write().folder / "entry.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"value": "zebra"}))
    assert read() is None


def test_an_entry_of_another_identity_is_missing():
    entry, other = write(), write(key="other")
    other.folder.rename(other.folder.with_name("moved"))
    entry.folder.rename(other.folder)
    assert read(key="other") is None


def test_an_entry_of_another_form_is_missing():
    write(value=["a", "list"])
    assert read(str) is None


def test_a_name_that_leads_out_of_an_entry_is_refused(home):
    entry = write()
    (entry.folder.parent / "secret").write_text("secret")
    record = json.loads((entry.folder / "entry.json").read_text())
    files = {"../secret": [cache.fingerprint_file(entry.folder.parent / "secret"), 0, 0, 0, 0]}
    record |= {"files": files, "blake2b": cache._checksum(KEY, "value", files)}
    (entry.folder / "entry.json").write_text(json.dumps(record))
    assert read() is None


@pytest.mark.parametrize("plant", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/nonexistent")])
def test_whatever_stands_at_an_entrys_place_is_replaced(plant):
    place = write().folder
    place.rename(place.with_name("old"))
    plant(place)
    assert read() is None
    assert write() == read()


def test_an_entry_of_another_user_is_missing():
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    entry = write()
    os.chown(entry.folder / "weights.bin", 1, 1)
    assert read() is None
    assert write() == read()


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("inner", ["", "graphs"])
def test_a_folder_that_others_may_have_filled_is_not_used_and_named_once(home, owner, inner, capsys):
    if owner and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    write()
    place = home / "retrievalkit" / inner
    if owner:
        os.chown(place, owner, owner)
    else:
        place.chmod(0o777)
    with notices.collected(strict=True):
        assert read() is write() is None
    assert capsys.readouterr().err.count(f"cache '{place}' cannot be used") == 1


@pytest.mark.parametrize("plant", [Path.touch, lambda path: path.symlink_to("/dev/null/nothing")])
def test_a_cache_that_is_not_a_folder_is_not_used(home, plant):
    plant(home)
    assert write() is read() is None
    assert home.is_symlink() or home.is_file()


def test_a_linked_cache_is_used(home, tmp_path):
    (tmp_path / "disk").mkdir()
    home.symlink_to(tmp_path / "disk")
    assert write() == read()
    assert (tmp_path / "disk" / "retrievalkit").is_dir()


@pytest.mark.parametrize("place", ["", "relative"])
def test_without_a_home_folder_there_is_no_cache(monkeypatch, tmp_path, place):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    for home in ("", "relative"):
        monkeypatch.setenv("HOME", home)
        assert write() is read() is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArtifactError, match="XDG_CACHE_HOME"):
        cache.cache_folder("objects")


def full_disk():
    """Limit the size of this process's files."""
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))


def test_an_entry_that_does_not_fit_leaves_nothing(home):
    script = (
        "from retrievalkit.storage import read_entry, write_entry\n"
        "assert write_entry('graphs', 1, 2, lambda folder: (folder / 'a').write_bytes(b'x' * (1 << 20))) is None\n"
        "assert read_entry('graphs', 1, int) is None"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], preexec_fn=full_disk, capture_output=True, text=True, check=True
    )
    assert "cannot be written" in run.stderr
    assert list((home / "retrievalkit" / "graphs").iterdir()) == []


def test_a_failure_of_the_writer_is_raised_and_leaves_nothing(home):
    with pytest.raises(ZeroDivisionError):
        write_entry("graphs", KEY, "value", lambda folder: (folder / "part").write_bytes(b"x") / 0)
    assert list((home / "retrievalkit" / "graphs").iterdir()) == []


def test_processes_that_write_the_same_entry_keep_the_first():
    entry = write(LARGE)
    with (entry.folder / "weights.bin").open("rb") as stream:
        assert write(LARGE) == entry
        assert os.fstat(stream.fileno()).st_nlink == 1, "a reader's file is not replaced by an equal file"
    assert write(LARGE, value="changed").value == read().value == "changed"


@pytest.mark.parametrize("plant", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/nonexistent")])
def test_an_entry_without_files_replaces_what_is_in_its_place(home, plant):
    for place in (home / "retrievalkit" / "graphs" / fingerprint_value("key"), None):
        path = place or next((home / "retrievalkit" / "graphs").glob("*.json"))
        if place is None:
            path.unlink()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place is not None or plant is not os.mkdir:
            plant(path)
        assert read_entry("graphs", "key", list[int]) is None
        assert write_entry("graphs", "key", [1]) is not None
        assert read_entry("graphs", "key", list[int]).value == [1]


def test_the_least_recently_used_entries_and_unfinished_ones_are_deleted(home):
    for number in range(4):
        write(key=number)
    folders = [read(key=number).folder for number in range(4)]
    for number, place in enumerate(folders):
        os.utime(place, (number, number))
    (unfinished := home / "retrievalkit" / "graphs" / ".killed").mkdir()
    (dangling := home / "retrievalkit" / "graphs" / "dangling").symlink_to("/nonexistent")
    os.utime(unfinished, (1, 1))
    os.utime(dangling, (0, 0), follow_symlinks=False)
    assert read(key=1) is not None  # used again
    write_entry("graphs", "new", 5, most=3)
    assert [place.exists() for place in folders] == [False, True, False, True]
    assert not unfinished.exists()
    assert not os.path.lexists(dangling)
    write_entry("graphs", "newer", 6, most=1)
    assert folders[1].exists(), "another process may be reading what was used just now"


def test_private_folder_refuses_what_root_would_create_in_a_users_home(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    (users := tmp_path / "user").mkdir()
    os.chown(users, 1, 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(users / ".cache"))
    assert private_folder("graphs") is None
    assert list(users.iterdir()) == []
