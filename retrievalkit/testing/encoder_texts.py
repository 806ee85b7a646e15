"""The properties of an encoder's tokens: lengths, pairs, scripts, special and extra tokens, and how texts are padded."""

from __future__ import annotations

import torch

from retrievalkit.contracts import SIDES, ExtraTokens, Needs, Side, Text
from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.encoder_cases import ENCODERS, LONG, WORDS, EncoderCase
from retrievalkit.testing.properties import PropertyError, expect_close

_SHORT = 16
_ODD: tuple[Text, ...] = (
    ("", ""),
    ("", "   \t\n"),
    ("", "\U0001f642\U0001f1eb\U0001f1f7 e\u0301 \u00e9 \ufb03"),
    ("\u6f22\u5b57", "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059"),
    ("", "\u0645\u0631\u062d\u0628\u0627 \u200f\u05e9\u05dc\u05d5\u05dd"),
    ("", "a\u0000b \u200b \ufffd [CLS] [SEP] </s> [MASK]"),
    ("", "x" * 2000),
)


@ENCODERS.property()
def batch_fields(case: EncoderCase) -> None:
    """`collate` keeps the tokens in their order, pads to the longest text, and marks what is a token."""
    for side in SIDES:
        ids = case.encoder.tokenize(WORDS, side)
        batch = case.encoder.collate(ids, side)
        longest = max(map(len, ids))
        for field, dtype in (("input_ids", torch.long), ("attention_mask", torch.long), ("special_mask", torch.bool)):
            tensor = getattr(batch, field)
            if tensor.dtype != dtype or tuple(tensor.shape) != (len(ids), longest):
                found = f"{tuple(tensor.shape)} {tensor.dtype}"
                msg = f"`{field}` of a {side} batch has another shape or type"
                raise PropertyError(msg, expected=f"{(len(ids), longest)} {dtype}", found=found, method="collate")
        for row, tokens in enumerate(ids):
            kept = batch.input_ids[row][batch.attention_mask[row] == 1].tolist()
            if kept != list(tokens):
                msg = f"the real tokens of {side} {row} are others than those of `tokenize`"
                raise PropertyError(msg, expected=list(tokens), found=kept, method="collate")
        most = case.encoder.info.vocabulary_size
        if (largest := max(map(max, ids))) >= most:
            msg = "`tokenize` gives ids beyond `info.vocabulary_size`"
            raise PropertyError(msg, expected=f"below {most}", found=largest, method="tokenize")


@ENCODERS.property(after=["batch_fields"])
def truncation(case: EncoderCase) -> str:
    """Long texts are cut to the side's maximum length, with the tokens that end a text in their place."""
    lengths = []
    for side in SIDES:
        long, longer, short = case.encoder.tokenize([LONG, ("", LONG[1] * 2), WORDS[0]], side)
        lengths.append(len(long))
        if len(long) != len(longer):
            msg = f"a {side} of twice as many words has more tokens: it is not cut"
            raise PropertyError(msg, expected=len(long), found=len(longer), method="tokenize")
        empty = case.encoder.tokenize([("", "")], side)[0]
        for place, name in ((0, "starts"), (-1, "ends")):
            if empty and short[place] == empty[place] != long[place]:
                msg = f"a {side} that is cut lacks the token that {name} every other"
                raise PropertyError(msg, expected=short[place], found=long[place], method="tokenize")
        if f"{side}_length" in case.known:
            cut = case.prepared(Needs(), **{f"{side}_length": _SHORT})
            for text in (LONG, (LONG[1], LONG[1])):
                (ids,) = cut.tokenize([text], side)
                if len(ids) > _SHORT:
                    msg = f"with {side}_length={_SHORT} a text has more tokens"
                    raise PropertyError(msg, expected=_SHORT, found=len(ids), method="tokenize")
    return f"queries of {lengths[0]}, documents of {lengths[1]} tokens at most"


@ENCODERS.property(after=["batch_fields"])
def pairs(case: EncoderCase) -> None:
    """A title is read as well as the text, and the two together are cut to the maximum length."""
    if "title" in case.options:
        raise UnsupportedError("an option says what becomes of titles.")
    text = "the language that people speak"
    (both,), (alone,), (long,), (most,) = (
        case.encoder.tokenize([one], "document") for one in (("peru", text), ("", text), (LONG[1], LONG[1]), LONG)
    )
    if both == alone:
        raise PropertyError("the title of a document changes none of its tokens", found=both, method="tokenize")
    words = [one for one in alone if one not in case.encoder.tokenize([("", "")], "document")[0]]
    if [one for one in both if one in words] != words:
        raise PropertyError("with a title the text has other tokens", expected=words, found=both, method="tokenize")
    if len(long) > len(most):
        msg = "a long title with a long text has more tokens than a long text"
        raise PropertyError(msg, expected=len(most), found=len(long), method="tokenize")


@ENCODERS.property(after=["batch_fields"])
def odd_texts(case: EncoderCase) -> None:
    """Empty texts, other scripts, control characters and names of special tokens are encoded, and stay finite."""
    for side in SIDES:
        for texts in (_ODD, _ODD[:1], _ODD[:2]):
            batch = case.batch(texts, side)
            states = case.states(batch).last
            if not states[batch.attention_mask.bool()].isfinite().all():
                raise PropertyError(f"odd texts get states that are not finite ({side})", method="forward")
            if batch.input_ids.shape[1] < 1:
                raise PropertyError("an empty text has no column", found=tuple(batch.input_ids.shape), method="collate")


@ENCODERS.property(after=["batch_fields"])
def special_tokens(case: EncoderCase) -> None:
    """`special_mask` is True at the tokens that the tokenizer adds, and nowhere else."""
    for side in SIDES:
        (added,) = case.encoder.tokenize([("", "")], side)
        batch = case.batch(WORDS, side)
        for row, special in enumerate(batch.special_mask):
            if special[batch.attention_mask[row] == 0].any():
                msg = f"padding of {side} {row} counts as special"
                raise PropertyError(msg, found=special.tolist(), method="collate")
            marked = batch.input_ids[row][special].tolist()
            if marked != added:
                msg = f"other tokens of {side} {row} are marked than those that an empty text has too"
                raise PropertyError(msg, expected=added, found=marked, method="collate")


@ENCODERS.property(after=["batch_fields"])
def extra_tokens(case: EncoderCase) -> None:
    """The extra tokens that a pooler asks for stand where `extra` says, are special, and leave the rest as it is."""
    if "extra_tokens" not in case.encoder.offers:
        raise UnsupportedError("it offers no extra tokens.")
    wanted = ExtraTokens(2, replace_first=False, position=None)
    encoder = case.prepared(Needs(extra_tokens={"document": wanted}))
    plain, ids = case.encoder.tokenize([*WORDS, LONG], "document"), encoder.tokenize([*WORDS, LONG], "document")
    if len(ids[-1]) > len(plain[-1]):
        msg = "with extra tokens a long text has more than the maximum"
        raise PropertyError(msg, expected=len(plain[-1]), found=len(ids[-1]), method="tokenize")
    batch = encoder.collate(ids[:-1], "document")
    if batch.extra is None or tuple(batch.extra.shape) != (len(WORDS), 2):
        shape = None if batch.extra is None else tuple(batch.extra.shape)
        raise PropertyError("`extra` has another shape", expected=(len(WORDS), 2), found=shape, method="collate")
    for row, places in enumerate(batch.extra.tolist()):
        left = [token for place, token in enumerate(ids[row]) if place not in places]
        if left != list(plain[row]):
            msg = f"without the extra tokens, document {row} has other tokens than before"
            raise PropertyError(msg, expected=list(plain[row]), found=left, method="tokenize")
        if not batch.special_mask[row, places].all():
            msg, found = f"extra tokens of document {row} are not special", batch.special_mask[row].tolist()
            raise PropertyError(msg, found=found, method="collate")
    states = case.states(batch, encoder=encoder).last
    first, second = (states[0, place] for place in batch.extra[0].tolist())
    if torch.equal(first, second):
        raise PropertyError("both extra tokens have the same states", found=float(first[0]), method="forward")
    if (queries := encoder.tokenize(WORDS, "query")) != (before := case.encoder.tokenize(WORDS, "query")):
        msg = "queries have extra tokens too, which only documents should have"
        raise PropertyError(msg, expected=len(before[0]), found=len(queries[0]), method="tokenize")


@ENCODERS.property(after=["batch_fields"])
def filled_with_masks(case: EncoderCase) -> None:
    """Where a pooler asks for it, texts are filled up with tokens that have states, and that no token attends to."""
    if "mask_filled" not in case.encoder.offers:
        raise UnsupportedError("it does not fill texts up.")
    sides: tuple[Side, ...] = ("query",)
    encoder = case.prepared(Needs(mask_filled=sides))
    batch, plain = case.batch(WORDS, "query", encoder), case.batch(WORDS, "query")
    most = len(case.encoder.tokenize([LONG], "query")[0])
    if batch.input_ids.shape[1] != most:
        msg = "queries are not filled up to the maximum length"
        raise PropertyError(msg, expected=most, found=batch.input_ids.shape[1], method="collate")
    if not torch.equal(batch.attention_mask.sum(1), plain.attention_mask.sum(1)):
        msg, lengths = "tokens that fill up are attended to", batch.attention_mask.sum(1).tolist()
        raise PropertyError(msg, expected=plain.attention_mask.sum(1).tolist(), found=lengths, method="collate")
    states, before = case.states(batch, encoder=encoder), case.states(plain)
    if not states.last.isfinite().all():
        raise PropertyError("tokens that fill up have states that are not finite", method="forward")
    for row in range(len(WORDS)):
        msg = f"filling query {row} up changes its own tokens"
        expect_close(msg, case.of_text(states, row), case.of_text(before, row), method="forward")


@ENCODERS.property(after=["batch_fields"])
def names_of_tokens(case: EncoderCase) -> None:
    """`tokens` gives each id a name, and `token_ids` gives ids of the vocabulary."""
    (ids,) = case.encoder.tokenize(WORDS[:1], "document")
    names = case.encoder.tokens(ids)
    if len(names) != len(ids) or not all(isinstance(one, str) and one for one in names):
        raise PropertyError("ids get other names than one each", expected=len(ids), found=names, method="tokens")
    found = case.encoder.token_ids([".", ",", "no such token at all"])
    if not all(isinstance(one, int) and 0 <= one < case.encoder.info.vocabulary_size for one in found):
        raise PropertyError("`token_ids` gives ids that the vocabulary lacks", found=found, method="token_ids")
