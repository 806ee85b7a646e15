"""The conformance tests of pretrainers: samples, batches, and training."""

from __future__ import annotations

import copy
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Batch, Encoder, LossValue, Needs, Pretrainer, Progress
from retrievalkit.data.masking import UNLABELLED
from retrievalkit.data.spans import Document, draw_spans, token_ends
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.losses import backward
from retrievalkit_testing.option_effects import off_defaults, required_values
from retrievalkit_testing.properties import Kit, expect_same, fail, leave_out
from retrievalkit_testing.samples import COUNTRIES, on_models
from retrievalkit_testing.shared import Subject, Turn, expect_mean, share

Values = dict[str, Any]


_START = Progress(0, 0.0, 10)

_DRAWS = 12
"""Number of losses to average if a pretrainer draws random numbers in `forward`."""

_ENCODERS: dict[tuple[str, int, str], Encoder] = {}
"""Encoders by model, length and the needs they were prepared for; created once per process."""


class PretrainerCase(Subject):
    """A pretrainer with one encoder."""

    zero_gradients = True

    def __init__(self, name: str, model: str, label: str, max_length: int, options: Mapping[str, Any]) -> None:
        self.name = name
        self.model = model
        self.label = label
        self.max_length = max_length
        self.options = options
        self._made = self.create(options)
        self.documents = self._documents()
        self.draws = {
            "samples": sizes(1, 40),
            "options": st.sampled_from(off_defaults(registry.get("pretrainer", name), options, self.create)),
            "seed": SEEDS,
        }
        self.typical = [{"samples": 4, "options": {}, "seed": 0}]

    def create(self, options: Mapping[str, Any]) -> Pretrainer:
        """Create the pretrainer with these options and a new encoder, always with the same random weights."""
        needs: Needs = registry.get("pretrainer", self.name).needs  # type: ignore[attr-defined]
        key = (self.model, self.max_length, repr(needs))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            if key not in _ENCODERS:
                encoder = registry.create(
                    "encoder", "transformer", self.model, document_length=self.max_length, new_vocabulary_head=True
                )
                encoder.prepare(needs)
                _ENCODERS[key] = encoder
            torch.manual_seed(6)
            made: Pretrainer = registry.create(
                "pretrainer", self.name, copy.deepcopy(_ENCODERS[key]), self.max_length, **options
            )
        return made

    def pretrainer(self) -> Pretrainer:
        """A fresh copy of the pretrainer, in eval mode."""
        return copy.deepcopy(self._made).eval()

    def stirred(self) -> Pretrainer:
        """A copy with larger weights, so that attention makes a difference, as in a trained model."""
        made = self.pretrainer()
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for one in made.parameters():
                one.add_(0.2 * torch.randn(one.shape, generator=generator))
        return made

    def created(self, drawn: Drawn) -> Pretrainer:
        return self.create({**self.options, **drawn["options"]}).eval()

    def given(self, drawn: Drawn) -> Values:
        return self.batch(self.created(drawn), drawn["seed"], drawn["samples"])

    def call(self, component: Pretrainer, given: Values) -> LossValue:
        return component(given, _START)  # type: ignore[no-any-return]

    def answer(self, component: Pretrainer, given: Values, mode: Callable[[], Any] = torch.no_grad) -> Any:
        return self.mean_loss(component, given, mode=mode)

    def same(self, problem: str, found: Any, expected: Any) -> None:
        for one, other in zip(
            *((some if isinstance(some, list) else [some]) for some in (found, expected)), strict=True
        ):
            _expect_mean(problem, one, other)

    def turned(self, given: Values, draw: np.random.Generator) -> Iterator[Turn]:
        def rows(index: Tensor) -> Tensor:
            return index[torch.from_numpy(draw.permutation(len(index)))]

        yield "samples", _by_rows(given, rows), lambda found: found

    def near(self, given: Values) -> Values:
        return _by_rows(given, lambda rows: rows.roll(1))

    def objective(self, component: Pretrainer, given: Values) -> Tensor:
        return self.call(component, given).total

    def parameters(self, component: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        own = super().parameters(component)
        return {name: one for name, one in own.items() if not name.startswith("encoder.")}

    def exercise(self, drawn: Drawn) -> None:
        made = self.created(drawn)
        made.samples(self.documents[1])
        backward(self.objective(made.train(), self.batch(made, drawn["seed"], drawn["samples"])))

    def check_form(self, given: Values, found: Any) -> None:
        for name, one in given.items():
            if not isinstance(one, Tensor | Batch):
                expected, told = "Tensor or Batch", type(one).__name__
                fail(f"'{name}' of a batch is no tensor and no Batch", expected=expected, found=told, method="collate")
        if not isinstance(found, LossValue):
            fail("it returns no LossValue", expected="LossValue", found=type(found).__name__)
        for name, number in {**found.terms, "total": found.total}.items():
            if number.dim() or number.dtype != torch.float32:
                told = f"{tuple(number.shape)} {number.dtype}"
                fail(f"the {name} is not a scalar of this type", expected="() torch.float32", found=told)
            if not torch.isfinite(number):
                fail(f"the {name} is {number.item()}", expected="a number", found=number.item())

    def batch(self, made: Pretrainer, seed: int = 0, count: int = 4) -> Values:
        """A batch of the first samples, drawn with that seed."""
        return self.collated(made, [count], seed)[0]

    def collated(self, made: Pretrainer, sizes: list[int], seed: int = 0) -> list[Values]:
        """Batches of the first samples, collated in sequence with one generator."""
        draw, count = random.Random(seed), sum(sizes)
        # From several documents of different length.
        numbers = ((one, number) for number in range(count) for one in self.documents[1:] if number < made.samples(one))
        drawn = [made.sample(one, number, draw) for one, number in islice(numbers, count)]
        return [dict(made.collate([drawn.pop(0) for _ in range(min(size, len(drawn)))], draw)) for size in sizes]

    def loss(self, made: Pretrainer, values: Mapping[str, Any], seed: int = 0) -> LossValue:
        """The loss of a batch."""
        torch.manual_seed(seed)
        found: LossValue = made(values, _START)
        return found

    def mean_loss(
        self,
        made: Pretrainer,
        values: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        mode: Callable[[], Any] = torch.no_grad,
    ) -> tuple[float, float]:
        """The loss, by default without a graph, and its standard error: 0 unless the pretrainer draws in `forward`."""
        seen = []
        for seed in range(_DRAWS):
            with mode():
                found = self.loss(made, values, seed)
            addends = found.addends if weights is not None else {"": found.total}
            seen.append(sum((weights or {"": 1.0})[name] * float(one.detach()) for name, one in addends.items()))
            if seed == 1 and seen[0] == seen[1]:
                return seen[0], 0.0
        return float(np.mean(seen)), float(np.std(seen) / _DRAWS**0.5)

    def _documents(self) -> list[Document]:
        """A document without text, and documents of twenty sentences, with words of several tokens."""
        countries = [line.replace("-", " ") for line in COUNTRIES.split("|")]
        texts = [
            "",
            *(" ".join(f"{one}. The xyzzy is {one}." for one in countries[row : row + 10]) for row in range(0, 32, 2)),
        ]
        documents = []
        for number, (text, (pieces, piece_ends)) in enumerate(
            zip(texts, self._made.vocabulary.split(texts), strict=True)
        ):
            ends = token_ends(piece_ends, [point.end() for point in re.finditer(r"\.", text)])
            # Half the length, to leave room for more padding.
            spans = draw_spans(ends, self.max_length // 2, random.Random(number))
            documents.append(Document(pieces, ends, spans, self.max_length // 2))
        return documents


def _cases(name: str, *, model: str | None = None, max_length: int = 24, **options: Any) -> list[PretrainerCase]:
    options = {**required_values(registry.get("pretrainer", name), options), **options}
    return on_models(lambda label, folder: PretrainerCase(name, folder, label, max_length, options), model)


def _behaviour(case: PretrainerCase, options: Mapping[str, Any]) -> list[Any]:
    made = case.create(options).eval()
    values = case.batch(made)
    found = case.loss(made, values)
    backward(found.total)
    counts = [made.samples(one) for one in case.documents]
    gradients = [one.grad for one in made.parameters()]
    return [counts, *tensors_of(values).values(), found.total.detach(), sorted(found.terms), *gradients]


PRETRAINERS: Kit[PretrainerCase] = Kit(
    "pretrainer", _cases, method="forward", unchecked="what a model gains by it, and devices other than the CPU"
)


def tensors_of(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """All tensors of a batch by name; tensors of a Batch as NAME.FIELD."""
    found: dict[str, Tensor] = {}
    _changed(values, lambda name, tensor: found.setdefault(name, tensor))
    return found


@PRETRAINERS.property()
def samples(case: PretrainerCase) -> None:
    """A document always has the same number of samples: none without text, some with twenty sentences."""
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
        fail("a document without text gives a sample", expected=0, found=made.samples(empty), method="samples")


share(PRETRAINERS, modules=True, options=_behaviour, builds=8)
_SOUND = ("samples", "form", "inputs_unchanged", "same_twice", "grad_mode")


@PRETRAINERS.property(after=_SOUND)
def mean_over_batch(case: PretrainerCase) -> None:
    """The loss is a mean: repeating the batch two or three times does not multiply it."""
    made = case.pretrainer()
    values = case.batch(made)
    copies = [_by_rows(values, lambda rows, times=times: rows.repeat(times)) for times in (1, 2, 3)]  # type: ignore[misc]
    seen, errors = zip(*(case.mean_loss(made, one) for one in copies), strict=True)
    expect_mean(seen, max(errors))


@PRETRAINERS.property(after=_SOUND)
def padding(case: PretrainerCase) -> None:
    """More padding changes nothing."""
    _expect_same_loss(case, lambda values: _widened(values, 5, case.max_length), "padding changes the loss")


@PRETRAINERS.property(after=_SOUND)
def parts(case: PretrainerCase) -> None:
    """A step computed in parts, collated in order and weighted by `counts`, has the loss of the whole step."""
    made = case.stirred()
    whole, *others = (case.collated(made, sizes) for sizes in ([4], [1, 3]))
    (values,), halves = whole, others[0]
    counts = made.counts(values)
    if not counts:
        leave_out("it gives no counts.")
    names = sorted(case.loss(made, values).addends)
    if not names:
        leave_out("its loss has no addends.")
    if sorted(counts) != names:
        fail("`counts` does not name the addends of the loss", expected=names, found=sorted(counts), method="counts")
    own = [made.counts(half) for half in halves]
    for name, count in counts.items():
        if (added := sum(one[name] for one in own)) != count:
            problem = f"the counts of '{name}' in the parts of a step do not add up to that of the whole step"
            fail(problem, expected=count, found=added, difference=abs(added - count), method="counts")
    means = [
        case.mean_loss(made, half, {name: count / max(1, counts[name]) for name, count in of_half.items()})
        for half, of_half in zip(halves, own, strict=True)
    ]
    problem = "the loss of the parts, weighed by `counts`, is not that of the whole step"
    total = (sum(mean for mean, _ in means), sum(error for _, error in means))
    _expect_mean(problem, total, case.mean_loss(made, values), method="collate")


def _expect_same_loss(case: PretrainerCase, change: Callable[[Values], Values], problem: str) -> None:
    made = case.stirred()
    values = case.batch(made)
    _expect_mean(problem, case.mean_loss(made, change(values)), case.mean_loss(made, values))


def _expect_mean(problem: str, found: tuple[float, float], expected: tuple[float, float], **where: Any) -> None:
    """Expect the same mean, up to rounding and the standard errors."""
    difference = abs(found[0] - expected[0])
    if difference > 2e-5 * max(1.0, abs(expected[0])) + 5 * (found[1] + expected[1]):
        fail(problem, expected=expected[0], found=found[0], difference=difference, **where)


def _changed(values: Mapping[str, Any], change: Callable[[str, Tensor], Tensor]) -> Values:
    """Apply a function to each tensor of a batch, named as in `tensors_of`."""
    made: Values = {}
    for name, one in values.items():
        if isinstance(one, Tensor):
            made[name] = change(name, one)
        else:
            parts = {part.name: getattr(one, part.name) for part in fields(one)}
            new = {part: change(f"{name}.{part}", one) for part, one in parts.items() if isinstance(one, Tensor)}
            made[name] = replace(one, **new)
    return made


def _by_rows(values: Values, choose: Callable[[Tensor], Tensor]) -> Values:
    """A batch with selected rows, in the selected order."""
    rows = {one.shape[0] if one.dim() else 0 for one in tensors_of(values).values()}
    if len(rows) != 1 or 0 in rows:
        leave_out("the tensors of a batch do not have one row for each text.")
    index = choose(torch.arange(rows.pop()))
    return _changed(values, lambda _, tensor: tensor[index])


def _widened(values: Values, more: int, most: int) -> Values:
    """Add padding on the right, up to a number of tokens, to the Batches and the labels that go with them."""
    widths = {one.input_ids.shape for one in values.values() if isinstance(one, Batch)}
    more = min(more, most - max((shape[1] for shape in widths), default=most))
    if more <= 0:
        leave_out(f"there is no room for padding in {most} tokens.")
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


@PRETRAINERS.property(after=_SOUND)
def falls_under_training(case: PretrainerCase) -> None:
    """Training on a batch reduces its loss."""
    made = case.pretrainer()
    values = case.batch(made)
    before, error = case.mean_loss(made, values)
    optimizer = torch.optim.Adam(made.train().parameters(), lr=5e-3)
    for number in range(25):
        optimizer.zero_grad()
        torch.manual_seed(number)
        backward(made(values, Progress(number, 0.0, 25)).total)
        optimizer.step()
    after, other = case.mean_loss(made.eval(), values)
    if after > before - 0.02 * abs(before) + 2 * (error + other):
        problem = "25 steps of training on a batch do not make its loss fall"
        fail(problem, expected=f"below {before:.4g}", found=after, difference=after - before)
    if after < 0 and made.counts(values):
        problem = "the loss is negative, which no mean over predicted tokens is: its sign is wrong"
        fail(problem, expected="0 or above", found=after)


@PRETRAINERS.property(after=_SOUND)
def saved_and_loaded(case: PretrainerCase) -> None:
    """The saved encoder, and its vocabulary head if needed, have the trained weights."""
    made = case.pretrainer()
    with torch.no_grad():
        for one in made.parameters():
            one.add_(0.05 * torch.randn(one.shape, generator=torch.Generator().manual_seed(7)))
    encoder = copy.deepcopy(made.encoder)
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder))
        # Without `new_vocabulary_head`: the head must exist.
        loaded = registry.create("encoder", "transformer", folder)
        loaded.prepare(made.needs)
    texts = encoder.collate([made.vocabulary.wrap(made.vocabulary.ordinary[-8:])], "document")
    with torch.no_grad():
        trained, *others = (one.eval()(texts, [one.info.layers]) for one in (encoder, made.encoder, loaded))
        for one in others:
            expect_same(
                "saving and loading change the encoder", one.last, trained.last, rtol=1e-4, atol=1e-5, method="save"
            )
            if made.needs.vocabulary_head:
                logits = [states.head(states.last) for states in (one, trained)]
                expect_same(
                    "saving and loading change the vocabulary head", *logits, rtol=1e-4, atol=1e-5, method="save"
                )


def check_pretrainer(name: str, *, model: str | None = None, max_length: int = 24, **settings: Any) -> None:
    """Check that a pretrainer has all properties that the contract requires.

    Args:
        name: Registered name of the pretrainer.
        model: A model that fulfils its needs; None = tiny models of several architectures.
        max_length: Maximum number of tokens per text.
        settings: Options of the pretrainer; or `only` or `without`, names of properties.
    """
    PRETRAINERS.check(name, model=model, max_length=max_length, **settings)
