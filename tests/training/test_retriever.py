"""`rkit train` learns, repeats itself to the byte, goes on where it was killed, and leaves nothing of wrong input."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from retrievalkit import storage
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.errors import InputError
from retrievalkit.models.checkpoint import checkpoint_fingerprint
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores
from retrievalkit.training import loop
from retrievalkit.training.options import TrainingOptions
from retrievalkit.training.selection import DevSet
from retrievalkit.training.train import train
from trainings import bytes_of, log_of, weights_of


@pytest.fixture
def quick(programs):
    return programs["train"]


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


# --- the folder ----------------------------------------------------------------------------------------------------


def test_the_folder_is_a_checkpoint_and_nothing_is_beside_it(trained):
    names = {path.name for path in trained.iterdir()} - {"logs"}
    weights = {"encoder", "pooler.safetensors", "retrievalkit.json"}
    assert names == weights | {"README.md", "manifest.json", "training.jsonl", "training.html"}
    assert list(trained.parent.iterdir()) == [trained]


def test_the_manifest_says_what_made_it(quick, tmp_path, examples, tiny_model, tiny_collection):
    returned = quick(tmp_path / "out", dev=examples["test"], loss_options={"temperature": 0.5})
    manifest = storage.read_manifest(tmp_path / "out", "checkpoint")
    assert manifest == json.loads(json.dumps(returned))
    assert manifest["precision"] == "fp32"
    paths = {name: entry["path"] for name, entry in manifest["inputs"].items()}
    corpus = str(tiny_collection.corpus)
    assert paths == {"model": tiny_model, "examples": examples["train"], "corpus": corpus, "dev": examples["test"]}
    assert len({entry["fingerprint"] for entry in manifest["inputs"].values()}) == 4
    assert manifest["counts"] == {"examples": 24, "steps": 6}
    options = manifest["options"]
    assert (options["training"]["epochs"], options["training"]["false_negatives"]) == (2, "mask")
    assert set(options["training"]) == {field.name for field in dataclasses.fields(TrainingOptions)}
    assert (options["loss"]["name"], options["loss"]["options"]) == ("contrastive", {"temperature": 0.5})
    assert options["pooler"]["name"] == "mean"
    assert manifest["fingerprint"] == Retriever.load(tmp_path / "out").fingerprint


def test_the_model_card_names_the_parts(trained):
    card = (trained / "README.md").read_text()
    for part in (
        "---\nbase_model: ",
        "library_name: retrievalkit",
        "| pooler | mean",
        "84 from",
        "rkit encode CHECKPOINT",
    ):
        assert part in card


def test_tensorboard_files_are_kept_and_have_no_part_in_the_fingerprint(quick, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    quick(tmp_path / "out")
    events = EventAccumulator(str(tmp_path / "out" / "logs" / "out")).Reload()
    assert [one.step for one in events.Scalars("loss")] == [2, 4, 6]
    assert "contrastive" in events.Tags()["scalars"]
    shutil.rmtree(tmp_path / "out" / "logs")
    assert "encoder/model.safetensors" in storage.read_manifest(tmp_path / "out")["files"]
    assert checkpoint_fingerprint(tmp_path / "out") == storage.fingerprint_folder(
        tmp_path / "out", skip=storage.NOT_WEIGHTS
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


# --- repeating -----------------------------------------------------------------------------------------------------


def test_two_equal_trainings_give_equal_bytes(quick, tmp_path, examples):
    made = []
    for name in ("one", "two"):
        torch.manual_seed(len(made))
        quick(tmp_path / name, dev=examples["test"], separate_towers=True)
        made.append(bytes_of(tmp_path / name))
    assert made[0] == made[1]
    assert len(made[0]) > 10


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
            return "loss", 0.0  # the dry run
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

    tried, *steps = module.Watching.seen
    assert tried == (0, 0.0, 1)
    assert steps == [(step, round(step / 3, 3), 6) for step in range(6)]
    assert log_of(tmp_path / "out")[0]["constant"] == 1.0


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


EXAMPLE = {"query_id": "q", "query": "lima", "positives": ["c0"], "negatives": ["c1"]}
BAD_EXAMPLES = {
    "broken JSON": (jsonl(EXAMPLE) + '{"query_id": ', r"bad\.jsonl:2: "),
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
