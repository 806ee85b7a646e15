"""Examples are held out to measure the effect of training."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.data.same_text import normal_form
from retrievalkit.models.retriever import Retriever
from retrievalkit.training.options import ExampleOptions
from retrievalkit.training.sampling import hold_out
from trainings import bytes_of, interrupt_at, log_of


@pytest.fixture(scope="module")
def many(tiny_collection, tmp_path_factory):
    """126 examples with two hard negatives each; 50 are held out."""
    file = tmp_path_factory.mktemp("many") / "examples.jsonl"
    ids = open_corpus(tiny_collection.corpus).ids()
    rows = []
    for split in ("train", "test"):
        for row in read_examples(tiny_collection.folder, split=split).rows:
            place = ids.index(row.positives[0])
            negatives = tuple(ids[(place + step) % len(ids)] for step in (1, 2))
            rows.append(Example(row.query_id, row.query, row.positives, negatives))
    write_examples(file, rows)
    return str(file)


# --- drawing -------------------------------------------------------------------------------------------------------


@given(
    queries=st.lists(st.integers(0, 300), min_size=1, max_size=700),
    share=st.floats(0, 1),
    seed=st.integers(0, 9),
    limit=st.none() | st.integers(1, 800),
)
def test_no_question_is_on_both_sides(queries, share, seed, limit):
    """In any spelling."""
    spelled = ("q{}", "Q{} ", "\u00adq{}\n")
    rows = [Example(str(number), spelled[number % 3].format(query), ("p",)) for number, query in enumerate(queries)]
    options = ExampleOptions(held_out=share, seed=seed, limit=limit)
    kept, held = hold_out(rows, options)
    assert sorted([*kept, *held], key=lambda row: int(row.query_id)) == rows
    questions, held_questions = ({normal_form(row.query) for row in part} for part in (kept, held))
    assert questions.isdisjoint(held_questions)
    assert (kept, held) == hold_out(rows, options)
    again = hold_out(rows[::-1], options)[1]
    assert held_questions == {normal_form(row.query) for row in again}, "the order decides"
    if share == 0 or min(len(rows), limit or len(rows)) < 100:
        assert not held
    else:
        assert 0 < len(held_questions) <= 500


@pytest.mark.parametrize(
    ("count", "options", "held"),
    [
        (99, {}, 0), (100, {}, 50), (530, {}, 53), (4000, {}, 400), (20_000, {}, 500), (530, {"held_out": 0}, 0),
        (1000, {"held_out": 0.3}, 300), (4000, {"limit": 800}, 80), (4000, {"limit": 99}, 0),
    ],
)  # fmt: skip
def test_number_of_held_out_questions(count, options, held):
    rows = [Example(str(number), f"q{number}", ("p",)) for number in range(count)]
    assert len(hold_out(rows, ExampleOptions(**options))[1]) == held


# --- measuring -----------------------------------------------------------------------------------------------------


def test_training_is_measured_before_and_after(programs, many, tmp_path):
    options = {"limit": None, "learning_rate": 5e-3, "epochs": 6, "pooler_options": {"normalize": True}}
    manifest = programs["train"](tmp_path / "out", examples=many, **options)
    dev = manifest["dev"]
    assert (dev["questions"], dev["held_out"], manifest["counts"]["examples"]) == (50, True, 76)
    lines = [line for line in log_of(tmp_path / "out") if "dev_nDCG@10" in line]
    assert [line["step"] for line in lines] == [0, 12, 24, 36, 48, 60]
    assert dev["before"] == {name: lines[0][f"dev_{name}"] for name in ("nDCG@10", "RR@10")}
    best = max(lines, key=lambda line: line["dev_nDCG@10"])
    assert (dev["epoch"], dev["after"]["nDCG@10"]) == (best["epoch"], best["dev_nDCG@10"])
    assert dev["after"]["nDCG@10"] > dev["before"]["nDCG@10"]
    assert 0 < dev["p"] < 0.05
    assert "nDCG@10 on 50 held-out questions" in (tmp_path / "out/README.md").read_text()


def test_the_untrained_state_is_kept_if_training_harms(programs, many, tmp_path, tiny_model):
    manifest = programs["train"](tmp_path / "out", examples=many, limit=None, learning_rate=1.0)
    dev = manifest["dev"]
    assert (dev["epoch"], dev["p"], dev["before"]) == (0, 1, dev["after"])
    made = [Retriever.load(tmp_path / "out"), Retriever.create(tiny_model, pooler="mean").eval()]
    one, other = (retriever.encode([("", "lima")], "query").vectors for retriever in made)
    assert one.equal(other.to(one.device))


@pytest.mark.parametrize("words", [("train",), ("rerank", "train", "--negatives", "2")], ids=str)
def test_the_command_prints_what_is_held_out_and_what_training_changes(
    words, many, tiny_collection, tiny_model, tmp_path
):
    places = (
        "--model",
        tiny_model,
        "--examples",
        many,
        "--corpus",
        tiny_collection.corpus,
        "--output",
        tmp_path / "out",
    )
    given = (*words, *places, "--epochs", "1", "--batch-size", "16", "--learning-rate", "0.01")
    result = CliRunner().invoke(main, [str(word) for word in given])
    assert "held out 50 of 126 examples" in result.stderr
    assert re.search("nDCG@10 on 50|no better than before training on 50 held-out questions", result.stdout)


def test_with_few_examples_a_note_says_that_nothing_is_measured(programs, many, tmp_path, capsys):
    for held_out, noted in ((0.1, True), (0, False)):
        manifest = programs["train"](tmp_path / str(held_out), held_out=held_out, epochs=0)
        assert "dev" not in manifest
        assert ("Nothing shows whether this training helps" in " ".join(capsys.readouterr().err.split())) == noted


@pytest.mark.parametrize(("epochs", "steps"), [(1, [2, 4, 6, 8, 10]), (2, [4, 8, 12, 16, 20]), (0.3, [1, 2, 3])])
def test_dev_questions_are_measured_five_times(programs, many, tmp_path, epochs, steps):
    programs["train"](tmp_path / "out", examples=many, limit=None, epochs=epochs)
    assert [line["step"] for line in log_of(tmp_path / "out") if "dev_nDCG@10" in line] == [0, *steps]


def test_a_resumed_training_has_the_same_bytes(programs, many, tmp_path, monkeypatch):
    options = {"examples": many, "limit": None, "learning_rate": 1e-3, "epochs": 2, "save_steps": 7}
    programs["train"](tmp_path / "whole", **options)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, 13)
        programs["train"](tmp_path / "cut", **options)
    programs["train"](tmp_path / "cut", **options, resume=True)
    assert bytes_of(tmp_path / "whole") == bytes_of(tmp_path / "cut")


# --- settings that are known to fail -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({}, ""),
        ({"batch_size": 4}, ""),
        ({"batch_size": 4, "negatives": 0}, "Without hard negatives, a batch of 4"),
        ({"loss_options": {"temperature": 1}}, ""),
        ({"pooler_options": {"normalize": True}}, ""),
        ({"limit": 49}, "Training on 49 examples"),
    ],
    ids=str,
)
def test_settings_that_are_known_to_fail_are_noted(programs, many, tmp_path, capsys, options, noted):
    programs["train"](tmp_path / "out", **({"examples": many, "limit": None, "epochs": 0, "held_out": 0} | options))
    notes = re.findall("^Note: .*", capsys.readouterr().err, re.MULTILINE)
    assert len(notes) == bool(noted)
    assert all(noted in note for note in notes)
