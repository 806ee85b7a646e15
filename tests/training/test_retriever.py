"""`rkit train` learns, repeats itself to the byte, goes on where it was killed, and leaves nothing of wrong input."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from killed_processes import first_fast, forks, in_another_process, kill, kill_at_call
from retrievalkit import artifacts
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.errors import ArtifactError, InputError
from retrievalkit.model.checkpoint import checkpoint_fingerprint
from retrievalkit.model.retriever import Retriever
from retrievalkit.score import scores
from retrievalkit.training import loop, selection, states
from retrievalkit.training.options import TrainingOptions
from retrievalkit.training.selection import DevSet
from retrievalkit.training.train import train
from trainings import bytes_of, interrupt_at, log_of, quick_training, saved_states, weights_of

# Three steps an epoch, and each option has something to change: several positives, pools of negatives, shared passages.
QUICK = {"epochs": 2, "limit": 24, "batch_size": 8, "learning_rate": 1e-2, "precision": "fp32", "logging_steps": 2}


@pytest.fixture(scope="session")
def examples(tiny_collection, tmp_path_factory):
    """Training and dev examples, each with two positives and five negatives."""
    folder = tmp_path_factory.mktemp("examples")
    ids = open_corpus(tiny_collection.corpus).ids()
    for split in ("train", "test"):
        rows = []
        for row in read_examples(tiny_collection.folder, split=split).rows:
            place = ids.index(row.positives[0])
            around = [ids[(place + step) % len(ids)] for step in range(1, 7)]
            rows.append(Example(row.query_id, row.query, (row.positives[0], around[0]), tuple(around[1:])))
        write_examples(folder / f"{split}.jsonl", rows if split == "train" else rows[:16])
    return {split: str(folder / f"{split}.jsonl") for split in ("train", "test")}


@pytest.fixture
def quick(tiny_model, tiny_collection, examples):
    """Trains for a second or so."""
    places = {"model": tiny_model, "corpus": str(tiny_collection.corpus), "examples": examples["train"]}
    return quick_training(train, QUICK, pooler="mean", **places)


@pytest.fixture(scope="session")
def trained(tiny_model, tiny_collection, tmp_path_factory):
    """A checkpoint that has learnt the tiny collection's training questions, from BEIR files."""
    output = tmp_path_factory.mktemp("trained") / "checkpoint"
    options = {"epochs": 8, "batch_size": 16, "learning_rate": 2e-2, "precision": "fp32", "logging_steps": 6}
    folder = str(tiny_collection.folder)
    train(tiny_model, folder, corpus=folder, output=output, pooler="mean", **options)
    return output


# --- learning ------------------------------------------------------------------------------------------------------


def reciprocal_rank(model, collection, split):
    corpus = list(open_corpus(collection.corpus))
    examples = read_examples(collection.folder, split=split).rows
    documents = model.encode([(passage.title, passage.text) for passage in corpus], "document", precision="fp32")
    queries = model.encode([("", example.query) for example in examples], "query", precision="fp32")
    gold = torch.tensor([[passage.id for passage in corpus].index(example.positives[0]) for example in examples])
    found = scores(queries, documents)
    ranks = (found > found.gather(1, gold[:, None])).sum(dim=1) + 1
    return float((1 / ranks).mean())


def test_the_loss_falls(trained):
    losses = [line["loss"] for line in log_of(trained) if "loss" in line]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("split", ["train", "test"])
def test_retrieval_improves(trained, tiny_model, tiny_collection, split):
    """Also for questions that were not trained on, about the same countries."""
    before = reciprocal_rank(Retriever.create(tiny_model, pooler="mean"), tiny_collection, split)
    after = reciprocal_rank(Retriever.load(trained), tiny_collection, split)
    assert before < 0.2
    assert after > 0.5


def test_the_log_holds_the_loss_its_terms_and_no_times(trained):
    for line in log_of(trained):
        assert set(line) == {"step", "epoch", "loss", "contrastive", "grad_norm", "learning_rate"}
        assert line["contrastive"] == line["loss"]
    assert [line["step"] for line in log_of(trained)] == [6, 12, 18, 24, 30, 36, 42, 48]


def test_the_learning_rate_rises_and_falls_linearly(quick, tmp_path):
    quick(tmp_path / "out", epochs=4, limit=40, warmup_ratio=0.5, logging_steps=1)
    rates = [line["learning_rate"] for line in log_of(tmp_path / "out")]
    assert rates == pytest.approx([1e-2 * (step / 10 if step < 10 else (20 - step) / 10) for step in range(20)])


def test_a_short_training_logs_every_step(quick, tmp_path):
    """Its curves would otherwise be single points."""
    quick(tmp_path / "out", logging_steps=None)
    assert [line["step"] for line in log_of(tmp_path / "out")] == [1, 2, 3, 4, 5, 6]


# --- the folder ----------------------------------------------------------------------------------------------------


def test_the_folder_is_a_checkpoint_and_nothing_is_beside_it(trained):
    names = {path.name for path in trained.iterdir()} - {"logs"}
    weights = {"encoder", "pooler.safetensors", "retrievalkit.json"}
    assert names == weights | {"README.md", "manifest.json", "training.jsonl", "training.html"}
    assert list(trained.parent.iterdir()) == [trained]


def test_the_manifest_says_what_made_it(quick, tmp_path, examples, tiny_model, tiny_collection):
    returned = quick(tmp_path / "out", dev=examples["test"], loss_options={"temperature": 0.5})
    manifest = artifacts.read_manifest(tmp_path / "out", "checkpoint")
    assert manifest == json.loads(json.dumps(returned))
    assert manifest["precision"] == "fp32"
    paths = {name: entry["path"] for name, entry in manifest["inputs"].items()}
    corpus = str(tiny_collection.corpus)
    assert paths == {"model": tiny_model, "examples": examples["train"], "corpus": corpus, "dev": examples["test"]}
    assert len({entry["fingerprint"] for entry in manifest["inputs"].values()}) == 4
    assert manifest["counts"] == {"examples": 24, "steps": 6}
    options = manifest["options"]
    assert options["training"] == dataclasses.asdict(TrainingOptions(**QUICK))
    assert (options["loss"]["name"], options["loss"]["options"]) == ("contrastive", {"temperature": 0.5})
    assert options["pooler"]["name"] == "mean"
    assert manifest["fingerprint"] == Retriever.load(tmp_path / "out").fingerprint


def test_the_model_card_names_the_parts(trained):
    card = (trained / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: retrievalkit\n")
    for part in ("mean", "contrastive", "84 from", "rkit encode CHECKPOINT"):
        assert part in card


def test_tensorboard_files_are_kept_and_have_no_part_in_the_fingerprint(quick, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    quick(tmp_path / "out")
    events = EventAccumulator(str(tmp_path / "out" / "logs" / "out")).Reload()
    assert [one.step for one in events.Scalars("loss")] == [2, 4, 6]
    assert "contrastive" in events.Tags()["scalars"]
    shutil.rmtree(tmp_path / "out" / "logs")
    assert "encoder/model.safetensors" in artifacts.read_manifest(tmp_path / "out")["files"]
    assert checkpoint_fingerprint(tmp_path / "out") == artifacts.fingerprint_folder(
        tmp_path / "out", skip=artifacts.NOT_WEIGHTS
    )


def test_without_tensorboard_only_the_pace_is_logged(quick, tmp_path, monkeypatch):
    """Texts per second and memory, which differ from training to training, and so are no part of the log."""
    monkeypatch.setattr(loop, "get_available_trackers", list)
    quick(tmp_path / "out", logging_steps=2)
    assert sorted(one.name for one in (tmp_path / "out" / "logs").iterdir()) == ["pace.html", "pace.jsonl"]
    pace = [json.loads(line) for line in (tmp_path / "out/logs/pace.jsonl").read_text().splitlines()]
    assert [one["step"] for one in pace] == [2, 4, 6]
    assert all(one["texts_per_second"] > 0 and one["memory_gib"] > 0 for one in pace)
    assert "texts_per_second" not in (tmp_path / "out/training.jsonl").read_text()


def test_trackers_that_are_unknown_or_not_installed_are_refused_before_anything_is_written(quick, tmp_path):
    with pytest.raises(InputError, match=r"unknown tracker 'wanb'.*'wandb'"):
        quick(tmp_path / "out", report_to="wanb")
    with pytest.raises(InputError, match="report_to comet_ml needs the package 'comet_ml'"):
        quick(tmp_path / "out", report_to="comet_ml")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_trackers_get_what_is_logged(quick, tmp_path, monkeypatch):
    """MLflow's files, and Weights & Biases without a network; the checkpoint is the same as without."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    quick(tmp_path / "plain", logging_steps=2)
    quick(tmp_path / "out", logging_steps=2, report_to="mlflow,wandb")
    assert checkpoint_fingerprint(tmp_path / "out") == checkpoint_fingerprint(tmp_path / "plain")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("out").experiment_id])
    assert {"loss", "learning_rate", "texts_per_second"} <= {name.rpartition("/")[2] for name in run.data.metrics}
    assert list((tmp_path / "wandb").glob("offline-run-*"))


def test_the_terminal_shows_our_bar_and_nothing_else(quick, tmp_path, capfd):
    quick(tmp_path / "out", save_steps=1)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "training" in shown.err
    assert "transformers" not in shown.err
    assert "it/s" not in shown.err


# --- repeating -----------------------------------------------------------------------------------------------------


def test_two_equal_trainings_give_equal_bytes(quick, tmp_path, examples):
    made = []
    for name in ("one", "two"):
        torch.manual_seed(len(made))
        quick(tmp_path / name, dev=examples["test"], separate_towers=True)
        made.append(bytes_of(tmp_path / name))
    assert made[0] == made[1]
    assert len(made[0]) > 10


def test_no_epoch_leaves_the_model_as_it_was(quick, tmp_path, tiny_model):
    manifest = quick(tmp_path / "out", epochs=0)
    assert manifest["counts"]["steps"] == 0
    texts = [("", "lima")]
    expected = Retriever.create(tiny_model, pooler="mean").encode(texts, "query", precision="fp32").vectors
    assert torch.equal(Retriever.load(tmp_path / "out").encode(texts, "query", precision="fp32").vectors, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch_size": 3},
        {"separate_towers": True, "micro_batch_size": 2},
        {"pooler": "last", "epochs": 0.5},
        {"encoder_options": {"query_length": 5, "document_length": 9}},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", ["tiny_model", "tiny_t5"])
def test_every_way_of_training_leaves_a_checkpoint_that_loads(request, quick, tmp_path, model, changes):
    quick(tmp_path / "out", model=request.getfixturevalue(model), **changes)
    loaded = Retriever.load(tmp_path / "out")
    assert loaded.encode([("Peru", "Lima")], "document").vectors.isfinite().all()
    assert loaded.fingerprint == weights_of(tmp_path / "out")


def test_gradient_caching_does_not_change_the_training(quick, tmp_path):
    """Without dropout, which falls otherwise on other chunks."""
    options = {"encoder_options": {"dropout": 0.0}, "learning_rate": 1e-3}
    plain = quick(tmp_path / "plain", **options)
    cached = quick(tmp_path / "cached", micro_batch_size=3, **options)
    assert plain["fingerprint"] != cached["fingerprint"], "sums in another order differ in the last digits"
    one, other = (load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("plain", "cached"))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4)


# --- options -------------------------------------------------------------------------------------------------------

# Each option with another value than in QUICK; and what must differ then, where it is not the weights.
OTHERWISE = {
    "epochs": 1, "limit": 16, "batch_size": 6, "micro_batch_size": 3, "negatives": 2, "negative_pool": 1,
    "positive": "random", "sampling": "window", "false_negatives": "keep", "learning_rate": 2e-2,
    "warmup_ratio": 0.5, "weight_decay": 0.1, "adam_epsilon": 1e-3, "max_gradient_norm": 0.1, "rank_from": 0,
    "batch_tokens": 20, "precision": "bf16", "logging_steps": 1, "save_steps": 1, "seed": 43,
}  # fmt: skip


@pytest.fixture(scope="module")
def baseline(tiny_model, tiny_collection, examples, tmp_path_factory):
    output = tmp_path_factory.mktemp("baseline") / "out"
    corpus = str(tiny_collection.corpus)
    places = {"corpus": corpus, "examples": examples["train"], "dev": examples["test"]}
    train(tiny_model, pooler="mean", output=output, **places, **QUICK)
    return output


def test_every_option_is_among_those_that_are_changed():
    assert set(OTHERWISE) == {field.name for field in dataclasses.fields(TrainingOptions)}


@pytest.mark.parametrize("option", OTHERWISE)
def test_every_option_changes_something(quick, tmp_path, baseline, examples, monkeypatch, option):
    saved = saved_states(monkeypatch)
    quick(tmp_path / "out", dev=examples["test"], **{option: OTHERWISE[option]})
    if option == "save_steps":
        assert len(saved) == 6
    elif option == "logging_steps":
        assert len(log_of(tmp_path / "out")) > len(log_of(baseline))
    elif option == "rank_from":
        assert json.loads((tmp_path / "out" / "selection.json").read_text())["measure"] == "average_rank"
    else:
        assert weights_of(tmp_path / "out") != weights_of(baseline)
    if option in ("save_steps", "logging_steps"):
        assert weights_of(tmp_path / "out") == weights_of(baseline)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "epochs.*-1.*greater than or equal to 0"),
        ({"epochs": float("nan")}, "epochs.*nan"),
        ({"learning_rate": float("inf")}, "learning_rate.*inf"),
        ({"batch_size": 0}, "batch_size.*0.*greater than or equal to 1"),
        ({"limit": 0}, "limit.*0"),
        ({"micro_batch_size": 0}, "micro_batch_size.*0"),
        ({"save_steps": 0}, "save_steps.*0"),
        ({"logging_steps": 0}, "logging_steps.*0"),
        ({"warmup_ratio": 2}, "warmup_ratio.*2.*less than or equal to 1"),
        ({"batch_size": 1, "negatives": 0}, "nothing to contrast"),
        ({"batch_tokens": 100, "micro_batch_size": 2}, "batch_tokens has no effect"),
    ],
)
def test_options_that_no_training_can_have_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        train("no-model", "no-examples", output="never", **options)


# --- dev selection -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "rank_from", "best"),
    [([3.0, 1.0, 2.0], 30, 1), ([1.0, 2.0, 3.0], 30, 0), ([1.0, 50.0, 40.0], 1, 2), ([1.0, 40.0, 50.0], 1, 1)],
)
def test_the_state_that_is_best_on_the_dev_questions_is_kept(
    quick, tmp_path, examples, monkeypatch, values, rank_from, best
):
    states = []

    def measure(self, judged, loss, epoch, precision):
        if len(self.examples) == 2:
            return "loss", 0.0  # the rehearsal
        states.append(judged.encode([("", "lima")], "query", precision="fp32").vectors)
        assert epoch == len(states) - 1
        return "average_rank" if epoch >= rank_from else "loss", values[epoch]

    monkeypatch.setattr(DevSet, "measure", measure)
    quick(tmp_path / "out", epochs=3, dev=examples["test"], rank_from=rank_from)
    kept = Retriever.load(tmp_path / "out").encode([("", "lima")], "query", precision="fp32").vectors
    assert [torch.equal(kept, state) for state in states] == [epoch == best for epoch in range(3)]
    chosen = json.loads((tmp_path / "out" / "selection.json").read_text())
    assert (chosen["epoch"], chosen["value"]) == (best, values[best])


def test_dev_values_are_logged_beside_the_loss(quick, tmp_path, examples):
    quick(tmp_path / "out", epochs=2.5, limit=16, dev=examples["test"], rank_from=1, logging_steps=1)
    log = log_of(tmp_path / "out")
    assert [(line["step"], name) for line in log for name in line if name.startswith("dev_")] == [
        (2, "dev_loss"),
        (4, "dev_average_rank"),
        (5, "dev_average_rank"),
    ]
    assert [line["step"] for line in log if "loss" in line] == [1, 2, 3, 4, 5]


# --- resuming ------------------------------------------------------------------------------------------------------

RESUMED = {"epochs": 3, "save_steps": 2, "logging_steps": 4, "separate_towers": True}


def cut_file_and_kill(model, path):
    path.write_bytes(b"half of the weights")
    kill()


# Where a training of nine steps is killed: states are saved after steps 2, 4, 6, 8 and 9, dev questions are judged
# after steps 3, 6 and 9.
MOMENTS = {
    "before any state": lambda: kill_at_call(loop.Loop, "compute_step", 2),
    "in the middle of an epoch": lambda: kill_at_call(loop.Loop, "compute_step", 6),
    "between the end of an epoch and dev selection": lambda: kill_at_call(DevSet, "measure", 3),
    "between the best state and what is known of it": lambda: kill_at_call(selection, "save_weights", 1, after=True),
    "while the weights of a state are written": lambda: setattr(states, "save_weights", cut_file_and_kill),
    "while the optimiser of a state is written": lambda: kill_at_call(torch, "save", 4),
    "before the last file of a state is written": lambda: kill_at_call(states, "_complete", 3),
    "between two states, the older still there": lambda: kill_at_call(states, "saved", 3),
    "after a line of the log": lambda: kill_at_call(loop.Loop, "log", 3, after=True),
    "while the checkpoint is written": lambda: kill_at_call(Retriever, "save", 1),
    "after the states are removed": lambda: kill_at_call(Path, "unlink", 1),
    "before the folder gets its name": lambda: kill_at_call(artifacts.outputs, "_replace_folder", 1),
}


@pytest.fixture(scope="module")
def uninterrupted(tiny_model, tiny_collection, examples, tmp_path_factory):
    """The bytes of a training that was not killed."""
    output = tmp_path_factory.mktemp("uninterrupted") / "out"
    options = QUICK | {name: value for name, value in RESUMED.items() if name != "separate_towers"}
    places = {"corpus": str(tiny_collection.corpus), "examples": examples["train"], "dev": examples["test"]}
    train(tiny_model, pooler="mean", separate_towers=True, output=output, **places, **options)
    return bytes_of(output)


@forks
@pytest.mark.parametrize("moment", first_fast(MOMENTS))
def test_a_killed_training_goes_on_and_ends_with_the_same_bytes(quick, tmp_path, examples, uninterrupted, moment):
    output = tmp_path / "out"

    def killed():
        MOMENTS[moment]()
        quick(output, dev=examples["test"], **RESUMED)

    assert in_another_process(killed) == -signal.SIGKILL
    assert not output.exists()
    assert artifacts.partial_folder(output).exists()
    quick(output, dev=examples["test"], resume=True, **RESUMED)
    assert bytes_of(output) == uninterrupted
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.slow
@forks
def test_a_training_can_be_killed_again_and_again(quick, tmp_path, examples, uninterrupted):
    output = tmp_path / "out"

    def killed():
        kill_at_call(loop.Loop, "compute_step", 4)
        quick(output, dev=examples["test"], resume=True, **RESUMED)

    codes = []
    while not output.exists():
        codes.append(in_another_process(killed))
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert bytes_of(output) == uninterrupted


@forks
def test_a_training_that_ends_in_the_middle_of_an_epoch_takes_no_step_more(quick, tmp_path):
    options = {"epochs": 1.5, "save_steps": 2}

    def killed():
        kill_at_call(Retriever, "save", 1)
        quick(tmp_path / "out", **options)

    quick(tmp_path / "whole", **options)
    assert in_another_process(killed) == -signal.SIGKILL
    assert quick(tmp_path / "out", resume=True, **options)["counts"]["steps"] == 5
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_a_resumed_training_does_not_start_anew(quick, tmp_path, monkeypatch, capfd):
    """And it says what an interruption keeps, and where it goes on."""
    calls = interrupt_at(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt) as interrupted:
        quick(tmp_path / "out", save_steps=2)
    assert interrupted.value.__notes__ == [
        "Interrupted at step 5; the state after step 4 is kept: run the same command with --resume."
    ]
    quick(tmp_path / "out", save_steps=2, resume=True)
    assert "resuming after step 4 of 6\n" in capfd.readouterr().err
    assert len(calls) == 8, "six steps, of which four were saved, and the last two again"


def test_without_resume_a_training_starts_anew(quick, tmp_path, monkeypatch):
    calls = interrupt_at(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path / "out", save_steps=2)
    quick(tmp_path / "out", save_steps=2)
    assert len(calls) == 12
    assert len(log_of(tmp_path / "out")) == 3


def test_an_interrupted_training_without_a_state_leaves_nothing(quick, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path / "out", save_steps=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [{"seed": 1}, {"pooler": "last"}, {"epochs": 3}, {"separate_towers": True}], ids=str)
def test_another_training_cannot_be_resumed(quick, tmp_path, monkeypatch, change):
    interrupt_at(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt):
        quick(tmp_path / "out", save_steps=2)
    with pytest.raises(ArtifactError, match="had other options or other data, so it cannot be resumed"):
        quick(tmp_path / "out", save_steps=2, resume=True, **change)
    assert artifacts.partial_folder(tmp_path / "out").exists(), "what was trained is still there"


def test_a_finished_training_is_not_done_again(quick, tmp_path, monkeypatch):
    """The kill may have come when all was done."""
    returned = quick(tmp_path / "out")
    calls = interrupt_at(monkeypatch, 1)
    before = bytes_of(tmp_path / "out")
    assert quick(tmp_path / "out", resume=True) == json.loads(json.dumps(returned))
    with pytest.raises(ArtifactError, match="exists already"):
        quick(tmp_path / "out", resume=True, seed=1)
    assert bytes_of(tmp_path / "out") == before
    assert not calls


def test_there_may_be_nothing_to_resume(quick, tmp_path, baseline):
    quick(tmp_path / "out", resume=True)
    assert (tmp_path / "out").exists()


# --- wrong input ---------------------------------------------------------------------------------------------------

LOSS = """
from retrievalkit import hookimpl
from retrievalkit.contracts import Loss, LossValue
from retrievalkit.errors import UnsupportedError

@hookimpl
def register_losses(register):
    register("picky", "local_losses:Picky")
    register("watching", "local_losses:Watching")

class Picky(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        raise UnsupportedError("loss 'picky' needs another pooler.")

class Watching(Loss):
    seen = []
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        self.seen.append((progress.step, round(progress.epoch, 3), progress.total_steps))
        return LossValue(queries.vectors.sum() + documents.vectors.sum(), {"constant": queries.vectors.new_ones(())})
"""


@pytest.fixture
def local_losses(tmp_path_factory, monkeypatch, fresh_registry):
    path = tmp_path_factory.mktemp("plugin") / "local_losses.py"
    path.write_text(LOSS)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(path))


def test_a_loss_is_told_where_training_is(quick, tmp_path, local_losses):
    quick(tmp_path / "out", loss="watching")
    import local_losses as module

    rehearsal, *steps = module.Watching.seen
    assert rehearsal == (0, 0.0, 1)
    assert steps == [(step, round(step / 3, 3), 6) for step in range(6)]
    assert log_of(tmp_path / "out")[0]["constant"] == 1.0


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


EXAMPLE = {"query_id": "q", "query": "lima", "positives": ["c0"], "negatives": ["c1"]}
BAD_EXAMPLES = {
    "broken JSON": (jsonl(EXAMPLE) + '{"query_id": ', r"bad\.jsonl:2: "),
    "a missing field": (jsonl(EXAMPLE, {"query_id": "q", "positives": ["c0"]}), r"bad\.jsonl:2: .*query"),
    "an unknown positive": (jsonl(EXAMPLE, EXAMPLE | {"positives": ["c99"]}), r"bad\.jsonl:2: .*'c99'"),
    "an unknown negative": (jsonl(EXAMPLE, EXAMPLE | {"negatives": ["d1"]}), r"bad\.jsonl:2: .*'d1'"),
    "no positive": (jsonl(EXAMPLE | {"positives": []}), "positive"),
    "an empty file": ("", r"bad\.jsonl"),
}


@pytest.mark.parametrize("case", BAD_EXAMPLES)
@pytest.mark.parametrize("role", ["examples", "dev"])
def test_bad_examples_are_named_by_line_and_leave_nothing(quick, tmp_path, case, role):
    text, message = BAD_EXAMPLES[case]
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        quick(tmp_path / "out", **{role: str(path)})
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "no-such/model"}, "cannot load the model 'no-such/model'"),
        ({"corpus": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"examples": "nowhere.jsonl"}, "nowhere.jsonl"),
        ({"corpus": None}, "--corpus"),
        ({"pooler": "maen"}, "did you mean 'mean'"),
        ({"loss": "contrastiv"}, "did you mean 'contrastive'"),
        ({"loss_options": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"loss_options": {"temperature": 0}}, "'temperature' of loss 'contrastive' cannot be 0"),
        ({"pooler_options": {"layer": 3}}, "layer 3 was asked for"),
        ({"encoder_options": {"query_length": 1000}}, "query_length is 1000"),
        ({"precision": "fp16"}, "fp16 needs a GPU"),
        ({"batch_size": 0}, "batch_size"),
        ({"loss": "picky"}, "needs another pooler"),
    ],
    ids=str,
)
def test_wrong_input_leaves_nothing(quick, tmp_path, local_losses, changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        quick(tmp_path / "out", **changes)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_corpus_is_refused(quick, tmp_path):
    (tmp_path / "corpus.jsonl").touch()
    with pytest.raises(InputError, match=r"corpus\.jsonl"):
        quick(tmp_path / "out", corpus=str(tmp_path / "corpus.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_an_existing_output_is_refused_before_anything_is_read(quick, trained):
    before = bytes_of(trained)
    with pytest.raises(ArtifactError, match=r"exists already.*--overwrite"):
        quick(trained, model="no-such/model")
    assert bytes_of(trained) == before


def test_an_existing_checkpoint_can_be_overwritten(quick, tmp_path):
    quick(tmp_path / "out", epochs=0)
    before = weights_of(tmp_path / "out")
    quick(tmp_path / "out", overwrite=True)
    assert weights_of(tmp_path / "out") != before


def test_a_full_disk_is_an_oserror_and_leaves_nothing(quick, tmp_path, monkeypatch):
    """Libraries call it a SafetensorError or a RuntimeError; the command line prints an OSError as one line."""

    def full(*_, **__):
        msg = "Error while serializing: I/O error: No space left on device (os error 28)"
        raise RuntimeError(msg)

    monkeypatch.setattr(states, "save_weights", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        quick(tmp_path / "out")
    assert caught.value.filename.endswith(".out.partial")
    assert list(tmp_path.iterdir()) == []
