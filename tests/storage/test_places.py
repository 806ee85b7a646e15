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


def write(path, text="new"):
    with storage.write_file(path) as staging:
        staging.write_text(text)


def test_a_link_to_a_file_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "run").write_text("old")
    (tmp_path / "link").symlink_to("there/run")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "run").read_text() == "new"
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["link", "run", "there"]


def test_a_link_to_a_folder_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with storage.write_folder(tmp_path / "link") as staging:
        (staging / "file").touch()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").exists()


@pytest.mark.parametrize("writer", [storage.write_file, storage.write_folder])
def test_a_link_to_nothing_is_refused(tmp_path, writer):
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(ArtifactError, match=r"is a link to 'nowhere', which does not exist"), writer(tmp_path / "link"):
        pass
    assert (tmp_path / "link").is_symlink()


def test_a_fifo_is_written_through(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join(10)
    assert read == ["new"]
    assert (tmp_path / "pipe").is_fifo()


def test_an_open_file_is_written_through_and_added_to(tmp_path):
    """As by `--output /dev/fd/N` with `N>> file`."""
    (tmp_path / "file").write_text("old ")
    number = os.open(tmp_path / "file", os.O_WRONLY | os.O_APPEND)
    write(f"/dev/fd/{number}")
    os.close(number)
    assert (tmp_path / "file").read_text() == "old new"


def test_a_character_device_stays_one():
    write("/dev/null")
    assert Path("/dev/null").is_char_device()
    assert not list(Path("/dev").glob(".*null*"))


def test_standard_output_is_known_by_its_names():
    assert [descriptor(f"/dev/{name}") for name in ("stdout", "stderr", "fd/63", "null")] == [1, 2, 63, None]


def test_a_socket_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        with pytest.raises(ArtifactError, match="is a socket, and a file"):
            write(tmp_path / "socket")
    assert (tmp_path / "socket").is_socket()


def test_what_needs_files_beside_its_output_refuses_a_device():
    with pytest.raises(ArtifactError, match="is a pipe or a device"):
        storage.check_output_file("/dev/null")
    with pytest.raises(ArtifactError, match="is a file, but a folder"):
        storage.check_output("/dev/null")
