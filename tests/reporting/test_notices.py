"""Warnings: printed once at the end of a command, and errors with --strict."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit.cli import main
from retrievalkit.data.runs import write_run
from retrievalkit.data.vectors.ranges import read_ahead
from retrievalkit.errors import DataError, InputError
from retrievalkit.models.batches import in_threads
from retrievalkit.reporting import notices
from retrievalkit.training.examples import ExampleData


def rkit(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def test_notes_are_shown_once_at_the_end_and_not_after_an_error(capsys):
    """A nested command, such as a recipe's step, shows its own; outside a command a note is shown immediately."""
    with notices.collected():
        notices.note("One.", "Two.")
        with notices.collected():
            notices.note("Inner.")
        notices.note("One.")
        # A concurrent command without notes does not end the others: Python threads search concurrently.
        with notices.collected():
            pass
        assert capsys.readouterr().err == "Note: Inner.\n"
    assert capsys.readouterr().err == "Note: One.\nNote: Two.\n"
    with pytest.raises(KeyError), notices.collected():
        notices.note("One.")
        raise KeyError
    assert capsys.readouterr().err == ""
    notices.note("One.")
    assert capsys.readouterr().err == "Note: One.\n"


def test_a_strict_command_and_the_steps_within_it_refuse():
    refused = r"One\. Two\. \(An error because of --strict"
    with notices.collected(strict=True), pytest.raises(InputError, match=refused):
        notices.note("One.", "Two.")
    with notices.collected(strict=True), notices.collected(), pytest.raises(InputError, match=refused):
        notices.note("One.", "Two.")


@pytest.fixture
def judged(tmp_path):
    """A run of two hits for each query, and judgements of more documents and of another query."""
    write_run(tmp_path / "run", {"q1": [("a", 2.0), ("b", 1.0)], "q2": [("a", 2.0), ("b", 1.0)], "x": [("a", 1.0)]})
    (tmp_path / "qrels").write_text("q1 0 a 1\nq1 0 z 1\nq2 0 b 1\nq3 0 a 1\n")
    return tmp_path


NOTES = [
    "1 of 3 queries of the run are not in the qrels and are left out: 'x'.",
    "1 of 3 queries of the qrels are not in the run and count 0: 'q3'.",
    "the run has at most 2 documents per query, so R@1000 looks no further.",
]


def test_an_evaluation_notes_incomplete_runs_and_judgements(judged):
    """Recall at 1,000 of a run with two hits is noted; RR@10 is not affected."""
    words = ("evaluate", judged / "run", "--qrels", judged / "qrels")
    result = rkit(*words, "--metrics", "R@1000 RR@10")
    assert result.exit_code == 0
    assert all(f"Note: {note}\n" in result.stderr for note in NOTES)
    for form in ((), ("--json",)):
        result = rkit(*words, "--strict", *form)
        assert (result.exit_code, result.stdout) == (2, "")
        assert all(note in result.stderr for note in NOTES[:2])


def test_a_strict_comparison_of_runs_of_different_queries_is_refused(judged):
    write_run(judged / "other", {"q1": [("a", 2.0)], "q3": [("a", 2.0)]})
    words = ["compare", judged / "run", judged / "other", "--qrels", judged / "qrels"]
    assert rkit(*words).exit_code == 0
    result = rkit(*words, "--strict", "--output", judged / "page.json")
    assert result.exit_code == 2
    assert "'x'" in result.stderr
    assert "are not in run 'other'" in result.stderr
    assert not (judged / "page.json").exists()


@pytest.fixture
def odd(tmp_path):
    """A corpus with two empty passages, a run of two hits, and an example without a positive."""
    passages = {"a": "rome is the city", "b": " ", "c": "", "d": "people pay with the peso in the city of rome"}
    _write(tmp_path / "corpus.jsonl", [{"_id": one, "text": text} for one, text in passages.items()])
    _write(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "rome"}, {"_id": "q2", "text": " "}])
    examples = [{"query_id": "q1", "query": "rome", "positives": ["a"], "negatives": ["d"]}]
    _write(tmp_path / "dev.jsonl", [{**examples[0], "query": "Rome\u00a0"}])
    examples.append({"query_id": "q3", "query": "the city", "positives": [], "negatives": ["a"]})
    _write(tmp_path / "examples.jsonl", examples)
    write_run(tmp_path / "run", {"q1": [("a", 2.0), ("d", 1.0)]})
    write_run(tmp_path / "other", {"q1": [("d", 2.0), ("a", 1.0)]})
    (tmp_path / "qrels").write_text("q1 0 a 1\nq9 0 a 1\n")
    _write(tmp_path / "long.jsonl", [{"_id": "q", "text": "rome " * 1_000}])
    return tmp_path


def _write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


EMPTY = "2 of the 4 passages of '{corpus}' are empty: b, c."
EMPTY_QUERY = "1 of the 2 queries of '{queries}' is empty: q2."
WITHOUT_POSITIVE = "1 of the 2 examples of '{examples}' has no positive and is skipped."
SEEN = "1 of the 1 dev questions are training questions too"
SHALLOW = "the run 'run' ends before rank 200, the --depth of the fusion."
ODD_COMMANDS = {
    "index": ("index {corpus} -o {out}", [EMPTY]),
    "convert": ("convert {corpus} {out} --kind corpus", [EMPTY]),
    "pretrain": ("pretrain --pretrainer mlm --model {model} --corpus {corpus} -o {out} --steps 1", [EMPTY]),
    "train": (
        "train --model {model} --examples {examples} --dev {dev} --corpus {corpus} -o {out} --epochs 1",
        [EMPTY, WITHOUT_POSITIVE, SEEN],
    ),
    "rerank train": (
        "rerank train --model {model} --examples {examples} --corpus {corpus} -o {out} --epochs 1",
        [EMPTY, WITHOUT_POSITIVE],
    ),
    "mine-negatives": (
        "mine-negatives --from {run} --examples {examples} --corpus {corpus} -o {out}",
        [EMPTY, WITHOUT_POSITIVE, SHALLOW],
    ),
    "encode queries": ("encode {model} {queries} --side query -o {out}", [EMPTY_QUERY]),
    "encode": ("encode {model} {corpus} -o {out}", [EMPTY]),
    "search": ("search {run} {other} --depth 200 -o {out}", [SHALLOW]),
    "tune": (
        "search {run} {other} --fusion linear --tune {qrels} -o {out}",
        ["1 of the 2 judged queries are not among the queries to tune on"],
    ),
}


@pytest.mark.parametrize("name", ODD_COMMANDS)
def test_each_command_notes_odd_inputs_and_refuses_them_if_strict(name, odd, tiny_model):
    if name == "index":
        pytest.importorskip("retrievalkit_pyserini")
    files = {place.stem: place for place in odd.iterdir()} | {"model": tiny_model}
    line, notes = ODD_COMMANDS[name]
    words = line.format(**files, out=odd / "out").split()
    before = sorted(odd.iterdir())
    refused = rkit(*words, "--strict")
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[-1].endswith("(An error because of --strict.)")
    assert sorted(odd.iterdir()) == before
    noted = rkit(*words)
    assert noted.exit_code == 0, noted.output
    for note in notes:
        assert noted.stderr.count(f"Note: {note.format(**files)}") == 1


def test_a_reranker_notes_empty_queries_and_a_run_that_ends_before_k(odd, tiny_model):
    corpus = odd / "corpus.jsonl"
    model = rk.train_reranker(tiny_model, odd / "dev.jsonl", corpus=corpus, output=odd / "reranker", epochs=1)
    words = ["rerank", "apply", model, "--run", odd / "run", "--queries", odd / "queries.jsonl"]
    words += ["--corpus", corpus, "--output", odd / "out"]
    shown = rkit(*words, "--k", 10).stderr
    assert EMPTY_QUERY.format(queries=odd / "queries.jsonl") in shown
    assert "has at most 2 documents per query, fewer than k=10" in shown
    assert "fewer than" not in rkit(*words).stderr


def test_a_truncated_text_is_counted_once_and_refused_if_strict(odd, tiny_model):
    """Explaining a hit encodes the query again, and each epoch its texts; `encode` has counted the passage."""
    long = "rome " * 400
    _write(odd / "corpus.jsonl", [{"_id": "a", "text": long}, {"_id": "b", "text": "lima"}])
    encode = ["encode", tiny_model, odd / "corpus.jsonl", "-o", odd / "vectors"]
    refused = rkit(*encode, "--strict")
    assert (refused.exit_code, "would be cut" in refused.stderr, (odd / "vectors").exists()) == (2, True, False)
    noted = rkit(*encode).stderr
    assert "1 document text had" in noted
    assert sum(map(int, re.findall(r"\d{2,}", noted.partition("Note: ")[2]))) > 400  # "rome" may be several tokens
    index = ["index", odd / "vectors", "-o", odd / "index", "--check", "--check-queries", odd / "long.jsonl"]
    assert "Note: 1 query text had more than 64 tokens and was cut" in rkit(*index).stderr
    assert rkit("search", odd / "index", "--query", "rome", "--strict").stderr == ""
    result = rkit("search", odd / "index", "--query", long)
    assert result.stderr.startswith("Note: 1 query text had more than 64 tokens and was cut, by 338 tokens.")
    assert result.stderr.count("Note") == 1
    _write(odd / "triples", [{"anchor": name, "positive": long} for name in "xy"])
    words = ["train", "--model", tiny_model, "--pooler", "mean", "--examples", odd / "triples", "--epochs", 3]
    assert "1 document text had" in rkit(*words, "--batch-size", 2, "--output", odd / "trained").stderr


def test_texts_truncated_by_a_tokenizer_in_python_are_counted(capsys):
    import transformers

    from retrievalkit.data.truncation import count_cut

    tokenizer = transformers.ByT5Tokenizer()
    texts = ["hello world", "hello w", "a"]
    with notices.collected():
        encoded = tokenizer(texts, truncation=True, max_length=8)
        count_cut(tokenizer, encoded, texts, kind="texts", limit=8)
    assert "1 text had more than 8 tokens and was cut, by 4 tokens" in capsys.readouterr().err


def test_a_passage_id_with_different_texts_in_training_and_dev_is_refused(tmp_path):
    """Otherwise training might read the dev text."""
    for name, text in (("train", "rome"), ("dev", "lima")):
        positive = {"docid": "p", "title": "", "text": text}
        _write(
            tmp_path / name,
            [{"query_id": name, "query": name, "positive_passages": [positive], "negative_passages": []}],
        )
    with pytest.raises(DataError, match="the passage id 'p' has another text in the training examples"):
        ExampleData.read(str(tmp_path / "train"), None, str(tmp_path / "dev"))


def test_commands_in_two_threads_do_not_meet(capsys):
    """Each keeps its own notes and its own strictness, however their beginnings and ends interleave."""
    turn = threading.Barrier(2, timeout=20)

    def lenient():
        with notices.collected():
            turn.wait()
            notices.note("Of the lenient thread.")
            assert not notices.strict()
            turn.wait()
        turn.wait()

    def strict():
        with notices.collected(strict=True):
            turn.wait()
            with pytest.raises(InputError, match="Of the strict thread"):
                notices.note("Of the strict thread.")
            turn.wait()
            turn.wait()

    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(lenient), pool.submit(strict)]:
            running.result()
    assert capsys.readouterr().err == "Note: Of the lenient thread.\n"


@pytest.mark.parametrize(
    "run", [lambda work: list(in_threads(work, range(8), 4)), lambda work: list(read_ahead(map(work, range(8))))]
)
def test_a_commands_own_threads_write_its_notes(run, capsys):
    def work(number):
        notices.note("Found twice.")
        notices.cut([str(number)], "texts", 4, number)
        return number

    with notices.collected():
        assert run(work) == list(range(8))
    noted = "8 texts had more than 4 tokens and were cut, by up to 7 tokens."
    assert capsys.readouterr().err.startswith(f"Note: Found twice.\nNote: {noted}")
