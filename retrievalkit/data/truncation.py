"""Count of the texts that a tokenizer truncated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrievalkit.reporting import notices


def count_cut(tokenizer: Any, encoded: Any, *texts: Sequence[str], kind: str, limit: int) -> None:
    """Report truncated texts to `notices`.

    Args:
        tokenizer: A Hugging Face tokenizer.
        encoded: The output of the tokenizer for the texts.
        texts: The texts, or the first and second texts of pairs.
        kind: The kind of text, in the plural.
        limit: The maximum number of tokens.
    """
    if encoded.encodings is None:
        _count_cut_slowly(tokenizer, encoded, texts, kind, limit)
        return
    for row, encoding in enumerate(encoded.encodings):
        if rest := encoding.overflowing:
            # In a pair, each overflowing part repeats the first text.
            repeated = encoding.sequence_ids.count(0) if encoding.n_sequences == 2 else 0
            special = sum(encoding.special_tokens_mask)
            lost = max(1, sum(max(0, len(part) - special - repeated) for part in rest))
            notices.cut([side[row] for side in texts], kind, limit, lost)


def _count_cut_slowly(tokenizer: Any, encoded: Any, texts: Sequence[Sequence[str]], kind: str, limit: int) -> None:
    """For a tokenizer in Python, which does not report truncation: tokenise the longest texts again, in full."""
    lengths = list(map(len, encoded["input_ids"]))
    longest = max(lengths, default=0)
    for row, length in enumerate(lengths):
        if length == longest:
            parts = [side[row] for side in texts]
            whole = tokenizer(*parts, verbose=False)["input_ids"]
            if lost := len(whole) - length:
                notices.cut(parts, kind, limit, lost)
