"""The conformance tests of losses: the inputs they depend on, and training."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.scoring import scores
from retrievalkit_testing.option_effects import add_option_properties, required_values
from retrievalkit_testing.properties import (
    Kit,
    accepted,
    backward,
    expect_close,
    expect_equal,
    expect_scalars,
    fail,
    leave_out,
    trained,
)

QUERIES, DOCUMENTS, DIMENSIONS, TERMS = 4, 8, 8, 12
START = Progress(0, 0.0, 10)


@dataclass(frozen=True)
class Form:
    """A kind of representation."""

    query_vectors: int = 1
    document_vectors: int = 1
    weights: bool = False
    kept: int | None = None
    parts: Mapping[str, slice] | None = None


FORMS = {
    "one vector a text": Form(),
    "two vectors a document": Form(document_vectors=2),
    "two vectors a document, one kept": Form(document_vectors=2, kept=0),
    "several vectors a text": Form(3, 4),
    "weights": Form(0, 0, weights=True),
    "a vector and weights": Form(weights=True),
    "a vector in parts": Form(parts={"one": slice(0, 3), "other": slice(3, DIMENSIONS)}),
}


@dataclass
class Step:
    """The arguments of a loss. The positive of query i is document 2 i, its own negative the next document."""

    queries: Representation
    documents: Representation
    positives: Tensor
    ignore: Tensor | None = None
    teacher: Tensor | None = None
    progress: Progress = START

    def leaves(self) -> dict[str, Tensor]:
        """The tensors of both sides that receive gradients, by name."""
        sides = (("queries", self.queries), ("documents", self.documents))
        return {
            f"{what} of {side}": getattr(one, what)
            for side, one in sides
            for what in ("vectors", "weights")
            if getattr(one, what) is not None
        }

    def with_leaves(self, change: Mapping[str, Tensor]) -> Step:
        """The same step with some tensors replaced, named as in `leaves`."""
        made = self
        for name, one in change.items():
            what, _, side = name.split()
            made = replace(made, **{side: replace(getattr(made, side), **{what: one})})
        return made

    def rows(self, queries: Tensor, documents: Tensor | None = None) -> Step:
        """The same step with a selection of queries, and optionally the documents in another order."""
        columns = torch.arange(DOCUMENTS) if documents is None else documents
        return replace(
            self,
            queries=self.queries.rows(queries),
            documents=self.documents.rows(columns),
            positives=columns.argsort()[self.positives[queries]],
            teacher=None if self.teacher is None else self.teacher[queries][:, columns],
        )

    def scaled(self, factor: float) -> Step:
        """The same step with all vectors and weights multiplied by a factor, as new leaves."""
        return self.with_leaves({name: (one.detach() * factor).requires_grad_() for name, one in self.leaves().items()})

    def compared(self) -> Tensor:
        """(Q, D): the scores as in search."""
        return scores(self.queries, self.documents.as_indexed())


@dataclass
class LossCase:
    """A loss on one kind of representation."""

    name: str
    label: str
    form: Form
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = self.create(self.options)

    def create(self, options: Mapping[str, Any]) -> Loss:
        """Create the loss with these options; a wrapper loss is created around the contrastive loss."""
        kind: Any = registry.get("loss", self.name)
        inner = [registry.create("loss", "contrastive")] if getattr(kind, "wraps", False) else []
        made: Loss = registry.create("loss", self.name, *inner, **options)
        return made

    def loss(self) -> Loss:
        """A fresh copy of the loss."""
        return copy.deepcopy(self._made)

    def step(self, dtype: torch.dtype = torch.float32) -> Step:
        """A random step, always the same, whose tensors are leaves that require gradients."""
        generator = torch.Generator().manual_seed(0)
        form = self.form
        sides = [
            Representation(
                _drawn((texts, vectors, DIMENSIONS), generator, dtype) if vectors else None,
                weights=_drawn((texts, TERMS), generator, dtype, least=0.0) if form.weights else None,
                kept=kept,
                parts=form.parts,
            )
            for texts, vectors, kept in (
                (QUERIES, form.query_vectors, None),
                (DOCUMENTS, form.document_vectors, form.kept),
            )
        ]
        positives = torch.arange(QUERIES) * 2
        teacher = own_scores(positives, torch.randn(QUERIES, 2, generator=generator))
        queries, documents = sides
        return Step(queries, documents, positives, teacher=teacher if self._made.needs_teacher else None)

    def value(self, step: Step, loss: Loss | None = None, *, rank: int = 0) -> LossValue:
        """The loss of a step, always with the same random draws."""
        torch.manual_seed(0)
        random.seed(rank)
        np.random.seed(rank)
        made = self.loss() if loss is None else loss
        value: LossValue = made(step.queries, step.documents, step.positives, step.progress, step.ignore, step.teacher)
        return value

    def total(self, step: Step, loss: Loss | None = None) -> Tensor:
        """The scalar to minimise."""
        return self.value(step, loss).total

    def compares(self) -> bool:
        """True if the loss compares queries with documents, unlike a regulariser of each side."""
        step = self.step()
        turned = {}
        for name, one in step.leaves().items():
            if name.endswith("documents"):
                # Roll the columns and flip the signs of some in vectors, which keeps every norm.
                turned[name] = one.detach().roll(1, dims=-1)
                if one.dim() > 2:
                    turned[name][..., ::2] *= -1
        with torch.no_grad():
            return not torch.isclose(self.total(step), self.total(step.with_leaves(turned)), rtol=1e-5)

    def expect_effect(self, argument: str, change: Step) -> None:
        """Expect that changing one argument changes the loss."""
        expected, found = self.total(self.step()), self.total(change)
        if found == expected:
            fail(f"`{argument}` has no effect", expected="another loss", found=found.item(), difference=0.0)

    def check_compares(self) -> None:
        """Skip a property that applies only to losses that compare queries with documents without a teacher."""
        if self._made.needs_teacher:
            leave_out("it learns from a teacher.")
        if not self.compares():
            leave_out("it does not depend on how queries and documents compare.")

    def taught(self) -> Step:
        """The step of a loss with a teacher; other losses skip the property."""
        if not self._made.needs_teacher:
            leave_out("it needs no teacher.")
        return self.step()


def loss_cases(
    name: str, *, kept: int | None = None, parts: Mapping[str, slice] | None = None, **options: Any
) -> list[LossCase]:
    """The loss on the requested kind of representation, or on each kind that it supports."""
    options = {**required_values(registry.get("loss", name), options), **options}
    forms = FORMS
    if kept is not None or parts is not None:
        forms = {"two vectors a document": Form(document_vectors=2, kept=kept, parts=parts)}
    return accepted(
        [LossCase(name, label, form, options) for label, form in forms.items()],
        lambda case: case.value(case.step()),
    )


def own_scores(positives: Tensor, own: Tensor) -> Tensor:
    """(Q, D): a teacher's scores (Q, 2) of each query's positive and the document after it, otherwise NaN."""
    teacher = torch.full((len(positives), DOCUMENTS), float("nan"), dtype=own.dtype)
    return teacher.scatter(1, torch.stack([positives, positives + 1], dim=1), own)


def _drawn(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, least: float | None = None
) -> Tensor:
    values = torch.randn(shape, generator=generator).to(dtype)
    return (values if least is None else values.clamp(min=least)).requires_grad_()


def expect_finite(where: str, case: LossCase, step: Step) -> None:
    """Expect that the loss of a step and its gradients are finite; `where` describes the step in the message."""
    step = step.scaled(1.0)
    total = case.total(step)
    if not torch.isfinite(total):
        fail(f"{where} the loss is {total.item()}", expected="a number", found=total.item())
    backward(total)
    for name, one in step.leaves().items():
        if one.grad is not None and not one.grad.isfinite().all():
            wrong = float(one.grad[~one.grad.isfinite()][0])
            fail(f"{where} the gradient of the {name} is {wrong}", expected="numbers", found=wrong)


LOSSES: Kit[LossCase] = Kit("loss", loss_cases, method="forward")


@LOSSES.property()
def value(case: LossCase) -> None:
    """It returns a finite scalar, and finite scalars as terms."""
    found: object = case.value(case.step())
    if not isinstance(found, LossValue):
        fail("it returns no LossValue", expected="LossValue", found=type(found).__name__)
    expect_scalars({"total": found.total, **found.terms})


@LOSSES.property(after=("value",))
def inputs_unchanged(case: LossCase) -> None:
    """The representations, and what is masked, are not changed in place."""
    before, step = case.step(), case.step()
    ignore = torch.zeros(QUERIES, DOCUMENTS, dtype=torch.bool)
    # No leaves: autograd would refuse to change these in place.
    given = step.with_leaves({name: one.detach() for name, one in step.leaves().items()})
    case.value(replace(given, ignore=ignore))
    for name, one in given.leaves().items():
        expect_equal(f"{name} are changed in place", one, before.leaves()[name].detach())
    expect_equal("ignore is changed in place", ignore, torch.zeros_like(ignore))
    expect_equal("positives are changed in place", given.positives, before.positives)


@LOSSES.property(after=("value",))
def positives_effective(case: LossCase) -> None:
    """It depends on which document is the positive."""
    case.check_compares()
    step = case.step()
    case.expect_effect("positives", replace(step, positives=step.positives + 1))


@LOSSES.property(after=("value",))
def order_of_queries(case: LossCase) -> None:
    """The order of queries changes nothing."""
    turned = case.total(case.step().rows(torch.tensor([2, 0, 3, 1])))
    expect_close("the order of queries changes the loss", turned.detach(), case.total(case.step()).detach())


@LOSSES.property(after=("value",))
def order_of_documents(case: LossCase) -> None:
    """The order of documents changes nothing."""
    order = torch.tensor([5, 0, 7, 2, 1, 6, 4, 3])
    turned = case.total(case.step().rows(torch.arange(QUERIES), order))
    expect_close("the order of documents changes the loss", turned.detach(), case.total(case.step()).detach())


@LOSSES.property(after=("value",))
def ignore_effective(case: LossCase) -> None:
    """Documents that are masked as no negatives have an effect on the loss by that."""
    case.check_compares()
    step = case.step()
    own = torch.zeros(QUERIES, DOCUMENTS, dtype=torch.bool).scatter(1, step.positives[:, None], True)
    # The hardest negative of each query, which matters at any temperature.
    hardest = step.compared().masked_fill(own, -torch.inf).argmax(dim=1, keepdim=True)
    case.expect_effect("ignore", replace(step, ignore=torch.zeros_like(own).scatter(1, hardest, True)))


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
        leave_out("there are no vectors.")
    changed = replace(step, documents=_with_masked_vector(step.documents))
    if case.form.query_vectors > 1:
        changed.queries = _with_masked_vector(step.queries)
    problem = "vectors that are masked change the loss"
    expect_close(problem, case.total(changed).detach(), case.total(step).detach())
    expect_finite("with masked vectors", case, changed)


@LOSSES.property(after=("value",))
def teacher_effective(case: LossCase) -> None:
    """It depends on the teacher's scores."""
    step = case.taught()
    assert step.teacher is not None
    case.expect_effect("teacher", replace(step, teacher=step.teacher * torch.tensor([1.0, 2.0]).repeat(QUERIES)))


@LOSSES.property(after=("value",))
def teacher_needed(case: LossCase) -> None:
    """Without a teacher it says what is missing, if it needs one (InputError)."""
    step = case.taught()
    try:
        case.value(replace(step, teacher=None))
    except InputError:
        return
    fail("without a teacher it does not say what is missing (InputError)", expected="InputError", found="a loss")


@LOSSES.property(after=("value",))
def teacher_missing(case: LossCase) -> None:
    """Where the teacher lacks some scores of a query, or all (NaN), loss and gradients are finite."""
    step = case.taught()
    assert step.teacher is not None
    step.teacher[0] = float("nan")
    step.teacher[1, step.positives[1] + 1] = float("nan")
    expect_finite("with missing scores of the teacher", case, step)


def _with_masked_vector(texts: Representation) -> Representation:
    """The same texts with an additional vector each, large and masked."""
    assert texts.vectors is not None
    count, vectors, width = texts.vectors.shape
    more = torch.cat([texts.vectors, torch.full((count, 1, width), 100.0)], dim=1)
    mask = torch.ones(count, vectors + 1, dtype=torch.bool)
    mask[:, -1] = False
    return replace(texts, vectors=more, vector_mask=mask)


_STEPS = 12
_LATER = (Progress(3, 2.0, 10), Progress(1000, 20.0, 100_000))


@LOSSES.property(after=("value",))
def gradient(case: LossCase) -> None:
    """Gradients reach both sides, if the loss depends on them."""
    step = case.step()
    total = case.total(step)
    backward(total)
    for name, one in step.leaves().items():
        if one.grad is not None and one.grad.any():
            continue
        noise = 1e-2 * torch.randn(one.shape, generator=torch.Generator().manual_seed(1)) * (one != 0)
        with torch.no_grad():
            change = (case.total(step.with_leaves({name: one + noise})) - total).abs().item()
        if change > 0:
            found = f"none, where other {name} change the loss by {change:.3g}"
            fail(f"no gradient reaches the {name}", expected="a gradient", found=found)


@LOSSES.property(after=("value", "gradient"))
def finite_differences(case: LossCase) -> None:
    """The gradient is that of finite differences."""
    step = case.step(torch.float64)
    total = case.total(step)
    if not total.requires_grad:
        fail("no gradient reaches the representations", expected="a gradient", found="none")
    backward(total)
    exact = total.dtype == torch.float64
    size, tolerance = (1e-5, 1e-4) if exact else (1e-2, 3e-2)
    for name, one in step.leaves().items():
        direction = torch.randn(one.shape, generator=torch.Generator().manual_seed(2)) * (one.detach() != 0)
        there, back = (
            case.total(step.with_leaves({name: one.detach() + sign * size * direction})).item() for sign in (1, -1)
        )
        expected = (there - back) / (2 * size)
        found = 0.0 if one.grad is None else float((one.grad * direction).sum())
        if abs(found - expected) > tolerance * max(abs(expected), 1e-2):
            problem = f"the gradient of the {name} is not that of finite differences"
            fail(problem, expected=expected, found=found, difference=abs(found - expected))


@LOSSES.property(after=("value",))
def mean_over_queries(case: LossCase) -> None:
    """It is a mean over queries: the same queries twice, and three times, do not make it grow in proportion."""
    step = case.step()
    seen = []
    for times in (1, 2, 3):
        rows = torch.arange(QUERIES).repeat(times)
        seen.append(case.total(step.rows(rows)).item())
    growth = seen[1] - seen[0]
    # A loss over pairs of queries may grow, but not evenly.
    if abs(growth) > 1e-3 * abs(seen[0]) and abs(seen[2] - seen[0] - 2 * growth) < 1e-3 * abs(growth):
        problem = "it is a sum over queries, and should be a mean: with each query twice it grows, with three evenly on"
        fail(problem, expected=seen[0], found=seen[1], difference=growth)


@LOSSES.property(after=("value", "gradient"))
def temperature(case: LossCase) -> None:
    """A higher temperature makes differences of scores count less."""
    if "temperature" not in registry.options(type(case.loss())):
        leave_out("it has no option `temperature`.")
    sizes = []
    for number in (1.0, 100.0):
        try:
            made = case.create({**case.options, "temperature": number})
        except InputError as error:
            raise UnsupportedError(str(error)) from error
        step = case.step()
        backward(case.total(step, made))
        gradients = [one.grad for one in step.leaves().values() if one.grad is not None]
        sizes.append(float(torch.cat([one.reshape(-1) for one in gradients]).norm()))
    if sizes[1] >= sizes[0]:
        problem = "the gradient does not fall with the temperature, which divides scores"
        expected = f"below {sizes[0]:.4g}, as at temperature 1"
        fail(problem, expected=expected, found=sizes[1], difference=sizes[1] - sizes[0])


@LOSSES.property(after=("value",))
def large_scores(case: LossCase) -> None:
    """With scores of some hundred thousand, loss and gradients are finite."""
    expect_finite("with scores of some hundred thousand", case, case.step().scaled(300.0))


@LOSSES.property(after=("value",))
def finite_in_bf16(case: LossCase) -> None:
    """On representations in bf16, under autocast, loss and gradients are finite."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expect_finite("in bf16", case, case.step(torch.bfloat16))


@LOSSES.property(after=("value", "gradient"))
def falls_under_training(case: LossCase) -> None:
    """Training by it makes it fall, and raises the positives' scores above the others'."""
    step = case.step()
    if step.teacher is not None:
        step.teacher = own_scores(step.positives, torch.tensor([[5.0, -5.0]]).repeat(QUERIES, 1))
    leaves = {name: one.detach().clone().requires_grad_() for name, one in step.leaves().items()}
    optimizer = torch.optim.Adam(leaves.values(), lr=0.05)
    loss = case.loss()
    before, margin_before = case.total(step, loss).item(), _margin(step)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        backward(case.total(_rectified(step, leaves), loss))
        optimizer.step()
    after, margin_after = case.total(_rectified(step, leaves), loss).item(), _margin(_rectified(step, leaves))
    if not after < before:
        problem = f"{_STEPS} steps of training do not make it fall"
        fail(problem, expected=f"below {before:.4g}", found=after, difference=after - before)
    if case.compares() and not margin_after > margin_before:
        problem = f"{_STEPS} steps of training do not raise the scores of positives above those of the other documents"
        expected = f"above {margin_before:.4g}"
        fail(problem, expected=expected, found=margin_after, difference=margin_after - margin_before)


@LOSSES.property(after=("value", "gradient"))
def two_processes(case: LossCase) -> None:
    """Two processes, each of which has the graph of its own texts alone, have the gradient of one."""
    alone, shared = case.step(), case.step()
    backward(case.total(alone))
    for rank in range(2):
        attached = {}
        for name, one in shared.leaves().items():
            own = torch.arange(len(one)) % 2 == rank
            attached[name] = torch.where(own.view(-1, *([1] * (one.dim() - 1))), one, one.detach())
        backward(case.value(shared.with_leaves(attached), rank=rank).total)
    for (name, one), other in zip(shared.leaves().items(), alone.leaves().values(), strict=True):
        found, expected = (torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in (one, other))
        expect_close(f"the gradients of the {name} in two processes do not add up to that of one", found, expected)


@LOSSES.property(after=("value", "gradient"))
def parameters_trained(case: LossCase) -> None:
    """Every parameter of its own gets a gradient."""
    loss = case.loss()
    with trained(dict(loss.named_parameters())):
        backward(case.total(case.step(), loss))


def _behaviour(case: LossCase, options: Mapping[str, Any]) -> list[Any]:
    """The loss and its gradients for all supported kinds of representation, at several points of training."""
    loss = case.create(options)
    found: list[Any] = []
    for form in (case.form, *FORMS.values()):
        for progress in (START, *_LATER):
            step = replace(replace(case, form=form).step(), progress=progress)
            if step.teacher is not None:
                step.teacher[-1] = float("nan")
            try:
                total = case.total(step, loss)
            except UnsupportedError as error:
                found.append(str(error))
                continue
            backward(total)
            found += [total.detach(), *(one.grad for one in step.leaves().values())]
    return found


add_option_properties(LOSSES, _behaviour, after=("value",))


def _margin(step: Step) -> float:
    """The mean score difference between a query's positive and its own negative."""
    with torch.no_grad():
        compared = step.compared()
    rows = torch.arange(QUERIES)
    return float((compared[rows, step.positives] - compared[rows, step.positives + 1]).mean())


def _rectified(step: Step, leaves: Mapping[str, Tensor]) -> Step:
    """The step with other tensors, where weights are clipped to be non-negative."""
    return step.with_leaves({name: one.relu() if one.dim() == 2 else one for name, one in leaves.items()})


def check_loss(
    name: str, *, kept: int | None = None, parts: Mapping[str, slice] | None = None, **settings: Any
) -> None:
    """Check that a loss has all properties that the contract requires.

    It is tested with every kind of representation that it supports; a loss that needs a teacher also with scores for
    each query's own passages only.

    Args:
        name: Registered name of the loss.
        kept: `Representation.kept` of the documents, which then have two vectors each.
        parts: `Representation.parts` of both sides, whose vectors have 8 numbers.
        settings: Options of the loss; or `only` or `without`, names of properties.
    """
    LOSSES.check(name, kept=kept, parts=parts, **settings)
