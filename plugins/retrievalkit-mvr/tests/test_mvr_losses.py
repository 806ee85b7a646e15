"""The global-local loss against numbers of the paper's equations, and an independent reference."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Progress, Representation
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.training.train import train

# Two queries and their documents: positive, hard negative, positive, hard negative; three viewers each.
QUERIES = [[1.0, 0.5], [-0.5, 1.0]]
DOCUMENTS = [
    [[1.0, 0.0], [0.5, 1.2], [0.0, 1.5]],
    [[0.2, 0.2], [1.0, -1.0], [0.0, 0.8]],
    [[-1.0, 0.5], [0.4, 1.0], [0.0, 1.3]],
    [[0.5, -0.4], [0.0, 0.5], [-0.3, 0.3]],
]
POSITIVES = torch.tensor([0, 2])
# epoch: tau, L_global, L_local, total
BY_EPOCH = {
    0: (1.0, 1.1113176271, 0.9062274812, 1.1203799019),
    5: (0.6065306597, 0.9941291979, 0.7982306711, 1.0021115046),
    12: (0.3011942119, 0.8536070112, 0.5762708073, 0.8593697193),
    13: (0.3, 0.8531755947, 0.5748106796, 0.8589237015),
    39: (0.3, 0.8531755947, 0.5748106796, 0.8589237015),
}


def queries():
    return Representation(vectors=torch.tensor(QUERIES, dtype=torch.float64)[:, None].requires_grad_())


def documents():
    return Representation(vectors=torch.tensor(DOCUMENTS, dtype=torch.float64, requires_grad=True))


def at(epoch):
    return Progress(step=0, epoch=epoch, total_steps=100)


def loss_of(queries, documents, positives=POSITIVES, ignore=None, epoch=0.0, **options):
    return registry.create("loss", "global_local", **options)(queries, documents, positives, at(epoch), ignore)


class TestGolden:
    """Numbers worked out apart from this code."""

    @pytest.mark.parametrize("epoch", BY_EPOCH)
    def test_terms_by_epoch(self, epoch):
        temperature, global_part, local_part, total = BY_EPOCH[epoch]
        value = loss_of(queries(), documents(), epoch=float(epoch))
        assert set(value.terms) == {"global", "local", "temperature"}
        assert value.terms["temperature"].item() == pytest.approx(temperature, abs=1e-9)
        assert value.terms["global"].item() == pytest.approx(global_part, abs=1e-9)
        assert value.terms["local"].item() == pytest.approx(local_part, abs=1e-9)
        assert value.total.item() == pytest.approx(total, abs=1e-9)


def test_temperature_changes_when_an_epoch_begins():
    """Within an epoch it stays; a sum of fractions that rounding leaves below a whole number has arrived there."""
    loss = registry.create("loss", "global_local")
    assert loss.temperature(at(0.999)) == 1.0
    assert loss.temperature(at(2.5)) == loss.temperature(at(2.0)) < loss.temperature(at(1.99))
    assert loss.temperature(at(sum([0.1] * 10))) == loss.temperature(at(1.0))


def reference(q, d, positives, ignore, mask, weight, tau):
    """The equations in numpy: f (Q, D, m); its maximum over m, also for negatives; own (Q, m)."""
    f = np.where(mask, np.einsum("qh,dmh->qdm", q, d), -np.inf) / tau
    rows = np.arange(len(q))
    best = f.max(axis=2)
    global_part = np.log(np.where(ignore, 0.0, np.exp(best)).sum(1)) - best[rows, positives]
    own = f[rows, positives]
    local_part = np.log(np.exp(own).sum(1)) - own.max(1)
    return global_part.mean() + weight * local_part.mean()


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n_queries=st.integers(1, 4),
    others=st.integers(0, 4),
    m=st.integers(1, 5),
    weight=st.floats(0, 5),
    annealing=st.floats(0, 1),
    floor=st.floats(0.1, 1),
    epoch=st.integers(0, 20),
    fixed=st.none() | st.floats(0.1, 5),
)
def test_equals_numpy(seed, n_queries, others, m, weight, annealing, floor, epoch, fixed):
    random = np.random.default_rng(seed)
    n_documents = n_queries + others
    q, d = random.normal(size=(n_queries, 3)), random.normal(size=(n_documents, m, 3))
    positives = random.permutation(n_documents)[:n_queries]
    ignore = random.random((n_queries, n_documents)) < 0.3
    ignore[np.arange(n_queries), positives] = False
    mask = random.random((n_documents, m)) < 0.7
    mask[:, 0] = True
    tau = fixed or max(floor, np.exp(-annealing * epoch))
    schedule = {"temperature": fixed} if fixed else {"annealing": annealing, "floor": floor}
    value = loss_of(
        Representation(vectors=torch.tensor(q)[:, None]),
        Representation(vectors=torch.tensor(d), vector_mask=torch.tensor(mask)),
        torch.tensor(positives),
        torch.tensor(ignore),
        epoch=epoch + 0.5,
        local_weight=weight,
        **schedule,
    )
    assert value.total.item() == pytest.approx(reference(q, d, positives, ignore, mask, weight, tau), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"local_weight": 0}, {"temperature": 0.05}])
def test_the_contract_is_kept(options):
    testing.check("loss", "global_local", **options)


@pytest.mark.parametrize(
    ("q", "d", "message"),
    [
        (Representation(weights=torch.ones(2, 3)), Representation(weights=torch.ones(4, 3)), "needs dense vectors"),
        (Representation(vectors=torch.ones(2, 3, 2)), documents(), "one vector per query, but this pooler computes 3"),
        (queries(), replace(documents(), kept=0), "this one indexes one. Choose --loss self_contrastive"),
    ],
)
def test_unsuitable_representations_are_refused(q, d, message):
    with pytest.raises(UnsupportedError, match=rf"loss 'global_local' .*{message}"):
        loss_of(q, d)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"floor": 1.5}, "'floor' .* cannot be 1.5"),
        ({"temperature": 0.5, "annealing": 0.3}, "annealing=0.3 has no effect with temperature=0.5"),
        ({"temperature": 0.5, "floor": 0.1}, "floor=0.1 has no effect with temperature=0.5"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        registry.create("loss", "global_local", **options)


def test_the_temperature_of_training_falls_with_each_epoch(tiny_model, tiny_collection, tmp_path):
    """By the pooler's own loss; 84 examples are 6 steps an epoch, so that each line of the log is one epoch."""
    train(
        tiny_model,
        tiny_collection.folder,
        corpus=tiny_collection.corpus,
        output=tmp_path / "out",
        pooler="viewers",
        pooler_options={"viewers": 3},
        batch_size=16,
        epochs=3,
        negatives=0,
        logging_steps=6,
    )
    log = [json.loads(line) for line in (tmp_path / "out" / "training.jsonl").read_text().splitlines()]
    assert [line["temperature"] for line in log] == pytest.approx([math.exp(-0.1 * epoch) for epoch in range(3)])
    for line in log:
        assert line["loss"] == pytest.approx(line["global"] + 0.01 * line["local"], rel=1e-4)
