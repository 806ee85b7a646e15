"""`rkit train` learns, is reproducible to the byte, and writes nothing for wrong input."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

from device_memory import DeviceMemory
from retrievalkit import storage
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.errors import InputError, MissingDependencyError
from retrievalkit.models.checkpoint import checkpoint_fingerprint
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores
from retrievalkit.training import loop
from retrievalkit.training.collective import ALONE
from retrievalkit.training.options import TrainingOptions, TrainOptions
from retrievalkit.training.retriever import RetrieverTraining
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


def test_the_folder_is_a_checkpoint_whose_loss_fell(trained):
    """Its log has no times, and no other file is left."""
    names = {path.name for path in trained.iterdir()} - {"logs"}
    weights = {"encoder", "pooler.safetensors", "retrievalkit.json"}
    assert names == weights | {"README.md", "manifest.json", "training.jsonl", "training.html"}
    assert list(trained.parent.iterdir()) == [trained]
    lines = log_of(trained)
    assert [line["step"] for line in lines] == [6, 12, 18, 24, 30, 36, 42, 48]
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    for line in lines:
        assert set(line) == {"step", "epoch", "loss", "contrastive", "grad_norm", "learning_rate"}
        assert line["contrastive"] == line["loss"]
    card = (trained / "README.md").read_text()
    for part in ("---\nlibrary_name: retrievalkit", "| pooler | mean", "84 from", "rkit encode"):
        assert part in card


@pytest.mark.parametrize("split", ["train", "test"])
def test_retrieval_improves(trained, tiny_model, tiny_collection, split):
    """Also for questions that were not in the training, about the same countries."""
    before = reciprocal_rank(Retriever.create(tiny_model, pooler="mean"), tiny_collection, split)
    after = reciprocal_rank(Retriever.load(trained), tiny_collection, split)
    assert before < 0.2
    assert after > 0.5


def test_the_learning_rate_rises_and_falls_linearly(quick, tmp_path):
    quick(tmp_path / "out", epochs=4, limit=40, warmup_ratio=0.5, logging_steps=1)
    rates = [line["learning_rate"] for line in log_of(tmp_path / "out")]
    assert rates == pytest.approx([1e-2 * (step / 10 if step < 10 else (20 - step) / 10) for step in range(20)])


# --- the folder ----------------------------------------------------------------------------------------------------


def test_the_manifest_records_options_and_inputs(quick, tmp_path, examples, tiny_model, tiny_collection):
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


def test_tensorboard_files_are_kept_and_not_fingerprinted(quick, tmp_path):
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
    """Texts per second and memory differ between equal trainings, so they are not in the log."""
    monkeypatch.setattr(loop, "get_available_trackers", list)
    quick(tmp_path / "out", logging_steps=2)
    assert sorted(one.name for one in (tmp_path / "out" / "logs").iterdir()) == ["pace.html", "pace.jsonl"]
    pace = [json.loads(line) for line in (tmp_path / "out/logs/pace.jsonl").read_text().splitlines()]
    assert [one["step"] for one in pace] == [2, 4, 6]
    assert all(one["texts_per_second"] > 0 and one["memory_gib"] > 0 for one in pace)
    assert "texts_per_second" not in (tmp_path / "out/training.jsonl").read_text()


# --- repeating -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"separate_towers": True, "micro_batch_size": 2, "dev": "test", "rank_from": 1},
        {"model": "tiny_t5", "epochs": 0.5, "encoder_options": {"query_length": 5, "document_length": 9}},
    ],
    ids=str,
)
def test_equal_trainings_write_equal_checkpoints(request, quick, tmp_path, examples, changes):
    """The dev measures are logged with the loss."""
    given = changes | ({"dev": examples["test"]} if "dev" in changes else {})
    given |= {"model": request.getfixturevalue(changes["model"])} if "model" in changes else {}
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        quick(tmp_path / name, **given)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")
    loaded = Retriever.load(tmp_path / "one")
    assert loaded.encode([("Peru", "Lima")], "document").vectors.isfinite().all()
    assert loaded.fingerprint == weights_of(tmp_path / "one")
    dev = [(line["step"], name) for line in log_of(tmp_path / "one") for name in line if name.startswith("dev_")]
    assert dev == ([(3, "dev_loss"), (6, "dev_average_rank")] if "dev" in changes else [])


def test_gradient_caching_does_not_change_the_weights(quick, tmp_path):
    """Without dropout, which depends on the chunks."""
    options = {"encoder_options": {"dropout": 0.0}, "learning_rate": 1e-3}
    plain = quick(tmp_path / "plain", **options)
    cached = quick(tmp_path / "cached", micro_batch_size=3, **options)
    assert plain["fingerprint"] != cached["fingerprint"], "sums in another order differ in the last digits"
    one, other = (load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("plain", "cached"))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("tokens", "halved"), [(2_000, False), (200, True)])
def test_out_of_memory_gradients_are_cached_and_then_fewer_texts_encoded_at_a_time(
    quick, tmp_path, monkeypatch, tokens, halved
):
    """The weights equal those of a training that starts so, up to the order of sums; the manifest records the size."""
    options = {"encoder_options": {"dropout": 0.0}, "learning_rate": 1e-3, "batch_size": 24, "held_out": 0}
    quick(tmp_path / "plain", **options)
    memory, load = DeviceMemory(tokens), Transformer.load_network
    monkeypatch.setattr(Transformer, "load_network", lambda *given: memory.limit(load(*given)))
    manifest = quick(tmp_path / "adapted", **options)
    assert manifest["gradient_caching"] is True
    assert ("batch_tokens" in manifest) == halved
    one, other = (load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("plain", "adapted"))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4)


def test_the_largest_step_is_tried_before_the_training(tiny_model, tiny_collection, examples, tmp_path):
    """It does not change the model."""
    options = TrainOptions(tiny_model, examples["train"], corpus=tiny_collection.corpus, output="out", batch_size=8)
    training = RetrieverTraining(options)
    memory, weights = DeviceMemory(60), [one.clone() for one in training.module.parameters()]
    memory.limit(training.retriever.tower("document").model)
    trained = loop.Loop(training, ALONE, tmp_path)
    trained.prepare()
    state = torch.get_rng_state()
    trained.try_largest_step()
    assert training.cached
    assert training.limit.reduced <= 60
    assert torch.equal(state, torch.get_rng_state())
    for before, one in zip(weights, training.module.parameters(), strict=True):
        assert torch.equal(before, one)
        assert one.grad is None


@pytest.mark.parametrize("size", [{"micro_batch_size": 100}, {"micro_batch_size": 100, "batch_tokens": 50}], ids=str)
def test_a_micro_batch_is_limited_by_tokens_too(tiny_model, tiny_collection, examples, size):
    options = TrainOptions(tiny_model, examples["train"], corpus=tiny_collection.corpus, output="out", **size)
    chunks = RetrieverTraining(options).collate([(0, position) for position in range(16)]).chunks
    largest = max(chunk.tokens for chunk in chunks if len(chunk.rows) > 1)
    assert (largest <= 50) == ("batch_tokens" in size)


# --- dev selection -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "rank_from", "best"),
    [([3.0, 1.0, 2.0], 30, 1), ([1.0, 2.0, 3.0], 30, 0), ([1.0, 50.0, 40.0], 1, 2), ([1.0, 40.0, 50.0], 1, 1)],
)
def test_the_best_state_on_the_dev_questions_is_kept(quick, tmp_path, examples, monkeypatch, values, rank_from, best):
    states = []

    def measure(self, judged, loss, epoch, precision):
        if len(self.examples) == 2:
            return {"loss": [0.0]}  # the dry run
        states.append(judged.encode([("", "lima")], "query", precision="fp32").vectors)
        assert epoch == len(states) - 1
        return {"average_rank" if epoch >= rank_from else "loss": [values[epoch]]}

    monkeypatch.setattr(DevSet, "measure", measure)
    quick(tmp_path / "out", epochs=3, dev=examples["test"], rank_from=rank_from)
    kept = Retriever.load(tmp_path / "out").encode([("", "lima")], "query", precision="fp32").vectors
    assert [torch.equal(kept, state) for state in states] == [epoch == best for epoch in range(3)]
    chosen = json.loads((tmp_path / "out" / "selection.json").read_text())
    assert (chosen["epoch"], chosen["value"]) == (best + 1, values[best])


def test_without_accelerate_a_training_fails_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    for name in ("retriever", "session", "loop"):
        monkeypatch.delitem(sys.modules, f"retrievalkit.training.{name}", raising=False)
    with pytest.raises(MissingDependencyError, match=r"training needs .*pip install accelerate"):
        train("model", "examples", output=tmp_path / "out")


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


def test_a_loss_gets_the_progress_of_the_training(quick, tmp_path, local_losses):
    quick(tmp_path / "out", loss="watching")
    import local_losses as module

    tried, *steps = module.Watching.seen
    assert tried == (0, 0.0, 1)
    assert steps == [(step, round(step / 3, 3), 6) for step in range(6)]
    assert log_of(tmp_path / "out")[0]["constant"] == 1.0


GOOD = '{"query_id": "q", "query": "lima", "positives": ["c0"], "negatives": ["c1"]}\n'
BAD_EXAMPLES = {
    GOOD + '{"query_id": ': r"bad\.jsonl:2: ",
    GOOD + GOOD.replace("c1", "d1"): r"bad\.jsonl:2: .*'d1'",
    GOOD.replace('"c0"', ""): "positive",
    "": r"bad\.jsonl",
}
WRONG = [
    ({"model": "no-such/model"}, "cannot load the model 'no-such/model'"),
    ({"corpus": "nowhere.jsonl"}, "nowhere.jsonl"),
    ({"examples": "nowhere.jsonl"}, "nowhere.jsonl"),
    ({"corpus": None}, "--corpus"),
    ({"pooler": "maen"}, "did you mean 'mean'"),
    ({"loss": "contrastiv"}, "did you mean 'contrastive'"),
    ({"loss_options": {"temprature": 1}}, "did you mean 'temperature'"),
    ({"loss_options": {"temperature": 0}}, "'temperature' of loss 'contrastive' cannot be 0"),
    ({"pooler_options": {"layer": 3}}, "layer 3 does not exist"),
    ({"encoder_options": {"query_length": 1000}}, "query_length is 1000"),
    ({"precision": "fp16"}, "fp16 needs a GPU"),
    ({"loss": "picky"}, "needs another pooler"),
    ({"report_to": "wanb"}, "unknown tracker 'wanb'.*'wandb'"),
    ({"report_to": "comet_ml"}, "report_to comet_ml needs the package 'comet_ml'"),
    *(({role: text}, message) for role in ("examples", "dev") for text, message in BAD_EXAMPLES.items()),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=str)
def test_wrong_input_leaves_no_files(quick, tmp_path, local_losses, changes, message):
    path = tmp_path / "bad.jsonl"
    if (text := next(iter(changes.values()))) in list(BAD_EXAMPLES):
        path.write_text(text)
        changes = dict.fromkeys(changes, str(path))
    with pytest.raises(InputError, match=message):
        quick(tmp_path / "out", **changes)
    assert set(tmp_path.iterdir()) <= {path}
