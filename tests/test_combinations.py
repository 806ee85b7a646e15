"""Every loss with every pooler, of the core and the plugins: equal cached and plain gradients, or a clear error."""

from __future__ import annotations

import math

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Progress
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.retriever import Retriever
from retrievalkit.training.collective import GradientSum
from retrievalkit.training.gradcache import Chunk, cached_step, plain_step

QUERIES = [("", "what is the capital of france"), ("", "rome"), ("", "which language is spoken in iceland and peru")]
DOCUMENTS = [
    ("France", "The seat of government is the city of Paris."),
    ("Peru", "lima"),
    ("Italy", "People pay with the euro, and the language that is spoken most is Italian."),
    ("", "rome, the city."),
    ("Iceland", "Icelandic"),
]
POSITIVES = torch.tensor([0, 2, 4])
IGNORE = torch.zeros(3, 5, dtype=torch.bool)
IGNORE[1, 3] = True
TEACHER = torch.tensor([[9.0, 2.0, 1.0, math.nan, 0.0], [1.0, math.nan, 7.0, 6.0, 2.0], [0.5, 1.5, math.nan, 2.0, 8.0]])

SEVERAL = {"layers": [1, 2]}
ONE_OF_SEVERAL = {**SEVERAL, "keep": "last"}
SPARSE = {"top_k": 20}
# name: (pooler, options, fields of its representations)
POOLERS = {
    "cls": ("cls", {}, {"vectors"}),
    "mean": ("mean", {"normalize": True}, {"vectors"}),
    "colbert": ("colbert", {"dimension": 16}, {"vectors", "query vectors"}),
    "multi_layer": ("multi_layer", SEVERAL, {"vectors", "views"}),
    "self_contrastive": ("self_contrastive", SEVERAL, {"vectors", "kept"}),
    "layer_average": ("layer_average", SEVERAL, {"vectors"}),
    "scalar_mix": ("scalar_mix", SEVERAL, {"vectors"}),
    "me_bert": ("multi_layer", {"tokens": 4}, {"vectors", "views"}),
    "viewers": ("viewers", {"viewers": 3}, {"vectors", "views"}),
    "viewers_of_layers": ("viewers", {"viewers": 2, **SEVERAL}, {"vectors", "views"}),
    "viewer_kept": ("viewers", {"viewers": 1, **ONE_OF_SEVERAL}, {"vectors", "kept"}),
    "aggretriever": ("aggretriever", {"cls_dim": 8, "agg_dim": 20}, {"vectors", "parts"}),
    "aggretriever_kept": (
        "aggretriever",
        {"cls_dim": 8, "agg_dim": 20, **ONE_OF_SEVERAL},
        {"vectors", "parts", "kept"},
    ),
    "dense": ("dense_sparse", {"views": "dense"}, {"vectors"}),
    "sparse": ("dense_sparse", {"views": "sparse", **SPARSE}, {"weights"}),
    "both": ("dense_sparse", SPARSE, {"vectors", "weights"}),
    "both_of_layers": ("dense_sparse", {**SPARSE, **SEVERAL}, {"vectors", "weights", "views"}),
    "both_kept": ("dense_sparse", {**SPARSE, **ONE_OF_SEVERAL}, {"vectors", "weights", "kept"}),
}


def is_supported(loss: str, fields: set[str]) -> bool:
    """True if a loss supports representations with these fields."""
    if loss == "self_contrastive":
        return "kept" in fields
    if loss == "global_local":
        # With a single indexed vector, training and search would differ.
        return "vectors" in fields and not fields & {"query vectors", "kept"}
    return {"aggretriever": "parts" in fields, "flops": "weights" in fields}.get(loss, True)


LOSSES = {
    "contrastive": {"temperature": 0.7},
    "self_contrastive": {"regularization": 0.5},
    "global_local": {"local_weight": 0.5},
    "aggretriever": {},
    "dense_sparse": {"views": "separate", "flops_query": 0.1, "flops_document": 0.2},
    "flops": {"flops_query": 0.1, "flops_document": 0.2},
    "distill_kl": {"contrastive": 0.3},
    "margin_mse": {"temperature": 0.5},
}
# Losses see only representations: the first pooler of each kind is tested with all losses.
FIRST = {frozenset(fields): name for name, (_, _, fields) in reversed(POOLERS.items())}.values()
PAIRS = [(pooler, loss) for pooler in POOLERS for loss in LOSSES if pooler in FIRST or loss == "contrastive"]


@pytest.fixture(scope="module")
def chunks_of(tiny_model):
    """Function that returns a retriever with a pooler, and the chunks of a step; cached by pooler."""
    cached = {}

    def chunks_of(name):
        if name not in cached:
            pooler, options, _ = POOLERS[name]
            retriever = Retriever.create(tiny_model, pooler=pooler, pooler_options=options, seed=1).train()
            cached[name] = retriever, [*cut(retriever, "query", QUERIES), *cut(retriever, "document", DOCUMENTS)]
        return cached[name]

    return chunks_of


def cut(retriever, side, texts):
    """Divide texts into chunks of two, whose lengths differ."""
    tower = retriever.tower(side)
    ids = tower.tokenize(texts, side)
    for first in range(0, len(ids), 2):
        rows = list(range(first, min(first + 2, len(ids))))
        yield Chunk(side, rows, tower.collate([ids[row] for row in rows], side))


def gradients(retriever, chunks, loss, step):
    torch.manual_seed(0)
    retriever.zero_grad()
    value = step(
        retriever,
        chunks,
        lambda queries, documents: loss(queries, documents, POSITIVES, Progress(2, 0.5, 10), IGNORE, TEACHER),
        torch.autograd.backward,
        GradientSum([]),
    )
    named = retriever.named_parameters()
    return value.total.detach(), {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


@pytest.mark.parametrize(("pooler", "loss"), PAIRS)
def test_cached_and_plain_gradients_are_equal_or_the_pair_is_refused(pooler, loss, chunks_of):
    retriever, chunks = chunks_of(pooler)
    criterion = registry.create("loss", loss, **LOSSES[loss])
    if not is_supported(loss, POOLERS[pooler][2]):
        with pytest.raises(UnsupportedError, match=f"loss '{loss}'"):
            gradients(retriever, chunks, criterion, plain_step)
        return
    total, plain = gradients(retriever, chunks, criterion, plain_step)
    cached_total, cached = gradients(retriever, chunks, criterion, cached_step)
    assert torch.isfinite(total)
    torch.testing.assert_close(cached_total, total)
    assert any(name.startswith("towers.") and gradient.abs().max() > 1e-6 for name, gradient in plain.items())
    assert plain.keys() == cached.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(cached[name], gradient, rtol=1e-4, atol=1e-6, msg=f"{name} differs when cached")
