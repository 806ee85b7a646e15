"""The loss against numbers of the paper's equations, and an independent reference."""

from __future__ import annotations

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Progress, Representation
from retrievalkit.errors import UnsupportedError

START = Progress(step=0, epoch=0.0, total_steps=10)
PARTS = {"cls": slice(0, 2), "agg": slice(2, 5)}
# Two queries and their documents: positive, hard negative, positive, hard negative; [CLS] in front.
QUERIES = [[1.0, 0.0, 0.5, -0.2, 0.3], [0.0, 1.0, -0.4, 0.1, 0.6]]
DOCUMENTS = [
    [2.0, 1.0, 0.4, -0.5, 0.2],
    [0.0, 1.0, 0.1, 0.3, -0.6],
    [1.0, 2.0, -0.7, 0.2, 0.5],
    [-1.0, 0.0, 0.3, 0.3, 0.3],
]
POSITIVES = torch.tensor([0, 2])


def represent(vectors, parts=PARTS, **fields):
    vectors = torch.tensor(vectors, dtype=torch.float64)
    return Representation(vectors[:, None] if vectors.dim() == 2 else vectors, parts=parts, **fields)


def loss_of(queries, documents, positives=POSITIVES, ignore=None, **options):
    return registry.create("loss", "aggretriever", **options)(queries, documents, positives, START, ignore)


class TestGolden:
    """Numbers worked out apart from this code."""

    def test_terms(self):
        value = loss_of(represent(QUERIES), represent(DOCUMENTS))
        assert value.terms["contrastive"].item() == pytest.approx(0.309513578, abs=1e-9)
        assert value.terms["agg"].item() == pytest.approx(0.9971308958, abs=1e-9)
        assert value.terms["cls"].item() == pytest.approx(0.5333565368, abs=1e-9)
        assert value.total.item() == pytest.approx(1.0747572943, abs=1e-9)

    def test_without_cls(self):
        alone = [represent([row[2:] for row in rows], {"agg": slice(0, 3)}) for rows in (QUERIES, DOCUMENTS)]
        value = loss_of(*alone)
        assert value.total.item() == pytest.approx(0.9971308958, abs=1e-9)
        assert set(value.terms) == {"contrastive"}


def cross_entropy(scores, positives, ignore):
    rows = []
    for row, positive in enumerate(positives):
        counted = [np.exp(score) for column, score in enumerate(scores[row]) if not ignore[row][column]]
        rows.append(np.log(sum(counted)) - scores[row][positive])
    return np.mean(rows)


def reference(q, d, positives, ignore, part_weight, temperature, mask, cut):
    """Each score in plain loops: q (Q, H), d (D, m, H), mask (D, m)."""

    def loss(columns):
        scores = [
            [
                max(query[columns] @ vector[columns] for vector, there in zip(vectors, is_there, strict=True) if there)
                for vectors, is_there in zip(d, mask, strict=True)
            ]
            for query in q
        ]
        return cross_entropy(np.array(scores) / temperature, positives, ignore)

    return loss(slice(None)) + part_weight * (loss(slice(0, cut)) + loss(slice(cut, None)))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_queries=st.integers(1, 4),
    extra=st.integers(0, 4),
    m=st.integers(1, 3),
    cut=st.integers(1, 5),
    part_weight=st.floats(0, 3),
    temperature=st.floats(0.1, 5),
)
def test_equals_plain_loops(seed, n_queries, extra, m, cut, part_weight, temperature):
    random = np.random.default_rng(seed)
    n_documents = n_queries + extra
    q, d = random.normal(size=(n_queries, 6)), random.normal(size=(n_documents, m, 6))
    positives = random.permutation(n_documents)[:n_queries]
    ignore = random.random((n_queries, n_documents)) < 0.3
    ignore[np.arange(n_queries), positives] = False
    mask = random.random((n_documents, m)) < 0.7
    mask[:, 0] = True
    parts = {"cls": slice(0, cut), "agg": slice(cut, 6)}
    loss_value = loss_of(
        represent(q, parts),
        represent(d, parts, vector_mask=torch.tensor(mask)),
        torch.tensor(positives),
        torch.tensor(ignore),
        part_weight=part_weight,
        temperature=temperature,
    )
    expected = reference(q, d, positives, ignore, part_weight, temperature, mask, cut)
    assert loss_value.total.item() == pytest.approx(expected, rel=1e-9)


def test_the_contract_is_kept():
    testing.check("loss", "aggretriever", parts={"cls": slice(0, 3), "agg": slice(3, 8)})
    testing.check("loss", "aggretriever", parts={"agg": slice(0, 8)}, kept=0)


@pytest.mark.parametrize(
    ("queries", "documents"),
    [
        (represent(QUERIES, None), represent(DOCUMENTS, None)),
        (represent(QUERIES), represent(DOCUMENTS, {"all": slice(0, 5)})),
        (Representation(weights=torch.ones(2, 3)), Representation(weights=torch.ones(4, 3))),
    ],
)
def test_unsuitable_representations_are_refused(queries, documents):
    with pytest.raises(UnsupportedError, match=r"vectors with parts.*--pooler aggretriever, or --loss contrastive"):
        loss_of(queries, documents)
