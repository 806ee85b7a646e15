"""torchrun's processes divide the work of a command; real processes, connected by gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from click.testing import CliRunner

from killed_processes import forks, kill_at_call, start
from retrievalkit import cli, storage
from retrievalkit.contracts.cluster import RANKS, ClusterOptions, spread_map
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import write_run
from retrievalkit.errors import DataError, InputError, RetrievalkitError
from retrievalkit.indexing import corpus_encoding
from retrievalkit.indexing.build import build_index
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.reporting import notices
from retrievalkit.search import pair_scoring, searcher
from retrievalkit.storage import write_folder, write_manifest
from retrievalkit.training.collective import PATIENCE, join, joined
from retrievalkit.training.ranks import lead
from trainings import bytes_of

pytestmark = forks

HERE = ClusterOptions(ray=RANKS)


def pid(item):
    time.sleep(0.01)
    return item, os.getpid()


def doubled(item):
    if item == 7:
        problem = "7 is no even number"
        raise DataError(problem, file="numbers.txt", line=7)
    notices.note(f"{item} is doubled.")
    return 2 * item


class Make:
    """A function that can be sent to another process."""

    def __init__(self, function):
        self.function = function

    def __call__(self):
        return self.function


@pytest.mark.parametrize("ordered", [True, False])
def test_all_processes_compute_and_the_main_process_gets_all_results(together, ordered):
    def spread():
        return lead(join(), lambda: list(spread_map(Make(pid), lambda: range(40), HERE, ordered=ordered)))

    results, *others = together(spread, 3)
    assert others == [None, None]
    assert (results if ordered else sorted(results)) == [(item, one) for item, (_, one) in enumerate(sorted(results))]
    assert len({process for _, process in results}) == 3


def test_each_map_has_its_own_function_and_the_main_process_may_have_another(together):
    def twice():
        first = list(spread_map(Make(str), lambda: range(9), HERE))
        second = list(spread_map(Make(pid), lambda: range(9), HERE, here=lambda item: (item, "here")))
        return first, {process == "here" for _, process in second}

    assert together(lambda: lead(join(), twice))[0] == ([str(item) for item in range(9)], {True, False})


def test_an_error_in_another_process_is_the_commands_own(together):
    def fail():
        try:
            lead(join(), lambda: list(spread_map(Make(doubled), lambda: [7, 7, 7], HERE, here=pid)))
        except (DataError, SystemExit) as error:
            return str(error), "".join(getattr(error, "__notes__", []))

    (message, note), (code, _) = together(fail)
    assert message == "numbers.txt:7: 7 is no even number"
    assert "in doubled" in note
    assert code == "2"


def test_an_error_of_the_items_ends_all_processes(together):
    def items():
        yield 1
        problem = "not an item"
        raise InputError(problem)

    def fail():
        try:
            lead(join(), lambda: list(spread_map(Make(str), items, HERE)))
        except (InputError, SystemExit) as error:
            return str(error)

    assert together(fail) == ["not an item", "2"]


def test_warnings_of_all_processes_reach_the_command(together):
    def warn():
        def command():
            with notices.gathered() as met:
                list(spread_map(Make(doubled), lambda: range(6), HERE))
            return sorted(met.sentences)

        return lead(join(), command)

    assert together(warn)[0] == [f"{item} is doubled." for item in range(6)]


def test_without_torchrun_there_are_no_such_workers():
    with pytest.raises(InputError, match="torchrun"):
        list(spread_map(Make(str), lambda: [1], HERE))


# --- lost processes --------------------------------------------------------------------------------------------------


def losing(number, item):
    if join().rank == 1 and item > 5:
        os.kill(os.getpid(), number)
    return item


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stalled"])
def test_a_lost_process_ends_the_main_process(tmp_path, monkeypatch, number):
    """A stalled process after the timeout: 3 s here."""
    monkeypatch.setenv(PATIENCE, "0.05")

    def command():
        with (
            pytest.raises(RetrievalkitError, match="another process has ended, or has not answered"),
            joined(),
        ):
            lead(join(), lambda: list(spread_map(Make(partial(losing, number)), lambda: range(1 << 20), HERE)))

    main, other = start(command, tmp_path, 2)
    main.join(timeout=30)
    other.kill()
    other.join()
    assert main.exitcode == 0


# --- commands --------------------------------------------------------------------------------------------------------


def rkit(*words):
    """Run a command as torchrun's processes do; return its exit code and output."""
    ended = CliRunner().invoke(cli.main, [str(word) for word in words])
    return ended.exit_code, ended.stdout


@pytest.fixture
def commands(tiny_model, tiny_collection, examples, tmp_path, monkeypatch):
    """Name -> words of a command, without its output; small items, so that each process gets several."""
    monkeypatch.setattr(searcher, "BATCH_QUERIES", 16)
    monkeypatch.setattr(pair_scoring, "WINDOW", 32)
    corpus, queries = tiny_collection.corpus, tiny_collection.queries
    options = corpus_encoding.EncodingOptions(shard_texts=8)
    corpus_encoding.encode(tiny_model, corpus, side="document", output=tmp_path / "vectors", options=options)
    build_index(tmp_path / "vectors", output=tmp_path / "index")
    with write_folder(tmp_path / "reranker") as staging:
        CrossEncoder.create(tiny_model, seed=1).save(staging)
        write_manifest(staging, "reranker", command="rerank train", options={}, max_length=64)
    ids = [one.id for one in open_corpus(corpus)]
    run = {query.id: [(one, 1.0 - rank / 100) for rank, one in enumerate(ids[:10])] for query in read_queries(queries)}
    write_run(tmp_path / "run.trec", run)
    index, places = tmp_path / "index", ("--corpus", corpus)
    return {
        "encode": ("encode", tiny_model, corpus, "--set", "shard_texts=8"),
        "search": ("search", index, "--queries", queries, "--k", 5),
        "fused": ("search", index, tmp_path / "run.trec", "--fusion", "linear", "--queries", queries, "--k", 5),
        "mine": ("mine-negatives", "--from", index, "--examples", examples["train"], *places, "--depth", 10),
        "rerank": (
            "rerank",
            "apply",
            tmp_path / "reranker",
            "--run",
            tmp_path / "run.trec",
            "--queries",
            queries,
            *places,
        ),
        "index": ("index", tmp_path / "vectors", "--shards", 3),
    }


@pytest.mark.parametrize("name", ["encode", "search", "fused", "mine", "rerank", "index"])
def test_a_command_writes_and_prints_the_same_as_in_a_single_process(commands, together, tmp_path, monkeypatch, name):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    code, printed = rkit(*commands[name], "--output", tmp_path / "one" / "output")
    assert code == 0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ended = together(lambda: rkit(*commands[name], "--output", tmp_path / "two" / "output"))
    assert ended == [(0, printed.replace("/one/", "/two/")), (0, "")]
    assert bytes_of(tmp_path / "two") == bytes_of(tmp_path / "one")


def test_a_killed_encoding_continues_after_the_shards_it_has_written(commands, together, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    output = tmp_path / "output"

    def slow(*arguments, original=corpus_encoding._Job.without_failing):
        time.sleep(0.2)
        return original(*arguments)

    def killed():
        if join().rank == 1:
            kill_at_call(corpus_encoding._Job, "without_failing", 2)
        else:
            corpus_encoding._Job.without_failing = slow
        rkit(*commands["encode"], "--output", output)

    for one in start(killed, tmp_path, 2):
        one.join(timeout=60)
    partial_folder = storage.partial_folder(output)
    written = {path.name: path.stat().st_mtime_ns for path in partial_folder.glob("vectors-*.npy")}
    assert 0 < len(written) < 6
    assert together(lambda: rkit(*commands["encode"], "--output", output)[0]) == [0, 0]
    assert {name: (output / name).stat().st_mtime_ns for name in written} == written
    assert bytes_of(output) == bytes_of(tmp_path / "vectors")


@pytest.mark.slow
def test_torchrun_encodes_the_vectors_of_one_process(commands, tmp_path):
    words = ["-m", "torch.distributed.run", "--nproc-per-node", 2, "-m", "retrievalkit", *commands["encode"]]
    words += ["--output", tmp_path / "two"]
    ended = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{tmp_path}/two: 42 texts encoded (cls pooling, the default)\n"
    assert bytes_of(tmp_path / "two") == bytes_of(tmp_path / "vectors")
