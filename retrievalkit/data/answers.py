"""Does a passage hold an answer? The rule by which DPR counts a hit (Karpukhin et al., 2020), and its use on runs.

Text and answer are brought to Unicode's NFD form and cut into tokens: runs of letters, digits and marks, or one other
visible character. Tokens are compared in lower case, and an answer is held where its tokens stand in a row. Accents and
punctuation count, white space does not, an empty answer is held by every text, and titles are not searched.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import unicodedata
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from typing import Any, Literal, get_args

import regex

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import DataError, InputError, OptionError, shortlist

Mode = Literal["string", "regex"]

_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_PATTERN_FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
_WORTH_PROCESSES = 50_000
_PASSAGES_A_TASK = 500


def tokens(text: str) -> list[str]:
    """The tokens that the rule compares: of the NFD text, each in lower case."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def has_answer(answers: Iterable[str], text: str, mode: Mode = "string") -> bool:
    """Whether a text holds any of the answers.

    Args:
        answers: Texts, or patterns where the mode is "regex".
        text: The passage's text, without its title.
        mode: "string" compares tokens; "regex" searches each answer as a pattern, without regard to case, in the NFD
            text, and takes a pattern that does not compile for one that does not match.

    Raises:
        OptionError: The mode is unknown.
    """
    return AnswerMatcher(answers, mode).matches(text)


class FoldedText:
    """A text made ready for many matchers; it is tokenised once, and only when one of them may find its answer."""

    __slots__ = ("_line", "_lower", "normal")

    def __init__(self, text: str) -> None:
        self.normal = unicodedata.normalize("NFD", text)
        self._lower: str | None = None
        self._line: str | None = None

    def may_hold(self, token: str) -> bool:
        """False where the token is surely not among the text's."""
        if self._lower is None:
            # A capital sigma is the one letter whose lower case depends on its neighbours, tokens cut or not.
            self._lower = "" if "Σ" in self.normal else self.normal.lower()
        return not self._lower or token in self._lower

    @property
    def line(self) -> str:
        """The tokens between single spaces, so that tokens in a row are a substring."""
        if self._line is None:
            self._line = _line(token.lower() for token in _TOKEN.findall(self.normal))
        return self._line


class AnswerMatcher:
    """The answers of one question, made ready to be looked for in many texts.

    Args:
        answers: Texts, or patterns where the mode is "regex".
        mode: See `has_answer`.

    Raises:
        OptionError: The mode is unknown.
    """

    def __init__(self, answers: Iterable[str], mode: Mode = "string") -> None:
        if mode not in get_args(Mode):
            msg = f"unknown answer mode '{mode}'. Known: {', '.join(get_args(Mode))}."
            raise OptionError(msg)
        if isinstance(answers, str):
            msg = f"answers are a list of texts, and one text was given: {answers!r}. Put it in a list."
            raise InputError(msg)
        self._patterns = [_pattern(answer) for answer in answers] if mode == "regex" else []
        found = [tokens(answer) for answer in answers] if mode == "string" else []
        self._holds_always = any(not answer for answer in found)
        self._lines = [(max(answer, key=len), _line(answer)) for answer in found if answer]

    def matches(self, text: str | FoldedText) -> bool:
        """Whether the text holds an answer."""
        if self._holds_always:
            return True
        folded = FoldedText(text) if isinstance(text, str) else text
        if any(folded.may_hold(token) and line in folded.line for token, line in self._lines):
            return True
        return any(pattern is not None and pattern.search(folded.normal) for pattern in self._patterns)


def answer_hits(
    run: Mapping[str, Sequence[tuple[str, float]]],
    answers: Mapping[str, Sequence[str]],
    corpus: Iterable[Passage],
    *,
    depth: int = 100,
    mode: Mode = "string",
    processes: int | None = None,
) -> dict[str, list[bool]]:
    """For each retrieved document, best first, whether it holds an answer to the query that retrieved it.

    The corpus is read once, in its order, until every retrieved document has been seen; a passage is tokenised once
    for all queries that retrieved it.

    Args:
        run: The run; queries that have no entry in `answers` are left out.
        answers: The answers by query id.
        corpus: The passages; only those retrieved are looked at.
        depth: How many documents a query to look at.
        mode: See `has_answer`.
        processes: How many processes share the work; by default one for small runs, else one a processor.

    Returns:
        By query id, one flag a rank, for the queries of `answers` that are in the run.

    Raises:
        DataError: A retrieved document is not in the corpus.
    """
    matchers = {query_id: AnswerMatcher(answers[query_id], mode) for query_id in answers if query_id in run}
    hits = {query_id: [False] * min(depth, len(run[query_id])) for query_id in matchers}
    wanted: dict[str, list[tuple[str, int]]] = {}
    for query_id, flags in hits.items():
        for rank in range(len(flags)):
            wanted.setdefault(run[query_id][rank][0], []).append((query_id, rank))
    pairs = sum(map(len, hits.values()))
    processes = processes or (_processors() if pairs >= _WORTH_PROCESSES else 1)
    for query_id, rank in _holding(_retrieved(corpus, wanted), matchers, processes):
        hits[query_id][rank] = True
    if wanted and isinstance(corpus, Corpus):
        raise corpus.unknown(next(iter(wanted)))
    if wanted:
        msg = f"unknown document ids: {shortlist(wanted, 3)}. Give the passages that were searched."
        raise DataError(msg)
    return hits


_Place = tuple[str, int]  # query id, rank from 0
_Task = list[tuple[str, list[_Place]]]  # a text and where it was retrieved


def _retrieved(corpus: Iterable[Passage], wanted: dict[str, list[_Place]]) -> Iterator[tuple[str, list[_Place]]]:
    """The texts that were retrieved, with their places; takes them out of `wanted`."""
    if not wanted:
        return
    for passage in corpus:
        if places := wanted.pop(passage.id, None):
            yield passage.text, places
            if not wanted:
                return


def _holding(
    texts: Iterator[tuple[str, list[_Place]]], matchers: dict[str, AnswerMatcher], processes: int
) -> Iterator[_Place]:
    """The places at which an answer is held."""
    if processes == 1:
        for text in texts:
            yield from _match([text], matchers)
        return
    with _pool(processes, matchers) as pool:
        waiting: deque[Future[list[_Place]]] = deque()
        while task := [text for _, text in zip(range(_PASSAGES_A_TASK), texts, strict=False)]:
            waiting.append(pool.submit(_match_in_worker, task))
            if len(waiting) > 2 * processes:  # so that the corpus is not read ahead into memory
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _match(task: _Task, matchers: Mapping[str, AnswerMatcher]) -> list[_Place]:
    found = []
    for text, places in task:
        folded = FoldedText(text)
        found += [place for place in places if matchers[place[0]].matches(folded)]
    return found


_worker_matchers: dict[str, AnswerMatcher] = {}


def _pool(processes: int, matchers: dict[str, AnswerMatcher]) -> ProcessPoolExecutor:
    # Forked where that works: spawning would run a caller's unguarded script again.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    return ProcessPoolExecutor(processes, context, initializer=_worker_matchers.update, initargs=(matchers,))


def _match_in_worker(task: _Task) -> list[_Place]:
    return _match(task, _worker_matchers)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _line(found: Iterable[str]) -> str:
    return f" {' '.join(found)} "


@lru_cache(maxsize=4096)
def _pattern(answer: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful pattern is the data's, and nobody here can mend it
            return regex.compile(unicodedata.normalize("NFD", answer), _PATTERN_FLAGS)
    except (regex.error, OverflowError, RecursionError):
        return None
