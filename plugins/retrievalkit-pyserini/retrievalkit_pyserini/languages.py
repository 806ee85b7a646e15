"""Detection of the languages of texts, with py3langid: offline, 0.2 seconds per 1,000 passages."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

_CHARACTERS = 1_000
"""Number of characters of a text that its language is detected in."""

_SAMPLED = 1_000
_SURE = 0.8
"""Minimum probability. With it, 1 of 7,500 English texts, short titles and code included, had another language."""

_LIKELY = 0.2
"""Minimum ratio to the probability of the most probable language. In XQuAD, for questions of two words, this is as good
as any, and better than the most probable language (nDCG@10 .677, .670); all languages are worse for whole questions."""

_SHARE = 0.05
"""Minimum share of a language in a sample."""


class Sample:
    """An evenly spaced sample of a stream of texts: at least 1,000, or all if there are fewer."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._seen, self._step = 0, 1

    def see(self, text: str) -> None:
        """Consider the next text."""
        if self._seen % self._step == 0:
            self._texts.append(text[:_CHARACTERS])
        self._seen += 1
        if len(self._texts) == 2 * _SAMPLED:
            self._texts, self._step = self._texts[::2], 2 * self._step

    def languages(self) -> list[str]:
        """Return the languages of at least a twentieth of the texts, most frequent first; empty if none is clear."""
        counts: Counter[str] = Counter()
        for text in self._texts:
            language, probability = _detector(None).classify(text)
            counts[language] += probability >= _SURE
        return [language for language, count in counts.most_common() if count and count >= _SHARE * len(self._texts)]


def detectable() -> frozenset[str]:
    """Return the codes of all languages that can be detected."""
    return frozenset(_detector(None).labels)


def likely(text: str, languages: Sequence[str]) -> list[str]:
    """Return those of some languages that a text may be in, most probable first; all if it has no evidence."""
    if len(languages) < 2:
        return list(languages)
    ranked = _detector(frozenset(languages)).rank(text[:_CHARACTERS])
    return [str(language) for language, probability in ranked if probability >= _LIKELY * ranked[0][1]]


@functools.cache
def _detector(languages: frozenset[str] | None) -> Any:
    """Return the detector of some languages; None = all with a two-letter code."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    if languages is None:
        detector = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        languages = frozenset(label for label in detector.labels if len(label) == 2)
    else:
        detector = copy.copy(_detector(None))  # they share the tables
    detector.set_languages(sorted(languages))
    return detector
