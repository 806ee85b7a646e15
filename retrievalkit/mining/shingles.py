"""How similar the wording of two texts is: Jaccard's coefficient of their word 5-grams.

Words are case-insensitive runs of letters and digits; a text of fewer than five words is a single shingle. Titles count
only if there is no text. Shingles are compared by 64-bit hashes, so the coefficient is exact unless two of them collide
(Broder, "On the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from retrievalkit.data.corpus import Passage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Shingles = NDArray[np.uint64]

LENGTH = 5
_CACHED_TEXTS, _CACHED_WORDS = 1 << 16, 1 << 20
_WORD = re.compile(r"\w+")
_SHARED = 64  # more of them exclude more pairs, and take longer to find
_WORTH = 0.5  # starts longer than this share of the texts save no time
_ROUNDING = 1 - 1e-9  # coefficients are compared as floats
_MIX = 0x9E3779B97F4A7C15


@lru_cache(_CACHED_WORDS)
def _number(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest())


def shingles(passage: Passage) -> Shingles:
    """The distinct hashes of a passage's word 5-grams, ascending."""
    import numpy as np

    words = _WORD.findall((passage.text if passage.text.strip() else passage.title).casefold())
    numbers = np.fromiter(map(_number, words), dtype=np.uint64, count=len(words))
    count = max(1, len(words) - LENGTH + 1) if words else 0
    hashes = np.zeros(count, dtype=np.uint64)
    for start in range(min(LENGTH, len(words))):
        hashes = hashes * np.uint64(_MIX) + numbers[start : start + count]
        hashes ^= hashes >> np.uint64(29)
    return np.unique(hashes)


def shingles_of(passages: Callable[[str], Passage]) -> Callable[[str], Shingles]:
    """The shingles of passages by id, cached, so that a text is processed only once for many questions."""
    return lru_cache(_CACHED_TEXTS)(lambda identifier: shingles(passages(identifier)))


def likeness(texts: Sequence[Shingles], other: Shingles, threshold: float = 0.0) -> list[float]:
    """Jaccard's coefficient of each text with the other text; 0 if either is empty, and perhaps below a threshold."""
    import numpy as np

    coefficients = [0.0] * len(texts)
    if not texts or not len(other):
        return coefficients
    start = _start(other, threshold)
    starts = [_start(text, threshold) for text in texts]
    values = np.concatenate(starts)
    found = start.take(start.searchsorted(values), mode="clip") == values
    owners = np.repeat(np.arange(len(texts)), [len(one) for one in starts])
    for place in np.unique(owners[found]).tolist():
        coefficients[place] = _coefficient(texts[place], other)
    return coefficients


def repeats(texts: Sequence[Shingles], threshold: float) -> list[tuple[int, float] | None]:
    """For each text, the earlier text that it nearly repeats (with the coefficient), or None.

    A text that is itself a near duplicate does not count as the earlier text.

    Args:
        texts: The texts; of several similar ones, the first is the original.
        threshold: The least coefficient of near duplicates.
    """
    originals: list[tuple[int, float] | None] = [None] * len(texts)
    for later, earlier, like in _alike(texts, threshold):
        # A text that is dropped itself is no reason to drop a later one.
        if originals[earlier] is None and (originals[later] is None or like > originals[later][1]):  # type: ignore[index]
            originals[later] = (earlier, like)
    return originals


def _alike(texts: Sequence[Shingles], threshold: float) -> list[tuple[int, int, float]]:
    """The pairs of similar texts, as (later, earlier, coefficient), ascending."""
    import numpy as np

    places = np.array(_possibly_alike(texts, threshold), np.int64)
    sizes = np.array([len(texts[place]) for place in places], np.int64)
    later, earlier, shared = _shared([texts[place] for place in places])
    like = shared / (sizes[later] + sizes[earlier] - shared)
    alike = like >= threshold
    pairs = zip(*(each[alike].tolist() for each in (places[later], places[earlier], like)), strict=True)
    return sorted(pairs)


def _coefficient(text: Shingles, other: Shingles) -> float:
    import numpy as np

    if not len(text) or not len(other):
        return 0.0
    shared = int(np.count_nonzero(other.take(other.searchsorted(text), mode="clip") == text))
    return shared / (len(text) + len(other) - shared)


def _possibly_alike(texts: Sequence[Shingles], threshold: float) -> Sequence[int]:
    """The texts whose starts share so many shingles with another's start that they can be similar, ascending."""
    import numpy as np

    sizes = np.array([len(text) for text in texts], np.int64)
    # As `_start`, for all.
    least = np.maximum(1, np.ceil(threshold * sizes * _ROUNDING).astype(np.int64))
    ends = np.minimum(sizes, sizes - least + _SHARED)
    if ends.sum() > sizes.sum() * _WORTH:
        return range(len(texts))
    later, earlier, shared = _shared([text[:end] for text, end in zip(texts, ends.tolist(), strict=True)])
    enough = shared >= np.minimum(_SHARED, np.maximum(least[later], least[earlier]))
    return np.union1d(later[enough], earlier[enough]).tolist()  # type: ignore[no-any-return]


def _shared(texts: Sequence[Shingles]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of texts that share a shingle: the later, the earlier, and how many shingles both have."""
    import numpy as np
    import scipy.sparse

    repeated, order, values = _repeated(texts)
    columns = np.cumsum(np.concatenate([[False], values[1:] != values[:-1]]))
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])[order][repeated]
    shape = len(texts), int(columns[-1]) + 1
    incidence = scipy.sparse.csr_matrix((np.ones(len(rows), np.int32), (rows, columns[: len(rows)])), shape=shape)
    pairs = (incidence @ incidence.T).tocoo()
    below = pairs.row > pairs.col
    return pairs.row[below].astype(np.int64), pairs.col[below].astype(np.int64), pairs.data[below].astype(np.int64)


def _start(text: Shingles, threshold: float) -> Shingles:
    """The smallest shingles of a text: so many that similar texts share one of theirs.

    Of n shingles a similar text lacks at most n - least, where least = threshold * n: the first that both have is among
    the first n - least + 1 of each, and the first so many that both have are among so many more (prefix filtering;
    Chaudhuri, Ganti and Kaushik, "A primitive operator for similarity joins in data cleaning", 2006).
    """
    return text[: len(text) - max(1, math.ceil(threshold * len(text) * _ROUNDING)) + 1]


def _repeated(texts: Sequence[Shingles]) -> tuple[NDArray[np.bool_], NDArray[np.intp], Shingles]:
    """The shingles of several texts: which of them, in ascending order, are repeated; that order; the repeated ones.

    Most shingles occur in a single text only.
    """
    import numpy as np

    values = np.concatenate([*texts, np.zeros(0, np.uint64)])
    order = np.argsort(values)
    ordered = values[order]
    same = ordered[1:] == ordered[:-1]
    repeated = np.zeros(len(values), np.bool_)
    repeated[1:] |= same
    repeated[:-1] |= same
    return repeated, order, ordered[repeated]
