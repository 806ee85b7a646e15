"""The loss `contrastive`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Progress, Representation

START = Progress(step=0, epoch=0.0, total_steps=10)
# Two queries, four documents of two vectors; the positives are documents 0 and 2.
QUERIES = [[1.0, 0.5], [-0.5, 1.0]]
DOCUMENTS = [
    [[0.8, 0.1], [0.3, 1.4]],
    [[0.1, 0.9], [1.1, -0.4]],
    [[-1.0, 1.0], [0.3, 0.3]],
    [[0.7, 0.5], [-0.2, 1.2]],
]
POSITIVES = torch.tensor([0, 2])


def queries(requires_grad=False):
    return Representation(vectors=torch.tensor(QUERIES, dtype=torch.float64)[:, None].requires_grad_(requires_grad))


def documents(vectors=DOCUMENTS, **more):
    return Representation(vectors=torch.tensor(vectors, dtype=torch.float64), **more)


def loss_of(queries, documents, positives=POSITIVES, ignore=None, teacher=None, **options):
    return registry.create("loss", "contrastive", **options)(queries, documents, positives, START, ignore, teacher)


TEACHER = torch.tensor([[2.0, 1.0, 0.0, float("nan")], [0.0, float("nan"), 3.0, 1.0]], dtype=torch.float64)
every_loss = pytest.mark.parametrize("name", ["contrastive", "distill_kl", "margin_mse"])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000), temperature=st.floats(0.05, 5), n_queries=st.integers(1, 4), extra=st.integers(0, 5)
)
def test_the_loss_equals_an_independent_reference(seed, temperature, n_queries, extra):
    """With in-batch negatives and ignored documents, in numpy."""
    random = np.random.default_rng(seed)
    q, d = random.normal(size=(n_queries, 1, 3)), random.normal(size=(n_queries + extra, 2, 3))
    positives = random.permutation(n_queries + extra)[:n_queries]
    ignore = random.random((n_queries, n_queries + extra)) < 0.3
    ignore[np.arange(n_queries), positives] = False

    s = np.where(ignore, -np.inf, np.einsum("qch,dmh->qdm", q, d).max(2) / temperature)
    expected = (np.log(np.exp(s).sum(1)) - s[np.arange(n_queries), positives]).mean()

    value = loss_of(
        Representation(vectors=torch.tensor(q)),
        Representation(vectors=torch.tensor(d)),
        torch.tensor(positives),
        torch.tensor(ignore),
        temperature=temperature,
    )
    assert value.total.item() == pytest.approx(expected, rel=1e-9)


def test_lexical_weights_add_to_the_score():
    """A single cross entropy over the sum of dense and lexical scores; also with lexical weights only."""
    q_weights = torch.tensor([[0.7, 0.0, 0.2], [0.0, 1.1, 0.0]])
    d_weights = torch.tensor([[0.6, 0.1, 0.0], [0.0, 0.9, 0.3], [0.0, 0.8, 0.0], [0.4, 0.0, 0.5]])
    q_dense = torch.tensor([[0.5, 1.0], [1.0, -1.0]])[:, None]
    d_dense = torch.tensor([[1.0, 1.0], [0.0, 0.5], [1.0, -0.5], [-1.0, 0.0]])[:, None]
    both = loss_of(Representation(q_dense, weights=q_weights), Representation(d_dense, weights=d_weights))
    lexical = loss_of(Representation(weights=q_weights), Representation(weights=d_weights))
    assert both.total.item() == pytest.approx(0.340423, abs=2e-6)
    assert lexical.total.item() == pytest.approx(1.147624, abs=2e-6)


@every_loss
def test_the_loss_is_computed_in_float32_under_autocast(name):
    """Vectors in half precision have the same loss as in float32."""
    loss, q, d = registry.create("loss", name), queries().vectors.bfloat16(), documents().vectors.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss(Representation(q), Representation(d), POSITIVES, START, None, TEACHER.float()).total
    assert half.dtype == torch.float32
    full = loss(Representation(q.float()), Representation(d.float()), POSITIVES, START, None, TEACHER.float()).total
    assert half.item() == pytest.approx(full.item(), abs=1e-6)


@every_loss
def test_a_kept_vector_is_the_trained_vector(name):
    """The other vectors are not indexed, so they do not count."""
    teacher, loss = TEACHER, registry.create("loss", name)
    mask = torch.tensor([[False, True]] + [[True, True]] * 3)
    kept = loss(queries(), documents(kept=1, vector_mask=mask), POSITIVES, START, None, teacher).total
    alone = loss(queries(), documents([[vectors[1]] for vectors in DOCUMENTS]), POSITIVES, START, None, teacher).total
    assert kept.item() == pytest.approx(alone.item(), abs=1e-12)
    assert kept.item() != pytest.approx(loss(queries(), documents(), POSITIVES, START, None, teacher).total.item())
