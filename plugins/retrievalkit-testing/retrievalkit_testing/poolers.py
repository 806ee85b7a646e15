"""The conformance tests of poolers: outputs, padding, gradients, state and options."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import SIDES, Encoder, Needs, Pooler, Representation, Side, Text, TokenStates
from retrievalkit.contracts.commands import Retriever
from retrievalkit.errors import UnsupportedError
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults, required_values
from retrievalkit_testing.properties import Kit, expect_same, fail, leave_out
from retrievalkit_testing.samples import on_models
from retrievalkit_testing.shared import Subject, seeded, share

TEXTS: tuple[Text, ...] = (("", "what is the capital of france"), ("Peru", "The city of Lima."), ("", ""))
_TOKENS = 12_000
"""Most tokens in a batch; fewer with a vocabulary head, whose logits may take a gigabyte."""


@dataclass
class Input:
    """The states of a batch of one side."""

    states: TokenStates
    side: Side


class PoolerCase(Subject):
    """A pooler on one encoder."""

    def __init__(self, name: str, model: str, label: str, options: Mapping[str, Any]) -> None:
        self.name, self.model, self.label, self.options = name, model, label, options
        self._towers: dict[str, tuple[Encoder, Any]] = {}
        self._needs: dict[str, dict[bool, Needs]] = {}
        self._words: list[int] = []
        self.pooler_and_tower(options)
        self.settings = off_defaults(registry.get("pooler", name), options, self.pooler_and_tower)
        self.draws = {
            "texts": sizes(1, 300),
            "tokens": sizes(1, 520),
            "side": st.sampled_from(SIDES),
            "filler": st.sampled_from((0, 1, 7)),
            "equal": st.booleans(),
            "options": st.sampled_from(self.settings),
            "seed": SEEDS,
        }
        drawn = {"texts": 9, "tokens": 20, "filler": 0, "equal": False, "options": {}, "seed": 0}
        self.typical = [{**drawn, "side": side} for side in SIDES]

    def pooler_and_tower(self, options: Mapping[str, Any]) -> tuple[Pooler, Encoder, Any]:
        """A new pooler with these options, in eval mode, an encoder prepared for its needs, and the encoder's head."""
        pooler: Pooler = registry.create("pooler", self.name, self._encoder("").info, **options)
        needs = {mode: pooler.train(mode).needs for mode in (True, False)}
        self._needs[repr(options)] = needs
        tower = self._encoder(f"{needs}", needs[True])
        pooler.bind(tower)
        key = repr(needs)
        if key not in self._towers:
            batch = tower.collate(tower.tokenize([TEXTS[0]], "query"), "query")
            with torch.no_grad():
                head = tower(batch, [tower.info.layers]).head if needs[True].vocabulary_head else None
            self._towers[key] = tower, head
        return pooler.eval(), *self._towers[key]

    def _encoder(self, key: str, needs: Needs | None = None) -> Encoder:
        if (self.model, key) not in _ENCODERS:
            with seeded(0):
                made: Encoder = registry.create("encoder", "transformer", self.model)
                if needs is not None:
                    made.prepare(needs)
            _ENCODERS[self.model, key] = made.eval()
        return _ENCODERS[self.model, key]

    def retriever(self, **settings: Any) -> Retriever:
        """A new retriever with the pooler."""
        retriever = Retriever.create(self.model, pooler=self.name, pooler_options=self.options, **settings)
        return retriever.to("cpu").eval()

    def created(self, drawn: Drawn) -> Pooler:
        return self.pooler_and_tower({**self.options, **drawn["options"]})[0]

    def given(self, drawn: Drawn) -> Input:
        """Random states of texts of drawn lengths, large where there is no token; for the layers of both modes."""
        options = {**self.options, **drawn["options"]}
        _, tower, head = self.pooler_and_tower(options)
        needs, side, draw = self._needs[repr(options)], drawn["side"], np.random.default_rng(drawn["seed"])
        layers = sorted({one for mode in needs.values() for one in mode.layers_of(side, tower.info)})
        texts = drawn["texts"]
        most = min(drawn["tokens"], max(1, _TOKENS // (texts * (8 if head is not None else 1))))
        empty, word = (tower.tokenize([("", text)], side)[0] for text in ("", "rome"))
        filled = self.filled(drawn)
        if filled:
            most = min(most, tower.collate([empty], side).input_ids.shape[1] - len(empty))
        lengths = draw.integers(0, most + 1, texts)
        lengths[0] = most
        end = len(empty) - (bool(empty) and empty[-1:] == word[-1:])
        if not self._words:
            # Punctuation is frequent in texts, and treated in its own way by some poolers.
            ordinary, points = list(tower.vocabulary().ordinary), tower.token_ids([".", ","])
            self._words = ordinary + points * (len(ordinary) // 10)
        words = draw.choice(self._words, (texts, most)).tolist()
        rows = [[*empty[:end], *some[:length], *empty[end:]] for some, length in zip(words, lengths, strict=True)]
        batch = tower.collate(rows, side)
        padded = torch.zeros_like(batch.attention_mask) if filled else 1 - batch.attention_mask
        ids = batch.input_ids.masked_fill(padded.bool(), drawn["filler"])
        generator = torch.Generator().manual_seed(drawn["seed"])
        size = 1 + 99 * padded[..., None]
        # A text whose states are all equal is like one of a single token.
        shape = (len(ids), 1 if drawn["equal"] else ids.shape[1], tower.info.width)
        states = {one: size * torch.randn(shape, generator=generator) for one in layers}
        return Input(TokenStates(states, batch.attention_mask, ids, batch.special_mask, batch.extra, head), side)

    def filled(self, drawn: Drawn) -> bool:
        """True if texts of a side are filled up with [MASK]-like tokens, which are no padding."""
        needs = self._needs[repr({**self.options, **drawn["options"]})]
        return any(drawn["side"] in one.mask_filled for one in needs.values())

    def call(self, component: Pooler, given: Input) -> Any:
        layers = component.needs.layers_of(given.side, self._encoder("").info)
        return component(replace(given.states, layers={one: given.states.layers[one] for one in layers}), given.side)

    def read(self, given: Input, found: Representation) -> list[dict[str, Any]]:
        rows = []
        for row in range(self.rows(given)):
            one: dict[str, Any] = {}
            if found.vectors is not None:
                mask = found.vector_mask
                one["vectors"] = found.vectors[row] if mask is None else found.vectors[row][mask[row]]
            if found.keys is not None:
                # As text, which is compared exactly; numbers may differ by rounding.
                one["keys"] = str((found.keys[row] if mask is None else found.keys[row][mask[row]]).tolist())
            if found.weights is not None:
                one["weights"] = found.weights[row]
            rows.append(one)
        return rows

    def rows(self, given: Input) -> int:
        return len(given.states.input_ids)

    def chosen(self, given: Input, rows: Sequence[int]) -> Input:
        return Input(_mapped(given.states, lambda tensor: tensor[list(rows)]), given.side)

    def near(self, given: Input) -> Input:
        layers = {number: one.clone() for number, one in given.states.layers.items()}
        for one in layers.values():
            one[0, given.states.first[0], 0] += 4e-3
        return Input(replace(given.states, layers=layers), given.side)

    def objective(self, component: Pooler, given: Input) -> Tensor:
        return objective(self.call(component, given))

    def check_form(self, given: Input, found: Any) -> None:
        if not isinstance(found, Representation):
            fail("it returns no Representation", expected="Representation", found=type(found).__name__)
        texts, vectors, mask, weights = self.rows(given), found.vectors, found.vector_mask, found.weights
        for name, tensor in (("vectors", vectors), ("weights", weights)):
            if tensor is not None and (tensor.dtype, tensor.device.type, len(tensor)) != (torch.float32, "cpu", texts):
                problem = f"{name} have another type or device than the states, or not a row for each text"
                fail(
                    problem,
                    expected=f"{texts} torch.float32 cpu",
                    found=f"{len(tensor)} {tensor.dtype} {tensor.device}",
                )
        if mask is not None and (vectors is None or mask.shape != vectors.shape[:2] or mask.dtype != torch.bool):
            expected = None if vectors is None else tuple(vectors.shape[:2])
            found_mask = f"{mask.dtype} {tuple(mask.shape)}"
            fail("vector_mask does not fit the vectors", expected=f"bool {expected}", found=found_mask)
        if (keys := found.keys) is not None and (vectors is None or keys.shape != vectors.shape[:2]):
            expected = None if vectors is None else tuple(vectors.shape[:2])
            fail("keys are not a number for each vector", expected=expected, found=tuple(keys.shape))
        if keys is not None and (keys.dtype != torch.long or (keys != keys.int()).any()):
            fail("keys have another type, or exceed 32 bits", expected="torch.int64", found=keys.dtype)
        if vectors is not None and (not vectors.shape[1] or (mask is not None and not mask.any(dim=1).all())):
            fail("a text has no vector", expected="at least one", found=0)
        if weights is not None and weights.dim() != 2:
            fail("weights are not (batch, vocabulary)", expected="2 axes", found=tuple(weights.shape))
        if found.kept is not None and (vectors is None or not 0 <= found.kept < vectors.shape[1]):
            fail("kept is the number of no vector", expected="less than the number of vectors", found=found.kept)
        ends = [columns.stop for columns in (found.parts or {}).values()]
        if ends and (vectors is None or max(ends) > vectors.shape[2]):
            fail("parts go beyond the vectors", expected="at most their size", found=max(ends))
        values = values_of(found)
        if not values.isfinite().all():
            wrong = values[~values.isfinite()]
            fail(
                "values are not finite", expected="numbers", found=f"{float(wrong[0])} ({len(wrong)} of {len(values)})"
            )
        if weights is not None and weights.numel() and weights.min() < 0:
            fail("weights are negative", expected="0 or above", found=float(weights.min()))


_ENCODERS: dict[tuple[str, str], Encoder] = {}
"""Encoders by model and by the needs they were prepared for; created once per process."""


def _mapped(states: TokenStates, function: Callable[[Tensor], Tensor]) -> TokenStates:
    """Apply a function to each tensor, but not to the vocabulary head."""
    names = ("attention_mask", "input_ids", "special_mask", "extra")
    tensors = {name: getattr(states, name) for name in names}
    mapped: dict[str, Any] = {name: one if one is None else function(one) for name, one in tensors.items()}
    return replace(states, layers={number: function(layer) for number, layer in states.layers.items()}, **mapped)


def repadded(states: TokenStates, *, more: int, left: bool) -> TokenStates:
    """The same texts with more padding, with large states, and all of it on one side."""
    mask = nn.functional.pad(states.attention_mask, (0, more))
    filler = 1 - int(states.input_ids[0, -1] == 1)

    def pad(tensor: Tensor) -> Tensor:
        added = tensor.new_full((len(tensor), more, *tensor.shape[2:]), filler if tensor.dtype == torch.long else 0)
        if tensor.is_floating_point():
            added = 77.0 * torch.randn(added.shape, generator=torch.Generator().manual_seed(3))
        return torch.cat([tensor, added], dim=1)

    wide = replace(_mapped(replace(states, extra=None), pad), attention_mask=mask)
    if not left:
        return replace(wide, extra=states.extra)
    order = mask.argsort(dim=1, stable=True)  # (batch, tokens): padding, then the text

    def gathered(tensor: Tensor) -> Tensor:
        index = order.view(*order.shape, *([1] * (tensor.dim() - 2))).expand(*order.shape, *tensor.shape[2:])
        return tensor.gather(1, index)

    extra = None if states.extra is None else order.argsort(dim=1).gather(1, states.extra)
    return replace(_mapped(wide, gathered), extra=extra)


def values_of(representation: Representation) -> Tensor:
    """All values in float32, without masked vectors."""
    vectors, mask, weights = representation.vectors, representation.vector_mask, representation.weights
    parts = [] if vectors is None else [vectors if mask is None else vectors[mask]]
    parts += [] if weights is None else [weights]
    return torch.cat([part.float().reshape(-1) for part in parts])


def objective(representation: Representation) -> Tensor:
    """A scalar that depends on all values, each in a different way."""
    values = values_of(representation)
    return (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))).sum()


def _cases(name: str, *, model: str | None = None, **options: Any) -> list[PoolerCase]:
    options = {**required_values(registry.get("pooler", name), options), **options}
    return on_models(lambda label, folder: PoolerCase(name, folder, label, options), model)


def _behaviour(case: PoolerCase, options: Mapping[str, Any]) -> list[Any]:
    """The complete behaviour of a pooler with these options: needs, file requests, output and gradients."""
    asked: list[str] = []
    encoder: Any = registry.get("encoder", "transformer")
    ask = encoder.file

    def file(self: Any, name: str) -> Any:
        asked.append(name)
        return ask(self, name)

    with mock.patch.object(encoder, "file", file), seeded(0):
        pooler = case.pooler_and_tower(options)[0]
    found: list[Any] = [tuple(asked), pooler.default_loss]
    off = {name: one for name, one in options.items() if name not in case.options or case.options[name] != one}
    for training in (False, True):
        found.append(repr(pooler.train(training).needs))
        for drawn in case.typical:
            given = case.given({**drawn, "tokens": 60, "options": off})
            leaves = [one.requires_grad_() for one in given.states.layers.values()]
            with seeded(0):
                made = case.call(pooler, given)
            total = objective(made)
            if total.requires_grad:
                torch.autograd.backward(total)
            parts = (made.vectors, made.weights, made.vector_mask, made.keys)
            tensors = [one if one is None else one.detach() for one in parts]
            found += [made.kept, repr(made.parts), *tensors, *(one.grad for one in leaves)]
    return [*found, *(one.grad for one in pooler.parameters())]


POOLERS: Kit[PoolerCase] = Kit(
    "pooler", _cases, method="forward", unchecked="whether it retrieves well, its speed, and devices other than the CPU"
)
share(POOLERS, modules=True, rows=True, threads=True, options=_behaviour)
_SOUND = ("form", "inputs_unchanged", "same_twice", "grad_mode", "state")


@POOLERS.property(after=_SOUND)
def sides_agree(case: PoolerCase) -> None:
    """Queries and documents have vectors and weights of the same sizes, so that they can be compared."""
    for options in case.settings:
        found = []
        for drawn in case.typical:
            one = {**drawn, "options": options}
            found.append(case.call(case.fresh(one), case.given(one)))
        for what in ("vectors", "weights"):
            dims = [0 if getattr(one, what) is None else getattr(one, what).shape[-1] for one in found]
            if dims[0] != dims[1]:
                problem = f"{what} of queries and documents differ in size, so that no two can be compared"
                fail(problem, expected=f"{dims[0]} as of queries", found=f"{dims[1]} of documents")
        if len({one.keys is None for one in found}) > 1:
            fail("vectors of one side have keys, and those of the other side have none")


@POOLERS.property(after=_SOUND)
def cosine(case: PoolerCase, drawn: Drawn) -> None:
    """If scores are declared as cosines, vectors have length 1, a query has a single vector, and weights are absent."""
    pooler, given = case.fresh(drawn), case.given(drawn)
    if not pooler.cosine:
        leave_out("its scores are no cosines.")
    made, side = case.call(pooler, given), given.side
    if made.vectors is None or made.weights is not None or (side == "query" and made.vectors.shape[1] > 1):
        fail(f"{side}: `cosine` is true, and a score is more than one inner product of vectors")
    empty = given.states.attention_mask.sum(1) == 0
    lengths = made.vectors.norm(dim=-1)
    kept = ~empty[:, None] & (
        torch.ones_like(lengths, dtype=torch.bool) if made.vector_mask is None else made.vector_mask
    )
    problem = f"{side}: `cosine` is true, and vectors differ from length 1"
    expect_same(problem, lengths[kept], torch.ones_like(lengths[kept]), atol=1e-4)


@POOLERS.property(after=_SOUND)
def padding(case: PoolerCase, drawn: Drawn) -> None:
    """Padding at either end, whatever its states and ids are, changes nothing."""
    if case.filled(drawn):
        leave_out("this side is filled up with [MASK]-like tokens.")
    pooler, given = case.fresh(drawn), case.given(drawn)
    expected = case.answer(pooler, given)
    for left in (False, True):
        states = repadded(given.states, more=1 + drawn["seed"] % 9, left=left)
        problem = f"padding on the {'left' if left else 'right'} changes the output"
        case.same(problem, case.answer(pooler, Input(states, given.side)), expected)


@POOLERS.property(after=_SOUND)
def indexed_as_scored(case: PoolerCase, drawn: Drawn) -> None:
    """The representation in eval mode, which is indexed, equals the one that the loss scores in training mode."""
    training = case.fresh(drawn).train()
    for module in training.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.AlphaDropout):
            module.p = 0.0
    if any(isinstance(one, nn.BatchNorm1d) for one in training.modules()):
        leave_out("in training it depends on the batch (BatchNorm).")
    seen = []
    for seed in (0, 1):
        with seeded(seed), torch.no_grad():
            seen.append(case.call(copy.deepcopy(training), case.given(drawn)).as_indexed())
    scored, other = (values_of(one) for one in seen)
    with torch.no_grad():
        indexed = values_of(case.call(case.fresh(drawn), case.given(drawn)).as_indexed())
    if scored.shape != other.shape or not torch.equal(scored, other):
        leave_out("in training it draws at random.")
    if scored.numel() != indexed.numel():
        # For example by dropping tokens that are only weighted in training.
        leave_out("it indexes other vectors than it trains.")
    expect_same("what is indexed is not what the loss scores", indexed, scored, rtol=1e-4, atol=1e-5)


@POOLERS.property(after=_SOUND, once=True)
def saved_and_loaded(case: PoolerCase) -> None:
    """A checkpoint of a retriever with it, with one encoder or one for each side, gives equal bytes once loaded."""
    for separate in (False, True):
        try:
            retriever = case.retriever(separate_towers=separate)
        except UnsupportedError:
            continue
        with torch.no_grad():
            for one in retriever.pooler.parameters():
                one.add_(0.1 * torch.randn(one.shape, generator=torch.Generator().manual_seed(2)))
        with tempfile.TemporaryDirectory() as folder:
            retriever.save(folder)
            # Another seed, to detect random values that are not stored.
            loaded = Retriever.load(folder, device="cpu", seed=1)
        for side in SIDES:
            found, expected = (values_of(one.encode(TEXTS, side)) for one in (loaded, retriever))
            where = r"register_buffer|nn\.Parameter|self\.\w+ = torch"
            expect_same(f"{side}: saving and loading change the output", found, expected, source=where)


def check_pooler(name: str, *, model: str | None = None, **settings: Any) -> None:
    """Check that a pooler has all properties that the contract requires.

    Args:
        name: Registered name of the pooler.
        model: A model that fulfils its needs; None = tiny models of several architectures.
        settings: Options of the pooler; or `only` or `without`, names of properties.
    """
    POOLERS.check(name, model=model, **settings)
