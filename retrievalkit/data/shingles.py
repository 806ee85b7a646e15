"""How much of their wording two texts share: Jaccard's coefficient of their word 5-grams, computed exactly.

Words are runs of letters and digits, in lower case; a text of fewer than five has one shingle, all of its words. Titles
count only where there is no text. (Broder, "On the resemblance and containment of documents", 1997.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from retrievalkit.data.corpus import Passage

LENGTH = 5
_WORD = re.compile(r"\w+")

Shingles = frozenset[str]


def shingles(passage: Passage) -> Shingles:
    """The word 5-grams of a passage."""
    words = _WORD.findall((passage.text if passage.text.strip() else passage.title).casefold())
    if len(words) <= LENGTH:
        return frozenset([" ".join(words)] if words else ())
    rows = zip(*(words[start:] for start in range(LENGTH)), strict=False)
    return frozenset(map(" ".join, rows))


class Likenesses:
    """Finds, among texts that were added, the one that is most like another, without comparing it with each.

    Args:
        threshold: What coefficient counts as alike.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._holders: dict[str, list[int]] = {}

    def add(self, name: str, text: Shingles) -> None:
        """Take in a text."""
        number = len(self._names)
        self._names.append(name)
        self._sizes.append(len(text))
        for one in text:
            self._holders.setdefault(one, []).append(number)

    def find(self, text: Collection[str]) -> tuple[str, float] | None:
        """The name of the text that is most like this one, and the coefficient; None where none is alike enough."""
        holders = self._holders
        shared = Counter(number for one in text if one in holders for number in holders[one])
        if not shared:
            return None
        likeness, number = max(
            (count / (len(text) + self._sizes[number] - count), -number) for number, count in shared.items()
        )
        return (self._names[-number], likeness) if likeness >= self.threshold else None
