"""Incompatible parts are refused before anything is written, in a message that names the part."""

from __future__ import annotations

import re

import pytest
import torch

from retrievalkit.contracts import Loss, LossValue, Representation
from retrievalkit.data.examples import Example
from retrievalkit.errors import PluginError, UnsupportedError
from retrievalkit.models.retriever import Retriever
from retrievalkit.training.dry_run import _note_alike, dry_run, first_draws
from retrievalkit.training.objective import Objective
from retrievalkit.training.sampling import ExampleSampler, StepAssembler
from retrievalkit.training.selection import DevSet

PLUGIN = """
import torch
from retrievalkit import hookimpl
from retrievalkit.contracts import (
    Batch, Encoder, EncoderInfo, Loss, LossValue, Pooler, Representation, TokenStates,
)
from retrievalkit.models.encoders.transformer import Transformer

@hookimpl
def register_encoders(register):
    register("deaf", "local_parts:Deaf")
    register("fixed", "local_parts:Fixed")

@hookimpl
def register_poolers(register):
    for name in ("plain", "narrow", "short", "bare", "picky"):
        register(name, f"local_parts:{name.title()}")

@hookimpl
def register_losses(register):
    for name in ("wordless", "many", "nothing", "float", "endless", "constant"):
        register(name, f"local_parts:{name.title()}")

class Deaf(Transformer):
    def forward(self, batch, layers):
        return {}["hidden states"]

class Fixed(Encoder):
    info = EncoderInfo(32, 1, 100)

    def __init__(self, model):
        super().__init__()

    def tokenize(self, texts, side):
        return [[len(text.body), 1] for text in texts]

    def collate(self, token_ids, side):
        ids = torch.tensor([list(row) for row in token_ids])
        return Batch(ids, torch.ones_like(ids), torch.zeros_like(ids).bool())

    def forward(self, batch, layers):
        states = batch.input_ids[..., None].float() * torch.arange(32)
        return TokenStates({1: states}, batch.attention_mask, batch.input_ids, batch.special_mask)

    def save(self, folder):
        (folder / "config.json").write_text("{}")

class Plain(Pooler):
    width = 32
    def __init__(self, info):
        super().__init__()
        self.projection = torch.nn.Linear(self.width, 4)
    def forward(self, states, side):
        return Representation(self.projection(states.last[:, :1]))

class Narrow(Plain):
    width = 99

class Short(Plain):
    def forward(self, states, side):
        return super().forward(states, side).rows(slice(1))

class Bare(Plain):
    def forward(self, states, side):
        return states.last[:, 0]

class Picky(Plain):
    def forward(self, states, side):
        if not self.training:
            raise ValueError("only in training")
        return super().forward(states, side)

class Wordless(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        raise AssertionError

class Many(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(queries.vectors.sum(dim=(1, 2)))

class Float(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(queries.vectors.sum(), {"half": 0.5})

class Endless(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(queries.vectors.sum() / 0)

class Constant(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(queries.vectors.detach().sum())

class Nothing(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return queries.vectors.sum()
"""
FAILING = [
    ({"encoder": "deaf"}, UnsupportedError, r"encoder 'deaf' fails on .*: KeyError \(local_parts.py:\d+\): 'hidden"),
    ({"pooler": "narrow"}, UnsupportedError, r"pooler 'narrow' fails .* RuntimeError .*multiplied \(2x32 and 99x4\)"),
    ({"pooler": "short"}, PluginError, r"pooler 'short' .*returned a Representation of 1, .* a Representation of 2"),
    ({"pooler": "bare"}, PluginError, r"pooler 'bare' .*returned a Tensor, and must return a Representation of 2"),
    (
        {"loss": "wordless"},
        UnsupportedError,
        r"Error \(local_parts.py:\d+\): no message. .* \(encoder 'transformer', pooler 'mean', loss 'wordless'\)",
    ),
    ({"loss": "many"}, PluginError, r"loss 'many' .*a LossValue with a total of shape \(2,\), and must return"),
    ({"loss": "nothing"}, PluginError, r"loss 'nothing' .*a Tensor, and must return a LossValue"),
    ({"loss": "float"}, PluginError, "loss 'float' .*a LossValue with a half 0.5, and must"),
    ({"loss": "endless"}, PluginError, "loss 'endless' .*its total on the first examples is (nan|-?inf)"),
    ({"encoder": "fixed", "pooler": "mean"}, UnsupportedError, "nothing to train: encoder 'fixed', pooler 'mean'"),
    ({"loss": "contrastive+many"}, PluginError, r"loss 'many' .* a total of shape \(2,\)"),
    ({"loss": "self_contrastive"}, UnsupportedError, r"'self_contrastive' needs a pooler that keeps one"),
    ({"pooler": "picky", "dev": True}, UnsupportedError, r"'picky' fails when dev .* evaluated: ValueError \(local"),
]


@pytest.fixture
def parts(tmp_path_factory, monkeypatch, fresh_registry):
    """Register the parts of the plugin."""
    path = tmp_path_factory.mktemp("plugin") / "local_parts.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(path))


@pytest.mark.usefixtures("parts")
def test_a_pooler_on_an_encoder_without_weights_is_trained(programs, tmp_path):
    manifest = programs["train"](tmp_path / "out", encoder="fixed", pooler="plain")
    assert manifest["counts"]["steps"] > 0


@pytest.mark.usefixtures("parts")
def test_a_loss_without_a_gradient_is_named(programs, tmp_path):
    with pytest.raises(PluginError, match=r"loss 'constant' .*does not depend on the representations"):
        programs["train"](tmp_path / "out", loss="constant")


@pytest.mark.parametrize(("changes", "error", "message"), FAILING, ids=str)
@pytest.mark.usefixtures("parts")
def test_a_failing_part_is_named_and_nothing_is_written(programs, examples, tmp_path, changes, error, message):
    changes = changes | ({"dev": examples["test"]} if "dev" in changes else {})
    with pytest.raises(error, match=message):
        programs["train"](tmp_path / "out", **changes)
    assert list(tmp_path.iterdir()) == []


# --- side effects ------------------------------------------------------------------------------------------------


class Remembering(Loss):
    """Loss that counts in a buffer, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.modes = []

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        self.count += 1
        self.modes.append((self.training, torch.is_grad_enabled()))
        torch.rand(3)
        return LossValue(queries.vectors.sum() + self.count)


EXAMPLES = [Example(str(row), f"question {row}", (f"p{row}",), (f"n{row}",)) for row in range(4)]
DESCRIBED = {kind: {"name": kind} for kind in ("encoder", "pooler", "loss")}


def test_a_dry_run_changes_neither_buffers_nor_modes_nor_random_numbers(tiny_model):
    from retrievalkit.data.corpus import Passage

    objective = Objective(Retriever.create(tiny_model), Remembering())
    objective.retriever.eval()
    dev = DevSet(examples=EXAMPLES, passage=lambda one: Passage(one, "", one), batch_size=4, rank_from=30)
    step = StepAssembler(dev.passage, EXAMPLES).assemble(first_draws(ExampleSampler(EXAMPLES)))
    before = torch.get_rng_state()
    dry_run(objective, step, DESCRIBED, precision="fp32", dev=dev)
    assert torch.equal(torch.get_rng_state(), before)
    assert objective.loss.count == 0
    assert objective.loss.modes == [(True, False), (False, False)], "as in training, then as in judging"
    assert objective.loss.training
    assert not objective.retriever.pooler.training
    assert len(dev.examples) == 4


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        ([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [2.0, 2.0]]], "2 vectors .*number 2 is the same for all"),
        ([[[1.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [2.0, 2.5]]], "^$"),
        ([[[1.0, 0.0], [1.0, 1.0]]] * 2, "^$"),  # one text twice, or random weights
        ([[[1.0, 0.0], [3.0, 0.0]], [[0.0, 1.0], [0.0, 2.0]]], "the 2 vectors that pooler 'layers' .*all are the same"),
        ([[[1.0, 0.0]], [[0.0, 1.0]]], "^$"),
    ],
)
def test_equal_vectors_cause_a_note(capfd, vectors, said):
    _note_alike(Representation(torch.tensor(vectors)), "layers")
    assert re.search(said, " ".join(capfd.readouterr().err.split()))


BARE = [Example(str(row), "q", ("p",)) for row in range(4)]
TAUGHT = [Example("0", "q", ("p",), ("a", "b", "c"), teacher={"p": 1.0, "c": 0.0})]


@pytest.mark.parametrize(
    ("examples", "options", "drawn"),
    [
        ([BARE[0], EXAMPLES[1], BARE[2], EXAMPLES[3]], {}, [("1", ("n1",)), ("3", ("n3",))]),
        ([*BARE[:2], EXAMPLES[2]], {}, [("0", ()), ("2", ("n2",))]),
        (BARE[:1], {}, [("0", ())]),
        # Negatives with a teacher score come first, since a full step would draw some of them.
        (TAUGHT, {}, [("0", ("c",))]),
        (TAUGHT, {"negatives": 2}, [("0", ("c", "a"))]),
        (TAUGHT, {"negatives": 0}, [("0", ())]),
        (TAUGHT, {"pool": 2}, [("0", ("a",))]),
    ],
)
def test_the_first_examples_with_negatives_are_tried(examples, options, drawn):
    draws = first_draws(ExampleSampler(examples, **options))
    assert [(draw.example.query_id, draw.negatives) for draw in draws] == drawn
