"""Ctrl-C and signals end a command with one line and an exit code, and keep progress to resume from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked_commands import Command, complete
from killed_processes import forks


def waiting():
    """Write a first shard, create the file `ready`, and wait."""
    from retrievalkit.data.vectors import VectorWriter

    def finish(self):
        Path("ready").touch()
        time.sleep(60)

    VectorWriter.finish = finish


def computing():
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


KEPT = "; finished parts are kept: run the same command again to continue.\n"


def second():
    os.environ["RANK"] = "1"
    waiting()


@forks
@pytest.mark.parametrize(
    ("prepare", "number", "code", "printed"),
    [
        (waiting, signal.SIGINT, 130, f"Interrupted{KEPT}"),
        (waiting, signal.SIGTERM, 143, f"Terminated{KEPT}"),
        (waiting, signal.SIGHUP, 129, f"Terminated{KEPT}"),
        (second, signal.SIGINT, 130, ""),  # only the main process prints
    ],
)
def test_a_signal_ends_a_command_with_one_line(commands, tmp_path, prepare, number, code, printed):
    command = started(complete(commands["encode"], "out"), tmp_path, prepare)
    os.kill(command.process.pid, number)
    ended = command.end(90)
    assert (ended.code, ended.err) == (code, printed)
    assert sorted(one.name for one in tmp_path.iterdir()) == [".out.partial", "ready"]


def dropped(number):
    """Send the signal while Python drops exceptions."""

    class Dropped:
        def __del__(self):
            os.kill(os.getpid(), number)

    Dropped()
    time.sleep(30)


def importing(number):
    """Send the signal while torch is being imported, which would abort the process."""
    import torch

    torch.__spec__._initializing = True
    os.kill(os.getpid(), number)
    time.sleep(0.3)
    Path("imported").touch()
    torch.__spec__._initializing = False
    time.sleep(30)


@forks
@pytest.mark.parametrize(
    ("event", "number", "code", "how"),
    [
        (dropped, signal.SIGINT, 130, "Interrupted"),
        (dropped, signal.SIGTERM, 143, "Terminated"),
        (importing, signal.SIGINT, 130, "Interrupted"),
    ],
)
def test_an_interruption_is_not_lost(commands, tmp_path, event, number, code, how):
    def prepare():
        from retrievalkit.data.vectors import VectorWriter

        VectorWriter.finish = lambda self: event(number)

    ended = Command(*complete(commands["encode"], "out"), folder=tmp_path, prepare=prepare).end(20)
    assert (ended.code, ended.err) == (code, how + KEPT)
    assert (tmp_path / "imported").exists() == (event is importing)


@pytest.mark.parametrize("start", [["-m", "retrievalkit"], ["-c", "from retrievalkit.cli import main; main()"]])
def test_ctrl_c_while_the_command_line_is_imported_is_one_line(start, tmp_path):
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    (tmp_path / "sitecustomize.py").write_text(reset)
    ended = subprocess.run(
        [sys.executable, *start, "--help"], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "Interrupted.\n")


@forks
def test_a_second_ctrl_c_ends_a_command_whose_library_does_not_return(commands, tmp_path):
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
    def closed():
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)

    ended = Command(*commands["search"], folder=tmp_path, prepare=closed).end()
    assert (ended.code, ended.err) == (1, "")
