"""The conformance tests of losses: the inputs they depend on, masks, and training."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.scoring import scores
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults, required_values
from retrievalkit_testing.properties import Kit, accepted, expect_same, fail, leave_out
from retrievalkit_testing.shared import Subject, Turn, expect_mean, seeded, share

DIMENSIONS, TERMS = 8, 12
_PROGRESS = (Progress(0, 0.0, 10), Progress(3, 2.0, 10), Progress(1000, 20.0, 100_000))


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
    """The arguments of a loss."""

    queries: Representation
    documents: Representation
    positives: Tensor
    ignore: Tensor | None = None
    teacher: Tensor | None = None
    progress: Progress = _PROGRESS[0]

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

    def arranged(self, queries: Tensor, documents: Tensor) -> Step:
        """The same step with these queries, and these documents, among them all positives, in this order."""
        place = torch.full((len(self.documents),), -1).scatter(0, documents, torch.arange(len(documents)))
        return replace(
            self,
            queries=self.queries.rows(queries),
            documents=self.documents.rows(documents),
            positives=place[self.positives[queries]],
            ignore=None if self.ignore is None else self.ignore[queries][:, documents],
            teacher=None if self.teacher is None else self.teacher[queries][:, documents],
        )

    def prepared(self, factor: float = 1.0, dtype: torch.dtype = torch.float32) -> Step:
        """The same step with all vectors and weights multiplied by a factor, in a type, as new leaves."""
        made = {name: (one.detach() * factor).to(dtype).requires_grad_() for name, one in self.leaves().items()}
        return self.with_leaves(made)

    @property
    def own(self) -> Tensor:
        """(Q, D) bool: True at each query's positive."""
        return torch.zeros(len(self.queries), len(self.documents)).bool().scatter(1, self.positives[:, None], True)

    def compared(self) -> Tensor:
        """(Q, D): the scores as in search."""
        return scores(self.queries, self.documents.as_indexed()).detach()


@dataclass
class LossCase(Subject):
    """A loss on one kind of representation."""

    name: str
    label: str
    form: Form
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = registry.get("loss", self.name)
        drawn = {"queries": 5, "each": 2, "ignored": 0.0, "scale": 1.0, "positives": "anywhere", "seed": 0}
        self.typical = [{**drawn, "options": {}, "progress": one} for one in (0, 1)]

        def create(options: Mapping[str, Any]) -> None:
            self.call(self.create(options), self.given(self.typical[0]))

        self.needs_teacher = self.create(self.options).needs_teacher
        self.draws = {
            "queries": sizes(1, 32),
            "each": st.integers(1, 8),
            "ignored": st.sampled_from((0.0, 0.3, 1.0)),
            "scale": st.sampled_from((1.0, 300.0)),
            "positives": st.sampled_from(("first", "anywhere")),
            "progress": st.sampled_from(range(len(_PROGRESS))),
            "seed": SEEDS,
            "options": st.sampled_from(off_defaults(kind, self.options, create)),
        }
        self.common = {
            **self.draws,
            "queries": sizes(2, 32),
            "each": st.integers(2, 8),
            "ignored": st.just(0.0),
            "scale": st.just(1.0),
        }

    def create(self, options: Mapping[str, Any]) -> Loss:
        """Create the loss with these options; a wrapper loss is created around the contrastive loss."""
        kind: Any = registry.get("loss", self.name)
        inner = [registry.create("loss", "contrastive")] if getattr(kind, "wraps", False) else []
        made: Loss = registry.create("loss", self.name, *inner, **options)
        return made

    def created(self, drawn: Drawn) -> Loss:
        return self.create({**self.options, **drawn["options"]}).eval()

    def given(self, drawn: Drawn) -> Step:
        """A step with Q to 8 Q documents, of which any are the positives."""
        count, each, form = drawn["queries"], drawn["each"], self.form
        generator = torch.Generator().manual_seed(drawn["seed"])

        def side(texts: int, vectors: int, kept: int | None) -> Representation:
            drawn_vectors = torch.randn(texts, vectors, DIMENSIONS, generator=generator) if vectors else None
            weights = torch.randn(texts, TERMS, generator=generator).relu() if form.weights else None
            return Representation(drawn_vectors, weights=weights, kept=kept, parts=form.parts)

        queries, documents = side(count, form.query_vectors, None), side(count * each, form.document_vectors, form.kept)
        order = torch.randperm(count * each, generator=generator)
        order = order if drawn["positives"] == "anywhere" else order.sort().values
        step = Step(queries, documents, order[:count], progress=_PROGRESS[drawn["progress"]])
        if self.needs_teacher:
            # Of each query's positive and its first negative, which are never masked.
            scored = torch.stack([order[:count], order[-count:]], dim=1)
            step.teacher = torch.full((count, count * each), torch.nan)
            step.teacher.scatter_(1, scored, torch.randn(count, 2, generator=generator))
            if drawn["seed"] % 3 == 1 and count > 1:
                step.teacher[0] = torch.nan
        elif drawn["ignored"]:
            step.ignore = (torch.rand(count, count * each, generator=generator) < drawn["ignored"]) & ~step.own
        return step.prepared(drawn["scale"])

    def call(self, component: Loss, given: Step) -> Any:
        return component(given.queries, given.documents, given.positives, given.progress, given.ignore, given.teacher)

    def read(self, given: Step, found: LossValue) -> dict[str, Tensor]:  # noqa: ARG002 - by contract
        return {"total": found.total, **found.terms}

    def near(self, given: Step) -> Step:
        return given.with_leaves({name: one + 1e-3 * (one != 0) for name, one in given.leaves().items()})

    def turned(self, given: Step, draw: np.random.Generator) -> Iterator[Turn]:
        queries, documents = (torch.arange(len(one)) for one in (given.queries, given.documents))
        orders = [torch.from_numpy(draw.permutation(len(one))) for one in (queries, documents)]
        yield "queries", given.arranged(orders[0], documents), lambda found: found
        yield "documents", given.arranged(queries, orders[1]), lambda found: found

    def objective(self, component: Loss, given: Step) -> Tensor:
        total: Tensor = self.call(component, given).total
        return total

    def total(self, step: Step, drawn: Drawn) -> Tensor:
        """The loss in training, always with the same random draws."""
        with seeded(0):
            return self.objective(self.fresh(drawn).train(), step)

    def check_form(self, given: Step, found: Any) -> None:
        if not isinstance(found, LossValue):
            fail("it returns no LossValue", expected="LossValue", found=type(found).__name__)
        for name, one in {"total": found.total, **found.terms}.items():
            if one.dim() or one.dtype != torch.float32 or one.device != given.queries.device:
                expected, told = "() torch.float32 cpu", f"{tuple(one.shape)} {one.dtype} {one.device}"
                fail(f"the {name} is not a scalar of this type", expected=expected, found=told)
            if not torch.isfinite(one):
                fail(f"the {name} is {one.item()}", expected="a number", found=one.item())

    def compares(self, step: Step, drawn: Drawn) -> bool:
        """True if the loss compares queries with documents, unlike a regulariser of each side."""
        turned = {}
        for name, one in step.leaves().items():
            if name.endswith("documents"):
                # Roll the columns and flip the signs of some in vectors, which keeps every norm.
                turned[name] = one.detach().roll(1, dims=-1)
                if one.dim() > 2:
                    turned[name][..., ::2] *= -1
        with torch.no_grad():
            return not torch.isclose(self.total(step, drawn), self.total(step.with_leaves(turned), drawn), rtol=1e-5)

    def comparison(self, drawn: Drawn) -> Step:
        """A step of a loss that compares queries with documents, without a teacher; others skip the property."""
        if self.needs_teacher:
            leave_out("it learns from a teacher.")
        step = self.given(drawn)
        if not self.compares(step, drawn):
            leave_out("it does not depend on how queries and documents compare.")
        return step

    def lesson(self, drawn: Drawn) -> Step:
        """A step of a loss with a teacher; other losses skip the property."""
        if not self.needs_teacher:
            leave_out("it needs no teacher.")
        return self.given(drawn)

    def expect_effect(self, argument: str, drawn: Drawn, change: Step) -> None:
        """Expect that changing one argument changes the loss."""
        expected, found = self.total(self.given(drawn), drawn), self.total(change, drawn)
        if found == expected:
            fail(f"`{argument}` has no effect", expected="another loss", found=found.item(), difference=0.0)


def backward(total: Tensor) -> None:
    """Back-propagate, unless no tensor requires gradients."""
    if total.requires_grad:
        torch.autograd.backward(total)


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
        lambda case: case.call(case.created(case.typical[0]), case.given(case.typical[0])),
    )


def _behaviour(case: LossCase, options: Mapping[str, Any]) -> list[Any]:
    """The loss and its gradients for all supported kinds of representation, at several points of training."""
    loss = case.create(options)
    found: list[Any] = []
    for form in (case.form, *FORMS.values()):
        for progress in range(len(_PROGRESS)):
            other = copy.copy(case)
            other.form = form
            step = other.given({**case.typical[0], "progress": progress}).prepared()
            if step.teacher is not None:
                step.teacher[-1] = float("nan")
            try:
                with seeded(0):
                    total = case.objective(loss.train(), step)
            except UnsupportedError as error:
                found.append(str(error))
                continue
            backward(total)
            found += [total.detach(), *(one.grad for one in step.leaves().values())]
    return found


LOSSES: Kit[LossCase] = Kit(
    "loss", loss_cases, method="forward", unchecked="its equation, and devices other than the CPU"
)
share(LOSSES, modules=True, options=_behaviour)
_SOUND = ("form", "inputs_unchanged", "same_twice", "grad_mode", "state")


@LOSSES.property(after=_SOUND, draws="common")
def positives_effective(case: LossCase, drawn: Drawn) -> None:
    """The loss depends on which document is the positive."""
    step = case.comparison(drawn)
    case.expect_effect("positives", drawn, replace(step, positives=(step.positives + 1) % len(step.documents)))


@LOSSES.property(after=_SOUND, draws="common")
def ignore_effective(case: LossCase, drawn: Drawn) -> None:
    """Masking documents (`ignore`) changes the loss."""
    step = case.comparison(drawn)
    # The hardest negative of each query, which matters at any temperature.
    hardest = step.compared().masked_fill(step.own, -torch.inf).argmax(dim=1, keepdim=True)
    case.expect_effect("ignore", drawn, replace(step, ignore=torch.zeros_like(step.own).scatter(1, hardest, True)))


@LOSSES.property(after=(*_SOUND, "ignore_effective"), draws="common")
def ignored_absent(case: LossCase, drawn: Drawn) -> None:
    """A document that is no negative of any query counts no more than if it were absent."""
    step = case.comparison(drawn)
    if len(case.call(case.fresh(drawn), step).terms) > 1:
        leave_out("it has several terms, of which some may be of all documents.")
    others = torch.ones(len(step.documents), dtype=torch.bool).index_fill(0, step.positives, False)
    step.ignore = others.expand(len(step.queries), -1).clone()
    absent = step.arranged(torch.arange(len(step.queries)), (~others).nonzero()[:, 0])
    problem = "a document that `ignore` takes from the negatives of all queries still changes the loss"
    expected, found = (case.total(one, drawn).detach() for one in (absent, step))
    expect_same(problem, found, expected, rtol=1e-4, atol=1e-5)


@LOSSES.property(after=_SOUND)
def masked_vectors(case: LossCase, drawn: Drawn) -> None:
    """Masked vectors have no effect, whatever their values."""
    step = case.given(drawn).prepared()
    if step.documents.vectors is None:
        leave_out("there are no vectors.")
    changed = replace(step, documents=_with_masked_vector(step.documents))
    if case.form.query_vectors > 1:
        changed.queries = _with_masked_vector(step.queries)
    found, expected = (case.total(one, drawn).detach() for one in (changed, step))
    expect_same("vectors that are masked change the loss", found, expected, rtol=1e-4, atol=1e-5)


def _with_masked_vector(texts: Representation) -> Representation:
    """The same texts with an additional vector each, large and masked."""
    assert texts.vectors is not None
    count, vectors, width = texts.vectors.shape
    more = torch.cat([texts.vectors, torch.full((count, 1, width), 100.0)], dim=1)
    mask = torch.ones(count, vectors + 1, dtype=torch.bool)
    mask[:, -1] = False
    return replace(texts, vectors=more, vector_mask=mask)


@LOSSES.property(after=_SOUND, draws="common")
def teacher_effective(case: LossCase, drawn: Drawn) -> None:
    """The loss depends on the teacher's scores."""
    step = case.lesson(drawn)
    assert step.teacher is not None
    case.expect_effect("teacher", drawn, replace(step, teacher=torch.where(step.own, step.teacher, 2 * step.teacher)))


@LOSSES.property(after=_SOUND, draws="common")
def teacher_needed(case: LossCase, drawn: Drawn) -> None:
    """A loss that needs a teacher raises InputError without one, and names what is missing."""
    try:
        case.total(replace(case.lesson(drawn), teacher=None), drawn)
    except UnsupportedError:
        raise
    except InputError:
        return
    fail("without a teacher it does not say what is missing (InputError)", expected="InputError", found="a loss")


@LOSSES.property(after=_SOUND, draws="common")
def teacher_missing(case: LossCase, drawn: Drawn) -> None:
    """A document without a score of the teacher (NaN) has no effect by how it compares with the queries."""
    step = case.lesson(drawn)
    assert step.teacher is not None
    unscored, vectors = step.teacher.isnan().all(dim=0), step.documents.vectors
    if vectors is None or case.form.parts or len(case.call(case.fresh(drawn), step).terms) > 1:
        leave_out("there are no vectors as a whole, or other terms than that of the teacher.")
    turned = {"vectors of documents": torch.where(unscored[:, None, None], -vectors, vectors)}
    found, expected = (case.total(one, drawn).detach() for one in (step.with_leaves(turned), step))
    problem = "a document without a score of the teacher changes the loss: does NaN count as a score?"
    expect_same(problem, found, expected, rtol=1e-4, atol=1e-5)


@LOSSES.property(after=(*_SOUND, "gradients"), draws="common")
def finite_differences(case: LossCase, drawn: Drawn) -> None:
    """The gradient equals finite differences."""
    step = case.given(drawn).prepared(dtype=torch.float64)
    total = case.total(step, drawn)
    if not total.requires_grad:
        fail("no gradient reaches the representations", expected="a gradient", found="none")
    backward(total)
    exact = total.dtype == torch.float64
    size, tolerance = (1e-5, 1e-4) if exact else (1e-2, 3e-2)
    for name, one in step.leaves().items():
        direction = torch.randn(one.shape, generator=torch.Generator().manual_seed(2)) * (one.detach() != 0)
        there, back = (
            case.total(step.with_leaves({name: one.detach() + sign * size * direction}), drawn).item()
            for sign in (1, -1)
        )
        expected = (there - back) / (2 * size)
        found = 0.0 if one.grad is None else float((one.grad * direction).sum())
        # At a kink, such as that of a maximum, both sides differ.
        kink = abs(there + back - 2 * total.item()) / size
        if abs(found - expected) > tolerance * max(abs(expected), 1e-2) + kink:
            problem = f"the gradient of the {name} is not that of finite differences"
            fail(problem, expected=expected, found=found, difference=abs(found - expected))


@LOSSES.property(after=_SOUND, draws="common")
def mean_over_queries(case: LossCase, drawn: Drawn) -> None:
    """The loss is a mean over queries: repeating the queries two or three times does not multiply it."""
    step = case.given(drawn)
    documents, seen = torch.arange(len(step.documents)), []
    for times in (1, 2, 3):
        seen.append(case.total(step.arranged(torch.arange(len(step.queries)).repeat(times), documents), drawn).item())
    # A loss over pairs of queries may grow, but not evenly.
    expect_mean(seen)


_STEPS = 12


@LOSSES.property(after=(*_SOUND, "gradients"), draws="common", examples=5)
def falls_under_training(case: LossCase, drawn: Drawn) -> None:
    """Training reduces the loss, and raises the positives' scores above the others."""
    step = case.given(drawn).prepared()
    if step.teacher is not None:
        step.teacher = torch.where(step.teacher.isnan(), torch.nan, torch.where(step.own, 5.0, -5.0))
    leaves = step.leaves()
    optimizer = torch.optim.Adam(leaves.values(), lr=0.05)

    def now() -> Step:
        """The step with weights that are clipped to be non-negative."""
        return step.with_leaves({name: one.relu() if one.dim() == 2 else one for name, one in leaves.items()})

    def margin() -> float:
        compared = now().compared()
        others = ~step.own if step.teacher is None else ~step.own & ~step.teacher.isnan()
        return float(compared[step.own].mean() - compared[others].mean())

    before, margin_before = case.total(now(), drawn).item(), margin()
    for _ in range(_STEPS):
        optimizer.zero_grad()
        backward(case.total(now(), drawn))
        optimizer.step()
    after = case.total(now(), drawn).item()
    if not after < before:
        problem = f"{_STEPS} steps of training do not make it fall"
        fail(problem, expected=f"below {before:.4g}", found=after, difference=after - before)
    # With other options, such as a temperature, a teacher's margin may be smaller than that at the start.
    if not drawn["options"] and case.compares(case.given(drawn), drawn) and not margin() > margin_before:
        problem = f"{_STEPS} steps of training do not raise the scores of positives above those of the other documents"
        fail(problem, expected=f"above {margin_before:.4g}", found=margin())


@LOSSES.property(after=(*_SOUND, "gradients"), draws="common")
def two_processes(case: LossCase, drawn: Drawn) -> None:
    """Two processes, each with the graph of its own texts only, compute the gradient of a single process."""
    alone, shared = case.given(drawn).prepared(), case.given(drawn).prepared()
    backward(case.total(alone, drawn))
    for rank in range(2):
        attached = {}
        for name, one in shared.leaves().items():
            own = torch.arange(len(one)) % 2 == rank
            attached[name] = torch.where(own.view(-1, *([1] * (one.dim() - 1))), one, one.detach())
        with seeded(0):
            # Trainings seed torch alike in all processes.
            random.seed(rank)
            np.random.seed(rank)
            backward(case.objective(case.fresh(drawn).train(), shared.with_leaves(attached)))
    for (name, one), other in zip(shared.leaves().items(), alone.leaves().values(), strict=True):
        found, expected = (torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in (one, other))
        problem = f"the gradients of the {name} in two processes do not add up to that of one"
        expect_same(problem, found, expected, rtol=1e-3, atol=1e-5)


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
