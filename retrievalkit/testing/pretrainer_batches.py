"""The properties of a pretrainer's samples, batches and losses: seeds, padding, parts of a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from retrievalkit.contracts import Batch
from retrievalkit.data.masking import UNLABELLED
from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.option_effects import expect_typed_keywords
from retrievalkit.testing.pretrainer_cases import PRETRAINERS, PretrainerCase, Values, tensors_of
from retrievalkit.testing.properties import expect_equal, fail


@PRETRAINERS.property(once=True)
def options_typed(case: PretrainerCase) -> None:
    """Options are keyword-only arguments with types, which the defaults fit."""
    expect_typed_keywords(type(case.pretrainer()), positional=2)


@PRETRAINERS.property()
def samples(case: PretrainerCase) -> None:
    """The number of a document's samples is always the same: none without text, some with twenty sentences."""
    made = case.pretrainer()
    empty, *others = case.documents
    counts = [made.samples(one) for one in others]
    again = [made.samples(one) for one in others]
    if counts != again:
        fail("the number of samples is not always the same", expected=counts, found=again, method="samples")
    if min(counts) <= 0:
        problem = "a document of twenty sentences gives no sample"
        fail(problem, expected="at least 1", found=min(counts), method="samples")
    if made.samples(empty):
        problem = "a document without text gives a sample"
        fail(problem, expected=0, found=made.samples(empty), method="samples")


@PRETRAINERS.property(after=("samples",))
def batch(case: PretrainerCase) -> None:
    """A batch is made of tensors and Batches by name."""
    found: object = case.batch(case.pretrainer())
    assert isinstance(found, dict)
    for name, one in found.items():
        if not isinstance(one, Tensor | Batch):
            problem = f"'{name}' of a batch is no tensor and no Batch"
            fail(problem, expected="Tensor or Batch", found=type(one).__name__, method="collate")


@PRETRAINERS.property(after=("batch",))
def draws_from_generator(case: PretrainerCase) -> None:
    """With the same generator, samples and masks are the same: nothing is drawn elsewhere."""
    made, seen = case.pretrainer(), []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        seen.append(tensors_of(case.batch(made)))
    for name, one in seen[0].items():
        problem = f"'{name}' of a batch differs with the same generator: draw from the one that is handed over"
        expect_equal(problem, seen[1][name], one, method="collate")


@PRETRAINERS.property(after=("batch", "draws_from_generator"))
def seed_effective(case: PretrainerCase) -> None:
    """With another seed other tokens are masked."""
    made = case.pretrainer()
    seen = [tensors_of(case.batch(made, seed)) for seed in range(3)]
    mask = made.vocabulary.mask
    held = {name: one for name, one in seen[0].items() if one.dtype == torch.long}
    masked = [] if mask is None else [name for name, one in held.items() if bool(torch.eq(one, mask).any())]
    if mask is None or not masked:
        msg = "it masks no tokens."
        raise UnsupportedError(msg)
    for name in masked:
        masks = [torch.eq(one[name], mask) for one in seen]
        if all(one.shape == masks[0].shape and torch.equal(one, masks[0]) for one in masks):
            problem = f"the same tokens of '{name}' are masked with three seeds: draw from the generator"
            fail(problem, expected="other tokens", found=f"the same {int(masks[0].sum())}", method="collate")


@PRETRAINERS.property(after=("batch",))
def value(case: PretrainerCase) -> None:
    """The loss and its terms are finite scalars, of a single sample too."""
    made = case.pretrainer()
    for count in (4, 1):
        found = case.loss(made, case.batch(made, count=count))
        for name, number in {**found.terms, "total": found.total}.items():
            if number.dim():
                problem = f"the {name} has shape {tuple(number.shape)}, and must be a scalar"
                fail(problem, expected="()", found=tuple(number.shape), method="forward")
            if not torch.isfinite(number):
                what = f"the {name}" + (" of a single sample" if count == 1 else "")
                fail(f"{what} is {number.item()}", expected="a number", found=number.item(), method="forward")


@PRETRAINERS.property(after=("value",))
def batch_unchanged(case: PretrainerCase) -> None:
    """The batch is not changed in place."""
    made = case.pretrainer()
    values = case.batch(made)
    before = {name: one.clone() for name, one in tensors_of(values).items()}
    case.loss(made, values)
    for name, one in tensors_of(values).items():
        expect_equal(f"'{name}' of the batch is changed in place", one, before[name], method="forward")


@PRETRAINERS.property(after=("value", "batch_unchanged"))
def same_twice(case: PretrainerCase) -> None:
    """The loss of a batch is the same the second time."""
    made = case.pretrainer()
    values = case.batch(made)
    first, again = (case.loss(made, values).total.detach() for _ in range(2))
    expect_equal("the loss is another one the second time", again, first, method="forward")


@PRETRAINERS.property(after=("value", "same_twice"))
def order_of_batch(case: PretrainerCase) -> None:
    """The order of a batch changes nothing."""
    _expect_same_loss(case, lambda rows: rows.flip(0), "the order of the batch changes the loss")


@PRETRAINERS.property(after=("value", "same_twice"))
def mean_over_batch(case: PretrainerCase) -> None:
    """It is a mean: the same batch twice, and three times, does not make it grow in proportion."""
    made = case.pretrainer()
    values = case.batch(made)
    seen, errors = zip(
        *(case.mean_loss(made, _by_rows(values, partial(_repeated, times=times))) for times in (1, 2, 3)),
        strict=True,
    )
    growth = seen[1] - seen[0]
    evenly = abs(seen[2] - seen[0] - 2 * growth) < 1e-3 * abs(growth) + 8 * max(errors)
    if abs(growth) > 0.05 * abs(seen[0]) + 8 * max(errors) and evenly:
        problem = "it is a sum over the batch, and should be a mean: it grows evenly with copies of the batch"
        fail(problem, expected=seen[0], found=seen[1], difference=growth, method="forward")


@PRETRAINERS.property(after=("value", "same_twice"))
def padding(case: PretrainerCase) -> None:
    """More padding changes nothing."""
    made = case.stirred()
    values = case.batch(made)
    wide = _widened(values, 5, case.max_length)
    (expected, error), (found, other) = (case.mean_loss(made, one) for one in (values, wide))
    difference = abs(found - expected)
    if difference > 2e-5 * max(1.0, abs(expected)) + 5 * (error + other):
        fail("padding changes the loss", expected=expected, found=found, difference=difference, method="forward")


@PRETRAINERS.property(after=("value", "same_twice", "draws_from_generator"))
def parts(case: PretrainerCase) -> None:
    """A step in parts, collated one after the other and weighed by `counts`, has the loss of the whole step."""
    made = case.stirred()
    whole, *others = (case.collated(made, sizes) for sizes in ([4], [1, 3]))
    (values,), halves = whole, others[0]
    counts = made.counts(values)
    if not counts:
        msg = "it gives no counts."
        raise UnsupportedError(msg)
    names = sorted(case.loss(made, values).addends)
    if not names:
        msg = "its loss has no addends."
        raise UnsupportedError(msg)
    if sorted(counts) != names:
        fail("`counts` does not name the addends of the loss", expected=names, found=sorted(counts), method="counts")
    own = [made.counts(half) for half in halves]
    for name, count in counts.items():
        if (added := sum(one[name] for one in own)) != count:
            problem = f"the counts of '{name}' in the parts of a step do not add up to that of the whole step"
            fail(problem, expected=count, found=added, difference=abs(added - count), method="counts")
    expected, errors = case.mean_loss(made, values)
    found = 0.0
    for half, of_half in zip(halves, own, strict=True):
        weights = {name: count / max(1, counts[name]) for name, count in of_half.items()}
        mean, error = case.mean_loss(made, half, weights)
        found, errors = found + mean, errors + error
    difference = abs(found - expected)
    if difference > 2e-5 * max(1.0, abs(expected)) + 5 * errors:
        problem = "the loss of the parts, weighed by `counts`, is not that of the whole step"
        fail(problem, expected=expected, found=found, difference=difference, method="collate")


@PRETRAINERS.property(after=("value",))
def finite_in_bf16(case: PretrainerCase) -> None:
    """In bf16 the loss and its gradients are finite."""
    made = case.pretrainer()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = case.loss(made, case.batch(made)).total
    if not torch.isfinite(total):
        fail(f"in bf16 the loss is {total.item()}", expected="a number", found=total.item(), method="forward")


def _expect_same_loss(case: PretrainerCase, change: Callable[[Tensor], Tensor], problem: str) -> None:
    made = case.stirred()
    values = case.batch(made)
    (expected, error), (found, other) = (case.mean_loss(made, one) for one in (values, _by_rows(values, change)))
    difference = abs(found - expected)
    if difference > 2e-5 * max(1.0, abs(expected)) + 5 * (error + other):
        fail(problem, expected=expected, found=found, difference=difference, method="forward")


def _changed(values: Values, change: Callable[[str, Tensor], Tensor]) -> Values:
    """A batch with each tensor, named as in `tensors_of`, by a function."""
    made: Values = {}
    for name, one in values.items():
        if isinstance(one, Tensor):
            made[name] = change(name, one)
        else:
            parts = {part.name: getattr(one, part.name) for part in fields(one)}
            new = {part: change(f"{name}.{part}", tensor) for part, tensor in parts.items() if tensor is not None}
            made[name] = replace(one, **new)
    return made


def _rows(values: Values) -> int:
    """The rows that all tensors of a batch have.

    Raises:
        UnsupportedError: They do not have the same number of them.
    """
    rows = {one.shape[0] if one.dim() else 0 for one in tensors_of(values).values()}
    if len(rows) != 1 or 0 in rows:
        msg = "the tensors of a batch do not have one row for each text."
        raise UnsupportedError(msg)
    return rows.pop()


def _repeated(rows: Tensor, times: int) -> Tensor:
    return rows.repeat(times)


def _by_rows(values: Values, choose: Callable[[Tensor], Tensor]) -> Values:
    """A batch with some of its rows, in an order."""
    index = choose(torch.arange(_rows(values)))
    return _changed(values, lambda _, tensor: tensor[index])


def _widened(values: Values, more: int, most: int) -> Values:
    """A batch with more padding on the right, up to a number of tokens: its Batches, and the labels beside them."""
    widths = {one.input_ids.shape for one in values.values() if isinstance(one, Batch)}
    more = min(more, most - max((shape[1] for shape in widths), default=most))
    if more <= 0:
        msg = f"there is no room for padding in {most} tokens."
        raise UnsupportedError(msg)
    fillers = {
        name: int(one.input_ids[one.attention_mask == 0][0])
        for name, one in values.items()
        if isinstance(one, Batch) and bool((one.attention_mask == 0).any())
    }

    def pad(name: str, tensor: Tensor) -> Tensor:
        owner, _, part = name.partition(".")
        if tensor.shape not in widths or part == "extra":
            return tensor
        value: float = 0
        if not part and tensor.dtype == torch.long and bool((tensor == UNLABELLED).any()):
            value = UNLABELLED
        elif part == "input_ids":
            value = fillers.get(owner, 0)
        return torch.nn.functional.pad(tensor, (0, more), value=value)

    return _changed(values, pad)
