"""Loss and gradient of a step depend neither on the micro batch size nor on the number of processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from retrievalkit_pretrain.pretrain import PretrainOptions, pretrain
from retrievalkit_pretrain.pretraining import Pretraining
from safetensors.torch import load_file

from device_memory import DeviceMemory
from killed_processes import forks
from retrievalkit import storage
from retrievalkit.contracts import Progress
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import RetrievalkitError
from retrievalkit.training.collective import ALONE, GradientSum
from retrievalkit.training.loop import Loop
from retrievalkit.training.microbatch import slices
from retrievalkit.training.train_reranker import train_reranker
from trainings import log_of

KEYS = [(0, position) for position in range(7)]


@pytest.fixture
def step_of(tiny_model, tiny_collection, tmp_path_factory):
    """Create a pre-training in float64 without dropout."""

    def step_of(name="mlm", micro_batch_size=None, **own):
        options = PretrainOptions(
            tiny_model,
            str(tiny_collection.corpus),
            pretrainer=name,
            pretrainer_options=own,
            max_length=20,
            micro_batch_size=micro_batch_size,
            precision="fp32",
            output="never",
        )
        step = Pretraining(options, ALONE)
        step.module.double().eval()
        step.open(tmp_path_factory.mktemp("step"))
        return step

    return step_of


def run(step):
    """Return the logged values of a step, and its gradients."""
    logged = step.run(step.collate(KEYS), Progress(0, 0.0, 1), torch.Tensor.backward, GradientSum([]))
    return logged, {name: one.grad for name, one in step.module.named_parameters() if one.grad is not None}


# The decoder's attention mask is drawn with dropout, text by text; without it nothing is random.
PRETRAINERS = {"mlm": {}, "retromae": {"decoder_mask_ratio": 0.0, "decoder_weight": 0.7}}


@pytest.mark.parametrize("name", PRETRAINERS)
def test_the_micro_batch_size_changes_neither_loss_nor_gradient(step_of, name):
    """Each term is a mean over labelled tokens, whose number differs between texts."""
    expected, gradients = run(step_of(name, **PRETRAINERS[name]))
    for size in (1, 3):
        logged, found = run(step_of(name, size, **PRETRAINERS[name]))
        assert logged.keys() == expected.keys()
        for term, value in expected.items():
            torch.testing.assert_close(logged[term], value, rtol=1e-6, atol=0)
        assert found.keys() == gradients.keys()
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(found[parameter], gradient, rtol=1e-9, atol=1e-12)


def test_masked_tokens_do_not_depend_on_the_parts(step_of):
    whole, parted = (step_of(micro_batch_size=size).collate(KEYS).parts for size in (None, 2))
    masked = [
        sorted(row[row != -100].tolist() for part in made for row in part.batch["labels"]) for made in (whole, parted)
    ]
    assert masked[0] == masked[1]
    assert [part.size for part in parted] == [2, 2, 2, 1]


@pytest.mark.parametrize("name", ["reranker", "pretraining"])
def test_out_of_memory_the_parts_are_halved(programs, tmp_path, monkeypatch, name):
    """The weights equal those of the whole step, up to the order of sums; the manifest has the size that fitted."""
    memory, prepare = DeviceMemory(1 << 20), Loop.prepare

    def limited(loop):
        prepare(loop)
        for part in loop.module.modules():
            if isinstance(part, transformers.BertModel):
                memory.limit(part)

    monkeypatch.setattr(Loop, "prepare", limited)
    assert "micro_batch_size" not in programs[name](tmp_path / "whole")
    memory.tokens = max(memory.trained) // 2
    assert 1 <= programs[name](tmp_path / "halved")["micro_batch_size"] <= 2
    for file in (tmp_path / "whole").glob("*.safetensors"):
        tensors = load_file(file), load_file(tmp_path / "halved" / file.name)
        for parameter, tensor in tensors[0].items():
            torch.testing.assert_close(tensors[1][parameter], tensor, rtol=1e-3, atol=1e-5)


def test_a_sample_that_does_not_fit_is_an_error(programs, tmp_path, monkeypatch):
    def run(self, *inputs):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Pretraining, "run", run)
    with pytest.raises(RetrievalkitError, match="too little memory for the smallest part of a step"):
        programs["pretraining"](tmp_path / "never")


@pytest.mark.parametrize(("count", "size"), [(7, None), (7, 2), (2, 5), (1, None)])
def test_the_parts_of_all_processes_are_the_step(count, size):
    for several in (1, 2, 3):
        shares = list(slices(count, size, several))
        assert len(shares) == several
        assert [row for share in shares for part in share for row in range(count)[part]] == list(range(count))
        assert all(0 < part.stop - part.start <= (size or count) for share in shares for part in share)


# --- two processes -------------------------------------------------------------------------------------------------

# A large epsilon: otherwise rounding decides the sign of an update if a gradient is nearly 0.
OPTIONS = {"batch_size": 5, "learning_rate": 1e-2, "precision": "fp32", "logging_steps": 1, "adam_epsilon": 1e-2}


@pytest.fixture
def programs(tiny_model, tiny_collection, tmp_path_factory):
    """Name -> runs the program for two steps without dropout."""
    folder = tmp_path_factory.mktemp("programs")
    still = Path(shutil.copytree(tiny_model, folder / "model"))
    config = json.loads((still / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    corpus = str(tiny_collection.corpus)
    ids = open_corpus(corpus).ids()
    rows = [
        {"query_id": f"q{row}", "query": "lima", "positives": [ids[row]], "negatives": ids[row + 1 : row + 2 + row % 3]}
        for row in range(11)
    ]
    examples = folder / "train.jsonl"
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def reranker(output, **more):
        options = {"epochs": 1, "negatives": 3, "loss": "pointwise", **OPTIONS, **more}
        return train_reranker(still, examples, corpus=corpus, dev=examples, output=output, **options).manifest

    def pretraining(output, **more):
        own = {"decoder_mask_ratio": 0.0}
        options = {"pretrainer_options": own, "steps": 2, "max_length": 20, **OPTIONS, **more}
        return pretrain(still, corpus, pretrainer="retromae", output=output, **options).manifest

    return {"reranker": reranker, "pretraining": pretraining}


@forks
@pytest.mark.parametrize("name", ["reranker", "pretraining"])
def test_two_processes_train_the_weights_of_one(together, programs, tmp_path, name):
    alone = programs[name](tmp_path / "one")
    made = together(lambda: programs[name](tmp_path / "two"))
    assert made[0] == made[1]
    assert (alone.get("processes"), made[0]["processes"]) == (None, 2)
    assert alone["options"] == made[0]["options"]
    assert alone["counts"] == made[0]["counts"]
    logs = [log_of(tmp_path / folder) for folder in ("one", "two")]
    for one, two in zip(*logs, strict=True):
        assert one == pytest.approx(two, rel=1e-3)
    for file in sorted((tmp_path / "one").glob("*.safetensors")):
        tensors = load_file(file), load_file(tmp_path / "two" / file.name)
        for parameter, tensor in tensors[0].items():
            torch.testing.assert_close(tensors[1][parameter], tensor, rtol=1e-3, atol=1e-5)
    again = together(lambda: programs[name](tmp_path / "two", resume=True))
    assert again[0] == json.loads(json.dumps(made[0])), "a finished one is left as it is"
    assert storage.read_manifest(tmp_path / "two") == again[1]
