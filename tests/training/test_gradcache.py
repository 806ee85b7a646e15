"""Gradient caching computes the gradients of the plain step."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Batch, Loss, LossValue, Progress, Representation
from retrievalkit.models.batches import token_budget_batches
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores
from retrievalkit.scoring.lexical import keep_top_k, text_mask
from retrievalkit.training.collective import GradientSum
from retrievalkit.training.gradcache import Chunk, cached_step, plain_step

QUERIES = [("", "what is the capital of france"), ("", "rome"), ("", "which language is spoken in iceland and peru")]
DOCUMENTS = [
    ("France", "The seat of government is the city of Paris."),
    ("Peru", "lima"),
    ("Italy", "People pay with the euro, and the language that is spoken most is Italian."),
    ("", "rome"),
    ("Iceland", "Icelandic"),
]
POSITIVES = torch.tensor([0, 2, 4])
IGNORE = torch.zeros(3, 5, dtype=torch.bool)
IGNORE[1, 3] = True


def one_vector(states, side):
    return Representation(states.last[:, :1])


def many_vectors(states, side):
    """Return a vector per token, padded to the batch: the number of vectors differs between chunks."""
    if side == "query":
        return Representation(states.last[:, :1])
    return Representation(states.last, states.attention_mask.bool())


def weights_alone(states, side):
    return Representation(weights=states.last[:, 0].relu())


def top_weights(states, side):
    """Pool like SPLADE, with exactly five weights per text."""
    hidden = states.last.masked_fill(~text_mask(states)[:, :, None], float("-inf"))
    return Representation(weights=keep_top_k(hidden.amax(dim=1).relu().log1p(), 5))


def many_vectors_and_top_weights(states, side):
    return replace(many_vectors(states, side), weights=top_weights(states, side).weights)


def first_in_training(states, side):
    return Representation(torch.stack([layer[:, 0] for layer in states.layers.values()], dim=1), kept=0)


def named_parts(states, side):
    return Representation(states.last[:, :1], parts={"left": slice(0, 8), "right": slice(8, 32)})


def many_vectors_with_extras(states, side):
    extras = {
        "gate": states.last[:, 0, 0].sigmoid(),
        "salience": states.last[..., 1],
        "length": states.attention_mask.sum(1),
    }
    return replace(many_vectors(states, side), extras=extras)


def many_vectors_with_keys(states, side):
    return replace(many_vectors(states, side), keys=states.input_ids)


def weights_with_extras(states, side):
    return replace(weights_alone(states, side), extras={"gate": states.last[:, 0, 0].sigmoid()})


POOLERS = [
    many_vectors_with_extras, many_vectors_with_keys, weights_with_extras,
    one_vector, many_vectors, weights_alone, top_weights, many_vectors_and_top_weights, first_in_training, named_parts,
    "cls", "mean", "last", "colbert",
]  # fmt: skip


class BatchStatistics(Loss):
    """Loss with a parameter that reads all of a representation: parts, kept vector, weights, extras."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        total = torch.nn.functional.cross_entropy(scores(queries, documents), positives)
        for one in (queries, documents):
            if one.weights is not None:
                total = total + (one.weights.mean(dim=0) ** 2).sum()
            if one.kept is not None:
                total = total + one.vectors[:, one.kept].square().mean()
            for columns in (one.parts or {}).values():
                total = total + one.vectors[..., columns].square().mean() * columns.stop
            for extra in one.extras.values():
                total = total + extra.float().square().mean()
        return LossValue(total * self.scale)


class Setting:
    """A model, and the chunks and gradients of a step."""

    def __init__(self, model, pooler, *, most, separate=False, dropout=0.3, precision=None, loss=None):
        self.retriever = Retriever.create(
            model,
            pooler=pooler if isinstance(pooler, str) else "cls",
            separate_towers=separate,
            encoder_options={"dropout": dropout, "query_length": 16},
            seed=1,
        )
        self.retriever.train()
        self.loss = loss or registry.create("loss", "contrastive", temperature=0.7)
        self.pooler = pooler
        self.precision = precision
        self.chunks = [
            chunk
            for side, texts in (("query", QUERIES), ("document", DOCUMENTS))
            for chunk in self.cut(side, texts, most)
        ]

    def cut(self, side, texts, most):
        tower = self.retriever.tower(side)
        ids = tower.tokenize(texts, side)
        for rows in token_budget_batches([len(one) for one in ids], 10_000, most=most):
            yield Chunk(side, rows, tower.collate([ids[row] for row in rows], side))

    def encode(self, batch, side):
        with torch.autocast("cpu", dtype=self.precision or torch.bfloat16, enabled=self.precision is not None):
            if isinstance(self.pooler, str):
                return self.retriever(batch, side)
            return self.pooler(self.retriever.tower(side)(batch, [1, 2]), side)

    def compare(self, queries, documents, ignore=None):
        return self.loss(queries, documents, POSITIVES, Progress(0, 0.0, 1), ignore)

    def run(self, step, ignore=None, seed=0):
        torch.manual_seed(seed)
        self.retriever.zero_grad()
        self.loss.zero_grad()
        loss = step(
            self.encode,
            self.chunks,
            lambda queries, documents: self.compare(queries, documents, ignore),
            torch.autograd.backward,
            GradientSum([]),
        )
        named = [*self.retriever.named_parameters(), *self.loss.named_parameters()]
        gradients = {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}
        return loss.total.detach(), gradients, torch.get_rng_state()


def assert_equal_gradients(one, other, **tolerance):
    assert one.keys() == other.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in one.values())
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], msg=name, **tolerance or {"rtol": 1e-4, "atol": 1e-6})


# Chunks of a text each, and of all texts, with the poolers whose outputs differ in size by chunk; losses that
# ship are tried with all that ship of poolers in tests/test_combinations.py.
CASES = [
    *((pooler, {}) for pooler in POOLERS),
    *((pooler, {"most": most}) for pooler in (many_vectors, top_weights) for most in (1, 100)),
    *((pooler, {"loss": BatchStatistics}) for pooler in POOLERS),
    *((one_vector, {"separate": separate, "model": "tiny_t5"}) for separate in (False, True)),
    (one_vector, {"separate": True}),
    *((pooler, {"precision": torch.bfloat16}) for pooler in (many_vectors_and_top_weights, "colbert")),
]


@pytest.mark.parametrize(("pooler", "options"), CASES)
def test_cached_gradients_equal_plain_gradients_with_the_same_dropout(request, pooler, options):
    """And the random state afterwards equals that of a plain step."""
    options = {"model": "tiny_model", "most": 2, **options}
    model, loss = request.getfixturevalue(options.pop("model")), options.pop("loss", lambda: None)()
    setting = Setting(model, pooler, **options, loss=loss)
    ignore = None if loss is None else IGNORE
    plain, cached = setting.run(plain_step, ignore), setting.run(cached_step, ignore)
    torch.testing.assert_close(plain[0], cached[0])
    assert_equal_gradients(plain[1], cached[1], **({"rtol": 0.05, "atol": 0.01} if "precision" in options else {}))
    assert torch.equal(plain[2], cached[2])
    assert ("scale" in plain[1]) == (loss is not None)
    if options.get("separate"):
        assert {name.split(".")[1] for name in plain[1]} == {"query", "document"}


def test_without_dropout_the_size_of_the_chunks_changes_nothing(tiny_model):
    """Nor does gradient caching: a step is one batch, in any chunks."""

    def step_of(step, most):
        setting = Setting(tiny_model, one_vector, most=most, dropout=0.0)
        setting.retriever.double()
        return setting.run(step)

    whole = step_of(plain_step, 100)
    for most in (1, 2, 3):
        cut = step_of(cached_step, most)
        torch.testing.assert_close(whole[0], cut[0])
        assert_equal_gradients(whole[1], cut[1])


def test_a_side_that_the_loss_does_not_use_gets_no_gradient(tiny_model):
    setting = Setting(tiny_model, one_vector, most=2, separate=True)

    def documents_alone(queries, documents):
        return setting.loss(queries.detach(), documents, POSITIVES, Progress(0, 0.0, 1))

    cached_step(setting.encode, setting.chunks, documents_alone, torch.autograd.backward, GradientSum([]))
    assert all(parameter.grad is None for parameter in setting.retriever.tower("query").parameters())
    assert any(parameter.grad is not None for parameter in setting.retriever.tower("document").parameters())


def test_only_one_chunk_has_a_graph_at_a_time(tiny_model):
    """This bounds the memory."""
    setting = Setting(tiny_model, one_vector, most=1)
    with_graph = []

    def encode(batch, side):
        with_graph.append(torch.is_grad_enabled())
        return setting.encode(batch, side)

    cached_step(encode, setting.chunks, setting.compare, torch.autograd.backward, GradientSum([]))
    assert with_graph == [False] * 8 + [True] * 8


def tensors_where(condition):
    """Return the tensors of Python's heap that meet the condition."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is torch.Tensor and condition(one)]


def test_weights_are_kept_compactly(tiny_model):
    """Complete weights exist only in the loss: none is kept for the second pass."""
    setting = Setting(tiny_model, one_vector, most=1)
    vocabulary, found, made = 4_999, [], []

    def whole():
        return len(tensors_where(lambda one: one.dim() == 2 and one.shape[1] == vocabulary))

    def encode(batch, side):
        if torch.is_grad_enabled() and len(made) == len(setting.chunks):
            found.append(whole())
        hidden = setting.retriever.tower(side)(batch, [2]).last[:, 0]
        weights = torch.nn.functional.pad(hidden.relu(), (0, vocabulary - hidden.shape[1]))
        made.append(weakref.ref(weights))
        return Representation(weights=weights)

    def compare(queries, documents):
        found.append((sum(one() is not None for one in made), whole()))
        return setting.compare(queries, documents)

    cached_step(encode, setting.chunks, compare, torch.autograd.backward, GradientSum([]))
    # None of the first pass, two (one per side) in the loss, and none at the start of the second pass.
    assert found == [(0, 2), 0]


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_texts_without_a_term_and_absent_terms_get_no_gradient(scale):
    """Only non-zero weights get a gradient; a scaled loss, as in fp16, scales it."""
    weights = torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 1.0]], requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.long)
    chunks = [Chunk(side, [row], Batch(one * row, one, one.bool())) for side in ("query", "document") for row in (1, 0)]

    def encode(batch, side):
        row = int(batch.input_ids)
        return Representation(weights=weights[row : row + 1])

    def compare(queries, documents):
        assert queries.weights.tolist() == documents.weights.tolist() == weights.tolist(), "in the order of the texts"
        return LossValue(scores(queries, documents).sum() + queries.weights.sum())

    cached_step(encode, chunks, compare, lambda total: (total * scale).backward(), GradientSum([]))
    assert weights.grad.tolist() == [[0.0, 0.0, 0.0], [0.0, 7.0 * scale, 3.0 * scale]]
