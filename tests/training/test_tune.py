"""`rkit tune`: the best of several trainings, in a limited time, also after an interruption."""

from __future__ import annotations

import shlex

import pytest
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.data.examples import read_examples, write_examples
from retrievalkit.errors import InputError, RetrievalkitError
from retrievalkit.training.options import TrainingOptions
from trainings import interrupt_at, quick_training, weights_of

pytest.importorskip("optuna")

MEASURE = "nDCG@10"
# Two trials of ten steps, the second of which learns.
QUICK = {
    "learning_rate": [1e-7, 1e-2], "temperature": 1, "epochs": 2, "batch_size": 16, "limit": 80, "precision": "fp32"
}  # fmt: skip
STEPS = 20


@pytest.fixture(scope="module")
def tuned(tiny_model, tiny_collection, tmp_path_factory):
    """Tunes to a folder and returns its manifest; keywords are further options."""
    data, dev = tiny_collection.folder, tmp_path_factory.mktemp("dev") / "dev.jsonl"
    write_examples(dev, read_examples(data, split="test").rows)
    places = {"model": tiny_model, "pooler": "mean", "corpus": str(data), "examples": str(data), "dev": str(dev)}
    return quick_training(rk.tune, QUICK, **places)


@pytest.fixture(scope="module")
def whole(tuned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned") / "out"
    tuned(folder)
    return folder


def trials_of(folder):
    """Of each trial the settings, the figure and the state."""
    trials = storage.read_manifest(folder)["tuning"]["trials"]
    return [{name: value for name, value in one.items() if name != "seconds"} for one in trials]


def test_the_checkpoint_is_that_of_the_better_learning_rate(whole):
    untrained, slow, fast = trials_of(whole)
    assert untrained["state"] == "untrained"
    assert fast[MEASURE] > max(slow[MEASURE], untrained[MEASURE])
    manifest = storage.read_manifest(whole, "checkpoint")
    assert manifest["options"]["training"]["learning_rate"] == fast["learning_rate"] == 1e-2
    assert manifest["dev"]["after"][MEASURE] == fast[MEASURE]
    assert sorted(one.name for one in whole.parent.iterdir()) == ["out"]
    assert not {"trials", "trials.journal"} & {one.name for one in whole.iterdir()}


def test_the_recorded_command_trains_the_same_checkpoint(whole):
    words = shlex.split(storage.read_manifest(whole)["tuning"]["command"])
    assert words[:2] == ["rkit", "train"]
    ran = CliRunner().invoke(main, words[1:], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert weights_of(words[-1]) == weights_of(whole)


@pytest.mark.parametrize("step", [8, 18])
def test_an_interrupted_search_continues(tuned, whole, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        interrupt_at(patch, step)
        with pytest.raises(KeyboardInterrupt):
            tuned(tmp_path / "out")
    steps = interrupt_at(monkeypatch, None)
    tuned(tmp_path / "out", resume=True)
    assert len(steps) < STEPS
    assert trials_of(tmp_path / "out") == trials_of(whole)
    assert weights_of(tmp_path / "out") == weights_of(whole)
    tuned(tmp_path / "out", resume=True)
    assert len(steps) < STEPS


def test_the_search_ends_with_its_budget_and_a_larger_one_continues_it(tuned, whole, tmp_path):
    with pytest.raises(RetrievalkitError, match=r"no training was completed in 0\.001s.*after 20 %"):
        tuned(tmp_path / "out", budget="0.001s")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="had other options"):
        tuned(tmp_path / "out", budget="1m", epochs=3, resume=True)
    tuned(tmp_path / "out", budget="1m", resume=True)
    assert weights_of(tmp_path / "out") == weights_of(whole)


def test_trials_that_fall_behind_are_pruned(tuned, tmp_path):
    """A learning rate so high that the model is lost, tried last."""
    tuned(tmp_path / "out", learning_rate=[1e-2, 10])
    _, good, bad = trials_of(tmp_path / "out")
    assert (good["state"], bad["state"]) == ("complete", "pruned")


def test_the_settings_of_train_are_tried_first(tuned, tmp_path):
    manifest = tuned(tmp_path / "out", learning_rate=None, epochs=1, temperature=[0.5, 2], limit=32)
    trials = manifest["tuning"]["trials"][1:]
    usual = TrainingOptions().suited(32).learning_rate
    assert (trials[0]["learning_rate"], trials[0]["temperature"]) == (usual, 0.5)
    assert sorted({one["learning_rate"] for one in trials}) == pytest.approx([usual * one for one in (0.5, 1, 2.5, 5)])
    assert len({(one["learning_rate"], one["temperature"]) for one in trials}) == len(trials) == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dev": None}, "--dev"),
        ({"budget": "20"}, "'20'.*90s, 20m or 2h"),
        ({"loss": "contrastive+flops"}, "'contrastive.flops' has none"),
        ({"epochs": [1, -1]}, "epochs has the value -1"),
        ({"loss_options": {"temperature": 1}, "temperature": 1}, "--set loss.temperature fixes it"),
    ],
)
def test_an_impossible_search_is_refused(tuned, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        tuned(tmp_path / "out", **changes)
    assert not any(tmp_path.iterdir())
