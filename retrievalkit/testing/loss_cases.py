"""Random steps for losses: representations of every form that a pooler may give, with positives and a teacher."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.score import scores
from retrievalkit.testing.option_effects import required_values
from retrievalkit.testing.properties import Kit, fail

QUERIES, DOCUMENTS, DIMENSIONS, TERMS = 4, 8, 8, 12
START = Progress(0, 0.0, 10)


@dataclass(frozen=True)
class Form:
    """A form of representations.

    Attributes:
        query_vectors: Vectors of a query; 0 = none.
        document_vectors: Vectors of a document; 0 = none.
        weights: Whether both sides have weights over a vocabulary.
        kept: `Representation.kept` of documents.
        parts: `Representation.parts` of both sides.
    """

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
    """What a loss is called with. The positive of query i is document 2 i, its own negative the next one."""

    queries: Representation
    documents: Representation
    positives: Tensor
    ignore: Tensor | None = None
    teacher: Tensor | None = None
    progress: Progress = START

    def leaves(self) -> dict[str, Tensor]:
        """The tensors of both sides that gradients are taken of, by name."""
        sides = (("queries", self.queries), ("documents", self.documents))
        return {
            f"{what} of {side}": getattr(one, what)
            for side, one in sides
            for what in ("vectors", "weights")
            if getattr(one, what) is not None
        }

    def with_leaves(self, change: Mapping[str, Tensor]) -> Step:
        """The same step with some other tensors, named as in `leaves`."""
        sides = {
            side: replace(
                getattr(self, side),
                **{name.partition(" ")[0]: one for name, one in change.items() if name.endswith(f" of {side}")},
            )
            for side in ("queries", "documents")
        }
        return replace(self, **sides)

    def scaled(self, factor: float) -> Step:
        """The same step with all vectors and weights times a factor, as new leaves."""
        return self.with_leaves({name: (one.detach() * factor).requires_grad_() for name, one in self.leaves().items()})

    def compared(self) -> Tensor:
        """(Q, D): the scores as search has them."""
        return scores(self.queries, self.documents.as_indexed())


@dataclass
class LossCase:
    """A loss on representations of one form."""

    name: str
    label: str
    form: Form
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = self.create(self.options)

    def create(self, options: Mapping[str, Any]) -> Loss:
        """The loss with some options; one that is made of another, of the contrastive one."""
        kind: Any = registry.get("loss", self.name)
        inner = [registry.create("loss", "contrastive")] if getattr(kind, "wraps", False) else []
        made: Loss = registry.create("loss", self.name, *inner, **options)
        return made

    def loss(self) -> Loss:
        """The loss as it was made: a copy."""
        return copy.deepcopy(self._made)

    def step(self, dtype: torch.dtype = torch.float32) -> Step:
        """A random step, the same each time, whose tensors are leaves that require a gradient."""
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
        """The loss of a step; what it draws is the same each time.

        Args:
            step: The step.
            loss: The loss; None = as it was made.
            rank: Number of a process: in another one, only what is drawn by torch is the same.
        """
        torch.manual_seed(0)
        random.seed(rank)
        np.random.seed(rank)
        made = self.loss() if loss is None else loss
        value: LossValue = made(step.queries, step.documents, step.positives, step.progress, step.ignore, step.teacher)
        return value

    def total(self, step: Step, loss: Loss | None = None) -> Tensor:
        """The number to minimise."""
        return self.value(step, loss).total

    def compares(self) -> bool:
        """Whether it depends on how queries and documents compare, unlike a regulariser of each side."""
        step = self.step()
        turned = {name: _turned(one) for name, one in step.leaves().items() if name.endswith("documents")}
        with torch.no_grad():
            return not torch.isclose(self.total(step), self.total(step.with_leaves(turned)), rtol=1e-5)

    def check_compares(self) -> None:
        """Leave a property out that only losses have which compare queries with documents.

        Raises:
            UnsupportedError: It does not.
        """
        if not self.compares():
            msg = "it does not depend on how queries and documents compare."
            raise UnsupportedError(msg)


def loss_cases(
    name: str, *, kept: int | None = None, parts: Mapping[str, slice] | None = None, **options: Any
) -> Iterator[LossCase]:
    """The loss on representations of the form that is given, or of each form that it takes.

    Raises:
        UnsupportedError: It takes none of them.
    """
    options = {**required_values(registry.get("loss", name), options), **options}
    forms = FORMS
    if kept is not None or parts is not None:
        forms = {"two vectors a document": Form(document_vectors=2, kept=kept, parts=parts)}
    refusals = []
    for label, form in forms.items():
        case = LossCase(name, label, form, options)
        try:
            with torch.no_grad():
                case.value(case.step())
        except UnsupportedError as error:
            refusals.append(error)
            continue
        except Exception:  # noqa: BLE001 - the properties say what it is
            pass
        yield case
    if len(refusals) == len(forms):
        raise refusals[0]


def own_scores(positives: Tensor, own: Tensor) -> Tensor:
    """(Q, D): a teacher's scores (Q, 2) of each query's positive and of the document after it, otherwise NaN."""
    teacher = torch.full((len(positives), DOCUMENTS), float("nan"), dtype=own.dtype)
    return teacher.scatter(1, torch.stack([positives, positives + 1], dim=1), own)


def _drawn(
    shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype, least: float | None = None
) -> Tensor:
    values = torch.randn(shape, generator=generator).to(dtype)
    return (values if least is None else values.clamp(min=least)).requires_grad_()


def _turned(values: Tensor) -> Tensor:
    """The values of each text in other columns, vectors with some signs changed, which keeps every norm of them."""
    rolled = values.detach().roll(1, dims=-1)
    if values.dim() == 2:
        return rolled
    signs = torch.ones(values.shape[-1], dtype=values.dtype)
    signs[::2] = -1
    return rolled * signs


def expect_finite(where: str, case: LossCase, step: Step) -> None:
    """Expect that the loss of a step and its gradients are finite; `where` says in a message what the step is."""
    step = step.scaled(1.0)
    total = case.total(step)
    if not torch.isfinite(total):
        fail(f"{where} the loss is {total.item()}", expected="a number", found=total.item(), method="forward")
    if total.requires_grad:
        torch.autograd.backward(total)
    for name, one in step.leaves().items():
        if one.grad is not None and not one.grad.isfinite().all():
            wrong = float(one.grad[~one.grad.isfinite()][0])
            fail(f"{where} the gradient of the {name} is {wrong}", expected="numbers", found=wrong, method="forward")


LOSSES: Kit[LossCase] = Kit("loss", loss_cases)
