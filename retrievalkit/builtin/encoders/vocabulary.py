"""A tokenizer as pre-training needs it: pieces of texts, the beginnings of words, special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrievalkit.data.pieces import Pieces, Vocabulary
from retrievalkit.errors import UnsupportedError

# Marks of a token that begins a word, in tokenizers that do not split texts into words first.
_BEGINNINGS = ("\u2581", "\u0120")


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a fast tokenizer of transformers."""
    if not tokenizer.is_fast:
        msg = (
            f"pre-training needs a fast tokenizer, and the model has a slow one ({type(tokenizer).__name__}). "
            f"Convert it: save a tokenizer.json beside the model."
        )
        raise UnsupportedError(msg)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    probe: list[int] = tokenizer("a")["input_ids"]
    text = [position for position, token in enumerate(probe) if token not in special]
    before, after = probe[: text[0]], probe[text[-1] + 1 :]
    ordinary = sorted(set(tokenizer.get_vocab().values()) - special)
    backend = tokenizer.backend_tokenizer

    def split(texts: Sequence[str]) -> list[tuple[Pieces, list[int]]]:
        backend.no_truncation()
        backend.no_padding()
        return [_pieces(one, special, backend) for one in backend.encode_batch(texts, add_special_tokens=False)]

    return Vocabulary(split, before, after, tokenizer.mask_token_id, ordinary)


def _pieces(encoding: Any, special: set[int], backend: Any) -> tuple[Pieces, list[int]]:
    ids, words = encoding.ids, encoding.word_ids
    if backend.pre_tokenizer is None:
        starts = [token.startswith(_BEGINNINGS) for token in encoding.tokens]
    else:
        starts = [word != before for before, word in zip([-1, *words], words, strict=False)]
    ends = [end for _, end in encoding.offsets]
    if special.isdisjoint(ids):
        return Pieces(ids, starts), ends
    # Special tokens that are spelled out in the text, as in the documentation of tokenizers, are left out.
    kept = [position for position, token in enumerate(ids) if token not in special]
    return Pieces([ids[at] for at in kept], [starts[at] for at in kept]), [ends[at] for at in kept]
