"""The conformance tests of poolers: outputs, gradients, state and options."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import SIDES, Encoder, Needs, Pooler, Representation, Side, Text, TokenStates
from retrievalkit.contracts.commands import Retriever
from retrievalkit_testing.option_effects import add_option_properties, required_values
from retrievalkit_testing.properties import Kit, backward, expect_close, expect_equal, fail, leave_out, trained
from retrievalkit_testing.samples import on_models


def selected(states: TokenStates, rows: Tensor) -> TokenStates:
    """A selection of the texts, with their padding."""
    return _mapped(states, lambda tensor: tensor[rows])


def widened(states: TokenStates, more: int) -> TokenStates:
    """Add padding on the right; all padding gets large random states."""
    padded = states.attention_mask == 0
    filler = int(states.input_ids[padded][0]) if padded.any() else 0
    mask = nn.functional.pad(states.attention_mask, (0, more))
    generator = torch.Generator().manual_seed(3)

    def pad(layer: Tensor) -> Tensor:
        wide = nn.functional.pad(layer, (0, 0, 0, more))
        # Larger than any real state, so that reading padding has a visible effect.
        drawn = 100.0 * torch.randn(wide.shape, generator=generator)
        return torch.where(mask[:, :, None].bool(), wide, drawn.to(wide.dtype))

    return replace(
        states,
        layers={number: pad(layer) for number, layer in states.layers.items()},
        attention_mask=mask,
        input_ids=nn.functional.pad(states.input_ids, (0, more), value=filler),
        special_mask=nn.functional.pad(states.special_mask, (0, more)),
    )


def of_one(states: TokenStates, row: int) -> TokenStates:
    """A batch of the same size with only the text in this row, without padding."""
    texts = selected(states, torch.full((len(states.input_ids),), row))
    order = (1 - texts.attention_mask).argsort(dim=1, stable=True)[:, : max(1, int(texts.attention_mask[0].sum()))]
    return _ordered(texts, order, texts.extra)


def left_padded(states: TokenStates) -> TokenStates:
    """Move the padding of each text to the left."""
    order = states.attention_mask.argsort(dim=1, stable=True)  # (batch, tokens): padding, then the text
    extra = None if states.extra is None else order.argsort(dim=1).gather(1, states.extra)
    return _ordered(states, order, extra)


def repeated(states: TokenStates, tokens: int) -> TokenStates:
    """Repeat the first text up to a number of tokens; the other texts stay the same."""
    wide = widened(states, tokens - states.attention_mask.shape[1])
    length = int(states.attention_mask[0].sum())
    order = torch.arange(tokens).repeat(len(states.attention_mask), 1)
    order[0] = torch.arange(tokens) % max(1, length)
    return _ordered(wide, order, states.extra)


def _ordered(states: TokenStates, order: Tensor, extra: Tensor | None) -> TokenStates:
    """Reorder the tokens of each row, with new positions of the extra tokens."""

    def gathered(tensor: Tensor) -> Tensor:
        index = order.view(*order.shape, *([1] * (tensor.dim() - 2))).expand(*order.shape, *tensor.shape[2:])
        return tensor.gather(1, index)

    return replace(_mapped(replace(states, extra=None), gathered), extra=extra)


def _mapped(states: TokenStates, function: Callable[[Tensor], Tensor]) -> TokenStates:
    """Apply a function to each tensor, but not to the vocabulary head."""
    names = ("attention_mask", "input_ids", "special_mask", "extra")
    tensors = {name: getattr(states, name) for name in names}
    mapped: dict[str, Any] = {name: one if one is None else function(one) for name, one in tensors.items()}
    return replace(states, layers={number: function(layer) for number, layer in states.layers.items()}, **mapped)


TEXTS: tuple[Text, ...] = (
    ("", "what is the capital of france"),
    ("Peru", "The seat of government is the city of Lima."),
    ("", "the city of rome"),
    ("", "which language is spoken in iceland and which currency do people use in the city"),
)
LONG: Text = ("Peru", "the seat of government is the city of lima , and people pay with the sol . " * 5)


class PoolerCase:
    """A pooler on one encoder."""

    def __init__(self, name: str, model: str, label: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.model = model
        self.label = label
        self.options = options
        self._towers: dict[str, Encoder] = {}
        self._states: dict[Any, TokenStates] = {}
        self._made, self._tower = self.parts(options)

    def parts(self, options: Mapping[str, Any]) -> tuple[Pooler, Encoder]:
        """A new pooler with these options, and an encoder prepared for its needs; in eval mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            pooler: Pooler = registry.create("pooler", self.name, self._encoder("").info, **options)
            tower = self._encoder(f"{pooler.needs} {pooler.eval().needs}", pooler.train().needs)
            pooler.bind(tower)
        return pooler.eval(), tower

    def _encoder(self, key: str, needs: Needs | None = None) -> Encoder:
        if key not in self._towers:
            if (self.model, key) not in _ENCODERS:
                made: Encoder = registry.create("encoder", "transformer", self.model)
                if needs is not None:
                    made.prepare(needs)
                _ENCODERS[self.model, key] = made.eval()
            self._towers[key] = copy.deepcopy(_ENCODERS[self.model, key])
        return self._towers[key]

    def created(self, **settings: Any) -> Retriever:
        """A new retriever with the pooler."""
        retriever = Retriever.create(self.model, pooler=self.name, pooler_options=self.options, **settings)
        return retriever.to("cpu").eval()

    def pooler(self) -> Pooler:
        """A fresh copy of the pooler, in eval mode."""
        return copy.deepcopy(self._made)

    def states(self, side: Side, texts: Sequence[Text] = TEXTS, *, training: bool = False) -> TokenStates:
        """A copy of the encoder's states, from eval mode, for the pooler in eval or training mode."""
        return self.states_for(self._made, self._tower, side, texts, training=training)

    def states_for(
        self, pooler: Pooler, tower: Encoder, side: Side, texts: Sequence[Text], *, training: bool
    ) -> TokenStates:
        """A copy of an encoder's states for a pooler."""
        was_training = pooler.training
        layers = pooler.train(training).needs.layers_of(side, tower.info)
        pooler.train(was_training)
        key = (id(tower), layers, side, tuple(texts))
        if key not in self._states:
            batch = tower.collate(tower.tokenize(texts, side), side)
            with torch.no_grad():
                self._states[key] = tower(batch, layers)
        return _mapped(self._states[key], lambda tensor: tensor.detach().clone())

    def output(self, side: Side, states: TokenStates | None = None, *, training: bool = False) -> Representation:
        """The output of the pooler, by default for the kit's texts."""
        pooler, given = self.pooler().train(training), states
        return pooled(pooler, self.states(side, training=training) if given is None else given, side)

    def padded_sides(self) -> Iterator[Side]:
        """The sides with padding: not those filled up with [MASK]-like tokens, which count as tokens."""
        sides = [side for side in SIDES if side not in self._made.needs.mask_filled]
        if not sides:
            leave_out("no side is padded.")
        yield from sides


_ENCODERS: dict[tuple[str, str], Encoder] = {}
"""Encoders by model and by the needs they were prepared for; created once per process."""


def _cases(name: str, *, model: str | None = None, **options: Any) -> list[PoolerCase]:
    options = {**required_values(registry.get("pooler", name), options), **options}
    return on_models(lambda label, folder: PoolerCase(name, folder, label, options), model)


POOLERS: Kit[PoolerCase] = Kit("pooler", _cases, method="forward")


def pooled(pooler: Pooler, states: TokenStates, side: Side) -> Representation:
    """The output of a pooler, in its current mode."""
    with torch.no_grad():
        found: Representation = pooler(states, side)
    return found


def values_of(representation: Representation) -> Tensor:
    """All values in float32, without masked vectors."""
    vectors, mask, weights = representation.vectors, representation.vector_mask, representation.weights
    parts = [] if vectors is None else [vectors if mask is None else vectors[mask]]
    parts += [] if weights is None else [weights]
    return torch.cat([part.float().reshape(-1) for part in parts])


def expect_finite(where: str, representation: Representation) -> None:
    """Expect that each text has a vector or weights, and that all values are finite; `where` names the texts."""
    values = values_of(representation)
    wrong = values[~values.isfinite()]
    mask = representation.vector_mask
    if not len(values) or (mask is not None and not mask.any(dim=1).all()):
        fail(f"{where}: there is no vector", expected="at least one", found=0)
    if len(wrong):
        found = f"{float(wrong[0])} ({len(wrong)} of {len(values)})"
        fail(f"{where}: some values are not finite", expected="numbers", found=found)


def objective(representation: Representation) -> Tensor:
    """A scalar that depends on all values, each in a different way."""
    values = values_of(representation)
    return (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))).sum()


@POOLERS.property()
def output(case: PoolerCase) -> None:
    """A text has at least one vector, or weights, of the shapes that the contract names."""
    for side in SIDES:
        for training in (False, True):
            if problem := _problem_of_form(case.output(side, training=training), len(TEXTS)):
                mode = "training" if training else "eval"
                fail(f"{side} in {mode} mode: {problem[0]}", expected=problem[1], found=problem[2])


def _problem_of_form(found: object, texts: int) -> tuple[str, object, object] | None:
    """The problem with the shapes of an output, the expected and the actual value; None if there is none."""
    if not isinstance(found, Representation):
        return "it returns no Representation", "Representation", type(found).__name__
    if len(found) != texts:
        return "there is not one row for each text", texts, len(found)
    vectors, mask, weights = found.vectors, found.vector_mask, found.weights
    if mask is not None and (vectors is None or mask.shape != vectors.shape[:2] or mask.dtype != torch.bool):
        expected = None if vectors is None else tuple(vectors.shape[:2])
        return "vector_mask does not fit the vectors", f"bool {expected}", f"{mask.dtype} {tuple(mask.shape)}"
    if vectors is not None and (not vectors.shape[1] or (mask is not None and not mask.any(dim=1).all())):
        return "a text has no vector", "at least one", 0
    if weights is not None and weights.dim() != 2:
        return "weights are not (batch, vocabulary)", "2 axes", tuple(weights.shape)
    if found.kept is not None and (vectors is None or not 0 <= found.kept < vectors.shape[1]):
        return "kept is the number of no vector", "less than the number of vectors", found.kept
    ends = [columns.stop for columns in (found.parts or {}).values()]
    if ends and (vectors is None or max(ends) > vectors.shape[2]):
        return "parts go beyond the vectors", "at most their size", max(ends)
    return None


@POOLERS.property(after=("output",))
def states_unchanged(case: PoolerCase) -> None:
    """The states of the encoder are not changed in place."""
    for side in SIDES:
        for training in (False, True):
            before, states = (case.states(side, training=training) for _ in range(2))
            case.output(side, states, training=training)
            for number, layer in before.layers.items():
                expect_equal(f"{side}: the states of layer {number} are changed in place", states.layers[number], layer)
            for name in ("attention_mask", "input_ids", "special_mask"):
                expect_equal(f"{side}: {name} is changed in place", getattr(states, name), getattr(before, name))


@POOLERS.property(after=("output",))
def no_draws_in_eval(case: PoolerCase) -> None:
    """In eval mode nothing is drawn at random: dropout is off."""
    for side in SIDES:
        seen = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            seen.append(values_of(case.output(side)))
        problem = f"{side}: another seed changes the output in eval mode (dropout that is left on?)"
        expect_equal(problem, seen[1], seen[0])


@POOLERS.property(after=("output", "no_draws_in_eval"))
def same_twice(case: PoolerCase) -> None:
    """The same texts give the same output the second time, in bytes."""
    for side, other in (SIDES, SIDES[::-1]):
        pooler = case.pooler()
        first, _, again = (values_of(pooled(pooler, case.states(one), one)) for one in (side, other, side))
        expect_equal(f"{side}: the output is another one the second time", again, first)


@POOLERS.property(after=("output",))
def finite(case: PoolerCase) -> None:
    """All values are finite."""
    for side in SIDES:
        expect_finite(side, case.output(side))


@POOLERS.property(after=("output",))
def sides_agree(case: PoolerCase) -> None:
    """Queries and documents have vectors and weights of the same sizes, so that they can be compared."""
    for training in (False, True):
        found = {side: case.output(side, training=training) for side in SIDES}
        for what in ("vectors", "weights"):
            tensors = {side: getattr(found[side], what) for side in SIDES}
            sizes = {side: 0 if one is None else one.shape[-1] for side, one in tensors.items()}
            if sizes["query"] != sizes["document"]:
                problem = f"{what} of queries and documents differ in size, so that no two can be compared"
                fail(problem, expected=f"{sizes['query']} as of queries", found=f"{sizes['document']} of documents")


@POOLERS.property(after=("output", "finite"))
def weights_not_negative(case: PoolerCase) -> None:
    """Weights over a vocabulary are 0 or above."""
    found = {side: case.output(side).weights for side in SIDES}
    if all(one is None for one in found.values()):
        leave_out("it makes no weights.")
    for side, weights in found.items():
        if weights is not None and weights.min() < 0:
            least = float(weights.min())
            fail(f"{side}: weights are negative", expected="0 or above", found=least, difference=-least)


@POOLERS.property(after=("output", "finite"))
def cosine(case: PoolerCase) -> None:
    """Where it declares that scores are cosines, vectors have length 1, a query has one, and there are no weights."""
    if not case.pooler().cosine:
        leave_out("its scores are no cosines.")
    for side in SIDES:
        made = case.output(side)
        if made.vectors is None or made.weights is not None or (side == "query" and made.vectors.shape[1] > 1):
            fail(f"{side}: `cosine` is true, and a score is more than one inner product of vectors")
        lengths = made.vectors.norm(dim=-1)
        lengths = lengths if made.vector_mask is None else lengths[made.vector_mask]
        expect_close(f"{side}: `cosine` is true, and vectors differ from length 1", lengths, torch.ones_like(lengths))


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"))
def padding(case: PoolerCase) -> None:
    """Padding on the right, whatever its states are, changes nothing."""
    for side in case.padded_sides():
        for row in range(len(TEXTS)):
            text = of_one(case.states(side), row)
            expected, found = (values_of(case.output(side, one)) for one in (text, widened(text, 3)))
            expect_close(f"{side}: padding on the right changes the output", found, expected)


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice", "padding"))
def padding_left(case: PoolerCase) -> None:
    """Padding on the left, as of some decoders, gives what padding on the right gives."""
    for side in case.padded_sides():
        expected = values_of(case.output(side))
        found = values_of(case.output(side, left_padded(widened(case.states(side), 3))))
        expect_close(f"{side}: padding on the left changes the output", found, expected)


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"))
def batch_order(case: PoolerCase) -> None:
    """The order of a batch changes nothing."""
    for side in SIDES:
        turned = torch.arange(len(TEXTS)).flip(0)
        expected = case.output(side)
        found = case.output(side, selected(case.states(side), turned)).rows(turned)
        expect_close(f"{side}: the order of the batch changes the output", values_of(found), values_of(expected))


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice", "batch_order"))
def batch_size(case: PoolerCase) -> None:
    """A text gives the same whatever other texts are in its batch."""
    for side in SIDES:
        together = case.output(side)
        for row in range(len(TEXTS)):
            alone = case.output(side, selected(case.states(side), torch.tensor([row])))
            expected = values_of(together.rows(slice(row, row + 1)))
            expect_close(f"{side}: the size of the batch changes the output", values_of(alone), expected)


@POOLERS.property(after=("output", "finite"))
def one_token(case: PoolerCase) -> None:
    """A text of one token has a finite output."""
    for side in SIDES:
        expect_finite(f"{side}, a text of one token", case.output(side, case.states(side, [("", "rome")])))


@POOLERS.property(after=("output", "finite"))
def empty_text(case: PoolerCase) -> None:
    """A text without words, of special tokens alone or of no token, has a finite output."""
    for side in SIDES:
        found = case.output(side, case.states(side, [("", ""), TEXTS[0]]))
        expect_finite(f"{side}, a text of special tokens alone", found)


@POOLERS.property(after=("output", "finite"))
def long_text(case: PoolerCase) -> None:
    """A text of 512 tokens has a finite output, in bf16 too."""
    for side in SIDES:
        states = repeated(case.states(side), 512)
        expect_finite(f"{side}, a text of 512 tokens", case.output(side, states))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expect_finite(f"{side}, a text of 512 tokens in bf16", case.output(side, states))


@POOLERS.property(after=("output", "finite", "empty_text"))
def finite_in_bf16(case: PoolerCase) -> None:
    """In bf16 all values are finite."""
    retriever = case.created()
    for side in SIDES:
        expect_finite(f"{side}, in bf16", retriever.encode([*TEXTS, ("", "")], side, precision="bf16"))


@POOLERS.property(after=("output", "finite"))
def gradient(case: PoolerCase) -> None:
    """Gradients reach the encoder, from each side and layer on which the output depends."""
    reached = False
    for side in SIDES:
        states = case.states(side, training=True)
        leaves = {number: one.requires_grad_() for number, one in states.layers.items()}
        total = objective(case.pooler().train()(states, side))
        backward(total)
        for number, leaf in leaves.items():
            has_gradient = leaf.grad is not None and bool(leaf.grad.any())
            reached = reached or has_gradient
            if not has_gradient and (change := _change_by(case, side, number)):
                problem = f"{side}: no gradient reaches layer {number} of the encoder, on which the output depends"
                fail(problem, expected="a gradient", found=f"none, where other states change it by {change:.3g}")
    if not reached:
        fail("no gradient reaches the encoder, from either side")


def _change_by(case: PoolerCase, side: Side, layer: int) -> float:
    """The change in a side's output in training when the states of one layer change slightly."""
    seen = []
    for size in (0.0, 1e-3):
        states = case.states(side, training=True)
        noise = torch.randn(states.layers[layer].shape, generator=torch.Generator().manual_seed(0))
        states.layers[layer].add_(size * noise)
        torch.manual_seed(0)
        seen.append(values_of(pooled(case.pooler().train(), states, side)))
    same_shape = seen[0].shape == seen[1].shape
    return (seen[1] - seen[0]).abs().max().item() if same_shape else float("inf")


@POOLERS.property(after=("output", "finite", "gradient"))
def parameters_trained(case: PoolerCase) -> None:
    """Every parameter gets a gradient."""
    pooler = _stirred(case.pooler()).train()
    with trained(dict(pooler.named_parameters())):
        for side in SIDES:
            states = case.states(side, training=True)
            for one in states.layers.values():
                one.requires_grad_()
            backward(objective(pooler(states, side)))


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"))
def indexed_as_scored(case: PoolerCase) -> None:
    """What is indexed, in eval mode, is what the loss scores, in training mode."""
    training = case.pooler().train()
    for module in training.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.AlphaDropout):
            module.p = 0.0
    if any(isinstance(one, nn.BatchNorm1d) for one in training.modules()):
        leave_out("in training it depends on the batch (BatchNorm).")
    for side in SIDES:
        seen = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            states = case.states(side, training=True)
            seen.append(pooled(copy.deepcopy(training), states, side).as_indexed())
        scored, other = (values_of(one) for one in seen)
        indexed = values_of(case.output(side).as_indexed())
        if scored.shape != other.shape or not torch.equal(scored, other):
            leave_out("in training it draws at random.")
        if scored.numel() != indexed.numel():
            # For example by dropping tokens that are only weighted in training.
            leave_out("it indexes other vectors than it trains.")
        problem = f"{side}: what is indexed is not what the loss scores"
        expect_close(problem, indexed, scored)


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"), once=True)
def saved_and_loaded(case: PoolerCase) -> None:
    """Saved and loaded it gives equal bytes, whatever the parameters have become."""
    retriever = case.created()
    _stirred(retriever.pooler)
    _expect_restored(retriever, "saving and loading change the output")


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice", "saved_and_loaded"), once=True)
def trained_state_saved(case: PoolerCase) -> None:
    """What training changes besides parameters, such as a running mean, is saved too."""
    retriever = case.created()
    retriever.pooler.train()
    with torch.no_grad():
        for side in (*SIDES, *SIDES):
            retriever.pooler(case.states(side, training=True), side)
    retriever.eval()
    _expect_restored(retriever, "state that training changes is not saved (a buffer that is not persistent?)")


@POOLERS.property(after=("output", "finite", "gradient", "saved_and_loaded"), once=True)
def separate_towers(case: PoolerCase) -> None:
    """It works with an encoder for each side: gradients reach both, and both are saved."""
    retriever = case.created(separate_towers=True)
    _expect_restored(retriever, "with an encoder for each side, saving and loading change the output")
    retriever.train()
    for side in SIDES:
        tower = retriever.tower(side)
        total = objective(retriever(tower.collate(tower.tokenize(TEXTS, side), side), side))
        if total.requires_grad:
            backward(total)
        elif any(_change_by(case, side, number) for number in case.states(side, training=True).layers):
            fail(f"with an encoder for each side no gradient reaches that of the {side} side")


def _behaviour(case: PoolerCase, options: Mapping[str, Any]) -> list[Any]:
    """The complete behaviour of a pooler with these options: needs, file requests, output and gradients."""
    asked: list[str] = []
    encoder: Any = registry.get("encoder", "transformer")
    ask = encoder.file

    def file(self: Any, name: str) -> Any:
        asked.append(name)
        return ask(self, name)

    with mock.patch.object(encoder, "file", file):
        pooler, tower = case.parts(options)
    found: list[Any] = [tuple(asked), pooler.default_loss]
    for training in (False, True):
        pooler.train(training)
        found.append(repr(pooler.needs))
        for side in SIDES:
            states = case.states_for(pooler, tower, side, [*TEXTS, LONG, ("", "")], training=training)
            leaves = [one.requires_grad_() for one in states.layers.values()]
            torch.manual_seed(0)
            made = pooler(states, side)
            total = objective(made)
            backward(total)
            tensors = [one if one is None else one.detach() for one in (made.vectors, made.weights, made.vector_mask)]
            found += [made.kept, repr(made.parts), *tensors, *(one.grad for one in leaves)]
    return [*found, *(one.grad for one in pooler.parameters())]


add_option_properties(POOLERS, _behaviour, after=("output", "no_draws_in_eval", "same_twice"))


def _stirred(pooler: Pooler) -> Pooler:
    """The pooler with slightly changed parameters, to distinguish it from a newly created pooler."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for one in pooler.parameters():
            one.add_(0.1 * torch.randn(one.shape, generator=generator))
    return pooler


def _expect_restored(retriever: Retriever, problem: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        retriever.save(folder)
        # Use another seed, to detect random values that are not stored.
        loaded = Retriever.load(folder, device="cpu", seed=1)
    for side in SIDES:
        expected, found = (values_of(one.encode(TEXTS, side)) for one in (retriever, loaded))
        expect_equal(f"{side}: {problem}", found, expected, source=r"register_buffer|nn\.Parameter|self\.\w+ = torch")


def check_pooler(name: str, *, model: str | None = None, **settings: Any) -> None:
    """Check that a pooler has all properties that the contract requires.

    Args:
        name: Registered name of the pooler.
        model: A model that fulfils its needs; None = tiny models of several architectures.
        settings: Options of the pooler; or `only` or `without`, names of properties.
    """
    POOLERS.check(name, model=model, **settings)
