"""Faults between two commands: changed inputs, a clock that goes backwards, moved folders, damaged states."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time

import pytest
from click.testing import CliRunner

from forked_commands import content
from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.data import convert
from retrievalkit.data.vectors import writer
from retrievalkit.mining.parts import MinedParts
from retrievalkit.search import pair_scoring
from retrievalkit.search.searcher import Searcher
from retrievalkit.training import loop

pytestmark = forks

YEAR = 365 * 24 * 3600


@pytest.fixture(scope="module")
def made(tiny_model, tiny_collection, tmp_path_factory):
    """Data, a checkpoint, an index, a run, examples with negatives and a re-ranker."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copytree(tiny_collection.folder, folder / "data")
    with contextlib.chdir(folder):
        done(f"train --model {tiny_model} --corpus data --examples data --epochs 0 --output model")
        done("encode model data --output vectors")
        done("index vectors --output index")
        done("search index --queries data --split train --k 9 --output run.trec")
        done("mine-negatives --from run.trec --corpus data --examples data --set negatives=3 --output train.jsonl")
        done("rerank train --model model/encoder --corpus data --examples train.jsonl --epochs 0 --output reranker")
    return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """A copy in which commands run."""
    shutil.copytree(made, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def rkit(line):
    ended = CliRunner().invoke(main, line.split())
    assert not ended.exception or isinstance(ended.exception, SystemExit), ended.exception
    return ended


def done(line):
    ended = rkit(line)
    assert ended.exit_code == 0, ended.output
    return ended


def killed(line, *moment, **options):
    """Run a command that dies at a call of a function."""

    def run():
        kill_at_call(*moment, **options)
        rkit(line)

    assert in_another_process(run) == -signal.SIGKILL


def bytes_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and "logs" not in path.relative_to(folder).parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


TRAIN = "train --model model/encoder --corpus data --examples data --epochs 2 --batch-size 8 --set limit=24 "
TRAIN += "--set save_steps=2 --output out"
ENCODE = "encode model data --output out"


def other_text(path):
    path.write_text(path.read_text().replace("Lima", "Mali"))


def shorter(path):
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))


def test_a_training_whose_data_changed_is_not_resumed(place):
    killed(TRAIN, loop.Loop, "compute_step", 4)
    kept = bytes_of(storage.partial_folder("out"))
    other_text(place / "data/corpus.jsonl")
    ended = rkit(f"{TRAIN} --resume")
    assert ended.exit_code == 2
    assert "had other options or other data, so it cannot be resumed" in ended.stderr
    assert bytes_of(storage.partial_folder("out")) == kept


def test_a_recipe_notices_a_change_that_keeps_size_and_time(place):
    (place / "small.yaml").write_text(
        "name: small\ndescription: Encodes.\nsteps:\n"
        "  - {name: vectors, command: encode, with: {model: model, texts: data/corpus.jsonl}, output: vectors}\n"
    )
    done("run small.yaml --output out")
    before = bytes_of(place / "out" / "vectors")
    corpus = place / "data" / "corpus.jsonl"
    status = corpus.stat()
    other_text(corpus)
    os.utime(corpus, ns=(status.st_atime_ns, status.st_mtime_ns))
    done("run small.yaml --output out")
    after = bytes_of(place / "out" / "vectors")
    assert after != before
    done("encode model data/corpus.jsonl --output anew")
    assert [name for name in after if name.endswith(".npy") and after[name] != bytes_of(place / "anew")[name]] == []


RUN = "--run run.trec --queries data --corpus data"
MINE_RUN = "mine-negatives --from run.trec --corpus data --examples train.jsonl"


@pytest.mark.parametrize(
    ("line", "moment", "changed", "change"),
    [
        ("encode model data --output {}", (writer.VectorWriter, "finish", 1), "data/corpus.jsonl", other_text),
        (f"rerank apply reranker {RUN} --output {{}}", (pair_scoring, "write_run", 1), "run.trec", shorter),
        (f"{MINE_RUN} --output {{}}", (MinedParts, "write", 1), "train.jsonl", shorter),
        ("search index --queries data --k 5 --output {}", (Searcher, "search", 1), "data/queries.jsonl", shorter),
        ("convert data {} --kind collection", (convert, "_write_folder", 1), "data/corpus.jsonl", shorter),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_killed_command_with_changed_input_starts_again(place, line, moment, changed, change):
    """It writes the same as with only the changed input, although ids may be equal."""
    killed(line.format("out"), *moment)
    change(place / changed)
    done(line.format("out"))
    done(line.format("fresh"))
    assert [*content(place / "out").values()] == [*content(place / "fresh").values()]
    assert not list(place.glob(".*"))


def in_the_future(folder):
    """Set all file times a year ahead, as if the clock had gone back."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (time.time() + YEAR,) * 2)


def test_a_clock_that_goes_back_changes_nothing(place):
    """The step of a state decides which is the newest, not its time."""
    done(TRAIN)
    (place / "out").rename(place / "whole")
    killed(TRAIN, loop.Loop, "compute_step", 4)
    in_the_future(place)
    killed(f"{TRAIN} --resume", loop.Loop, "compute_step", 3)
    states = place / ".out.partial" / "states"
    assert [path.name for path in states.glob("step-*")] == ["step-4"]
    in_the_future(states)
    done(f"{TRAIN} --resume")
    assert bytes_of(place / "out") == bytes_of(place / "whole")
    assert not storage.partial_folder("out").exists()


def test_a_training_continues_in_a_moved_folder(place):
    """The hidden folder moves with its parent."""
    done(TRAIN.replace(" out", " whole"))
    (place / "before").mkdir()
    killed(TRAIN.replace(" out", " before/out"), loop.Loop, "compute_step", 4)
    (place / "before").rename(place / "after")
    ended = done(f"{TRAIN.replace(' out', ' after/out')} --resume")
    assert "resuming after step 2" in ended.stderr
    assert bytes_of(place / "after" / "out") == bytes_of(place / "whole")


@pytest.mark.parametrize(("count", "after"), [(1, False), (1, True), (2, True)])
def test_a_killed_replacement_loses_nothing_and_leaves_nothing(place, count, after):
    """Killed before the old folder is renamed, before the new one is, between the two, and afterwards."""
    done("encode model data --side query --output out")
    done(ENCODE.replace(" out", " expected"))
    before = bytes_of(place / "out")

    def run():
        # Of the renames of folders alone.
        original, calls = os.rename, []

        def replaced(source, target):
            if os.path.isdir(source):
                calls.append(1)
                if len(calls) == count and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
            original(source, target)
            if len(calls) == count and os.path.isdir(target):
                os.kill(os.getpid(), signal.SIGKILL)

        os.rename = replaced
        rkit(f"{ENCODE} --overwrite")

    assert in_another_process(run) == -signal.SIGKILL
    whole = [bytes_of(path) for path in place.iterdir() if path.name in ("out", ".out.old")]
    assert before in whole or count == 2
    done(f"{ENCODE} --overwrite")
    assert bytes_of(place / "out") == bytes_of(place / "expected")
    assert not list(place.glob(".*"))
