"""The conformance tests of losses: the inputs they depend on, masks, and training."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.scoring import scores
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults
from retrievalkit_testing.properties import Kit, accepted, expect, expect_same, leave_out, tried
from retrievalkit_testing.shared import Subject, Turn, backward, check_loss_value, expect_mean, seeded, share

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
    "a vector per text": Form(),
    "two vectors per document": Form(document_vectors=2),
    "two vectors per document, the first kept": Form(document_vectors=2, kept=0),
    "several vectors per text": Form(3, 4),
    "weights": Form(0, 0, weights=True),
    "a vector and weights": Form(weights=True),
    "a vector in parts": Form(parts={"one": slice(0, 3), "other": slice(3, DIMENSIONS)}),
}


@dataclass
class Step:
    """The arguments of a loss, in their order."""

    queries: Representation
    documents: Representation
    positives: Tensor
    progress: Progress = _PROGRESS[0]
    ignore: Tensor | None = None
    teacher: Tensor | None = None

    def leaves(self) -> dict[str, Tensor]:
        """Return the tensors of both sides that receive gradients, by name."""
        sides = itertools.product(("queries", "documents"), ("vectors", "weights"))
        leaves = {f"{part} of {side}": getattr(getattr(self, side), part) for side, part in sides}
        return {name: leaf for name, leaf in leaves.items() if leaf is not None}

    def with_leaves(self, change: Mapping[str, Tensor]) -> Step:
        """Replace some tensors of the step, named as in `leaves`."""
        step = self
        for name, leaf in change.items():
            part, _, side = name.split()
            step = replace(step, **{side: replace(getattr(step, side), **{part: leaf})})
        return step

    def arranged(self, queries: Tensor, documents: Tensor) -> Step:
        """Return the step with these queries and documents (including all positives), in this order."""
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
        """Multiply all vectors and weights of the step by a factor, convert their type, and make them leaves."""
        leaves = {name: (leaf.detach() * factor).to(dtype).requires_grad_() for name, leaf in self.leaves().items()}
        return self.with_leaves(leaves)

    @property
    def own(self) -> Tensor:
        """(Q, D) bool: True at each query's positive."""
        return torch.zeros(len(self.queries), len(self.documents)).bool().scatter(1, self.positives[:, None], True)

    def compared(self) -> Tensor:
        """(Q, D): the scores as in search."""
        return scores(self.queries, self.documents.as_indexed()).detach()


class LossCase(Subject):
    """A loss on one kind of representation."""

    kind = "loss"

    def __init__(self, name: str, label: str, form: Form, options: Mapping[str, Any]) -> None:
        super().__init__(name, label, options)
        self.form = form
        drawn = {"queries": 5, "each": 2, "ignored": 0.0, "scale": 1.0, "positives": "anywhere", "seed": 0}
        self.typical = [{**drawn, "options": {}, "progress": progress} for progress in (0, 1)]
        self.needs_teacher = self.create(self.options).needs_teacher
        settings = []
        for setting in off_defaults(self, registry.get("loss", name)):
            with suppress(InputError):
                tried(self, methodcaller("trial", setting), InputError)
                settings.append(setting)
        self.draws = {"queries": sizes(1, 32), "each": range(1, 9), "ignored": (0.0, 0.3, 1.0), "scale": (1.0, 300.0)}
        self.draws |= {"positives": ("first", "anywhere"), "progress": range(len(_PROGRESS)), "seed": SEEDS}
        self.draws |= {"options": settings or [{}]}
        self.common = {**self.draws, "queries": sizes(2, 32), "each": range(2, 9), "ignored": (0.0,), "scale": (1.0,)}

    def create(self, options: Mapping[str, Any]) -> Loss:
        """Create the loss with these options; a wrapper loss is created around the contrastive loss."""
        component: Any = registry.get("loss", self.name)
        inner = [registry.create("loss", "contrastive")] if getattr(component, "wraps", False) else []
        loss: Loss = registry.create("loss", self.name, *inner, **options)
        return loss

    def inputs(self, drawn: Drawn) -> Step:
        """Draw a step with Q to 8 Q documents; any of them may be positives."""
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
            # For each query's positive and its first negative, which are never masked.
            scored = torch.stack([order[:count], order[-count:]], dim=1)
            step.teacher = torch.full((count, count * each), torch.nan)
            step.teacher.scatter_(1, scored, torch.randn(count, 2, generator=generator))
            if drawn["seed"] % 3 == 1 and count > 1:
                step.teacher[0] = torch.nan
        elif drawn["ignored"]:
            step.ignore = (torch.rand(count, count * each, generator=generator) < drawn["ignored"]) & ~step.own
        return step.prepared(drawn["scale"])

    def call(self, component: Loss, inputs: Step) -> Any:
        return component(*vars(inputs).values())

    def read(self, inputs: Step, result: LossValue) -> dict[str, Tensor]:  # noqa: ARG002 - by contract
        return {"total": result.total, **result.terms}

    def near(self, inputs: Step) -> Step:
        return inputs.with_leaves({name: leaf + 1e-3 * (leaf != 0) for name, leaf in inputs.leaves().items()})

    def turned(self, inputs: Step, draw: np.random.Generator) -> Iterator[Turn]:
        queries, documents = (torch.arange(len(side)) for side in (inputs.queries, inputs.documents))
        orders = [torch.from_numpy(draw.permutation(len(side))) for side in (queries, documents)]
        yield "queries", inputs.arranged(orders[0], documents), lambda answer: answer
        yield "documents", inputs.arranged(queries, orders[1]), lambda answer: answer

    def trial(self, options: Mapping[str, Any]) -> None:
        """Call a loss with these options."""
        self.call(self.created({"options": options}), self.inputs(self.typical[0]))

    def objective(self, component: Loss, inputs: Step) -> Tensor:
        total: Tensor = self.call(component, inputs).total
        return total

    def total(self, step: Step, drawn: Drawn) -> Tensor:
        """Compute the loss in training, always with the same random draws."""
        with seeded(0):
            return self.objective(self.fresh(drawn).train(), step)

    def behaviour(self, options: Mapping[str, Any]) -> list[Any]:
        """Compute the loss and its gradients for all supported representations, at several points of training."""
        loss, seen = self.create(options).train(), list[Any]()
        for form, progress in itertools.product((self.form, *FORMS.values()), range(len(_PROGRESS))):
            other = copy.copy(self)
            other.form = form
            step = other.inputs({**self.typical[0], "progress": progress}).prepared()
            if step.teacher is not None:
                step.teacher[-1] = float("nan")
            try:
                with seeded(0):
                    total = self.objective(loss, step)
            except UnsupportedError as error:
                seen.append(str(error))
                continue
            backward(total)
            seen += [total.detach(), *(leaf.grad for leaf in step.leaves().values())]
        return seen

    def check_form(self, inputs: Step, result: Any) -> None:
        check_loss_value(result, inputs.queries.device)

    def compares(self, step: Step, drawn: Drawn) -> bool:
        """True if the loss compares queries with documents, unlike a regulariser of each side."""
        turned = {}
        for name, leaf in step.leaves().items():
            if name.endswith("documents"):
                # Roll the columns and flip the signs of some in vectors, which keeps every norm.
                turned[name] = leaf.detach().roll(1, dims=-1)
                if leaf.dim() > 2:
                    turned[name][..., ::2] *= -1
        with torch.no_grad():
            return not torch.isclose(self.total(step, drawn), self.total(step.with_leaves(turned), drawn), rtol=1e-5)

    def comparison(self, drawn: Drawn) -> Step:
        """Draw a step without a teacher for a loss that compares queries with documents; others skip the property."""
        if self.needs_teacher:
            leave_out("it learns from a teacher.")
        step = self.inputs(drawn)
        if not self.compares(step, drawn):
            leave_out("it does not depend on how queries and documents compare.")
        return step

    def expect_effect(self, argument: str, drawn: Drawn, change: Step) -> None:
        """Expect that changing one argument changes the loss."""
        expected, actual = self.total(self.inputs(drawn), drawn), self.total(change, drawn)
        expect(actual != expected, f"`{argument}` has no effect", expected="another loss", actual=actual.item())


def loss_cases(
    name: str, *, kept: int | None = None, parts: Mapping[str, slice] | None = None, **options: Any
) -> list[LossCase]:
    """Return the loss on the requested kind of representation, or on each kind that it supports."""
    forms = FORMS
    if kept is not None or parts is not None:
        forms = {"two vectors per document": Form(document_vectors=2, kept=kept, parts=parts)}
    cases = (LossCase(name, label, form, options) for label, form in forms.items())
    return accepted(partial(tried, case, methodcaller("trial", {})) for case in cases)


LOSSES: Kit[LossCase] = Kit(
    "loss", loss_cases, method="forward", unchecked="its equation, and devices other than the CPU"
)
share(LOSSES, modules=True, options=True)
_SOUND = ("form", "inputs_unchanged", "same_twice", "grad_mode", "state")


@LOSSES.property(after=_SOUND, draws="common")
def arguments_effective(case: LossCase, drawn: Drawn) -> None:
    """The loss depends on the teacher's scores, or else on the positives and on `ignore`."""
    step = case.inputs(drawn) if case.needs_teacher else case.comparison(drawn)
    if step.teacher is not None:
        teacher = torch.where(step.own, step.teacher, 2 * step.teacher)
        case.expect_effect("teacher", drawn, replace(step, teacher=teacher))
    else:
        case.expect_effect("positives", drawn, replace(step, positives=(step.positives + 1) % len(step.documents)))
        # The hardest negative of each query, which matters at any temperature.
        hardest = step.compared().masked_fill(step.own, -torch.inf).argmax(dim=1, keepdim=True)
        ignore = torch.zeros_like(step.own).scatter(1, hardest, True)
        case.expect_effect("ignore", drawn, replace(step, ignore=ignore))


@LOSSES.property(after=(*_SOUND, "arguments_effective"), draws="common")
def ignored_absent(case: LossCase, drawn: Drawn) -> None:
    """A document that every query ignores has no effect on the loss."""
    step = case.comparison(drawn)
    if len(case.call(case.fresh(drawn), step).terms) > 1:
        leave_out("it has several terms, and some may depend on all documents.")
    others = torch.ones(len(step.documents), dtype=torch.bool).index_fill(0, step.positives, False)
    step.ignore = others.expand(len(step.queries), -1).clone()
    absent = step.arranged(torch.arange(len(step.queries)), (~others).nonzero()[:, 0])
    problem = "a document that `ignore` masks for all queries changes the loss"
    expect_same(problem, case.total(step, drawn), case.total(absent, drawn), rtol=1e-4, atol=1e-5)


@LOSSES.property(after=_SOUND)
def masked_vectors(case: LossCase, drawn: Drawn) -> None:
    """Masked vectors have no effect, whatever their values."""
    step = case.inputs(drawn).prepared()
    if step.documents.vectors is None:
        leave_out("there are no vectors.")
    changed = replace(step, documents=_with_masked_vector(step.documents))
    if case.form.query_vectors > 1:
        changed.queries = _with_masked_vector(step.queries)
    problem = "masked vectors change the loss"
    expect_same(problem, case.total(changed, drawn), case.total(step, drawn), rtol=1e-4, atol=1e-5)


def _with_masked_vector(texts: Representation) -> Representation:
    """Add a large, masked vector to each text."""
    assert texts.vectors is not None
    count, vectors, width = texts.vectors.shape
    more = torch.cat([texts.vectors, torch.full((count, 1, width), 100.0)], dim=1)
    mask = torch.ones(count, vectors + 1, dtype=torch.bool)
    mask[:, -1] = False
    return replace(texts, vectors=more, vector_mask=mask)


@LOSSES.property(after=_SOUND, draws="common")
def teacher_missing(case: LossCase, drawn: Drawn) -> None:
    """Without a needed teacher it raises InputError; a document without a score (NaN) is not compared with queries."""
    step = case.inputs(drawn)
    if step.teacher is None:
        leave_out("it needs no teacher.")
    loss = None
    with suppress(InputError):
        loss = case.total(replace(step, teacher=None), drawn)
    expect(loss is None, "without a teacher it does not raise InputError", expected="InputError", actual=loss)
    unscored, vectors = step.teacher.isnan().all(dim=0), step.documents.vectors
    if vectors is not None and not case.form.parts and len(case.call(case.fresh(drawn), step).terms) <= 1:
        turned = {"vectors of documents": torch.where(unscored[:, None, None], -vectors, vectors)}
        problem = "a document without a score of the teacher changes the loss: does NaN count as a score?"
        changed = case.total(step.with_leaves(turned), drawn)
        expect_same(problem, changed, case.total(step, drawn), rtol=1e-4, atol=1e-5)


@LOSSES.property(after=(*_SOUND, "gradients"), draws="common")
def finite_differences(case: LossCase, drawn: Drawn) -> None:
    """The gradient equals finite differences."""
    step = case.inputs(drawn).prepared(dtype=torch.float64)
    total = case.total(step, drawn)
    expect(total.requires_grad, "no gradient reaches the representations", expected="a gradient", actual="none")
    backward(total)
    exact = total.dtype == torch.float64
    size, tolerance = (1e-5, 1e-4) if exact else (1e-2, 3e-2)
    for name, leaf in step.leaves().items():
        direction = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(2)) * (leaf.detach() != 0)
        there, back = (
            case.total(step.with_leaves({name: leaf.detach() + sign * size * direction}), drawn).item()
            for sign in (1, -1)
        )
        expected = (there - back) / (2 * size)
        actual = 0.0 if leaf.grad is None else float((leaf.grad * direction).sum())
        # At a kink, such as that of a maximum, both sides differ.
        kink = abs(there + back - 2 * total.item()) / size
        problem, difference = f"the gradient of the {name} is not that of finite differences", abs(actual - expected)
        same = difference <= tolerance * max(abs(expected), 1e-2) + kink
        expect(same, problem, expected=expected, actual=actual, difference=difference)


@LOSSES.property(after=_SOUND, draws="common")
def mean_over_queries(case: LossCase, drawn: Drawn) -> None:
    """The loss is a mean over queries: repeating the queries two or three times does not multiply it."""
    step = case.inputs(drawn)
    queries, documents = torch.arange(len(step.queries)), torch.arange(len(step.documents))
    # A loss over pairs of queries may grow, but not evenly.
    expect_mean([case.total(step.arranged(queries.repeat(times), documents), drawn).item() for times in (1, 2, 3)])


_STEPS = 12


@LOSSES.property(after=(*_SOUND, "gradients"), draws="common", examples=5)
def falls_under_training(case: LossCase, drawn: Drawn) -> None:
    """Training reduces the loss, and raises the scores of positives above the others."""
    step = case.inputs(drawn).prepared()
    if step.teacher is not None:
        step.teacher = torch.where(step.teacher.isnan(), torch.nan, torch.where(step.own, 5.0, -5.0))
    leaves = step.leaves()
    optimizer = torch.optim.Adam(leaves.values(), lr=0.05)

    def now() -> Step:
        """Return the step with its weights clipped to be non-negative."""
        return step.with_leaves({name: leaf.relu() if leaf.dim() == 2 else leaf for name, leaf in leaves.items()})

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
    problem = f"{_STEPS} steps of training do not reduce it"
    expect(after < before, problem, expected=f"below {before:.4g}", actual=after)
    # With other options, such as a temperature, a teacher's margin may be smaller than that at the start.
    if not drawn["options"] and case.compares(case.inputs(drawn), drawn):
        problem = f"{_STEPS} steps of training do not raise the scores of positives above those of the other documents"
        expect(margin() > margin_before, problem, expected=f"above {margin_before:.4g}", actual=margin())


@LOSSES.property(after=(*_SOUND, "gradients"), draws="common")
def two_processes(case: LossCase, drawn: Drawn) -> None:
    """Two processes, each with the graph of its own texts, compute the gradient of a single process."""
    alone, shared = case.inputs(drawn).prepared(), case.inputs(drawn).prepared()
    backward(case.total(alone, drawn))
    for rank in range(2):
        attached = {}
        for name, leaf in shared.leaves().items():
            own = torch.arange(len(leaf)) % 2 == rank
            attached[name] = torch.where(own.view(-1, *([1] * (leaf.dim() - 1))), leaf, leaf.detach())
        with seeded(0):
            # Trainings seed torch alike in all processes.
            random.seed(rank)
            np.random.seed(rank)
            backward(case.objective(case.fresh(drawn).train(), shared.with_leaves(attached)))
    for name, pair in ((name, (leaf, alone.leaves()[name])) for name, leaf in shared.leaves().items()):
        actual, expected = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in pair)
        problem = f"the gradients of the {name} in two processes do not add up to those of a single process"
        expect_same(problem, actual, expected, rtol=1e-3, atol=1e-5)
