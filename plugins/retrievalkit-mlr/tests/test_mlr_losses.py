"""The self-contrastive loss against numbers of the paper's equations, and an independent reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from retrievalkit_testing import check

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, Progress, Representation, TokenStates
from retrievalkit.errors import UnsupportedError

START = Progress(step=0, epoch=0.0, total_steps=10)
# Two queries and their documents: positive, hard negative, positive, hard negative; the last layer's vector first.
QUERIES = [[1.0, 0.5], [-0.5, 1.0]]
DOCUMENTS = [[[0.8, 0.1], [0.3, 1.4]], [[0.1, 0.9], [1.1, -0.4]], [[-1.0, 1.0], [0.3, 0.3]], [[0.7, 0.5], [-0.2, 1.2]]]
POSITIVES = torch.tensor([0, 2])


def queries():
    return Representation(vectors=torch.tensor(QUERIES, dtype=torch.float64)[:, None].requires_grad_())


def documents():
    return Representation(vectors=torch.tensor(DOCUMENTS, dtype=torch.float64, requires_grad=True), kept=0)


def loss_of(queries, documents, positives=POSITIVES, ignore=None, **options):
    return registry.create("loss", "self_contrastive", **options)(queries, documents, positives, START, ignore)


class TestGolden:
    """Numbers worked out apart from this code."""

    @pytest.mark.parametrize(
        ("options", "contrastive", "total"),
        [
            ({}, 1.2398582733, 1.7405910829),  # the paper's lambda is 1
            *(
                ({"regularization": weight}, 1.2398582733, total)
                for weight, total in ((0.01, 1.2448656014), (0.1, 1.2899315543), (10, 6.2471863691))
            ),
            ({"negatives": "kept", "regularization": 0.1}, 0.8995820552, 0.8995820552 + 0.05007328096),
        ],
    )
    def test_terms(self, options, contrastive, total):
        value = loss_of(queries(), documents(), **options)
        assert value.terms["contrastive"].item() == pytest.approx(contrastive, abs=1e-9)
        assert value.terms["regularizer"].item() == pytest.approx(0.5007328096, abs=1e-9)
        assert value.total.item() == pytest.approx(total, abs=1e-9)

    def test_gradients(self):
        q, d = queries(), documents()
        loss_of(q, d, regularization=0.1).total.backward()
        grad_queries = [[-0.0304600324, 0.0415307931], [0.3726731945, 0.0606021025]]
        grad_documents = [
            [[-0.3962127285, -0.1981063643], [-0.035540872, 0.1382604748]],
            [[-0.0418362589, 0.0836725178], [0.1373577818, 0.0686788909]],
            [[0.1750076972, -0.3500153944], [0.0824364292, 0.0540851129]],
            [[0.1444002659, 0.0722001329], [-0.0656123147, 0.1312246293]],
        ]
        assert q.vectors.grad[:, 0].numpy() == pytest.approx(np.array(grad_queries), abs=1e-9)
        assert d.vectors.grad.numpy() == pytest.approx(np.array(grad_documents), abs=1e-9)

    @pytest.mark.parametrize(
        ("name", "alpha", "loss"),
        [
            ("multi_layer", None, 1.1855684407),
            ("layer_average", None, 1.1003628458),
            ("scalar_mix", [math.log(3), 0.0], 0.9678936054),
            ("scalar_mix", [0.0, 0.0], 1.1003628458),
        ],
    )
    def test_other_poolers_with_the_plain_loss(self, name, alpha, loss):
        vectors = torch.tensor(DOCUMENTS)
        ones = torch.ones(4, 1, dtype=torch.long)
        states = TokenStates({2: vectors[:, :1], 1: vectors[:, 1:]}, ones, ones, ones.bool())
        pooler = registry.create("pooler", name, EncoderInfo(2, 2, 10), layers=(1, 2))
        if alpha:
            pooler.alpha.data = torch.tensor(alpha)
        query = Representation(vectors=torch.tensor(QUERIES)[:, None])
        plain = registry.create("loss", pooler.default_loss)
        assert plain(query, pooler(states, "document"), POSITIVES, START).total.item() == pytest.approx(loss, abs=1e-6)


def reference(q, d, positives, ignore, kept, regularization, temperature, mask, negatives):
    """The equations in numpy: S (Q, D, m); own (Q, m)."""
    s = np.where(mask, np.einsum("qh,dmh->qdm", q, d) / temperature, -np.inf)
    own, rows = s[np.arange(len(q)), positives], np.arange(len(q))
    sim = np.where(ignore, -np.inf, s.max(2) if negatives == "max" else s[:, :, kept])
    sim[rows, positives] = own[:, kept]
    contrastive = np.log(np.exp(sim).sum(1)) - own[:, kept]
    return contrastive.mean() + regularization * (np.log(np.exp(own).sum(1)) - own[:, kept]).mean()


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_queries=st.integers(1, 4),
    extra=st.integers(0, 4),
    m=st.integers(1, 4),
    regularization=st.floats(0, 10),
    temperature=st.floats(0.1, 5),
    negatives=st.sampled_from(["max", "kept"]),
)
def test_equals_numpy(seed, n_queries, extra, m, regularization, temperature, negatives):
    random = np.random.default_rng(seed)
    n_documents = n_queries + extra
    q, d = random.normal(size=(n_queries, 3)), random.normal(size=(n_documents, m, 3))
    # A document may be the positive of two queries.
    positives, kept = random.integers(n_documents, size=n_queries), int(random.integers(m))
    ignore = random.random((n_queries, n_documents)) < 0.3
    ignore[np.arange(n_queries), positives] = False
    mask = random.random((n_documents, m)) < 0.7
    mask[:, kept] = True
    expected = reference(q, d, positives, ignore, kept, regularization, temperature, mask, negatives)
    step_loss = loss_of(
        Representation(vectors=torch.tensor(q)[:, None]),
        Representation(vectors=torch.tensor(d), vector_mask=torch.tensor(mask), kept=kept),
        torch.tensor(positives),
        torch.tensor(ignore),
        regularization=regularization,
        temperature=temperature,
        negatives=negatives,
    )
    assert step_loss.total.item() == pytest.approx(expected, rel=1e-9)


def test_weights_add_to_the_score():
    q_weights = torch.tensor([[0.7, 0.0, 0.2], [0.0, 1.1, 0.0]], dtype=torch.float64)
    d_weights = torch.tensor([[0.6, 0.1, 0], [0, 0.9, 0.3], [0, 0.8, 0], [0.4, 0, 0.5]], dtype=torch.float64)
    plain = loss_of(queries(), documents())
    both = loss_of(replace(queries(), weights=q_weights), replace(documents(), weights=d_weights))
    sim = np.array([[0.85, 0.9, 0.45, 0.95], [1.25, 0.85, 1.5, 1.3]]) + (q_weights @ d_weights.T).numpy()
    expected = (np.log(np.exp(sim).sum(1)) - sim[[0, 1], [0, 2]]).mean()
    assert both.terms["contrastive"].item() == pytest.approx(expected)
    assert both.terms["regularizer"].item() == plain.terms["regularizer"].item()


@pytest.mark.parametrize(
    ("q", "d", "message"),
    [
        (queries(), replace(documents(), kept=None), "keeps one vector per document"),
        (Representation(weights=torch.ones(2, 3)), Representation(weights=torch.ones(4, 3)), "needs dense vectors"),
        (Representation(vectors=torch.ones(2, 3, 2)), documents(), "one vector per query, but this pooler computes 3"),
    ],
)
def test_unsuitable_representations_are_refused(q, d, message):
    with pytest.raises(UnsupportedError, match=rf"{message}.*--pooler self_contrastive.*--loss contrastive"):
        loss_of(q, d)


def test_the_contract_is_kept():
    check("loss", "self_contrastive", kept=0)
