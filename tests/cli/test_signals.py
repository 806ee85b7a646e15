"""How commands end by Ctrl-C and by signals: one line, an exit code, and nothing left but what can go on."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from forked_commands import Command, complete
from killed_processes import forks


def waiting():
    """Write a first shard, say so in a file, and wait."""
    from retrievalkit.data.vectors import VectorWriter

    def finish(self):
        Path("ready").touch()
        time.sleep(60)

    VectorWriter.finish = finish


def computing():
    """Compute in a library that does not return."""
    import torch

    from retrievalkit.data.vectors import VectorWriter

    def finish(self):
        matrix = torch.rand(3_000, 3_000)
        Path("ready").touch()
        while True:
            torch.linalg.svd(matrix)

    VectorWriter.finish = finish


def started(words, folder, prepare):
    command = Command(*words, folder=folder, prepare=prepare)
    deadline = time.monotonic() + 60
    while not (folder / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    return command


@forks
@pytest.mark.parametrize(
    ("number", "code", "how"),
    [(signal.SIGINT, 130, "Interrupted"), (signal.SIGTERM, 143, "Terminated"), (signal.SIGHUP, 129, "Terminated")],
)
def test_a_signal_ends_a_command_in_one_line_that_says_what_is_kept(commands, tmp_path, number, code, how):
    command = started(complete(commands["encode"], "out"), tmp_path, waiting)
    os.kill(command.process.pid, number)
    ended = command.end(90)
    assert ended.code == code
    assert ended.err == f"{how}; what was finished is kept: run the same command again to go on from there.\n"
    assert sorted(one.name for one in tmp_path.iterdir()) == [".out.partial", "ready"]


@forks
def test_a_second_ctrl_c_ends_a_command_whose_library_does_not_return(commands, tmp_path):
    """Python would act on the first one only after that."""
    command = started(complete(commands["encode"], "out"), tmp_path, computing)
    start = time.monotonic()
    os.kill(command.process.pid, signal.SIGINT)
    time.sleep(0.3)
    os.kill(command.process.pid, signal.SIGINT)
    ended = command.end(90)
    assert ended.code == 130
    assert time.monotonic() - start < 3
    assert "Traceback" not in ended.err


@forks
def test_a_closed_pipe_ends_a_command_silently(commands, tmp_path):
    """As in `rkit search ... | head`."""

    def closed():
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)

    ended = Command(*commands["search"], folder=tmp_path, prepare=closed).end()
    assert (ended.code, ended.err) == (1, "")
