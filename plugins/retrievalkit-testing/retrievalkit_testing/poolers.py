"""The conformance tests of poolers: outputs, padding, gradients, state and options."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import SIDES, Encoder, Needs, Pooler, Representation, Side, Text, TokenStates
from retrievalkit.contracts.commands import Retriever
from retrievalkit.errors import UnsupportedError
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults
from retrievalkit_testing.properties import Kit, accepted, expect, expect_same, leave_out
from retrievalkit_testing.samples import kit_encoder, kit_models
from retrievalkit_testing.shared import Subject, backward, seeded, share, stir

TEXTS = (Text("", "what is the capital of france"), Text("Peru", "The city of Lima."), Text("", ""))
_TOKENS = 12_000
"""Most tokens in a batch; fewer with a vocabulary head, whose logits may take a gigabyte."""


@dataclass
class Input:
    """The states of a batch of one side."""

    states: TokenStates
    side: Side


class PoolerCase(Subject):
    """A pooler on one encoder."""

    kind = "pooler"
    selected = True

    def __init__(self, name: str, model: str, label: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, label, options)
        self.model = model
        self._heads: dict[str, Any] = {}
        self._needs: dict[str, dict[bool, Needs]] = {}
        self._words: list[int] = []
        self.create(self.options)
        self.settings = off_defaults(self, registry.get("pooler", name))
        self.draws = {"texts": sizes(1, 300), "tokens": sizes(1, 520), "side": SIDES, "filler": (0, 1, 7)}
        self.draws |= {"equal": (False, True), "options": self.settings, "seed": SEEDS}
        drawn = {"texts": 9, "tokens": 20, "filler": 0, "equal": False, "options": {}, "seed": 0}
        self.typical = [{**drawn, "side": side} for side in SIDES]

    def create(self, options: Mapping[str, Any]) -> Pooler:
        """Create a pooler with these options, bound to an encoder, in eval mode."""
        pooler: Pooler = registry.create("pooler", self.name, kit_encoder(self.model).info, **options)
        self._needs[repr(options)] = {mode: pooler.train(mode).needs for mode in (True, False)}
        pooler.bind(self.tower(options)[0])
        return pooler.eval()

    def tower(self, options: Mapping[str, Any]) -> tuple[Encoder, Any]:
        """Return the encoder for a pooler with these options, and its vocabulary head."""
        needs = self._needs[repr(options)]
        encoder = kit_encoder(self.model, needs[True])
        if (key := repr(needs)) not in self._heads:
            batch = encoder.collate(encoder.tokenize([TEXTS[0]], "query"), "query")
            with torch.no_grad():
                states = encoder(batch, [encoder.info.layers])
            self._heads[key] = states.head if needs[True].vocabulary_head else None
        return encoder, self._heads[key]

    def inputs(self, drawn: Drawn) -> Input:
        """Draw random states of texts of drawn lengths, large at padding; for the layers of both modes."""
        options = {**self.options, **drawn["options"]}
        self.create(options)
        (encoder, head), side, draw = self.tower(options), drawn["side"], np.random.default_rng(drawn["seed"])
        layers = {
            layer for needs in self._needs[repr(options)].values() for layer in needs.layers_of(side, encoder.info)
        }
        texts = drawn["texts"]
        most = min(drawn["tokens"], max(1, _TOKENS // (texts * (8 if head is not None else 1))))
        empty, word = (encoder.tokenize([Text("", text)], side)[0] for text in ("", "rome"))
        filled = self.filled(drawn)
        if filled:
            most = min(most, encoder.collate([empty], side).input_ids.shape[1] - len(empty))
        lengths = draw.integers(0, most + 1, texts)
        lengths[0] = most
        end = len(empty) - (bool(empty) and empty[-1:] == word[-1:])
        if not self._words:
            # Punctuation is frequent in texts, and some poolers treat it differently.
            ordinary, points = list(encoder.vocabulary().ordinary), encoder.token_ids([".", ","])
            self._words = ordinary + points * (len(ordinary) // 10)
        words = draw.choice(self._words, (texts, most)).tolist()
        rows = [[*empty[:end], *some[:length], *empty[end:]] for some, length in zip(words, lengths, strict=True)]
        batch = encoder.collate(rows, side)
        padded = torch.zeros_like(batch.attention_mask) if filled else 1 - batch.attention_mask
        ids = batch.input_ids.masked_fill(padded.bool(), drawn["filler"])
        generator = torch.Generator().manual_seed(drawn["seed"])
        size = 1 + 99 * padded[..., None]
        # A text whose states are all equal is like a text of a single token.
        shape = (len(ids), 1 if drawn["equal"] else ids.shape[1], encoder.info.width)
        states = {layer: size * torch.randn(shape, generator=generator) for layer in sorted(layers)}
        return Input(TokenStates(states, batch.attention_mask, ids, batch.special_mask, batch.extra, head), side)

    def filled(self, drawn: Drawn) -> bool:
        """True if texts of a side are filled up with [MASK]-like tokens, which do not count as padding."""
        needs = self._needs[repr({**self.options, **drawn["options"]})]
        return any(drawn["side"] in mode.mask_filled for mode in needs.values())

    def call(self, component: Pooler, inputs: Input) -> Any:
        layers = component.needs.layers_of(inputs.side, kit_encoder(self.model).info)
        states = {layer: inputs.states.layers[layer] for layer in layers}
        return component(replace(inputs.states, layers=states), inputs.side)

    def read(self, inputs: Input, result: Representation) -> list[dict[str, Any]]:
        rows = []
        for row in range(self.rows(inputs)):
            parts: dict[str, Any] = {}
            mask: Any = slice(None) if result.vector_mask is None else result.vector_mask[row]
            if result.vectors is not None:
                parts["vectors"] = result.vectors[row][mask]
            if result.keys is not None:
                # As text, which is compared exactly; numbers may differ by rounding.
                parts["keys"] = str(result.keys[row][mask].tolist())
            if result.weights is not None:
                parts["weights"] = result.weights[row]
            rows.append(parts)
        return rows

    def rows(self, inputs: Input) -> int:
        return len(inputs.states.input_ids)

    def chosen(self, inputs: Input, rows: Sequence[int]) -> Input:
        return Input(_mapped(inputs.states, lambda tensor: tensor[list(rows)]), inputs.side)

    def near(self, inputs: Input) -> Input:
        layers = {number: states.clone() for number, states in inputs.states.layers.items()}
        for states in layers.values():
            states[0, inputs.states.first[0], 0] += 4e-3
        return Input(replace(inputs.states, layers=layers), inputs.side)

    def objective(self, component: Pooler, inputs: Input) -> Tensor:
        return objective(self.call(component, inputs))

    def behaviour(self, options: Mapping[str, Any]) -> list[Any]:
        """Return the needs, file requests, output and gradients of a pooler."""
        requests: list[str] = []
        transformer: Any = registry.get("encoder", "transformer")
        original = transformer.file

        def file(encoder: Any, name: str) -> Any:
            requests.append(name)
            return original(encoder, name)

        with mock.patch.object(transformer, "file", file), seeded(0):
            pooler = self.create(options)
        seen: list[Any] = [requests, pooler.default_loss]
        off = {name: value for name, value in options.items() if self.options.get(name, self) != value}
        for training in (False, True):
            seen.append(repr(pooler.train(training).needs))
            for drawn in self.typical:
                inputs = self.inputs({**drawn, "tokens": 60, "options": off})
                leaves = [states.requires_grad_() for states in inputs.states.layers.values()]
                with seeded(0):
                    result = self.call(pooler, inputs)
                backward(objective(result))
                seen += [result.kept, repr(result.parts), result.vectors, result.weights, result.vector_mask]
                seen.append(result.keys)
                seen += [states.grad for states in leaves]
        return [*seen, *(tensor.grad for tensor in pooler.parameters())]

    def check_form(self, inputs: Input, result: Any) -> None:
        fits, actual = isinstance(result, Representation), type(result).__name__
        expect(fits, "it returns no Representation", expected="Representation", actual=actual)
        texts, vectors, mask, weights = self.rows(inputs), result.vectors, result.vector_mask, result.weights
        for name, tensor, axes in (("vectors", vectors, 3), ("weights", weights, 2)):
            if tensor is not None:
                actual = f"{len(tensor)} {tensor.dtype} {tensor.device}, {tensor.dim()} axes"
                problem = f"{name} have another type, device or number of axes, or not a row for each text"
                expected = f"{texts} torch.float32 cpu, {axes} axes"
                expect(actual == expected, problem, expected=expected, actual=actual)
        if mask is not None:
            shape = None if vectors is None else tuple(vectors.shape[:2])
            actual, expected = f"{tuple(mask.shape)} {mask.dtype}", f"{shape} torch.bool"
            expect(actual == expected, "vector_mask does not fit the vectors", expected=expected, actual=actual)
        if (keys := result.keys) is not None:
            shape = None if vectors is None else tuple(vectors.shape[:2])
            actual, expected = f"{tuple(keys.shape)} {keys.dtype}", f"{shape} torch.int64"
            expect(actual == expected, "keys do not fit the vectors", expected=expected, actual=actual)
            expect(bool((keys == keys.int()).all()), "keys exceed 32 bits", actual=keys)
        if vectors is not None:
            count = int((torch.ones(vectors.shape[:2]) if mask is None else mask).sum(dim=1).min())
            expect(count, "a text has no vector", expected="at least one", actual=0)
        vectors_each, width = (0, 0) if vectors is None else vectors.shape[1:]
        kept = result.kept is None or 0 <= result.kept < vectors_each
        expect(kept, "`kept` is not the number of a vector", expected=f"less than {vectors_each}", actual=result.kept)
        end = max((columns.stop for columns in (result.parts or {}).values()), default=0)
        expect(end <= width, "parts are longer than the vectors", expected=f"at most {width}", actual=end)
        values = values_of(result)
        wrong = values[~values.isfinite()]
        actual = f"{len(wrong)} of {len(values)}: {wrong[:3].tolist()}"
        expect(not len(wrong), "values are not finite", expected="numbers", actual=actual)
        negative = weights is not None and weights.numel() and weights.min() < 0
        expect(not negative, "weights are negative", expected="0 or above", actual=weights)


def _mapped(states: TokenStates, function: Callable[[Tensor], Tensor]) -> TokenStates:
    """Apply a function to each tensor, but not to the vocabulary head."""
    names = ("attention_mask", "input_ids", "special_mask", "extra")
    tensors = {name: getattr(states, name) for name in names}
    mapped: dict[str, Any] = {name: tensor if tensor is None else function(tensor) for name, tensor in tensors.items()}
    return replace(states, layers={number: function(layer) for number, layer in states.layers.items()}, **mapped)


def repadded(states: TokenStates, *, more: int, left: bool) -> TokenStates:
    """Add padding with large states to the texts, all on one side."""
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
    """Return all values in float32, without masked vectors."""
    vectors, mask, weights = representation.vectors, representation.vector_mask, representation.weights
    parts = [] if vectors is None else [vectors if mask is None else vectors[mask]]
    parts += [] if weights is None else [weights]
    return torch.cat([part.float().reshape(-1) for part in parts])


def objective(representation: Representation) -> Tensor:
    """Compute a scalar that depends on each value in a different way."""
    values = values_of(representation)
    return (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))).sum()


def _cases(name: str, *, model: str | None = None, **options: Any) -> list[PoolerCase]:
    models = kit_models() if model is None else {Path(model).name: model}
    return accepted(partial(PoolerCase, name, folder, label, options) for label, folder in models.items())


POOLERS: Kit[PoolerCase] = Kit(
    "pooler", _cases, method="forward", unchecked="whether it retrieves well, its speed, and devices other than the CPU"
)
share(POOLERS, modules=True, rows=True, threads=True, options=True)
_SOUND = ("form", "inputs_unchanged", "same_twice", "grad_mode", "state")


@POOLERS.property(after=_SOUND)
def sides_agree(case: PoolerCase) -> None:
    """Queries and documents have vectors and weights of the same sizes, so they can be compared."""
    for options in case.settings:
        sides = [{**drawn, "options": options} for drawn in case.typical]
        query, document = (case.call(case.fresh(drawn), case.inputs(drawn)) for drawn in sides)
        for name in ("vectors", "weights"):
            sizes = [0 if getattr(side, name) is None else getattr(side, name).shape[-1] for side in (query, document)]
            problem = f"{name} of queries and documents differ in size"
            expect(sizes[0] == sizes[1], problem, expected=f"{sizes[0]} as of queries", actual=sizes[1])
        keyed = (query.keys is None) == (document.keys is None)
        expect(keyed, "vectors of only one side have keys")


@POOLERS.property(after=_SOUND)
def cosine(case: PoolerCase, drawn: Drawn) -> None:
    """If `cosine` is set, vectors have length 1, a query has a single vector, and there are no weights."""
    pooler, inputs = case.fresh(drawn), case.inputs(drawn)
    if not pooler.cosine:
        leave_out("its scores are not cosines.")
    result, side = case.call(pooler, inputs), inputs.side
    single = result.vectors is not None and result.weights is None and (side != "query" or result.vectors.shape[1] == 1)
    expect(single, f"{side}: `cosine` is true, and a score is more than one inner product of vectors")
    lengths, kept = result.vectors.norm(dim=-1), inputs.states.attention_mask.any(dim=1)[:, None]
    kept = kept.expand_as(lengths) if result.vector_mask is None else kept & result.vector_mask
    problem = f"{side}: `cosine` is true, and vectors differ from length 1"
    expect_same(problem, lengths[kept], torch.ones_like(lengths[kept]), atol=1e-4)


@POOLERS.property(after=_SOUND)
def padding(case: PoolerCase, drawn: Drawn) -> None:
    """Padding at either end changes nothing, with any states and ids."""
    pooler, inputs = case.fresh(drawn), case.inputs(drawn)
    if case.filled(drawn):
        leave_out("this side is filled up with [MASK]-like tokens.")
    expected = case.answer(pooler, inputs)
    for left in (False, True):
        states = repadded(inputs.states, more=1 + drawn["seed"] % 9, left=left)
        problem = f"padding on the {'left' if left else 'right'} changes the output"
        case.same(problem, case.answer(pooler, Input(states, inputs.side)), expected)


@POOLERS.property(after=_SOUND)
def indexed_as_scored(case: PoolerCase, drawn: Drawn) -> None:
    """The representation to index (eval mode) equals the representation that the loss scores (training mode)."""
    training = case.fresh(drawn).train()
    for module in training.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.AlphaDropout):
            module.p = 0.0
    if any(isinstance(module, nn.BatchNorm1d) for module in training.modules()):
        leave_out("in training it depends on the batch (BatchNorm).")
    seen = []
    for seed in (0, 1):
        with seeded(seed), torch.no_grad():
            seen.append(values_of(case.call(copy.deepcopy(training), case.inputs(drawn)).as_indexed()))
    with torch.no_grad():
        indexed = values_of(case.call(case.fresh(drawn), case.inputs(drawn)).as_indexed())
    if seen[0].shape != seen[1].shape or not torch.equal(*seen):
        leave_out("in training it draws at random.")
    if seen[0].numel() != indexed.numel():
        # For example by dropping tokens that are only weighted in training.
        leave_out("it indexes other vectors than it trains.")
    expect_same("what is indexed is not what the loss scores", indexed, seen[0], rtol=1e-4, atol=1e-5)


@POOLERS.property(after=_SOUND, once=True)
def saved_and_loaded(case: PoolerCase) -> None:
    """A retriever with the pooler, with one encoder or two, encodes the same after saving and loading."""
    for separate in (False, True):
        settings: Any = {"pooler": case.name, "pooler_options": case.options, "separate_towers": separate}
        try:
            retriever = Retriever.create(case.model, **settings).to("cpu").eval()
        except UnsupportedError:
            continue
        stir(retriever.pooler, 0.1)
        with tempfile.TemporaryDirectory() as folder:
            retriever.save(folder)
            # Another seed, to detect random values that are not stored.
            loaded = Retriever.load(folder, device="cpu", seed=1)
        for side in SIDES:
            actual, expected = (values_of(each.encode(TEXTS, side)) for each in (loaded, retriever))
            where = r"register_buffer|nn\.Parameter|self\.\w+ = torch"
            expect_same(f"{side}: saving and loading change the output", actual, expected, source=where)
