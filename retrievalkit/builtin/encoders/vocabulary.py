"""What pre-training wants to know of a tokenizer: pieces of texts, where words begin, special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrievalkit.data.pieces import Pieces, Vocabulary
from retrievalkit.errors import UnsupportedError

# How a token that begins a word is marked where a tokenizer does not part words before it cuts them.
_BEGINNINGS = ("\u2581", "\u0120")


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a fast tokenizer of transformers.

    Raises:
        UnsupportedError: The tokenizer is a slow one, which does not tell where its tokens come from.
    """
    if not tokenizer.is_fast:
        msg = (
            f"pre-training needs a fast tokenizer, and the model has a slow one ({type(tokenizer).__name__}). "
            f"Convert it: save a tokenizer.json beside the model."
        )
        raise UnsupportedError(msg)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    probe: list[int] = tokenizer("a")["input_ids"]
    text = [place for place, token in enumerate(probe) if token not in special]
    before, after = probe[: text[0]], probe[text[-1] + 1 :]
    ordinary = sorted(set(tokenizer.get_vocab().values()) - special)
    return Vocabulary(lambda texts: _split(tokenizer, special, texts), before, after, tokenizer.mask_token_id, ordinary)


def _split(tokenizer: Any, special: set[int], texts: Sequence[str]) -> list[tuple[Pieces, list[int]]]:
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [_pieces(encoding, special, backend) for encoding in backend.encode_batch(texts, add_special_tokens=False)]


def _pieces(encoding: Any, special: set[int], backend: Any) -> tuple[Pieces, list[int]]:
    ids, words = encoding.ids, encoding.word_ids
    if backend.pre_tokenizer is None:
        starts = [token.startswith(_BEGINNINGS) for token in encoding.tokens]
    else:
        starts = [word != before for before, word in zip([-1, *words], words, strict=False)]
    ends = [end for _, end in encoding.offsets]
    if special.isdisjoint(ids):
        return Pieces(ids, starts), ends
    # Written in the text, as in documentation of tokenizers.
    kept = [place for place, token in enumerate(ids) if token not in special]
    return Pieces([ids[one] for one in kept], [starts[one] for one in kept]), [ends[one] for one in kept]
