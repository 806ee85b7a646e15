"""Near-duplicate detection: the Jaccard coefficient of the word 5-grams of two texts.

Words are case-insensitive runs of letters and digits; a text of fewer than five words is a single shingle. Titles count
only if there is no text. Shingles are compared by 64-bit hashes, so the coefficient is exact unless two hashes collide
(Broder, "On the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from retrievalkit.data.corpus import Passage
from retrievalkit.data.same_text import normal_form

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Shingles = NDArray[np.uint64]

LENGTH = 5
_CACHED_TEXTS, _CACHED_WORDS = 1 << 16, 1 << 20
_WORD = re.compile(r"\w+")
_MIX = 0x9E3779B97F4A7C15


@lru_cache(_CACHED_WORDS)
def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest())


def shingles(passage: Passage) -> Shingles:
    """Return the distinct hashes of a passage's word 5-grams, ascending."""
    import numpy as np

    words = _WORD.findall(normal_form(passage.text) or normal_form(passage.title))
    numbers = np.fromiter(map(_number, words), dtype=np.uint64, count=len(words))
    count = max(1, len(words) - LENGTH + 1) if words else 0
    hashes = np.zeros(count, dtype=np.uint64)
    for start in range(min(LENGTH, len(words))):
        hashes = hashes * np.uint64(_MIX) + numbers[start : start + count]
        hashes ^= hashes >> np.uint64(29)
    return np.unique(hashes)


def shingles_of(passages: Callable[[str], Passage]) -> Callable[[str], Shingles]:
    """Return a cached function from passage id to shingles: a text is processed once for many questions."""
    return lru_cache(_CACHED_TEXTS)(lambda identifier: shingles(passages(identifier)))


def likeness(texts: Sequence[Shingles], other: Shingles) -> list[float]:
    """Return the Jaccard coefficient of each text with the other text; 0 if either is empty."""
    import numpy as np

    coefficients = []
    for text in texts:
        shared = int(np.count_nonzero(other.take(other.searchsorted(text), mode="clip") == text)) if len(other) else 0
        coefficients.append(shared / max(1, len(text) + len(other) - shared))
    return coefficients


def repeats(texts: Sequence[Shingles], threshold: float) -> list[tuple[int, float] | None]:
    """Return, for each text, the earlier text that it nearly repeats and their coefficient; None below the threshold.

    Of several similar texts the first is the original: a text that is itself a near duplicate is never an original.
    """
    import numpy as np
    import scipy.sparse

    values, columns = np.unique(np.concatenate([*texts, np.zeros(0, np.uint64)]), return_inverse=True)
    sizes = np.array([len(text) for text in texts], np.int64)
    rows = np.repeat(np.arange(len(texts)), sizes)
    shape = len(texts), len(values)
    incidence = scipy.sparse.csr_matrix((np.ones(len(rows), np.int64), (rows, columns)), shape=shape)
    pairs = scipy.sparse.tril(incidence @ incidence.T, -1).tocoo()  # (later, earlier): number of shared shingles
    like = pairs.data / (sizes[pairs.row] + sizes[pairs.col] - pairs.data)
    alike = like >= threshold
    matches = zip(*(each[alike].tolist() for each in (pairs.row, pairs.col, like)), strict=True)
    originals: list[tuple[int, float] | None] = [None] * len(texts)
    for later, earlier, coefficient in sorted(matches):
        best = originals[later]
        # A later text is not dropped because of a dropped text.
        if originals[earlier] is None and (best is None or coefficient > best[1]):
            originals[later] = (earlier, coefficient)
    return originals
