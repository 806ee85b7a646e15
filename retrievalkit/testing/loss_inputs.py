"""The properties of a loss as a function: its form, the order of texts, masks, a teacher."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from retrievalkit.contracts import LossValue, Representation
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.testing.loss_cases import (
    DOCUMENTS,
    LOSSES,
    QUERIES,
    LossCase,
    Step,
    expect_finite,
)
from retrievalkit.testing.option_effects import expect_typed_keywords
from retrievalkit.testing.properties import expect_close, expect_equal, fail


@LOSSES.property(once=True)
def options_typed(case: LossCase) -> None:
    """Options are keyword-only arguments with types, which the defaults fit."""
    made = case.loss()
    expect_typed_keywords(type(made), positional=int(made.wraps))


@LOSSES.property()
def value(case: LossCase) -> None:
    """It returns a finite scalar, and finite scalars as terms."""
    found: object = case.value(case.step())
    if not isinstance(found, LossValue):
        fail("it returns no LossValue", expected="LossValue", found=type(found).__name__, method="forward")
    for name, number in {"total": found.total, **found.terms}.items():
        if number.dim():
            problem = f"the {name} has shape {tuple(number.shape)}, and must be a scalar"
            fail(problem, expected="()", found=tuple(number.shape), method="forward")
        if not torch.isfinite(number):
            fail(f"the {name} is {number.item()}", expected="a number", found=number.item(), method="forward")


@LOSSES.property(after=("value",))
def inputs_unchanged(case: LossCase) -> None:
    """The representations, and what is masked, are not changed in place."""
    before, step = case.step(), case.step()
    ignore = torch.zeros(QUERIES, DOCUMENTS, dtype=torch.bool)
    # Not leaves: autograd would refuse to change these in place.
    given = step.with_leaves({name: one.detach() for name, one in step.leaves().items()})
    case.value(replace(given, ignore=ignore))
    for name, one in given.leaves().items():
        expect_equal(f"{name} are changed in place", one, before.leaves()[name].detach(), method="forward")
    expect_equal("ignore is changed in place", ignore, torch.zeros_like(ignore), method="forward")
    expect_equal("positives are changed in place", given.positives, before.positives, method="forward")


@LOSSES.property(after=("value",))
def positives_effective(case: LossCase) -> None:
    """It depends on which document is the positive."""
    _check_without_teacher(case)
    case.check_compares()
    step = case.step()
    expected, found = case.total(step), case.total(replace(step, positives=step.positives + 1))
    if found == expected:
        _fail_without_effect("`positives` has no effect", found)


@LOSSES.property(after=("value",))
def order_of_queries(case: LossCase) -> None:
    """The order of queries changes nothing."""
    step, order = case.step(), torch.tensor([2, 0, 3, 1])
    turned = replace(step, queries=step.queries.rows(order), positives=step.positives[order])
    turned.teacher = None if step.teacher is None else step.teacher[order]
    problem = "the order of queries changes the loss"
    expect_close(problem, case.total(turned).detach(), case.total(step).detach(), method="forward")


@LOSSES.property(after=("value",))
def order_of_documents(case: LossCase) -> None:
    """The order of documents changes nothing."""
    step, order = case.step(), torch.tensor([5, 0, 7, 2, 1, 6, 4, 3])
    turned = replace(step, documents=step.documents.rows(order), positives=order.argsort()[step.positives])
    turned.teacher = None if step.teacher is None else step.teacher[:, order]
    problem = "the order of documents changes the loss"
    expect_close(problem, case.total(turned).detach(), case.total(step).detach(), method="forward")


@LOSSES.property(after=("value",))
def ignore_effective(case: LossCase) -> None:
    """Documents that are masked as no negatives have an effect on the loss by that."""
    _check_without_teacher(case)
    case.check_compares()
    step = case.step()
    own = torch.zeros(QUERIES, DOCUMENTS, dtype=torch.bool).scatter(1, step.positives[:, None], True)
    # The hardest negative of each query, which counts at any temperature.
    hardest = step.compared().masked_fill(own, -torch.inf).argmax(dim=1, keepdim=True)
    ignore = torch.zeros_like(own).scatter(1, hardest, True)
    expected, found = case.total(step), case.total(replace(step, ignore=ignore))
    if found == expected:
        _fail_without_effect("`ignore` has no effect", found)


@LOSSES.property(after=("value",))
def all_ignored(case: LossCase) -> None:
    """Where no negative is left, loss and gradients are finite."""
    step = case.step()
    ignore = torch.ones(QUERIES, DOCUMENTS, dtype=torch.bool).scatter(1, step.positives[:, None], False)
    expect_finite("with every negative masked", case, replace(step, ignore=ignore))


@LOSSES.property(after=("value",))
def masked_vectors(case: LossCase) -> None:
    """Vectors that are masked have no effect, whatever they are."""
    step = case.step()
    if step.documents.vectors is None:
        msg = "there are no vectors."
        raise UnsupportedError(msg)
    changed = replace(step, documents=_with_masked_vector(step.documents))
    if case.form.query_vectors > 1:
        changed.queries = _with_masked_vector(step.queries)
    problem = "vectors that are masked change the loss"
    expect_close(problem, case.total(changed).detach(), case.total(step).detach(), method="forward")
    expect_finite("with masked vectors", case, changed)


@LOSSES.property(after=("value",))
def teacher_effective(case: LossCase) -> None:
    """It depends on the teacher's scores."""
    step = _with_teacher(case)
    assert step.teacher is not None
    expected = case.total(step)
    found = case.total(replace(step, teacher=step.teacher * torch.tensor([1.0, 2.0]).repeat(QUERIES)))
    if found == expected:
        _fail_without_effect("`teacher` has no effect", found)


@LOSSES.property(after=("value",))
def teacher_needed(case: LossCase) -> None:
    """Without a teacher it says what is missing, if it needs one (InputError)."""
    step = _with_teacher(case)
    try:
        case.value(replace(step, teacher=None))
    except InputError:
        return
    problem = "without a teacher it does not say what is missing (InputError)"
    fail(problem, expected="InputError", found="a loss", method="forward")


@LOSSES.property(after=("value",))
def teacher_missing(case: LossCase) -> None:
    """Where the teacher lacks some scores of a query, or all (NaN), loss and gradients are finite."""
    step = _with_teacher(case)
    assert step.teacher is not None
    step.teacher[0] = float("nan")
    step.teacher[1, step.positives[1] + 1] = float("nan")
    expect_finite("with missing scores of the teacher", case, step)


def _check_without_teacher(case: LossCase) -> None:
    """A loss with a teacher may learn from it alone, who says which passages are good."""
    if case.loss().needs_teacher:
        msg = "it learns from a teacher."
        raise UnsupportedError(msg)


def _with_teacher(case: LossCase) -> Step:
    if not case.loss().needs_teacher:
        msg = "it needs no teacher."
        raise UnsupportedError(msg)
    return case.step()


def _fail_without_effect(problem: str, found: Tensor) -> None:
    fail(problem, expected="another loss", found=found.item(), difference=0.0, method="forward")


def _with_masked_vector(texts: Representation) -> Representation:
    """The same texts with one more vector each, large and masked."""
    assert texts.vectors is not None
    count, vectors, width = texts.vectors.shape
    more = torch.cat([texts.vectors, torch.full((count, 1, width), 100.0)], dim=1)
    mask = torch.ones(count, vectors + 1, dtype=torch.bool)
    mask[:, -1] = False
    return replace(texts, vectors=more, vector_mask=mask)
