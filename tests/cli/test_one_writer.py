"""Two commands with the same output: one writes, the other is refused."""

from __future__ import annotations

import re

import pytest

from forked_commands import Command, complete, content, rkit
from killed_processes import forks

# Folders and files; the other commands write with the same functions.
NAMES = [
    "encode", "index flat", "train", "search", "convert", *(pytest.param(name, marks=pytest.mark.slow) for name in (
        "pretrain", "rerank train", "rerank apply", "mine-negatives", "compare"
    ))
]  # fmt: skip


@forks
@pytest.mark.parametrize("name", NAMES)
def test_of_two_commands_at_once_one_writes_and_the_other_is_refused(commands, whole, tmp_path, name):
    alone, names = whole(name)
    pair = [Command(*complete(commands[name], "out"), folder=tmp_path) for _ in range(2)]
    first, second = sorted((one.end() for one in pair), key=lambda ended: ended.code)
    if second.code == 0:
        # The first had ended before the second started, and a file is replaced.
        assert (tmp_path / "out").is_file(), (first, second)
    else:
        assert (first.code, second.code) == (0, 2), (first, second)
        refusal = (
            r"^Error: (another process( \(\d+\))? is writing to 'out'\. Wait until it ends|output folder 'out' exists)"
        )
        assert re.search(refusal, second.err), second
        assert second.err.count("\n") == 1
    assert content(tmp_path / "out") == alone
    assert {one.name for one in tmp_path.iterdir()} == names


@forks
def test_a_killed_command_leaves_no_lock_that_keeps_the_next_one_out(commands, tmp_path):
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
