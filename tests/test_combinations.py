"""Every loss on every pooler, of the core and of the plugins: a gradient, cached or plain, or a clear error at once."""

from __future__ import annotations

import math

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Progress
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.retriever import Retriever
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
# name: (pooler, options, what its representations have)
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


def has_meaning(loss: str, has: set[str]) -> bool:
    """Whether a loss has a meaning for representations that have this."""
    if loss == "self_contrastive":
        return "kept" in has
    if loss == "global_local":
        # Not where one vector alone is indexed: training and search would not agree.
        return "vectors" in has and not has & {"query vectors", "kept"}
    return {"aggretriever": "parts" in has, "flops": "weights" in has}.get(loss, True)


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
# Losses see what representations have and nothing else of a pooler: the first pooler of each kind is tried with all.
FIRST = {frozenset(has): name for name, (_, _, has) in reversed(POOLERS.items())}.values()
PAIRS = [(pooler, loss) for pooler in POOLERS for loss in LOSSES if pooler in FIRST or loss == "contrastive"]


@pytest.fixture(scope="module")
def chunks_of(tiny_model):
    """A retriever with a pooler, and the chunks of a step for it; made once for each pooler."""
    made = {}

    def chunks_of(name):
        if name not in made:
            pooler, options, _ = POOLERS[name]
            retriever = Retriever.create(tiny_model, pooler=pooler, pooler_options=options, seed=1).train()
            made[name] = retriever, [*cut(retriever, "query", QUERIES), *cut(retriever, "document", DOCUMENTS)]
        return made[name]

    return chunks_of


def cut(retriever, side, texts):
    """Two texts a chunk, so that chunks of a step are of different lengths."""
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
    )
    named = retriever.named_parameters()
    return value.total.detach(), {name: one.grad.clone() for name, one in named if one.grad is not None}


@pytest.mark.parametrize(("pooler", "loss"), PAIRS)
def test_a_loss_on_a_pooler(pooler, loss, chunks_of):
    """Where it has a meaning, cached gradients are the plain ones and reach the encoder; where not, it says so."""
    retriever, chunks = chunks_of(pooler)
    made = registry.create("loss", loss, **LOSSES[loss])
    if not has_meaning(loss, POOLERS[pooler][2]):
        with pytest.raises(UnsupportedError, match=f"loss '{loss}'"):
            gradients(retriever, chunks, made, plain_step)
        return
    total, plain = gradients(retriever, chunks, made, plain_step)
    cached_total, cached = gradients(retriever, chunks, made, cached_step)
    assert torch.isfinite(total)
    torch.testing.assert_close(cached_total, total)
    assert any(name.startswith("towers.") and one.abs().max() > 1e-6 for name, one in plain.items())
    assert plain.keys() == cached.keys()
    for name, one in plain.items():
        torch.testing.assert_close(cached[name], one, rtol=1e-4, atol=1e-6, msg=f"{name} differs when cached")


@pytest.mark.parametrize("pooler", POOLERS)
def test_a_retriever_is_the_same_after_saving(pooler, chunks_of, tmp_path):
    retriever, _ = chunks_of(pooler)
    retriever.save(tmp_path)
    loaded = Retriever.load(tmp_path, device="cpu")
    for side, texts in (("query", QUERIES), ("document", DOCUMENTS)):
        before = retriever.encode(texts, side, precision="fp32")
        after = loaded.encode(texts, side, precision="fp32")
        for name in ("vectors", "vector_mask", "weights"):
            one, other = getattr(before, name), getattr(after, name)
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
        assert (before.kept, before.parts) == (after.kept, after.parts)
