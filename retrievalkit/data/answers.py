"""Answer matching: DPR's rule for counting a passage as a hit (Karpukhin et al., 2020), applied to runs.

Text and answer are normalised to Unicode NFD and split into tokens: runs of letters, digits and marks, or a single
other visible character; in scripts without spaces between words, where DPR has whole clauses, single letters.
Tokens are compared in lower case, and a text contains an answer if the answer's tokens occur in it consecutively.
Accents and punctuation matter, white space does not. Every text contains an empty answer; titles are not searched.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import regex

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import InputError, check_choice

Mode = Literal["string", "regex"]

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]\p{M}*")
_SIGMA = "\N{GREEK CAPITAL LETTER SIGMA}"  # the only letter whose lower case depends on neighbouring tokens
_PATTERN_FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE

PATTERN_SECONDS = 10.0
"""Time limit for matching an answer pattern in a text: some patterns would run practically forever."""


def tokens(text: str) -> list[str]:
    """Return the lower-case tokens of the NFD text, which the rule compares."""
    text = unicodedata.normalize("NFD", text)
    spaced = text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)
    return [token.lower() for token in _TOKEN.findall(spaced)]


class FoldedText:
    """A text normalised once for many matchers."""

    def __init__(self, text: str) -> None:
        self.normal = unicodedata.normalize("NFD", text)

    @cached_property
    def lower(self) -> str:
        """The text in lower case, with the same tokens."""
        return self.normal.lower() if _SIGMA not in self.normal else " ".join(tokens(self.normal))

    @cached_property
    def spaced(self) -> str:
        """The tokens, with spaces around each."""
        return f" {' '.join(tokens(self.normal))} "


class AnswerMatcher:
    """Matcher for the answers of a question, for searching many texts.

    Args:
        answers: Texts, or patterns if the mode is "regex".
        mode: "string" compares tokens; "regex" searches the NFD text for each answer as a case-insensitive pattern. A
            pattern that does not compile never matches.
    """

    def __init__(self, answers: Iterable[str], mode: Mode = "string") -> None:
        check_choice("answer mode", mode, get_args(Mode))
        if isinstance(answers, str):
            msg = f"answers is the text {answers!r}, but should be a list of texts. Put it in a list."
            raise InputError(msg)
        tokenised = [tokens(answer) for answer in answers] if mode == "string" else []
        self._always_matches = any(not answer for answer in tokenised)
        # Most texts lack even the longest token of an answer; they are not tokenised.
        self._sequences = [(max(answer, key=len), f" {' '.join(answer)} ") for answer in tokenised if answer]
        self._patterns = [_pattern(answer) for answer in answers] if mode == "regex" else []

    def matches(self, text: str | FoldedText) -> bool:
        """True if the text contains an answer."""
        if self._always_matches:
            return True
        folded = FoldedText(text) if isinstance(text, str) else text
        if any(longest in folded.lower and spaced in folded.spaced for longest, spaced in self._sequences):
            return True
        for pattern in filter(None, self._patterns):
            try:
                if pattern.search(folded.normal, timeout=PATTERN_SECONDS):
                    return True
            except TimeoutError:
                msg = (
                    f"the answer '{pattern.pattern}' is a pattern that takes longer than {PATTERN_SECONDS:g} s in a "
                    f"text. Write it with fewer repetitions inside one another."
                )
                raise InputError(msg) from None
        return False


def answer_hits(
    run: Mapping[str, Sequence[tuple[str, float]]],
    answers: Mapping[str, Sequence[str]],
    corpus: Iterable[Passage],
    *,
    depth: int = 100,
    mode: Mode = "string",
) -> dict[str, list[bool]]:
    """Return query id -> a flag per retrieved document, best first: True if it contains an answer to the query.

    The corpus is read once, in order, until every retrieved document has been seen; a passage is normalised once for
    all queries that retrieved it.
    """
    matchers = {query_id: AnswerMatcher(answers[query_id], mode) for query_id in answers if query_id in run}
    hits = {query_id: [False] * min(depth, len(run[query_id])) for query_id in matchers}
    wanted: dict[str, list[tuple[str, int]]] = {}
    for query_id, flags in hits.items():
        for rank in range(len(flags)):
            wanted.setdefault(run[query_id][rank][0], []).append((query_id, rank))
    for passage in corpus if wanted else ():
        if places := wanted.pop(passage.id, None):
            folded = FoldedText(passage.text)
            for query_id, rank in places:
                hits[query_id][rank] = matchers[query_id].matches(folded)
            if not wanted:
                break
    if wanted and isinstance(corpus, Corpus):
        raise corpus.unknown(next(iter(wanted)))
    return hits


@lru_cache(maxsize=4096)
def _pattern(answer: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the pattern comes from the data, and the user cannot correct it
            return regex.compile(unicodedata.normalize("NFD", answer), _PATTERN_FLAGS)
    except (regex.error, OverflowError, RecursionError):
        return None
