"""What an output names: a link stays a link, a pipe is written through, and nothing else is replaced."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from retrievalkit import storage
from retrievalkit.errors import ArtifactError
from retrievalkit.storage.places import descriptor


def write(path):
    with storage.write_file(path) as staging:
        staging.write_text("new")


def test_links_stay_and_their_targets_are_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "run").write_text("old")
    (tmp_path / "file").symlink_to("there/run")
    write(tmp_path / "file")
    assert (tmp_path / "there" / "run").read_text() == "new"
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder").symlink_to("empty")
    with storage.write_folder(tmp_path / "folder") as staging:
        (staging / "part").touch()
    assert (tmp_path / "empty" / "part").exists()
    (tmp_path / "nothing").symlink_to("nowhere")
    for writer in (storage.write_file, storage.write_folder):
        with pytest.raises(ArtifactError, match=r"is a link to 'nowhere', which does not exist"):
            writer(tmp_path / "nothing").__enter__()
    assert all((tmp_path / name).is_symlink() for name in ("file", "folder", "nothing"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "file", "folder", "nothing", "there"]


def test_pipes_open_files_and_devices_are_written_through(tmp_path):
    """An open file is added to, as by `--output /dev/fd/N` with `N>> file`."""
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join(10)
    assert read == ["new"]
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "file").write_text("old ")
    number = os.open(tmp_path / "file", os.O_WRONLY | os.O_APPEND)
    write(f"/dev/fd/{number}")
    os.close(number)
    assert (tmp_path / "file").read_text() == "old new"
    write("/dev/null")
    assert Path("/dev/null").is_char_device()
    assert not list(Path("/dev").glob(".*null*"))


def test_standard_output_is_known_by_its_names():
    assert [descriptor(f"/dev/{name}") for name in ("stdout", "stderr", "fd/63", "null")] == [1, 2, 63, None]


def test_sockets_and_devices_for_commands_that_keep_files_next_to_their_output_are_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        with pytest.raises(ArtifactError, match="is not a regular file"):
            write(tmp_path / "socket")
    assert (tmp_path / "socket").is_socket()
    with pytest.raises(ArtifactError, match="is a pipe or a device"):
        storage.check_output_file("/dev/null")
    with pytest.raises(ArtifactError, match="is a file, but a folder"):
        storage.check_output("/dev/null")
