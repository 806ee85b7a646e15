"""The properties of a loss in training: gradients, large numbers, caching, several processes, options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import Batch, Loss, LossValue, Progress, Representation, Side
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.options import options as options_of
from retrievalkit.testing.loss_cases import (
    DIMENSIONS,
    DOCUMENTS,
    FORMS,
    LOSSES,
    QUERIES,
    START,
    TERMS,
    Form,
    LossCase,
    Step,
    expect_finite,
    own_scores,
)
from retrievalkit.testing.option_effects import expect_effects
from retrievalkit.testing.properties import expect_close, fail
from retrievalkit.training.gradcache import Chunk, cached_step, plain_step

_STEPS = 12


_LATER = (Progress(3, 2.0, 10), Progress(1000, 20.0, 100_000))


@LOSSES.property(after=("value",))
def gradient(case: LossCase) -> None:
    """Gradients reach both sides, if the loss depends on them."""
    step = case.step()
    total = case.total(step)
    if total.requires_grad:
        torch.autograd.backward(total)
    for name, one in step.leaves().items():
        if one.grad is not None and one.grad.any():
            continue
        noise = 1e-2 * torch.randn(one.shape, generator=torch.Generator().manual_seed(1)) * (one != 0)
        with torch.no_grad():
            change = (case.total(step.with_leaves({name: one + noise})) - total).abs().item()
        if change > 0:
            found = f"none, where other {name} change the loss by {change:.3g}"
            fail(f"no gradient reaches the {name}", expected="a gradient", found=found, method="forward")


@LOSSES.property(after=("value", "gradient"))
def finite_differences(case: LossCase) -> None:
    """The gradient is that of finite differences."""
    step = case.step(torch.float64)
    total = case.total(step)
    if not total.requires_grad:
        fail("no gradient reaches the representations", expected="a gradient", found="none", method="forward")
    torch.autograd.backward(total)
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
            fail(problem, expected=expected, found=found, difference=abs(found - expected), method="forward")


@LOSSES.property(after=("value",))
def mean_over_queries(case: LossCase) -> None:
    """It is a mean over queries: the same queries twice, and three times, do not make it grow in proportion."""
    step = case.step()
    seen = []
    for times in (1, 2, 3):
        rows = torch.arange(QUERIES).repeat(times)
        several = replace(step, queries=step.queries.rows(rows), positives=step.positives[rows])
        several.teacher = None if step.teacher is None else step.teacher[rows]
        seen.append(case.total(several).item())
    growth = seen[1] - seen[0]
    # A loss over pairs of queries may grow, but not evenly.
    if abs(growth) > 1e-3 * abs(seen[0]) and abs(seen[2] - seen[0] - 2 * growth) < 1e-3 * abs(growth):
        problem = "it is a sum over queries, and should be a mean: with each query twice it grows, with three evenly on"
        fail(problem, expected=seen[0], found=seen[1], difference=growth, method="forward")


@LOSSES.property(after=("value", "gradient"))
def temperature(case: LossCase) -> None:
    """A higher temperature makes differences of scores count less."""
    if "temperature" not in options_of(type(case.loss())):
        msg = "it has no option `temperature`."
        raise UnsupportedError(msg)
    sizes = []
    for number in (1.0, 100.0):
        try:
            made = case.create({**case.options, "temperature": number})
        except InputError as error:
            raise UnsupportedError(str(error)) from error
        step = case.step()
        torch.autograd.backward(case.total(step, made))
        gradients = [one.grad for one in step.leaves().values() if one.grad is not None]
        sizes.append(float(torch.cat([one.reshape(-1) for one in gradients]).norm()))
    if sizes[1] >= sizes[0]:
        problem = "the gradient does not fall with the temperature, which divides scores"
        expected = f"below {sizes[0]:.4g}, as at temperature 1"
        fail(problem, expected=expected, found=sizes[1], difference=sizes[1] - sizes[0], method="forward")


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
        torch.autograd.backward(case.total(_rectified(step, leaves), loss))
        optimizer.step()
    after, margin_after = case.total(_rectified(step, leaves), loss).item(), _margin(_rectified(step, leaves))
    if not after < before:
        problem = f"{_STEPS} steps of training do not make it fall"
        fail(problem, expected=f"below {before:.4g}", found=after, difference=after - before, method="forward")
    if case.compares() and not margin_after > margin_before:
        problem = f"{_STEPS} steps of training do not raise the scores of positives above those of the other documents"
        expected = f"above {margin_before:.4g}"
        fail(problem, expected=expected, found=margin_after, difference=margin_after - margin_before, method="forward")


@LOSSES.property(after=("value", "gradient"))
def cached_gradient(case: LossCase) -> None:
    """Gradients are the same when they are cached (`--micro-batch-size`)."""
    expected = _gradients(case, [[0, 1, 2, 3]], [[*range(DOCUMENTS)]], plain_step)
    found = _gradients(case, [[0, 2], [1, 3]], [[0, 3, 4, 7], [1, 2], [5, 6]], cached_step)
    expect_close("cached gradients are others", found, expected, method="forward")


@LOSSES.property(after=("value", "gradient"))
def two_processes(case: LossCase) -> None:
    """Two processes, each of which has the graph of its own texts alone, have the gradient of one."""
    expected = _gradients(case, [[0, 1, 2, 3]], [[*range(DOCUMENTS)]], plain_step)
    encoder = _Encoder(case.form)
    for rank in range(2):
        step = case.step()
        for side in ("queries", "documents"):
            texts = len(getattr(step, side))
            whole = encoder(_batch(list(range(texts)), side), "query" if side == "queries" else "document")
            own = torch.arange(texts) % 2 == rank
            setattr(step, side, _attached(whole, own))
        torch.autograd.backward(case.value(step, rank=rank).total)
    expect_close("the gradients of two processes do not add up to that of one", encoder.gradients(), expected)


@LOSSES.property(after=("value", "gradient"))
def parameters_trained(case: LossCase) -> None:
    """Every parameter of its own gets a gradient."""
    loss = case.loss()
    parameters = dict(loss.named_parameters())
    if not parameters:
        msg = "it has no parameters."
        raise UnsupportedError(msg)
    torch.autograd.backward(case.total(case.step(), loss))
    for name, one in parameters.items():
        if one.requires_grad and (one.grad is None or not one.grad.any()):
            problem = f"the parameter '{name}' gets no gradient, and is never trained"
            fail(problem, expected="a gradient", found="none", source=rf"self\.{name.partition('.')[0]}\b.*=")


@LOSSES.property(after=("value",), once=True)
def options_effective(case: LossCase) -> None:
    """Every option changes the loss or its gradient."""
    expect_effects(registry.get("loss", case.name), case.options, lambda options: _behaviour(case, options))


def _behaviour(case: LossCase, options: Mapping[str, Any]) -> list[Any]:
    """The loss and its gradients in all forms that it takes, at several places of a training."""
    loss = case.create(options)
    found: list[Any] = []
    for form in (case.form, *FORMS.values()):
        for progress in (START, *_LATER):
            step = replace(replace(case, form=form).step(), progress=progress)
            step.teacher = _missing_some(step.teacher)
            try:
                total = case.total(step, loss)
            except UnsupportedError as error:
                found.append(str(error))
                continue
            if total.requires_grad:
                torch.autograd.backward(total)
            found += [total.detach(), *(one.grad for one in step.leaves().values())]
    return found


def _missing_some(teacher: Tensor | None) -> Tensor | None:
    if teacher is not None:
        teacher[-1] = float("nan")
    return teacher


def _margin(step: Step) -> float:
    """How far the positives' scores are above those of each query's own negative, on average."""
    with torch.no_grad():
        compared = step.compared()
    rows = torch.arange(QUERIES)
    return float((compared[rows, step.positives] - compared[rows, step.positives + 1]).mean())


def _rectified(step: Step, leaves: Mapping[str, Tensor]) -> Step:
    """The step with other tensors; weights are 0 or above."""
    return step.with_leaves({name: one.relu() if one.dim() == 2 else one for name, one in leaves.items()})


class _Encoder(nn.Module):
    """Makes representations of a form: a text is the numbers of its row."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            self.words = nn.Embedding(64, DIMENSIONS)
            self.terms = nn.Linear(DIMENSIONS, TERMS)

    def forward(self, batch: Batch, side: Side) -> Representation:
        """The representations of a batch."""
        vectors = self.words(batch.input_ids)  # (batch, tokens, 8)
        count = self.form.query_vectors if side == "query" else self.form.document_vectors
        return Representation(
            vectors[:, :count] if count else None,
            weights=self.terms(vectors.mean(dim=1)).relu() if self.form.weights else None,
            kept=self.form.kept if side == "document" else None,
            parts=self.form.parts,
        )

    def gradients(self) -> Tensor:
        """All gradients as one vector."""
        found = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters()]
        return torch.cat([one.reshape(-1) for one in found])


def _batch(rows: Sequence[int], side: str) -> Batch:
    """Texts by their rows: four tokens each, that differ from text to text and from side to side."""
    first = torch.tensor(rows)[:, None] * 4 + (0 if side == "documents" else 32)
    ids = first + torch.arange(4)
    return Batch(ids, torch.ones_like(ids), torch.zeros_like(ids, dtype=torch.bool))


def _gradients(case: LossCase, queries: list[list[int]], documents: list[list[int]], run: Any) -> Tensor:
    """The gradients of the encoder by a step of the training with these chunks."""
    encoder, step = _Encoder(case.form), case.step()
    chunks = [Chunk("query", rows, _batch(rows, "queries")) for rows in queries]
    chunks += [Chunk("document", rows, _batch(rows, "documents")) for rows in documents]
    loss: Loss = case.loss()

    def compare(asked: Representation, found: Representation) -> LossValue:
        return case.value(replace(step, queries=asked, documents=found), loss)

    run(encoder, chunks, compare, torch.autograd.backward)
    return encoder.gradients()


def _attached(texts: Representation, own: Tensor) -> Representation:
    """The same values, with the graph of some texts alone."""
    tensors: dict[str, Any] = {
        name: torch.where(own.view(-1, *([1] * (one.dim() - 1))), one, one.detach())
        for name, one in (("vectors", texts.vectors), ("weights", texts.weights))
        if one is not None
    }
    return replace(texts, **tensors)
