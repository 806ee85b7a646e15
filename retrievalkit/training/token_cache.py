"""Token ids of the texts of a training: a text is tokenised once, although many steps draw it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from retrievalkit.contracts import Side, Text

_BYTES = 1 << 29
_ENTRY = 256  # bytes per text next to its tokens: an array, a key and a dictionary entry


class TokenCache:
    """Tokenises each text once, and keeps the token ids in memory: 512 MiB, or 460,000 texts of 225 tokens.

    When the memory is full, new texts are tokenised at every draw. None replaces another: epochs are in random order,
    so all texts are equally likely to be drawn next.

    Args:
        tokenize: Returns the token ids of texts of a side.
    """

    def __init__(self, tokenize: Callable[[Sequence[Text], Side], list[list[int]]]) -> None:
        self._tokenize, self._room = tokenize, _BYTES
        self._kept: dict[bytes, np.ndarray] = {}

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[np.ndarray]:
        """Return each text's token ids, int32."""
        keys = [_key(text, side) for text in texts]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._kept}
        computed = self._tokenize(list(new.values()), side) if new else []
        ids = {key: np.asarray(row, dtype=np.int32) for key, row in zip(new, computed, strict=True)}
        token_ids = [ids[key] if key in ids else self._kept[key] for key in keys]
        for key, row in ids.items():
            if row.nbytes + _ENTRY <= self._room:
                self._kept[key] = row
                self._room -= row.nbytes + _ENTRY
        return token_ids


def _key(text: Text, side: Side) -> bytes:
    # Encoders may read the fields of a text.
    parts = repr((side, text.title, text.body, dict(text.fields)))
    return hashlib.blake2b(parts.encode(), digest_size=16).digest()
