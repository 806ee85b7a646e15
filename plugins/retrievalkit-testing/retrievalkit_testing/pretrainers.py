"""The conformance tests of pretrainers: samples, batches, and training."""

from __future__ import annotations

import copy
import random
import re
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Batch, LossValue, Pretrainer, Progress
from retrievalkit.data.tokenized_text import Document
from retrievalkit.scoring.lexical import UNLABELLED
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults
from retrievalkit_testing.properties import Kit, accepted, expect, expect_same, fail, leave_out, leaves
from retrievalkit_testing.samples import COUNTRIES, kit_encoder, kit_models
from retrievalkit_testing.shared import Subject, Turn, backward, check_loss_value, expect_mean, share, stir

Values = dict[str, Any]

_START = Progress(0, 0.0, 10)
_DRAWS = 12
"""Number of losses to average if a pretrainer draws random numbers in `forward`."""


class PretrainerCase(Subject):
    """A pretrainer with one encoder."""

    kind = "pretrainer"
    zero_gradients = True

    def __init__(self, name: str, model: str, label: str, max_length: int, options: Mapping[str, Any]) -> None:
        super().__init__(name, label, options)
        self.model, self.max_length = model, max_length
        self.documents = self._documents(self.create(self.options))
        settings = off_defaults(self, registry.get("pretrainer", name))
        self.draws = {"samples": sizes(1, 40), "options": settings, "seed": SEEDS}
        self.typical = [{"samples": 4, "options": {}, "seed": 0}]

    def create(self, options: Mapping[str, Any]) -> Pretrainer:
        """Create the pretrainer with these options and a new encoder, always with the same random weights."""
        component: Any = registry.get("pretrainer", self.name)
        length = {"document_length": self.max_length, "new_vocabulary_head": True}
        encoder = copy.deepcopy(kit_encoder(self.model, component.needs, **length))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            created: Pretrainer = registry.create("pretrainer", self.name, encoder, self.max_length, **options)
        return created

    def inputs(self, drawn: Drawn) -> Values:
        return self.batch(self.created(drawn), drawn["seed"], drawn["samples"])

    def call(self, component: Pretrainer, inputs: Values) -> LossValue:
        return component(inputs, _START)  # type: ignore[no-any-return]

    def answer(self, component: Pretrainer, inputs: Values, mode: Callable[[], Any] = torch.no_grad) -> Any:
        return self.mean_loss(component, inputs, mode=mode)

    def same(self, problem: str, actual: Any, expected: Any) -> None:
        means = ((means if isinstance(means, list) else [means]) for means in (actual, expected))
        for pair in zip(*means, strict=True):
            _expect_mean(problem, *pair)

    def turned(self, inputs: Values, draw: np.random.Generator) -> Iterator[Turn]:
        def rows(index: Tensor) -> Tensor:
            return index[torch.from_numpy(draw.permutation(len(index)))]

        yield "samples", _by_rows(inputs, rows), lambda answer: answer

    def near(self, inputs: Values) -> Values:
        return _by_rows(inputs, lambda rows: rows.roll(1))

    def objective(self, component: Pretrainer, inputs: Values) -> Tensor:
        return self.call(component, inputs).total

    def parameters(self, component: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        own = super().parameters(component)
        return {name: tensor for name, tensor in own.items() if not name.startswith("encoder.")}

    def exercise(self, drawn: Drawn) -> None:
        pretrainer = self.created(drawn)
        pretrainer.samples(self.documents[1])
        backward(self.objective(pretrainer.train(), self.batch(pretrainer, drawn["seed"], drawn["samples"])))

    def behaviour(self, options: Mapping[str, Any]) -> list[Any]:
        """Return the samples, the loss and its gradients."""
        pretrainer: Pretrainer = self.create(options).eval()
        values = self.batch(pretrainer)
        loss = self.loss(pretrainer, values)
        backward(loss.total)
        counts = [pretrainer.samples(document) for document in self.documents]
        gradients = [tensor.grad for tensor in pretrainer.parameters()]
        return [counts, tensors_of(values), loss.total.detach(), sorted(loss.terms), *gradients]

    def check_form(self, inputs: Values, result: Any) -> None:
        for name, value in inputs.items():
            fits, actual = isinstance(value, Tensor | Batch), type(value).__name__
            problem = f"'{name}' of a batch is neither a tensor nor a Batch"
            expect(fits, problem, expected="Tensor or Batch", actual=actual, method="collate")
        check_loss_value(result)

    def batch(self, pretrainer: Pretrainer, seed: int = 0, count: int = 4) -> Values:
        """Draw a batch of the first samples with that seed."""
        return self.collated(pretrainer, [count], seed)[0]

    def collated(self, pretrainer: Pretrainer, sizes: list[int], seed: int = 0) -> list[Values]:
        """Batches of the first samples, collated in sequence with one generator."""
        draw, count = random.Random(seed), sum(sizes)
        # From several documents of different length.
        numbers = (
            (document, number)
            for number in range(count)
            for document in self.documents[1:]
            if number < pretrainer.samples(document)
        )
        samples = [pretrainer.sample(document, number, draw) for document, number in islice(numbers, count)]
        batches = [[samples.pop(0) for _ in range(min(size, len(samples)))] for size in sizes]
        return [dict(pretrainer.collate(batch, draw)) for batch in batches]

    def loss(self, pretrainer: Pretrainer, values: Mapping[str, Any], seed: int = 0) -> LossValue:
        """Compute the loss of a batch."""
        torch.manual_seed(seed)
        return pretrainer(values, _START)  # type: ignore[no-any-return]

    def mean_loss(
        self,
        pretrainer: Pretrainer,
        values: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        mode: Callable[[], Any] = torch.no_grad,
    ) -> tuple[float, float]:
        """Compute the loss, by default without a graph, and its standard error: 0 unless `forward` is random."""
        losses = []
        for seed in range(_DRAWS):
            with mode():
                loss = self.loss(pretrainer, values, seed)
            addends = loss.addends if weights is not None else {"": loss.total}
            losses.append(sum((weights or {"": 1.0})[name] * float(each.detach()) for name, each in addends.items()))
            if seed == 1 and losses[0] == losses[1]:
                return losses[0], 0.0
        return float(np.mean(losses)), float(np.std(losses) / _DRAWS**0.5)

    def _documents(self, pretrainer: Pretrainer) -> list[Document]:
        """Return a document without text, and documents of twenty sentences, with words of several tokens."""
        lines = [line.replace("-", " ") for line in COUNTRIES.split("|")]
        parts = (lines[row : row + 10] for row in range(0, 32, 2))
        texts = ["", *(" ".join(f"{line}. The xyzzy is {line}." for line in part) for part in parts)]
        documents = []
        for text, (pieces, piece_ends) in zip(texts, pretrainer.vocabulary.split(texts), strict=True):
            ends = [bisect_right(piece_ends, point.end()) for point in re.finditer(r"\.", text)]
            # Half the length, to leave room for more padding.
            target, bounds = self.max_length // 2, [0]
            for sentence, end in enumerate(ends, 1):
                if end - [0, *ends][bounds[-1]] > target or sentence == len(ends):
                    bounds.append(sentence)
            documents.append(Document(pieces, ends, [range(*pair) for pair in pairwise(bounds)], target))
        return documents


def _cases(name: str, *, model: str | None = None, max_length: int = 24, **options: Any) -> list[PretrainerCase]:
    models = kit_models() if model is None else {Path(model).name: model}
    factories = (partial(PretrainerCase, name, folder, label, max_length, options) for label, folder in models.items())
    return accepted(factories)


PRETRAINERS: Kit[PretrainerCase] = Kit(
    "pretrainer", _cases, method="forward", unchecked="whether it improves models, and devices other than the CPU"
)


def tensors_of(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return all tensors of a batch by name; tensors of a Batch as NAME.FIELD."""
    return {name: leaf for name, leaf in leaves(values) if isinstance(leaf, Tensor)}


def _stirred(case: PretrainerCase, size: float) -> Any:
    """Enlarge the weights of a pretrainer, so that attention matters, as in a trained model."""
    return stir(case.created(case.typical[0]), size)


@PRETRAINERS.property()
def samples(case: PretrainerCase) -> None:
    """A document always has the same number of samples: none without text, some with twenty sentences."""
    pretrainer = case.created(case.typical[0])
    (none, *counts), again = ([pretrainer.samples(document) for document in case.documents] for _ in range(2))
    problem = "the number of samples is not always the same"
    expect([none, *counts] == again, problem, expected=[none, *counts], actual=again, method="samples")
    problem = "a document of twenty sentences has no sample"
    expect(min(counts) > 0, problem, expected="at least 1", actual=min(counts), method="samples")
    expect(not none, "a document without text has a sample", expected=0, actual=none, method="samples")


share(PRETRAINERS, modules=True, options=True)
_SOUND = ("samples", "form", "inputs_unchanged", "same_twice", "grad_mode")


@PRETRAINERS.property(after=_SOUND)
def mean_over_batch(case: PretrainerCase) -> None:
    """The loss is a mean: repeating the batch two or three times does not multiply it."""
    pretrainer = case.created(case.typical[0])
    values = case.batch(pretrainer)
    copies = [_by_rows(values, lambda rows, times=times: rows.repeat(times)) for times in (1, 2, 3)]  # type: ignore[misc]
    losses, errors = zip(*(case.mean_loss(pretrainer, batch) for batch in copies), strict=True)
    expect_mean(losses, max(errors))


@PRETRAINERS.property(after=_SOUND)
def padding(case: PretrainerCase) -> None:
    """More padding changes nothing."""
    pretrainer = _stirred(case, 0.2)
    values = case.batch(pretrainer)
    wide = _widened(values, 5, case.max_length)
    _expect_mean("padding changes the loss", case.mean_loss(pretrainer, wide), case.mean_loss(pretrainer, values))


@PRETRAINERS.property(after=_SOUND)
def parts(case: PretrainerCase) -> None:
    """A step computed in parts, collated in order and weighted by `counts`, has the loss of the whole step."""
    pretrainer = _stirred(case, 0.2)
    (values,), halves = (case.collated(pretrainer, sizes) for sizes in ([4], [1, 3]))
    counts, names = pretrainer.counts(values), sorted(case.loss(pretrainer, values).addends)
    if not counts or not names:
        leave_out("it has no counts, or its loss has no addends.")
    problem = "`counts` does not name the addends of the loss"
    expect(sorted(counts) == names, problem, expected=names, actual=sorted(counts), method="counts")
    own = [pretrainer.counts(half) for half in halves]
    for name, count in counts.items():
        added = sum(half[name] for half in own)
        problem = f"the counts of '{name}' in the parts of a step do not add up to that of the whole step"
        expect(added == count, problem, expected=count, actual=added, method="counts")
    means = [
        case.mean_loss(pretrainer, half, {name: count / max(1, counts[name]) for name, count in of_half.items()})
        for half, of_half in zip(halves, own, strict=True)
    ]
    problem = "the loss of the parts, weighted by `counts`, is not that of the whole step"
    total = (sum(mean for mean, _ in means), sum(error for _, error in means))
    _expect_mean(problem, total, case.mean_loss(pretrainer, values), method="collate")


def _expect_mean(problem: str, actual: tuple[float, float], expected: tuple[float, float], **where: Any) -> None:
    """Expect the same mean, up to rounding and the standard errors."""
    difference = abs(actual[0] - expected[0])
    if difference > 2e-5 * max(1.0, abs(expected[0])) + 5 * (actual[1] + expected[1]):
        fail(problem, expected=expected[0], actual=actual[0], difference=difference, **where)


def _changed(values: Mapping[str, Any], change: Callable[[str, Tensor], Tensor]) -> Values:
    """Apply a function to each tensor of a batch, named as in `tensors_of`."""
    changed: Values = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            changed[name] = change(name, value)
        else:
            members = {field.name: getattr(value, field.name) for field in fields(value)}
            tensors = {member: tensor for member, tensor in members.items() if isinstance(tensor, Tensor)}
            new = {member: change(f"{name}.{member}", tensor) for member, tensor in tensors.items()}
            changed[name] = replace(value, **new)
    return changed


def _by_rows(values: Values, choose: Callable[[Tensor], Tensor]) -> Values:
    """Select rows of a batch, in this order."""
    rows = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors_of(values).values()}
    if len(rows) != 1 or 0 in rows:
        leave_out("the tensors of a batch do not have a row for each text.")
    index = choose(torch.arange(rows.pop()))
    return _changed(values, lambda _, tensor: tensor[index])


def _widened(values: Values, more: int, most: int) -> Values:
    """Add padding on the right, up to a number of tokens, to the Batches and their labels."""
    batches = {name: value for name, value in values.items() if isinstance(value, Batch)}
    widths = {batch.input_ids.shape for batch in batches.values()}
    more = min(more, most - max((shape[1] for shape in widths), default=most))
    if more <= 0:
        leave_out(f"there is no room for padding in {most} tokens.")
    padding = {name: batch.input_ids[batch.attention_mask == 0].tolist() for name, batch in batches.items()}

    def pad(name: str, tensor: Tensor) -> Tensor:
        owner, _, member = name.partition(".")
        if tensor.shape not in widths or member == "extra":
            return tensor
        value: float = 0
        if not member and tensor.dtype == torch.long and bool((tensor == UNLABELLED).any()):
            value = UNLABELLED
        elif member == "input_ids":
            value = next(iter(padding[owner]), 0)
        return torch.nn.functional.pad(tensor, (0, more), value=value)

    return _changed(values, pad)


@PRETRAINERS.property(after=_SOUND)
def falls_under_training(case: PretrainerCase) -> None:
    """Training on a batch reduces its loss."""
    pretrainer = case.created(case.typical[0])
    values = case.batch(pretrainer)
    before, error = case.mean_loss(pretrainer, values)
    optimizer = torch.optim.Adam(pretrainer.train().parameters(), lr=5e-3)
    for number in range(25):
        optimizer.zero_grad()
        torch.manual_seed(number)
        backward(pretrainer(values, Progress(number, 0.0, 25)).total)
        optimizer.step()
    after, other = case.mean_loss(pretrainer.eval(), values)
    falls = after <= before - 0.02 * abs(before) + 2 * (error + other)
    expect(falls, "25 steps of training do not reduce the loss", expected=f"below {before:.4g}", actual=after)
    problem = "the loss is negative, which a mean over predicted tokens is not: its sign is wrong"
    expect(after >= 0 or not pretrainer.counts(values), problem, expected="0 or above", actual=after)


@PRETRAINERS.property(after=_SOUND)
def saved_and_loaded(case: PretrainerCase) -> None:
    """The saved encoder and, if needed, its vocabulary head have the trained weights."""
    pretrainer = _stirred(case, 0.05)
    encoder = copy.deepcopy(pretrainer.encoder)
    with tempfile.TemporaryDirectory() as folder:
        pretrainer.save(Path(folder))
        # Without `new_vocabulary_head`: the head must exist.
        loaded = registry.create("encoder", "transformer", folder)
        loaded.prepare(pretrainer.needs)
    texts = encoder.collate([pretrainer.vocabulary.wrap(pretrainer.vocabulary.ordinary[-8:])], "document")
    with torch.no_grad():
        states = [each.eval()(texts, [each.info.layers]) for each in (encoder, pretrainer.encoder, loaded)]
        results = [[each.last, each.head(each.last) if pretrainer.needs.vocabulary_head else None] for each in states]
    for each in results[1:]:
        problem = "saving and loading change the encoder or its vocabulary head"
        expect_same(problem, each, results[0], rtol=1e-4, atol=1e-5, method="save")
