"""Counts the texts that a tokenizer cut."""

from __future__ import annotations

from typing import Any

from retrievalkit import oddities


def count_cut(encoded: Any, kind: str, limit: int) -> None:
    """Tell `oddities` which texts were cut.

    Args:
        encoded: What a Hugging Face tokenizer returned for a list of texts; a slow one does not say what it cut.
        kind: What the texts are, in the plural.
        limit: How many tokens are allowed.
    """
    for one in encoded.encodings or ():
        if rest := one.overflowing:
            # Of a pair, each stretch of the rest begins with the first text again.
            repeated = one.sequence_ids.count(0) if one.n_sequences == 2 else 0
            special = sum(one.special_tokens_mask)
            oddities.cut(kind, limit, max(1, sum(max(0, len(part) - special - repeated) for part in rest)))
