"""Commands killed at random moments block nothing, and write the same output when they run again.

`make kill N=200` draws trials of all commands; by default, of commands with quick preparations.
"""

from __future__ import annotations

import os
import random
import signal
import time
from itertools import cycle, islice
from pathlib import Path

import pytest

from killed_processes import forks
from kills.commands import COMMANDS, SMALL
from kills.starting import SIGNALS, preload
from kills.trial import FAULTS, Bench
from retrievalkit.data.convert import convert

pytestmark = [forks, pytest.mark.slow]

SEED = random.Random(os.environ.get("SEED", "0"))
KINDS = (*SIGNALS, *FAULTS)
TRIALS = [(name, kind, SEED.uniform(0.1, 0.9)) for name in SMALL for kind in KINDS]
if drawn := int(os.environ.get("RKIT_KILLS", "0")):
    TRIALS = [(name, SEED.choice(KINDS), SEED.random()) for name in islice(cycle(COMMANDS), drawn)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    preload()
    return Bench(tmp_path_factory.mktemp("kills") / "bench", {name for name, _, _ in TRIALS})


@pytest.mark.parametrize(("name", "kind", "share"), TRIALS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_killed_or_failed_command_loses_nothing_and_runs_again(bench, name, kind, share):
    """It writes the same bytes after signals, full disks and refused renames."""
    if kind in FAULTS:
        assert not bench.fault(name, kind, random.Random(share)).problems
    else:
        assert not bench.kill(name, kind, share, rank=1).problems


def test_incomplete_outputs_and_remains_are_detected(bench, monkeypatch):
    def half(*arguments, original=convert._program, **options):
        Path("out").mkdir()
        Path("out/corpus.jsonl").write_text("half")
        time.sleep(5)

    def left(*arguments, original=convert._program, **options):
        Path(".left").write_text("here")
        return original(*arguments, **options)

    bench.measure("convert")
    monkeypatch.setattr(convert, "_program", half)
    assert "left 'out/corpus.jsonl', which is not whole" in bench.kill("convert", signal.SIGKILL, 0.9).problems
    monkeypatch.setattr(convert, "_program", left)
    made = bench.kill("convert", signal.SIGKILL, 2)
    assert made.code is None
    assert "left for good: ['.left']" in made.problems[0]


def test_every_kind_of_command_is_killed():
    """All commands that write, and all indexers that need no server."""
    words = " ".join(command.words for command in COMMANDS.values())
    commands = ("train ", "pretrain ", "rerank train", "rerank apply", "encode", "mine-negatives", "search", "compare")
    indexers = ("flat", "faiss", "sparse", "dense_sparse", "bm25", "impact", "lucene_hnsw", "milvus")
    for part in (*commands, " --add", " --delete", " --compact", *(f"--indexer {one} " for one in indexers)):
        assert part in words
