"""Each training option changes the result; invalid options are refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from retrievalkit_pretrain.pretrain import PretrainingOptions

from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import InputError
from retrievalkit.training.options import TrainingOptions
from trainings import log_of, saved_states, weights_of

DECLARED = {"train": TrainingOptions, "pretrain": PretrainingOptions}
LOOP = {
    "batch_size": 6, "micro_batch_size": 3, "learning_rate": 2e-2, "warmup_ratio": 0.5, "weight_decay": 0.1,
    "adam_epsilon": 1e-3, "max_gradient_norm": 0.1, "precision": "bf16", "logging_steps": 1, "save_steps": 1,
    "seed": 43,
}  # fmt: skip
# Each option with a value that differs from the quick training.
OTHERWISE = {
    "train": LOOP | {
        "epochs": 1, "limit": 16, "negatives": 2, "negative_pool": 1, "positive": "random", "sampling": "window",
        "false_negatives": "keep", "rank_from": 0, "batch_tokens": 20,
        "held_out": 0.5,
    },
    "pretrain": LOOP | {
        "steps": 5, "epochs": 0.3, "max_length": 12, "short_spans": 0.9, "titles": False, "language": "ja",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tiny_collection, examples, tmp_path_factory):
    """Texts in which an English "No. 1" does not end a sentence; dev questions."""
    path = tmp_path_factory.mktemp("texts") / "corpus.jsonl"
    rows = (
        {"_id": one.id, "title": one.title, "text": one.text.replace("number", "Mr. No. number")}
        for one in open_corpus(tiny_collection.corpus)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # By DPR's rule, because the untrained state might be the best by nDCG@10.
    return {"train": {"dev": examples["test"], "rank_from": 30}, "pretrain": {"corpus": str(path)}}


@pytest.fixture(scope="module")
def baselines(programs, places, tmp_path_factory):
    folder = tmp_path_factory.mktemp("baselines")
    for name in DECLARED:
        programs[name](folder / name, **places[name])
    return folder


@pytest.mark.parametrize("name", DECLARED)
def test_every_option_has_a_changed_value(name):
    declared = {field.name for field in dataclasses.fields(DECLARED[name])}
    assert set(OTHERWISE[name]) == declared - {"gradient_precision"}  # has no effect in one process


@pytest.mark.parametrize(("name", "option"), [(name, option) for name in OTHERWISE for option in OTHERWISE[name]])
def test_every_option_changes_something(programs, places, baselines, tmp_path, monkeypatch, name, option):
    saved, out = saved_states(monkeypatch), tmp_path / "out"
    without_steps = {"steps": None} if (name, option) == ("pretrain", "epochs") else {}
    programs[name](out, **(places[name] | without_steps | {option: OTHERWISE[name][option]}))
    same = weights_of(out) == weights_of(baselines / name)
    if option == "save_steps":
        assert (len(saved), same) == (6, True)
    elif option == "logging_steps":
        assert (len([line for line in log_of(out) if "loss" in line]), same) == (6, True)
    elif option == "held_out":
        assert same, "dev examples are given; test_held_out.py has the others"
    elif option == "rank_from":
        assert json.loads((out / "selection.json").read_text())["measure"] == "average_rank"
    else:
        assert not same


@pytest.mark.parametrize(
    ("examples", "epochs", "batch_size"),
    [(1, 10, 16), (96, 10, 16), (200, 9, 16), (999, 2, 16), (1_000, 4, 32), (4_000, 2, 32)],
)
def test_a_schedule_is_chosen_for_the_number_of_examples(examples, epochs, batch_size):
    chosen = TrainingOptions().suited(examples)
    assert (chosen.epochs, chosen.batch_size, chosen.learning_rate, chosen.warmup_ratio) == (
        epochs, batch_size, 4e-5, 0.05,
    )  # fmt: skip
    own = TrainingOptions(epochs=0, batch_size=4, learning_rate=0, warmup_ratio=0)
    assert own.suited(examples) == own


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("train", {"epochs": -1}, "epochs.*-1.*greater than or equal to 0"),
        ("train", {"epochs": float("nan")}, "epochs.*nan"),
        ("train", {"learning_rate": float("inf")}, "learning_rate.*inf"),
        ("train", {"batch_size": 0}, "batch_size.*0.*greater than or equal to 1"),
        ("train", {"warmup_ratio": 2}, "warmup_ratio.*2.*less than or equal to 1"),
        ("train", {"seed": -1}, "seed.*-1"),
        ("train", {"batch_size": 1, "negatives": 0}, "no query has a negative"),
        ("pretrain", {"steps": 0}, "steps.*0.*greater than or equal to 1"),
        ("pretrain", {"max_length": 2}, "max_length.*2.*greater than or equal to 3"),
        ("pretrain", {"short_spans": 1.5}, "short_spans.*less than or equal to 1"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(programs, name, options, message):
    with pytest.raises(InputError, match=message):
        programs[name]("never", **options)
