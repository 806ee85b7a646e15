"""The losses against numbers of the equations, an independent reference, and numeric gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Progress, Representation
from retrievalkit.errors import OptionError

# Two queries and their documents: positive, hard negative, positive, hard negative.
QUERIES = ([[0.5, 1.0], [1.0, -1.0]], [[0.7, 0.0, 0.2], [0.0, 1.1, 0.0]])
DOCUMENTS = (
    [[1.0, 1.0], [0.0, 0.5], [1.0, -0.5], [-1.0, 0.0]],
    [[0.6, 0.1, 0.0], [0.0, 0.9, 0.3], [0.0, 0.8, 0.0], [0.4, 0.0, 0.5]],
)
POSITIVES = torch.tensor([0, 2])


def representation(vectors=None, weights=None):
    """Vectors (texts, dim) or (texts, m, dim) and weights (texts, vocabulary) as leaves in double precision."""
    dense = None if vectors is None else torch.tensor(vectors, dtype=torch.float64)
    dense = dense if dense is None else (dense[:, None] if dense.dim() == 2 else dense).requires_grad_()
    sparse = None if weights is None else torch.tensor(weights, dtype=torch.float64).requires_grad_()
    return Representation(dense, weights=sparse)


def both():
    return representation(*QUERIES), representation(*DOCUMENTS)


def loss_of(sides, name="dense_sparse", positives=POSITIVES, step=0, ignore=None, **options):
    progress = Progress(step, 0.0, 100_000)
    return registry.create("loss", name, **options)(*sides, positives, progress, ignore)


class TestGolden:
    """Numbers computed independently of this code."""

    def test_both_views(self):
        value = loss_of(both())
        assert value.terms["contrastive"].item() == pytest.approx(0.3404227518, abs=1e-9)
        assert value.terms["flops_query"].item() == pytest.approx(0.435, abs=1e-9)
        assert value.terms["flops_document"].item() == pytest.approx(0.305, abs=1e-9)
        assert value.total.item() == pytest.approx(0.3419027518, abs=1e-9)

    def test_separate_views(self):
        value = loss_of(both(), views="separate")
        assert value.terms["dense"].item() == pytest.approx(0.4555158409, abs=1e-9)
        assert value.terms["sparse"].item() == pytest.approx(1.1476236281, abs=1e-9)
        assert value.total.item() == pytest.approx(0.4555158409 + 1.1476236281 + 0.00148, abs=1e-9)

    @pytest.mark.parametrize(("norm", "of_queries"), [("flops", 5.0), ("l1", 3.0)])
    def test_flops_and_l1(self, norm, of_queries):
        """[[1,0,2],[3,0,0]]: the mean first, then the square: 2^2 + 0 + 1^2; L1 is 3."""
        texts = representation(None, [[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]])
        terms = loss_of((texts, texts), "flops", positives=torch.tensor([0, 1]), query_regularizer=norm).terms
        assert terms[f"{norm}_query"].item() == pytest.approx(of_queries)
        assert terms["flops_document"].item() == pytest.approx(5.0)

    @pytest.mark.parametrize("name", ["dense_sparse", "flops"])
    @pytest.mark.parametrize(
        ("step", "weight"), [(0, 0.0), (1, 8e-13), (5_000, 2e-05), (25_000, 0.0005), (50_000, 0.002), (60_000, 0.002)]
    )
    def test_schedule(self, name, step, weight):
        """lambda (t / T)^2 until T = 50,000."""
        bare = loss_of(both(), name, flops_query=0, flops_document=0).total.item()
        value = loss_of(both(), name, step=step, schedule="quadratic").total.item()
        assert value - bare == pytest.approx(weight * 0.74, rel=1e-6 if step > 1 else 1e-3, abs=1e-16)
        constant = loss_of(both(), name, step=step).total.item()
        assert constant - bare == pytest.approx(0.002 * 0.74)


def reference(queries, documents, positives, ignore, *, step, views, temperature, lambdas, norm, schedule, steps):
    """The equations in numpy, with loops; each side is (vectors or None, weights or None)."""
    of_view = [] if queries[0] is None else [np.einsum("qh,dmh->qdm", queries[0], documents[0]).max(axis=2)]
    of_view += [] if queries[1] is None else [queries[1] @ documents[1].T]
    entropies = []
    for logits in [sum(of_view)] if views == "summed" else of_view:
        kept = np.where(ignore, -np.inf, logits / temperature)
        entropies.append(
            np.mean([math.log(np.exp(row).sum()) - row[right] for row, right in zip(kept, positives, strict=True)])
        )
    penalty = 0.0
    for side, weight, kind in zip((queries, documents), lambdas, (norm, "flops"), strict=True):
        if side[1] is not None:
            columns = np.abs(side[1]).sum(0) / len(side[1])
            penalty += weight * (columns.sum() if kind == "l1" else (columns**2).sum())
    rise = 1 if schedule == "constant" else min(1, (step / steps) ** 2)
    return sum(entropies) + rise * penalty


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    present=st.sampled_from(["dense", "sparse", "both"]),
    views=st.sampled_from(["summed", "separate"]),
    temperature=st.sampled_from([1.0, 0.3]),
    lambdas=st.sampled_from([(0.002, 0.002), (0.5, 0.0), (0.3, 0.7)]),
    norm=st.sampled_from(["flops", "l1"]),
    schedule=st.sampled_from([("constant", 50_000, 7), ("quadratic", 20, 7), ("quadratic", 20, 30)]),
)
def test_reference(seed, present, views, temperature, lambdas, norm, schedule):
    rng = np.random.default_rng(seed)
    q, d = rng.integers(1, 5), rng.integers(5, 9)
    # The best of a document's vectors counts.
    vectors = [rng.normal(size=shape) if present != "sparse" else None for shape in ((q, 3), (d, 2, 3))]
    weights = [np.maximum(rng.normal(size=(n, 6)), 0) if present != "dense" else None for n in (q, d)]
    positives = rng.permutation(d)[:q]
    ignore = rng.random((q, d)) < 0.2
    ignore[np.arange(q), positives] = False
    sides = [(vector, weight) for vector, weight in zip(vectors, weights, strict=True)]
    kind, steps, step = schedule
    expected = reference(
        *sides, positives, ignore, step=step, views=views, temperature=temperature, lambdas=lambdas, norm=norm,
        schedule=kind, steps=steps
    )  # fmt: skip
    value = loss_of(
        [representation(*side) for side in sides],
        positives=torch.from_numpy(positives),
        step=step,
        ignore=torch.from_numpy(ignore),
        views=views,
        temperature=temperature,
        flops_query=lambdas[0],
        flops_document=lambdas[1],
        query_regularizer=norm,
        schedule=kind,
        schedule_steps=steps,
    )
    assert value.total.item() == pytest.approx(expected, rel=1e-9)


def test_zero_weights_get_no_gradient_of_flops():
    """The derivative of |x| at 0 is 0, so terms that top-k drops get no gradient."""
    for query_regularizer in ("flops", "l1"):
        sides = both()
        loss_of(sides, "flops", query_regularizer=query_regularizer).total.backward()
        for side in sides:
            assert torch.equal(side.weights.grad != 0, side.weights != 0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("dense_sparse", {"views": "summed"}, marks=pytest.mark.slow),
        pytest.param("dense_sparse", {"views": "separate"}, marks=pytest.mark.slow),
        ("flops", {}),
    ],
)
def test_the_contract_is_kept(name, options):
    testing.check("loss", name, **options)


@pytest.mark.parametrize("name", ["dense_sparse", "flops"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flops_document": float("nan")}, "'flops_document' .* cannot be nan"),
        ({"schedule_steps": 100}, "schedule_steps=100 has no effect with schedule=constant"),
    ],
)
def test_wrong_options(name, options, message):
    with pytest.raises(OptionError, match=message):
        registry.create("loss", name, **options)
