"""Commands killed at random moments leave nothing that blocks, and run again they write what they would have written.

`make kill N=200` tries all commands; these are few, and a check that the trials find what they look for.
"""

from __future__ import annotations

import itertools
import random
import signal
import time
from pathlib import Path

import pytest

from killed_processes import forks
from kills.commands import COMMANDS, SMALL
from kills.faults import WITHOUT_MOUNTS, faulted, possible
from kills.starting import preload
from kills.trial import Bench, draw_moments
from retrievalkit.data import convert

pytestmark = [forks, pytest.mark.slow]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The commands that are quickly prepared."""
    preload()
    return Bench(tmp_path_factory.mktemp("kills") / "bench", list(SMALL))


def test_commands_that_are_killed_run_again(bench):
    """At least 14 trials, and more where they came too late: run times are measured once, and other work ends."""
    found = []
    for name, number, moment, rank, _ in draw_moments(bench, random.Random(11), 42, fresh_share=0.0, startup=0.0):
        found.append(bench.trial(name, number, moment, rank=rank))
        running = sum(one.code is not None for one in found)
        if len(found) >= 14 and running > 6:
            break
    assert not [str(one) for one in found if one.problems]
    assert running > 6, "commands that were still running"


def test_a_command_in_a_python_of_its_own(bench):
    """Once with all that starting costs."""
    made = bench.trial("encode", signal.SIGKILL, bench.startup / 2, fresh=True)
    assert not made.problems
    assert made.code == -signal.SIGKILL


def test_processes_end_when_torchrun_is_killed(bench):
    """They would wait for each other."""
    made = bench.trial("train, two processes", signal.SIGKILL, bench.startup + 1.0, fresh=True)
    assert not made.problems
    assert made.code == -signal.SIGKILL


def test_what_is_not_whole_is_found(bench, monkeypatch):
    """The trial of a command that writes in the final place."""

    def half(*arguments, original=convert.convert, **options):
        Path("out").mkdir()
        Path("out/corpus.jsonl").write_text("half")
        time.sleep(5)

    monkeypatch.setattr(convert, "convert", half)
    made = bench.trial("convert", signal.SIGKILL, 1.0)
    assert "left 'out/corpus.jsonl', which is not whole" in made.problems


def test_what_stays_for_good_is_found(bench, monkeypatch):
    def left(*arguments, original=convert.convert, **options):
        Path(".left").write_text("here")
        return original(*arguments, **options)

    monkeypatch.setattr(convert, "convert", left)
    made = bench.trial("convert", signal.SIGKILL, 2 * bench.seconds["convert"])
    assert "left for good: ['.left']" in made.problems
    assert made.code is None


def test_a_fault_of_the_machine_is_a_message_and_loses_nothing(bench):
    """Each kind for some command, at a moment of its own."""
    source = random.Random(12)
    names = itertools.cycle(SMALL)
    found = [faulted(bench, next(names), make(source)) for make in (*possible(bench.folder), *WITHOUT_MOUNTS)]
    assert not [str(one) for one in found if one.problems]
    assert any(one.code for one in found)


def test_every_kind_of_command_is_there():
    """All that write, and all indexers that need no server."""
    words = " ".join(command.words for command in COMMANDS.values())
    for name in (
        "train ",
        "pretrain ",
        "rerank train",
        "rerank apply",
        "encode",
        "mine-negatives",
        "search",
        "compare",
    ):
        assert name in words
    for option in ("--add", "--delete", "--compact"):
        assert f" {option}" in words
    for indexer in ("flat", "faiss", "sparse", "dense_sparse", "bm25", "impact", "lucene_hnsw", "milvus"):
        assert f"--indexer {indexer} " in words
