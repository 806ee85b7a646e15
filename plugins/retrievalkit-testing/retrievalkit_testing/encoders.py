"""The conformance tests of encoders: tokens and hidden states."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from retrievalkit import registry
from retrievalkit.contracts import (
    SIDES,
    Batch,
    Encoder,
    ExtraTokens,
    Needs,
    Side,
    Text,
    TokenStates,
)
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.properties import Kit, accepted, expect, expect_same, leave_out, tried
from retrievalkit_testing.samples import WORDS as VOCABULARY
from retrievalkit_testing.samples import kit_models
from retrievalkit_testing.shared import Subject, share, stir

WORDS: tuple[Text, ...] = (
    Text("", "what is the capital of france"),
    Text("", "lima peru"),
    Text("", "rome"),
    Text("", "which language is spoken in iceland and which currency do people use in the city"),
)
LONG = Text("", "the government people pay with currency and language " * 60)
ODD: tuple[Text, ...] = (
    Text("", ""),
    Text("", "   \t\n"),
    Text("", "\U0001f642\U0001f1eb\U0001f1f7 e\u0301 \u00e9 \ufb03"),
    Text("\u6f22\u5b57", "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059"),
    Text("", "\u0645\u0631\u062d\u0628\u0627 \u200f\u05e9\u05dc\u05d5\u05dd"),
    Text("", "a\u0000b \u200b \ufffd [CLS] [SEP] </s> [MASK]"),
    Text("", "x" * 2000),
)
_TOKENS = 6_000
"""Most words in a batch."""
_SHORT = 16


@dataclass
class Input:
    """Texts of one side, and their batch."""

    texts: list[Text]
    side: Side
    batch: Batch


@dataclass
class Result:
    """The batch of an encoder's own tokens, and its states of the batch of the input."""

    batch: Batch
    states: TokenStates


class EncoderCase(Subject):
    """An encoder with a model."""

    kind = "encoder"
    tolerance = (1e-3, 1e-4)
    zero_gradients = True

    def __init__(self, name: str, label: str, model: str, options: dict[str, Any]) -> None:
        self.known = registry.options(registry.get("encoder", name))
        # Properties could not distinguish a prefix of the texts from special tokens.
        prefixes = {option: "" for option in ("query_prefix", "document_prefix") if option in self.known}
        super().__init__(name, label, prefixes | options)
        self.model = model
        short = {f"{side}_length": _SHORT for side in SIDES if f"{side}_length" in self.known}
        self.draws = {"texts": sizes(1, 300), "words": sizes(0, 120), "titles": (False, True), "side": SIDES}
        self.draws |= {"options": ({}, short), "seed": SEEDS}
        drawn = {"texts": 9, "words": 20, "titles": False, "options": {}, "seed": 0}
        self.typical = [{**drawn, "side": side} for side in SIDES]

    def create(self, options: Any) -> Encoder:
        encoder: Encoder = registry.create("encoder", self.name, self.model, **options)
        return encoder

    def prepared(self, needs: Needs, **more: Any) -> Encoder:
        """Create an encoder for these needs, in eval mode."""
        encoder = self.create({**self.options, **more})
        encoder.prepare(needs)
        return encoder.eval()

    @cached_property
    def encoder(self) -> Encoder:
        """An encoder that outputs all its layers."""
        return self.created({"options": {}})

    @property
    def last(self) -> int:
        """The number of the last layer."""
        return self.encoder.info.layers

    def created(self, drawn: Drawn) -> Encoder:
        layers = tuple(range(self.create(self.options).info.layers + 1))
        return self.prepared(Needs(layers=layers), **drawn["options"])

    def inputs(self, drawn: Drawn) -> Input:
        """Draw texts of known words with drawn lengths; for some seeds, odd texts."""
        draw, count = np.random.default_rng(drawn["seed"]), drawn["texts"]
        most = min(drawn["words"], _TOKENS // count)
        lengths = draw.integers(0, most + 1, count)
        lengths[0] = most
        words = draw.choice(VOCABULARY.split(), (count, most + 2))
        texts = [
            Text(str(row[-1]) if drawn["titles"] and drawn["side"] == "document" else "", " ".join(row[:length]))
            for row, length in zip(words, lengths, strict=True)
        ]
        return self.input(texts if drawn["seed"] % 4 != 1 else [*ODD, *texts][:count], drawn["side"])

    def input(self, texts: list[Text], side: Side) -> Input:
        """Return the texts with their batch."""
        return Input(texts, side, self.batch(texts, side))

    def call(self, component: Encoder, inputs: Input) -> Result:
        own = component.collate(component.tokenize(inputs.texts, inputs.side), inputs.side)
        return Result(own, component(inputs.batch, range(self.last + 1)))

    def read(self, inputs: Input, result: Result) -> list[dict[str, Any]]:
        own, rows = result.batch, []
        for row in range(len(inputs.texts)):
            ids, mask = own.input_ids[row][own.attention_mask[row].bool()], inputs.batch.attention_mask[row].bool()
            layers = {f"layer {number}": states[row][mask] for number, states in result.states.layers.items()}
            rows.append({"ids": ids, **layers})
        return rows

    def rows(self, inputs: Input) -> int:
        return len(inputs.texts)

    def chosen(self, inputs: Input, rows: Sequence[int]) -> Input:
        return self.input([inputs.texts[row] for row in rows], inputs.side)

    def near(self, inputs: Input) -> Input:
        """Return the texts with other last words."""
        texts = [text._replace(body=f"{text.body.rpartition(' ')[0]} rome") for text in inputs.texts]
        return self.input(texts, inputs.side)

    def objective(self, component: Encoder, inputs: Input) -> torch.Tensor:
        states: torch.Tensor = component(inputs.batch, [self.last]).last
        return (states * torch.randn(states.shape[-1], generator=torch.Generator().manual_seed(1))).sum()

    def check_form(self, inputs: Input, result: Result) -> None:
        states, batch, layers = result.states, inputs.batch, list(range(self.last + 1))
        actual = sorted(states.layers)
        expect(actual == layers, "layers differ from those requested", expected=layers, actual=actual)
        expect(batch.input_ids.shape[1], "an empty text has no column", actual=0, method="collate")
        for layer, values in states.layers.items():
            _expect_form(f"the states of layer {layer}", values, (*batch.input_ids.shape, self.encoder.info.width))
            finite = values[batch.attention_mask.bool()].isfinite().all()
            expect(finite, f"the states of layer {layer} are not finite")
        for field in ("attention_mask", "input_ids", "special_mask"):
            same = torch.equal(getattr(states, field), getattr(batch, field))
            expect(same, f"`{field}` of the states is not that of the batch")

    def batch(self, texts: Sequence[Text], side: Side = "document", encoder: Encoder | None = None) -> Batch:
        """Texts, tokenised and padded."""
        encoder = encoder or self.encoder
        return encoder.collate(encoder.tokenize(texts, side), side)

    def states(self, batch: Batch, layers: Sequence[int] | None = None, encoder: Encoder | None = None) -> TokenStates:
        """Return the states of layers, by default of the last layer."""
        with torch.no_grad():
            states: TokenStates = (encoder or self.encoder)(batch, [self.last] if layers is None else list(layers))
        return states


def _expect_form(name: str, tensor: torch.Tensor, shape: Any, dtype: torch.dtype = torch.float32, **where: Any) -> None:
    expected, actual = (f"{tuple(shape)} {dtype} cpu", f"{tuple(tensor.shape)} {tensor.dtype} {tensor.device}")
    problem = f"{name} have another shape, type or device"
    expect(actual == expected, problem, expected=expected, actual=actual, **where)


def encoder_cases(name: str, *, model: str | None = None, **options: Any) -> list[EncoderCase]:
    """Return an encoder with each of the tiny models that it supports: a BERT, the encoder of a T5, a decoder."""
    if model is not None:
        return [EncoderCase(name, Path(model).name, model, options)]
    cases = (EncoderCase(name, architecture, folder, options) for architecture, folder in kit_models().items())
    none = "it supports none of the tiny models; name a model that it supports by `model`."
    factories = (partial(tried, case, lambda case: case.prepared(Needs()), InputError) for case in cases)
    return accepted(factories, refusal=InputError, none=none)


ENCODERS: Kit[EncoderCase] = Kit(
    "encoder", encoder_cases, method="forward", unchecked="pre-training with it, int8, and devices other than the CPU"
)
"""The properties of encoders. Each tiny model that an encoder supports is a case."""


@ENCODERS.property()
def batch_fields(case: EncoderCase) -> None:
    """`collate` keeps the tokens, pads to the longest text, and marks padding and the tokenizer's special tokens."""
    for side in SIDES:
        (added,) = case.encoder.tokenize([Text("", "")], side)
        ids = case.encoder.tokenize(WORDS, side)
        batch, shape = case.encoder.collate(ids, side), (len(ids), max(map(len, ids)))
        for field, dtype in (("input_ids", torch.long), ("attention_mask", torch.long), ("special_mask", torch.bool)):
            _expect_form(f"`{field}` of {side} batches", getattr(batch, field), shape, dtype, method="collate")
        for row, tokens in enumerate(ids):
            kept = batch.input_ids[row][batch.attention_mask[row] == 1].tolist()
            problem = f"the real tokens of {side} {row} are others than those of `tokenize`"
            expect(kept == list(tokens), problem, expected=list(tokens), actual=kept, method="collate")
            special, problem = batch.special_mask[row], f"special tokens of {side} {row} are not those of an empty text"
            marked = batch.input_ids[row][special].tolist() + special[batch.attention_mask[row] == 0].nonzero().tolist()
            expect(marked == list(added), problem, expected=list(added), actual=marked, method="collate")
        most, largest = case.encoder.info.vocabulary_size, max(map(max, ids))
        problem = "an id of `tokenize` is beyond `info.vocabulary_size`"
        expect(largest < most, problem, expected=f"below {most}", actual=largest, method="tokenize")


share(ENCODERS, modules=True, rows=True, threads=True)
_SOUND = ("batch_fields", "form", "inputs_unchanged", "same_twice", "grad_mode")


@ENCODERS.property(after=_SOUND)
def truncation(case: EncoderCase) -> str:
    """Long texts are truncated to the side's maximum length, and keep their closing special tokens."""
    lengths = []
    for side in SIDES:
        long, longer, short = case.encoder.tokenize([LONG, Text("", LONG.body * 2), WORDS[0]], side)
        lengths.append(len(long))
        problem = f"a {side} of twice as many words has more tokens: it is not truncated"
        expect(len(long) == len(longer), problem, expected=len(long), actual=len(longer), method="tokenize")
        empty = case.encoder.tokenize([Text("", "")], side)[0]
        for place, name in ((0, "starts"), (-1, "ends")):
            special = empty and short[place] == empty[place]
            problem = f"a truncated {side} misses the token that {name} every other"
            kept = not special or long[place] == short[place]
            expect(kept, problem, expected=short[place], actual=long[place], method="tokenize")
        if f"{side}_length" in case.known:
            encoder = case.prepared(Needs(), **{f"{side}_length": _SHORT})
            counts = [len(encoder.tokenize([text], side)[0]) for text in (LONG, Text(LONG.body, LONG.body))]
            problem = f"with {side}_length={_SHORT} a text has more tokens"
            expect(max(counts) <= _SHORT, problem, expected=_SHORT, actual=max(counts), method="tokenize")
    return f"queries of {lengths[0]}, documents of {lengths[1]} tokens at most"


@ENCODERS.property(after=_SOUND)
def pairs(case: EncoderCase) -> None:
    """Title and text are both encoded, and truncated together."""
    if "title" in case.options:
        leave_out("an option changes the titles.")
    text = "the language that people speak"
    texts = [Text("peru", text), Text("", text), Text(LONG.body, LONG.body), LONG, Text("", "")]
    both, alone, long, most, empty = (case.encoder.tokenize([pair], "document")[0] for pair in texts)
    expect(both != alone, "the title of a document changes none of its tokens", actual=both, method="tokenize")
    words = [token for token in alone if token not in empty]
    kept = [token for token in both if token in words] == words
    expect(kept, "with a title the text has other tokens", expected=words, actual=both, method="tokenize")
    problem = "a long title with a long text has more tokens than a long text"
    expect(len(long) <= len(most), problem, expected=len(most), actual=len(long), method="tokenize")


@ENCODERS.property(after=_SOUND)
def extra_tokens(case: EncoderCase) -> None:
    """A pooler's extra tokens are at the positions in `extra`, count as special, and change no other token."""
    if "extra_tokens" not in case.encoder.offers:
        leave_out("it offers no extra tokens.")
    encoder = case.prepared(Needs(extra_tokens={"document": ExtraTokens(2, replace_first=False, position=None)}))
    plain, ids = case.encoder.tokenize([*WORDS, LONG], "document"), encoder.tokenize([*WORDS, LONG], "document")
    problem = "with extra tokens a long text has more than the maximum"
    expect(len(ids[-1]) <= len(plain[-1]), problem, expected=len(plain[-1]), actual=len(ids[-1]), method="tokenize")
    batch = encoder.collate(ids[:-1], "document")
    assert batch.extra is not None, "`extra` is None"
    _expect_form("`extra`", batch.extra, (len(WORDS), 2), torch.long, method="collate")
    for row, places in enumerate(batch.extra.tolist()):
        left = [token for place, token in enumerate(ids[row]) if place not in places]
        problem = f"document {row} has other tokens next to the extra tokens"
        expect(left == list(plain[row]), problem, expected=list(plain[row]), actual=left, method="tokenize")
        special = batch.special_mask[row, places].all()
        expect(special, f"extra tokens of document {row} are not special", method="collate")
    states = case.states(batch, encoder=encoder).last
    first, second = (states[0, place] for place in batch.extra[0].tolist())
    expect(not torch.equal(first, second), "both extra tokens have the same states", actual=float(first[0]))
    queries, before = (side.tokenize(WORDS, "query") for side in (encoder, case.encoder))
    problem = "extra tokens of documents change queries"
    expect(queries == before, problem, expected=before[0], actual=queries[0], method="tokenize")


@ENCODERS.property(after=_SOUND)
def filled_with_masks(case: EncoderCase) -> None:
    """If a pooler requests it, texts are padded with tokens that have states but are not attended to."""
    if "mask_filled" not in case.encoder.offers:
        leave_out("it does not fill texts up.")
    sides: tuple[Side, ...] = ("query",)
    encoder = case.prepared(Needs(mask_filled=sides))
    batch, plain = case.batch(WORDS, "query", encoder), case.batch(WORDS, "query")
    most, width = len(case.encoder.tokenize([LONG], "query")[0]), batch.input_ids.shape[1]
    problem = "queries are not filled up to the maximum length"
    expect(width == most, problem, expected=most, actual=width, method="collate")
    before, attended = (part.attention_mask.sum(1).tolist() for part in (plain, batch))
    problem = "tokens that fill up are attended to"
    expect(attended == before, problem, expected=before, actual=attended, method="collate")
    states = case.states(batch, encoder=encoder)
    expect(states.last.isfinite().all(), "tokens that fill up have states that are not finite")
    for row in range(len(WORDS)):
        own, other = (part.last[row][part.attention_mask[row].bool()] for part in (states, case.states(plain)))
        expect_same(f"filling query {row} up changes its own tokens", own, other, rtol=1e-4, atol=1e-5)


@ENCODERS.property(after=_SOUND)
def names_of_tokens(case: EncoderCase) -> None:
    """`tokens` names each id, and `token_ids` returns ids of the vocabulary."""
    (ids,) = case.encoder.tokenize(WORDS[:1], "document")
    names, size = case.encoder.tokens(ids), case.encoder.info.vocabulary_size
    named = len(names) == len(ids) and all(isinstance(name, str) and name for name in names)
    expect(named, "the number of names differs from that of ids", expected=len(ids), actual=names, method="tokens")
    numbers = case.encoder.token_ids([".", ",", "no such token at all"])
    known = all(isinstance(number, int) and 0 <= number < size for number in numbers)
    expect(known, "`token_ids` returns ids outside of the vocabulary", actual=numbers, method="token_ids")


@ENCODERS.property(after=_SOUND)
def layer_numbers(case: EncoderCase) -> None:
    """Layer 0 is the embeddings, which do not depend on other tokens; each higher layer differs from the one below."""
    text = "is the capital of france and people speak the language"
    first, second = (case.batch([Text("", f"{word} {text}")]) for word in ("rome", "lima"))
    if first.input_ids.shape != second.input_ids.shape:
        leave_out("two names of cities have different numbers of tokens.")
    same = (first.input_ids == second.input_ids)[0] & ~first.special_mask[0]
    states, turned = (case.states(batch, range(case.last + 1)).layers for batch in (first, second))
    for layer in range(case.last + 1):
        gap = float((states[layer] - turned[layer])[0][same].abs().max())
        depends = "depends on other words" if layer == 0 else "does not depend on other words"
        expect((layer == 0) == (gap == 0), f"layer {layer} {depends}: is it another layer?", difference=gap)
        differs = not layer or not torch.equal(states[layer], states[layer - 1])
        expect(differs, f"layers {layer - 1} and {layer} are equal")
        alone = case.states(first, [layer]).layers
        problem = "layers differ from those requested"
        expect(sorted(alone) == [layer], problem, expected=[layer], actual=sorted(alone))
        case.same(f"layer {layer} differs when requested alone", alone[layer], states[layer])
    try:
        embedded = case.encoder.embed(first)
    except UnsupportedError:
        return
    expect_same("`embed` differs from layer 0", embedded.detach(), states[0], atol=1e-5, method="embed")


@ENCODERS.property(after=_SOUND)
def vocabulary_head(case: EncoderCase) -> None:
    """The vocabulary head, if offered, returns a logit per vocabulary entry."""
    if "vocabulary_head" not in case.encoder.offers:
        leave_out("it offers no vocabulary head.")
    encoder = case.prepared(Needs(vocabulary_head=True))
    states = case.states(case.batch(WORDS, encoder=encoder), encoder=encoder)
    assert states.head is not None, "a requested head is missing"
    logits = states.head(states.last)
    shape = (*states.last.shape[:2], encoder.info.vocabulary_size)
    finite = tuple(logits.shape) == shape and logits.isfinite().all()
    expect(finite, "logits have another shape, or are not finite", expected=shape, actual=tuple(logits.shape))


@ENCODERS.property(after=_SOUND)
def saved(case: EncoderCase) -> None:
    """A modified encoder, saved and loaded, has the same tokens, states and files, bit by bit."""
    extra = {"document": ExtraTokens(2, position=None)} if "extra_tokens" in case.encoder.offers else {}
    needs = Needs(extra_tokens=extra)
    encoder: Any = stir(case.prepared(needs), 0.01)
    # Tokenizer state from its last call should not be saved.
    batch = case.batch(WORDS, encoder=encoder)
    with TemporaryDirectory(prefix="rkit-check-") as place:
        folders = Path(place, "first"), Path(place, "second")
        for folder in folders:
            folder.mkdir()
        encoder.save(folders[0])
        loaded: Encoder = registry.create("encoder", case.name, str(folders[0]), **case.options)
        loaded.prepare(needs)
        loaded.eval()
        loaded.save(folders[1])
        first, second = (_weights(folder) for folder in folders)
    ids, again = (each.tokenize(WORDS, "document") for each in (encoder, loaded))
    expect(ids == again, "a loaded encoder has other tokens", expected=ids[0], actual=again[0], method="save")
    states = [case.states(batch, encoder=each).last for each in (loaded, encoder)]
    expect_same("a loaded encoder has other states", *states, method="save")
    changed = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    expect(not changed, "saved again, files have other bytes", actual=changed, method="save")


def _weights(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".json")
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
