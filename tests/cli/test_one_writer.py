"""Two commands that write one output: one of them does, and the other says so and ends."""

from __future__ import annotations

import re

import pytest

from forked_commands import Command, complete, content, rkit
from killed_processes import forks

NAMES = (
    "encode",
    "index flat",
    "train",
    "pretrain",
    "rerank train",
    "rerank apply",
    "mine-negatives",
    "search",
    "compare",
    "convert",
)


@forks
@pytest.mark.parametrize("name", NAMES)
def test_of_two_commands_at_once_one_writes_and_the_other_is_refused(commands, tmp_path, name):
    """The output is that of a command alone, and nothing else is left."""
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    assert rkit(*complete(commands[name], "out"), folder=alone).code == 0
    pair = [Command(*complete(commands[name], "out"), folder=both) for _ in range(2)]
    first, second = sorted((one.end() for one in pair), key=lambda ended: ended.code)
    assert (first.code, second.code) == (0, 2), (first, second)
    # The first may have ended before the second one looks.
    refusal = (
        r"^Error: (another process( \(\d+\))? is writing to 'out'\. Wait until it ends|output folder 'out' exists)"
    )
    assert re.search(refusal, second.err), second
    assert second.err.count("\n") == 1
    assert content(both / "out") == content(alone / "out")
    assert {one.name for one in both.iterdir()} == {one.name for one in alone.iterdir()}


@forks
def test_a_killed_command_leaves_no_lock_that_keeps_the_next_one_out(commands, tmp_path):
    """The file of its lock is there, and nobody holds it."""

    def killed():
        import os
        import signal

        from retrievalkit.data.vectors import VectorWriter

        VectorWriter.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)

    words = complete(commands["encode"], "out")
    assert rkit(*words, folder=tmp_path, prepare=killed).code == -9
    assert (tmp_path / ".out.lock").exists()
    assert rkit(*words, folder=tmp_path).code == 0
    assert [one.name for one in tmp_path.iterdir()] == ["out"]
