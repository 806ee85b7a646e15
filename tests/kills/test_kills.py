"""Commands killed at random moments leave nothing that blocks, and run again they write what they would have written.

`make kill N=200` tries all commands; these are few, and a check that the trials find what they look for.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from killed_processes import forks
from kills.commands import COMMANDS, SMALL
from kills.starting import SIGNALS, preload
from kills.trial import FAULTS, Bench
from retrievalkit.data.convert import convert

pytestmark = [forks, pytest.mark.slow]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """The commands that are quickly prepared."""
    preload()
    return Bench(tmp_path_factory.mktemp("kills") / "bench", list(SMALL))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", SMALL)
def test_a_command_that_is_killed_runs_again(bench, name, number):
    """With the same bytes; in the second half of its time it is sure to run."""
    moment = random.Random(f"{name} {number}").uniform(0.1, 0.9) * bench.seconds[name]
    assert not bench.kill(name, number, moment, rank=1).problems


@pytest.mark.parametrize("name", ["encode", "train, two processes"])
def test_a_command_in_a_python_of_its_own(bench, name):
    """With all that starting costs; where torchrun is killed, its processes would wait for each other."""
    made = bench.kill(name, signal.SIGKILL, bench.startup / 2 + (name != "encode") * 3, fresh=True)
    assert (made.code, made.problems) == (-signal.SIGKILL, [])


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", SMALL)
def test_a_fault_of_the_machine_is_a_message_and_loses_nothing(bench, name, kind):
    assert not bench.fault(name, kind, random.Random(name)).problems


def test_what_is_not_whole_and_what_stays_is_noticed(bench, monkeypatch):
    def half(*arguments, original=convert._program, **options):
        Path("out").mkdir()
        Path("out/corpus.jsonl").write_text("half")
        time.sleep(5)

    def left(*arguments, original=convert._program, **options):
        Path(".left").write_text("here")
        return original(*arguments, **options)

    monkeypatch.setattr(convert, "_program", half)
    assert "left 'out/corpus.jsonl', which is not whole" in bench.kill("convert", signal.SIGKILL, 1.0).problems
    monkeypatch.setattr(convert, "_program", left)
    made = bench.kill("convert", signal.SIGKILL, 2 * bench.seconds["convert"])
    assert made.code is None
    assert "left for good: ['.left']" in made.problems[0]


def test_every_kind_of_command_is_there():
    """All that write, and all indexers that need no server."""
    words = " ".join(command.words for command in COMMANDS.values())
    commands = ("train ", "pretrain ", "rerank train", "rerank apply", "encode", "mine-negatives", "search", "compare")
    indexers = ("flat", "faiss", "sparse", "dense_sparse", "bm25", "impact", "lucene_hnsw", "milvus")
    for part in (*commands, " --add", " --delete", " --compact", *(f"--indexer {one} " for one in indexers)):
        assert part in words
