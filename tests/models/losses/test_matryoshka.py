"""The loss `matryoshka`: worked numbers, an independent reference, names and options, errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from retrievalkit.contracts import Progress, Representation
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.training.objective import create_loss, describe_loss

POSITIVES = torch.tensor([0, 2])


def value(loss, queries, documents, positives=POSITIVES, **more):
    return loss(Representation(queries), Representation(documents), positives, Progress(0, 0.0, 1), **more)


def matryoshka(dimensions, weights=None, inner="contrastive", **options):
    options_of_matryoshka = {"dimensions": dimensions} | ({} if weights is None else {"weights": weights})
    return create_loss(f"matryoshka({inner})", {"matryoshka": options_of_matryoshka, **options})


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_loss_of_two_documents_by_hand():
    """By the first dimension the documents score 1 and 0, by both dimensions 1 and 2."""
    queries, documents = torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]])
    loss = value(matryoshka([1], [0.5]), queries, documents, torch.tensor([0]))
    whole, first = math.log(1 + math.exp(2 - 1)), math.log(1 + math.exp(0 - 1))
    assert loss.total.item() == pytest.approx(whole + 0.5 * first)
    assert loss.terms["contrastive"].item() == pytest.approx(whole)
    assert loss.terms["matryoshka_1"].item() == pytest.approx(first)


@pytest.mark.parametrize("normalized", [True, False])
def test_the_loss_is_the_sum_over_truncated_vectors(normalized):
    """Only normalised vectors are normalised again."""
    queries, documents = drawn(2, 1, 8), drawn(4, 1, 8, seed=1)
    if normalized:
        queries, documents = (functional.normalize(vectors, dim=-1) for vectors in (queries, documents))
    expected = 0.0
    for dimensions, weight in ((8, 1.0), (4, 0.5), (2, 2.0)):
        cut = [vectors[..., :dimensions] for vectors in (queries, documents)]
        if normalized:
            cut = [functional.normalize(vectors, dim=-1) for vectors in cut]
        logits = cut[0][:, 0] @ cut[1][:, 0].T / 0.1
        expected += weight * functional.cross_entropy(logits, POSITIVES)
    loss = matryoshka([4, 2], [0.5, 2.0], contrastive={"temperature": 0.1})
    torch.testing.assert_close(value(loss, queries, documents).total, expected)


def test_it_wraps_a_sum_and_is_part_of_a_sum():
    """The inner losses get the teacher and the ignored documents."""
    queries, documents = drawn(2, 1, 8), drawn(4, 1, 8, seed=1)
    teacher, ignore = torch.arange(8.0).reshape(2, 4), torch.zeros(2, 4, dtype=torch.bool)
    ignore[0, 1] = True
    loss = matryoshka([4], inner="contrastive+distill_kl")
    assert loss.needs_teacher
    assert not matryoshka([4]).needs_teacher
    both = create_loss("contrastive+distill_kl", {})
    cut = [vectors[..., :4] for vectors in (queries, documents)]
    more = {"teacher": teacher, "ignore": ignore}
    expected = value(both, queries, documents, **more).total + value(both, *cut, **more).total
    torch.testing.assert_close(value(loss, queries, documents, **more).total, expected)
    added = create_loss("matryoshka(contrastive) + distill_kl", {"matryoshka": {"dimensions": [4]}})
    assert value(added, queries, documents, **more).terms.keys() == {"contrastive", "matryoshka_4", "distill_kl"}


def test_names_and_options_are_described():
    described = describe_loss(" matryoshka( contrastive )", {"matryoshka": {"dimensions": [4]}})
    assert described["name"] == "matryoshka(contrastive)"
    assert described["options"] == {
        "matryoshka": {"dimensions": (4,), "weights": None},
        "contrastive": {"temperature": 1.0},
    }


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("matryoshka", "wraps another loss, such as 'matryoshka"),
        ("contrastive(margin_mse)", "'contrastive' does not wrap another loss"),
        ("matryoshka(contrastive", "parenthesis is missing"),
        ("matryoshka(contrastive))", "parenthesis is missing"),
        ("matryoshka(contrastive)margin_mse", "parenthesis is missing"),
        ("matryoshka(contrastive)+contrastive", "names 'contrastive' twice"),
    ],
)
def test_invalid_names_are_refused(name, problem):
    with pytest.raises(OptionError, match=problem):
        create_loss(name, {"matryoshka": {"dimensions": [4]}})


@pytest.mark.parametrize(
    "own", [{}, {"dimensions": []}, {"dimensions": [4, 4]}, {"dimensions": [4], "weights": [1, 1]}, {"dimensions": [0]}]
)
def test_wrong_options_are_refused(own):
    with pytest.raises(OptionError, match="dimensions"):
        create_loss("matryoshka(contrastive)", {"matryoshka": own})


def test_short_or_missing_vectors_are_refused():
    with pytest.raises(OptionError, match="dimensions is 9, and the vectors have 8"):
        value(matryoshka([9]), drawn(2, 1, 8), drawn(4, 1, 8))
    weights = Representation(weights=drawn(4, 8).abs())
    with pytest.raises(UnsupportedError, match="computes weights only"):
        matryoshka([4])(weights.rows(slice(2)), weights, POSITIVES, Progress(0, 0.0, 1))
