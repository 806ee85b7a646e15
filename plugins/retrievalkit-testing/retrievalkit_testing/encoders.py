"""The conformance tests of encoders: tokens and hidden states."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import SIDES, Batch, Encoder, ExtraTokens, Needs, Side, Text, TokenStates
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.properties import Kit, accepted, expect_same, fail, leave_out
from retrievalkit_testing.samples import WORDS as VOCABULARY
from retrievalkit_testing.samples import kit_models
from retrievalkit_testing.shared import Subject, share

WORDS: tuple[Text, ...] = (
    Text("", "what is the capital of france"),
    Text("", "lima peru"),
    Text("", "rome"),
    Text("", "which language is spoken in iceland and which currency do people use in the city"),
)
LONG = Text("", "the government people pay with currency and language " * 60)
_TOKENS = 6_000
"""Most words in a batch."""
_TOLERANCE = (1e-3, 1e-4)


@dataclass
class Input:
    """Texts of one side, and their batch."""

    texts: list[Text]
    side: Side
    batch: Batch


@dataclass
class Result:
    """The batch of an encoder's own tokens, and its states of the batch that it got."""

    batch: Batch
    states: TokenStates


class EncoderCase(Subject):
    """An encoder with a model."""

    tolerance = _TOLERANCE
    zero_gradients = True

    def __init__(self, name: str, label: str, model: str, options: dict[str, Any]) -> None:
        self.name, self.label, self.model = name, label, model
        known = registry.options(registry.get("encoder", name))
        # Properties could not distinguish a prefix of the texts from special tokens.
        self.options = {one: "" for one in ("query_prefix", "document_prefix") if one in known} | options
        self.known = frozenset(known)
        short = {f"{side}_length": _SHORT for side in SIDES if f"{side}_length" in known}
        self.draws = {
            "texts": sizes(1, 300),
            "words": sizes(0, 120),
            "titles": st.booleans(),
            "side": st.sampled_from(SIDES),
            "options": st.sampled_from([{}, short]),
            "seed": SEEDS,
        }
        drawn = {"texts": 9, "words": 20, "titles": False, "options": {}, "seed": 0}
        self.typical = [{**drawn, "side": side} for side in SIDES]

    def create(self, **more: Any) -> Encoder:
        """A new encoder, not yet prepared."""
        made: Encoder = registry.create("encoder", self.name, self.model, **(self.options | more))
        return made

    def prepared(self, needs: Needs, **more: Any) -> Encoder:
        """A new encoder, ready for these needs, in eval mode."""
        encoder = self.create(**more)
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
        layers = tuple(range(self.create().info.layers + 1))
        return self.prepared(Needs(layers=layers), **drawn["options"])

    def given(self, drawn: Drawn) -> Input:
        """Texts of known words, of drawn lengths."""
        draw, count = np.random.default_rng(drawn["seed"]), drawn["texts"]
        most = min(drawn["words"], _TOKENS // count)
        lengths = draw.integers(0, most + 1, count)
        lengths[0] = most
        words = draw.choice(VOCABULARY.split(), (count, most + 2))
        texts = [
            Text(str(row[-1]) if drawn["titles"] and drawn["side"] == "document" else "", " ".join(row[:length]))
            for row, length in zip(words, lengths, strict=True)
        ]
        return self.input(texts, drawn["side"])

    def input(self, texts: list[Text], side: Side) -> Input:
        """Texts with their batch."""
        return Input(texts, side, self.batch(texts, side))

    def call(self, component: Encoder, given: Input) -> Result:
        own = component.collate(component.tokenize(given.texts, given.side), given.side)
        return Result(own, component(given.batch, range(self.last + 1)))

    def read(self, given: Input, found: Result) -> list[dict[str, Any]]:
        rows = []
        for row in range(len(given.texts)):
            one: dict[str, Any] = {"ids": found.batch.input_ids[row][found.batch.attention_mask[row].bool()]}
            mask = given.batch.attention_mask[row].bool()
            rows.append(one | {f"layer {number}": states[row][mask] for number, states in found.states.layers.items()})
        return rows

    def rows(self, given: Input) -> int:
        return len(given.texts)

    def chosen(self, given: Input, rows: Sequence[int]) -> Input:
        return self.input([given.texts[row] for row in rows], given.side)

    def near(self, given: Input) -> Input:
        """The same texts with another last word."""
        texts = [text._replace(body=f"{text.body.rpartition(' ')[0]} rome") for text in given.texts]
        return self.input(texts, given.side)

    def objective(self, component: Encoder, given: Input) -> torch.Tensor:
        states: torch.Tensor = component(given.batch, [self.last]).last
        return (states * torch.randn(states.shape[-1], generator=torch.Generator().manual_seed(1))).sum()

    def check_form(self, given: Input, found: Result) -> None:
        states, batch = found.states, given.batch
        if sorted(states.layers) != list(range(self.last + 1)):
            expected = list(range(self.last + 1))
            fail("it gives other layers than were asked for", expected=expected, found=sorted(states.layers))
        for layer, values in states.layers.items():
            shape = (*batch.input_ids.shape, self.encoder.info.width)
            if tuple(values.shape) != shape or values.dtype != torch.float32 or values.device != batch.input_ids.device:
                told = f"{tuple(values.shape)} {values.dtype} {values.device}"
                problem = f"the states of layer {layer} have another shape, type or device"
                fail(problem, expected=f"{shape} torch.float32 cpu", found=told)
            if not values[batch.attention_mask.bool()].isfinite().all():
                fail(f"the states of layer {layer} are not finite")
        for field in ("attention_mask", "input_ids", "special_mask"):
            if not torch.equal(getattr(states, field), getattr(batch, field)):
                fail(f"`{field}` of the states is not that of the batch")

    def batch(self, texts: Sequence[Text], side: Side = "document", encoder: Encoder | None = None) -> Batch:
        """Texts, tokenised and padded."""
        encoder = encoder or self.encoder
        return encoder.collate(encoder.tokenize(texts, side), side)

    def states(self, batch: Batch, layers: Sequence[int] | None = None, encoder: Encoder | None = None) -> TokenStates:
        """The states of layers, by default of the last layer."""
        with torch.no_grad():
            states: TokenStates = (encoder or self.encoder)(batch, [self.last] if layers is None else list(layers))
        return states


def encoder_cases(name: str, *, model: str | None = None, **options: Any) -> list[EncoderCase]:
    """An encoder with each of the tiny models that it supports: a BERT, the encoder of a T5, a decoder."""
    if model is not None:
        return [EncoderCase(name, Path(model).name, model, options)]
    cases = [EncoderCase(name, architecture, folder, options) for architecture, folder in kit_models().items()]
    none = "it takes none of the tiny models; name one that it takes by `model`."
    return accepted(cases, lambda case: case.prepared(Needs()), refusal=InputError, none=none, method="__init__")


ENCODERS: Kit[EncoderCase] = Kit(
    "encoder", encoder_cases, method="forward", unchecked="pre-training with it, int8, and devices other than the CPU"
)
"""The properties of encoders. Each tiny model that an encoder supports is a case."""


_SHORT = 16
_ODD: tuple[Text, ...] = (
    Text("", ""),
    Text("", "   \t\n"),
    Text("", "\U0001f642\U0001f1eb\U0001f1f7 e\u0301 \u00e9 \ufb03"),
    Text("\u6f22\u5b57", "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059"),
    Text("", "\u0645\u0631\u062d\u0628\u0627 \u200f\u05e9\u05dc\u05d5\u05dd"),
    Text("", "a\u0000b \u200b \ufffd [CLS] [SEP] </s> [MASK]"),
    Text("", "x" * 2000),
)


@ENCODERS.property()
def batch_fields(case: EncoderCase) -> None:
    """`collate` keeps the order of tokens, pads to the longest text, and masks the padding."""
    for side in SIDES:
        ids = case.encoder.tokenize(WORDS, side)
        batch = case.encoder.collate(ids, side)
        longest = max(map(len, ids))
        for field, dtype in (("input_ids", torch.long), ("attention_mask", torch.long), ("special_mask", torch.bool)):
            tensor = getattr(batch, field)
            if tensor.dtype != dtype or tuple(tensor.shape) != (len(ids), longest):
                found = f"{tuple(tensor.shape)} {tensor.dtype}"
                problem = f"`{field}` of a {side} batch has another shape or type"
                fail(problem, expected=f"{(len(ids), longest)} {dtype}", found=found, method="collate")
        for row, tokens in enumerate(ids):
            kept = batch.input_ids[row][batch.attention_mask[row] == 1].tolist()
            if kept != list(tokens):
                problem = f"the real tokens of {side} {row} are others than those of `tokenize`"
                fail(problem, expected=list(tokens), found=kept, method="collate")
        most = case.encoder.info.vocabulary_size
        if (largest := max(map(max, ids))) >= most:
            problem = "`tokenize` gives ids beyond `info.vocabulary_size`"
            fail(problem, expected=f"below {most}", found=largest, method="tokenize")


share(ENCODERS, modules=True, rows=True, threads=True)
_SOUND = ("batch_fields", "form", "inputs_unchanged", "same_twice", "grad_mode")


@ENCODERS.property(after=_SOUND)
def truncation(case: EncoderCase) -> str:
    """Long texts are truncated to the side's maximum length, and keep their closing special tokens."""
    lengths = []
    for side in SIDES:
        long, longer, short = case.encoder.tokenize([LONG, Text("", LONG.body * 2), WORDS[0]], side)
        lengths.append(len(long))
        if len(long) != len(longer):
            problem = f"a {side} of twice as many words has more tokens: it is not cut"
            fail(problem, expected=len(long), found=len(longer), method="tokenize")
        empty = case.encoder.tokenize([Text("", "")], side)[0]
        for place, name in ((0, "starts"), (-1, "ends")):
            if empty and short[place] == empty[place] != long[place]:
                problem = f"a {side} that is cut lacks the token that {name} every other"
                fail(problem, expected=short[place], found=long[place], method="tokenize")
        if f"{side}_length" in case.known:
            cut = case.prepared(Needs(), **{f"{side}_length": _SHORT})
            for text in (LONG, Text(LONG.body, LONG.body)):
                (ids,) = cut.tokenize([text], side)
                if len(ids) > _SHORT:
                    problem = f"with {side}_length={_SHORT} a text has more tokens"
                    fail(problem, expected=_SHORT, found=len(ids), method="tokenize")
    return f"queries of {lengths[0]}, documents of {lengths[1]} tokens at most"


@ENCODERS.property(after=_SOUND)
def pairs(case: EncoderCase) -> None:
    """Title and text are both encoded, and truncated together."""
    if "title" in case.options:
        leave_out("an option says what becomes of titles.")
    text = "the language that people speak"
    (both,), (alone,), (long,), (most,) = (
        case.encoder.tokenize([one], "document")
        for one in (Text("peru", text), Text("", text), Text(LONG.body, LONG.body), LONG)
    )
    if both == alone:
        fail("the title of a document changes none of its tokens", found=both, method="tokenize")
    words = [one for one in alone if one not in case.encoder.tokenize([Text("", "")], "document")[0]]
    if [one for one in both if one in words] != words:
        fail("with a title the text has other tokens", expected=words, found=both, method="tokenize")
    if len(long) > len(most):
        problem = "a long title with a long text has more tokens than a long text"
        fail(problem, expected=len(most), found=len(long), method="tokenize")


@ENCODERS.property(after=_SOUND)
def odd_texts(case: EncoderCase) -> None:
    """Empty texts, other scripts, control characters and names of special tokens have finite states."""
    for side in SIDES:
        for texts in (_ODD, _ODD[:1], _ODD[:2]):
            batch = case.batch(texts, side)
            states = case.states(batch).last
            if not states[batch.attention_mask.bool()].isfinite().all():
                fail(f"odd texts get states that are not finite ({side})")
            if batch.input_ids.shape[1] < 1:
                fail("an empty text has no column", found=tuple(batch.input_ids.shape), method="collate")


@ENCODERS.property(after=_SOUND)
def special_tokens(case: EncoderCase) -> None:
    """`special_mask` is True exactly at the tokens that the tokenizer adds."""
    for side in SIDES:
        (added,) = case.encoder.tokenize([Text("", "")], side)
        batch = case.batch(WORDS, side)
        for row, special in enumerate(batch.special_mask):
            if special[batch.attention_mask[row] == 0].any():
                fail(f"padding of {side} {row} counts as special", found=special.tolist(), method="collate")
            marked = batch.input_ids[row][special].tolist()
            if marked != added:
                problem = f"other tokens of {side} {row} are marked than those that an empty text has too"
                fail(problem, expected=added, found=marked, method="collate")


@ENCODERS.property(after=_SOUND)
def extra_tokens(case: EncoderCase) -> None:
    """A pooler's extra tokens are at the positions in `extra`, count as special, and change no other token."""
    if "extra_tokens" not in case.encoder.offers:
        leave_out("it offers no extra tokens.")
    wanted = ExtraTokens(2, replace_first=False, position=None)
    encoder = case.prepared(Needs(extra_tokens={"document": wanted}))
    plain, ids = case.encoder.tokenize([*WORDS, LONG], "document"), encoder.tokenize([*WORDS, LONG], "document")
    if len(ids[-1]) > len(plain[-1]):
        problem = "with extra tokens a long text has more than the maximum"
        fail(problem, expected=len(plain[-1]), found=len(ids[-1]), method="tokenize")
    batch = encoder.collate(ids[:-1], "document")
    if batch.extra is None or tuple(batch.extra.shape) != (len(WORDS), 2):
        shape = None if batch.extra is None else tuple(batch.extra.shape)
        fail("`extra` has another shape", expected=(len(WORDS), 2), found=shape, method="collate")
    for row, places in enumerate(batch.extra.tolist()):
        left = [token for place, token in enumerate(ids[row]) if place not in places]
        if left != list(plain[row]):
            problem = f"without the extra tokens, document {row} has other tokens than before"
            fail(problem, expected=list(plain[row]), found=left, method="tokenize")
        if not batch.special_mask[row, places].all():
            found = batch.special_mask[row].tolist()
            fail(f"extra tokens of document {row} are not special", found=found, method="collate")
    states = case.states(batch, encoder=encoder).last
    first, second = (states[0, place] for place in batch.extra[0].tolist())
    if torch.equal(first, second):
        fail("both extra tokens have the same states", found=float(first[0]))
    if (queries := encoder.tokenize(WORDS, "query")) != (before := case.encoder.tokenize(WORDS, "query")):
        problem = "queries have extra tokens too, which only documents should have"
        fail(problem, expected=len(before[0]), found=len(queries[0]), method="tokenize")


@ENCODERS.property(after=_SOUND)
def filled_with_masks(case: EncoderCase) -> None:
    """If a pooler requests it, texts are padded with tokens that have states but are not attended to."""
    if "mask_filled" not in case.encoder.offers:
        leave_out("it does not fill texts up.")
    sides: tuple[Side, ...] = ("query",)
    encoder = case.prepared(Needs(mask_filled=sides))
    batch, plain = case.batch(WORDS, "query", encoder), case.batch(WORDS, "query")
    most = len(case.encoder.tokenize([LONG], "query")[0])
    if batch.input_ids.shape[1] != most:
        problem = "queries are not filled up to the maximum length"
        fail(problem, expected=most, found=batch.input_ids.shape[1], method="collate")
    if not torch.equal(batch.attention_mask.sum(1), plain.attention_mask.sum(1)):
        lengths = batch.attention_mask.sum(1).tolist()
        problem = "tokens that fill up are attended to"
        fail(problem, expected=plain.attention_mask.sum(1).tolist(), found=lengths, method="collate")
    states, before = case.states(batch, encoder=encoder), case.states(plain)
    if not states.last.isfinite().all():
        fail("tokens that fill up have states that are not finite")
    for row in range(len(WORDS)):
        own, other = (one.last[row][one.attention_mask[row].bool()] for one in (states, before))
        expect_same(f"filling query {row} up changes its own tokens", own, other, rtol=1e-4, atol=1e-5)


@ENCODERS.property(after=_SOUND)
def names_of_tokens(case: EncoderCase) -> None:
    """`tokens` names each id, and `token_ids` returns ids of the vocabulary."""
    (ids,) = case.encoder.tokenize(WORDS[:1], "document")
    names = case.encoder.tokens(ids)
    if len(names) != len(ids) or not all(isinstance(one, str) and one for one in names):
        fail("ids get other names than one each", expected=len(ids), found=names, method="tokens")
    found = case.encoder.token_ids([".", ",", "no such token at all"])
    if not all(isinstance(one, int) and 0 <= one < case.encoder.info.vocabulary_size for one in found):
        fail("`token_ids` gives ids that the vocabulary lacks", found=found, method="token_ids")


@ENCODERS.property(after=_SOUND)
def layer_numbers(case: EncoderCase) -> None:
    """Layer 0 is the embeddings, which do not depend on other tokens; each higher layer differs from the one below."""
    one, other = (
        case.batch([Text("", f"{word} is the capital of france and people speak the language")])
        for word in ("rome", "lima")
    )
    if one.input_ids.shape != other.input_ids.shape:
        leave_out("two names of cities have different numbers of tokens.")
    same = (one.input_ids == other.input_ids)[0] & ~one.special_mask[0]
    numbers = range(case.last + 1)
    states, turned = case.states(one, numbers).layers, case.states(other, numbers).layers
    for layer in numbers:
        gap = float((states[layer] - turned[layer])[0][same].abs().max())
        if (layer == 0) != (gap == 0):
            has = "depends on other words" if layer == 0 else "knows nothing of other words"
            fail(f"layer {layer} {has}: is it the layer of another number?", difference=gap)
        if layer and torch.equal(states[layer], states[layer - 1]):
            fail(f"layers {layer - 1} and {layer} are equal")
        found = case.states(one, [layer]).layers
        if sorted(found) != [layer]:
            fail("it gives other layers than were asked for", expected=[layer], found=sorted(found))
        alone = found[layer]
        case.same(f"layer {layer} differs when it alone is asked for", alone, states[layer])
    try:
        embedded = case.encoder.embed(one)
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
    if states.head is None:
        fail("a pooler asks for the head and gets none")
    logits = states.head(states.last)
    shape = (*states.last.shape[:2], encoder.info.vocabulary_size)
    if tuple(logits.shape) != shape or not logits.isfinite().all():
        fail("logits have another shape, or are not finite", expected=shape, found=tuple(logits.shape))


@ENCODERS.property(after=_SOUND)
def saved(case: EncoderCase) -> None:
    """A modified encoder, saved and loaded, has the same tokens, states and files, bit by bit."""
    extra = {"document": ExtraTokens(2, position=None)} if "extra_tokens" in case.encoder.offers else {}
    needs = Needs(extra_tokens=extra)
    encoder = case.prepared(needs)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in encoder.parameters():
            one.add_(0.01 * torch.randn(one.shape, generator=generator))
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
    ids, again = (one.tokenize(WORDS, "document") for one in (encoder, loaded))
    if ids != again:
        fail("texts have other tokens once it was loaded", expected=ids[0], found=again[0], method="save")
    states = [case.states(batch, encoder=one).last for one in (loaded, encoder)]
    expect_same("it has other states once it was loaded", *states, method="save")
    if first != second:
        changed = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        fail("saved again, files have other bytes", found=changed, method="save")


def _weights(folder: Path) -> dict[str, str]:
    files = sorted(one for one in folder.rglob("*") if one.is_file() and one.suffix != ".json")
    return {str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


@ENCODERS.property(after=_SOUND)
def compiled(case: EncoderCase) -> None:
    """`compiled` gives the same states, with OpenVINO if it is installed."""
    installed = "openvino" if importlib.util.find_spec("openvino") else "torch"
    backend = os.environ.get("RKIT_BACKEND", installed)
    encoder = type(case.encoder).compiled(case.model, backend=backend, **case.options)
    encoder.prepare(Needs())
    encoder.eval()
    for side in SIDES:
        batch = case.batch(WORDS, side, encoder)
        if not torch.equal(batch.input_ids, case.batch(WORDS, side).input_ids):
            fail(f"a compiled one gives a {side} other tokens", method="compiled")
        states = case.states(batch, encoder=encoder).last
        real = batch.attention_mask.bool()
        expected, problem = case.states(batch).last[real], "a compiled one has other states"
        expect_same(problem, states[real], expected, rtol=1e-4, atol=1e-5, method="compiled")


def check_encoder(name: str, *, model: str | None = None, **options: Any) -> None:
    """Check that an encoder fulfils the contract, with each of the tiny models that it supports.

    Args:
        name: Registered name of the encoder.
        model: A model to test it with instead of a tiny BERT, T5 and decoder.
        options: Options of the encoder.
    """
    ENCODERS.check(name, model=model, **options)
