"""The audit of mined negatives: the hits that each filter dropped, the negatives' ranks, and a sample to check by hand.

Audits are written part by part as JSON and added up, so that an interrupted run ends with the same audit as an
uninterrupted one. All counts are exact; scores are those of a seeded sample of questions.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from retrievalkit.contracts import Filter
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import shortlist
from retrievalkit.mine.filters import Filtered
from retrievalkit.report.counts import counted
from retrievalkit.report.terminal import printable

SHOWN = 5
SAMPLED_SCORES = 1_000
SAMPLED_QUESTIONS = 20
NEGATIVES_SHOWN = 3
_SCORES = 1_000  # most scores of a sampled question, spread evenly over its negatives
_SNIPPET = 300
_BINS = 30
_RANKS = (1, 2, 3, 4, 6, 11, 21, 51, 101, 201, 501, 1001)
_FIRST_RANKS = 3
_COUNTS = ("questions", "hits", "without_hits", "positives_found", "left", "compared", "above")


@dataclass(frozen=True)
class _Shown:
    """The form of a dropped hit."""

    query_id: str
    query: str
    positive: str | None
    document_id: str
    rank: int
    score: float
    reason: str


@dataclass(frozen=True)
class _Sampled:
    """The form of a sampled question; hits are (rank, score, id)."""

    key: float
    query_id: str
    query: str
    answers: list[str]
    positives: list[str]
    found: list[tuple[int, float, str]]
    first: list[tuple[int, float, str]]
    negatives: int
    scores: list[float]


@dataclass(frozen=True)
class AuditState:
    """The form of an audit that was written with a part."""

    counts: dict[Literal["questions", "hits", "without_hits", "positives_found", "left", "compared", "above"], int]
    dropped: dict[str, int]
    shown: dict[str, list[_Shown]]
    sample: list[_Sampled]
    ranks: list[int]
    positive_ranks: list[int]


class Audit:
    """Counts of a mining run, or of a part of it.

    Args:
        filters: Names of the filters, in order.
        questions: How many questions there are in all parts.
        seed: Seed of the sample of questions.
    """

    def __init__(self, filters: Sequence[str], *, questions: int, seed: int = 0) -> None:
        self.seed = seed
        self.share = SAMPLED_SCORES / max(1, questions)
        self.filters = list(filters)
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.dropped = dict.fromkeys(filters, 0)
        self.shown: dict[str, list[dict[str, Any]]] = {name: [] for name in filters}
        self.ranks: Counter[int] = Counter()
        self.positive_ranks: Counter[int] = Counter()
        self.sample: list[dict[str, Any]] = []

    def count(self, outcomes: Sequence[Filtered], filters: Sequence[Filter]) -> None:
        """Count the outcomes of a part, before the filters see the next: they remember the reasons of one part only."""
        for outcome in outcomes:
            found = outcome.found
            self.counts["questions"] += 1
            self.counts["hits"] += len(found.ids)
            self.counts["without_hits"] += not found.ids
            self.counts["left"] += len(found.ids) - sum(map(len, outcome.dropped))
            places = found.positive_places
            if places:
                self.counts["positives_found"] += 1
                self.positive_ranks[places[0]] += 1
                self.counts["compared"] += len(outcome.negatives)
                highest = found.scores[places[0]]
                self.counts["above"] += sum(found.scores[place] > highest for place in outcome.negatives)
            self.ranks.update(outcome.negatives)
            for step, dropped in zip(filters, outcome.dropped, strict=True):
                self.dropped[step.name] += len(dropped)
                if dropped and len(self.shown[step.name]) < SHOWN:
                    example = {**_hit(outcome, dropped[0]), "reason": step.reason(found, dropped[0])}
                    self.shown[step.name].append(example)
            if (key := self._key(outcome)) < self.share:
                self.sample.append(_sampled(outcome, key))

    def add(self, state: Mapping[str, Any]) -> None:
        """Add the counts of a later part, from its `as_dict`."""
        for name, value in state["counts"].items():
            self.counts[name] += value
        for name, value in state["dropped"].items():
            self.dropped[name] += value
            self.shown[name] = [*self.shown[name], *state["shown"][name]][:SHOWN]
        for name in ("ranks", "positive_ranks"):
            getattr(self, name).update(dict(enumerate(state[name])))
        self.sample += state["sample"]

    def as_dict(self) -> dict[str, Any]:
        """All counts as JSON values."""
        lists = {"ranks": _listed(self.ranks), "positive_ranks": _listed(self.positive_ranks)}
        return {**{name: getattr(self, name) for name in ("counts", "dropped", "shown", "sample")}, **lists}

    def report(self, corpus: Corpus, *, without: int, examples: int) -> dict[str, Any]:
        """The audit for the file and the page: counts, examples with their texts, and warnings.

        Args:
            corpus: The corpus, for the texts.
            without: How many examples lack negatives.
            examples: How many examples there are.
        """
        sample = sorted(self.sample, key=lambda row: float(row["key"]))
        report = {
            "hits": self.counts["hits"],
            "left": self.counts["left"],
            "questions_without_hits": self.counts["without_hits"],
            "questions_whose_positive_was_found": self.counts["positives_found"],
            "filters": [
                {"name": name, "dropped": count, "examples": [self._described(hit, corpus) for hit in self.shown[name]]}
                for name, count in self.dropped.items()
            ],
            "ranks_of_negatives": _buckets(_listed(self.ranks)),
            "ranks_of_positives": _buckets(_listed(self.positive_ranks)),
            "negatives_with_a_positive_to_compare": self.counts["compared"],
            "negatives_that_score_above_the_positive": self.counts["above"],
            "scores": _scores(sample),
            "sample": [_sampled_question(row, corpus) for row in sample[:SAMPLED_QUESTIONS]],
        }
        return {**report, "warnings": list(self._warnings(without, examples))}

    def complaint(self, source: str) -> str:
        """The error message for a run without any negatives."""
        if not self.counts["hits"]:
            return f"'{source}' found nothing for any question. Does it belong to this corpus and these questions?"
        counts = ", ".join(f"{name} {count}" for name, count in self.dropped.items() if count)
        return f"the filters dropped all {self.counts['hits']} hits ({counts}). Raise --depth, or filter less."

    def _key(self, outcome: Filtered) -> float:
        """A number from 0 to 1 that depends on the question only: the order of questions does not change the sample."""
        text = f"audit {self.seed} {outcome.found.question.query.text}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) / (1 << 48)

    def _described(self, shown: Mapping[str, Any], corpus: Corpus) -> dict[str, Any]:
        positive = None if shown["positive"] is None else _passage(corpus.get(shown["positive"]))
        return {**shown, "positive": positive, **_passage(corpus.get(shown["document_id"]))}

    def _warnings(self, without: int, examples: int) -> Iterable[str]:
        questions, hits, negatives = self.counts["questions"], self.counts["hits"], self.ranks.total()
        missing = questions - self.counts["positives_found"]
        if missing >= 0.3 * questions:
            yield (
                f"{missing / questions:.0%} of the questions did not find their positive among their hits: does "
                "the source belong to this corpus? If it is weak, its negatives are easy."
            )
        if without >= 0.01 * examples:
            yield f"{without / examples:.0%} of the examples have no negatives. Raise --depth, or filter less."
        first = sum(self.ranks[place] for place in range(_FIRST_RANKS))
        if negatives and first > 0.5 * negatives:
            yield (
                f"{first / negatives:.0%} of the negatives are from the first {_FIRST_RANKS} ranks, where unlabelled "
                "positives are likely. Keep more negatives, skip the first ranks, or filter by a re-ranker."
            )
        if self.counts["above"] > 0.25 * self.counts["compared"]:
            yield (
                f"{self.counts['above'] / self.counts['compared']:.0%} of the negatives score above their question's "
                "positive, if that was found: some may answer it. A margin or a re-ranker drops such hits."
            )
        heavy = [name for name, count in self.dropped.items() if hits and count > 0.5 * hits]
        if heavy:
            yield f"More than half of all hits were dropped by: {shortlist(heavy)}."


def _listed(counts: Counter[int]) -> list[int]:
    """A list of the counts by place."""
    return [counts[place] for place in range(max(counts, default=-1) + 1)]


def _hit(outcome: Filtered, place: int) -> dict[str, Any]:
    found = outcome.found
    return {
        "query_id": found.question.query.id,
        "query": found.question.query.text,
        "positive": min(found.positives, default=None),
        "document_id": found.ids[place],
        "rank": place + 1,
        "score": found.scores[place],
    }


def _sampled(outcome: Filtered, key: float) -> dict[str, Any]:
    found = outcome.found
    return {
        "key": key,
        "query_id": found.question.query.id,
        "query": found.question.query.text,
        "answers": list(found.question.query.answers),
        "positives": sorted(found.positives),
        "found": [[place + 1, found.scores[place], found.ids[place]] for place in found.positive_places],
        "first": [[place + 1, found.scores[place], found.ids[place]] for place in outcome.negatives[:NEGATIVES_SHOWN]],
        "negatives": len(outcome.negatives),
        "scores": [found.scores[place] for place in outcome.negatives[:: -(-len(outcome.negatives) // _SCORES) or 1]],
    }


def _sampled_question(row: Mapping[str, Any], corpus: Corpus) -> dict[str, Any]:
    """A question of the sample, with the texts needed to check it by hand."""
    ranks = {document: (rank, score) for rank, score, document in row["found"]}
    unranked = (len(ranks) + 1_000_000,)
    main = min(row["positives"], key=lambda document: (ranks.get(document, unranked)[0], document), default=None)
    positive = None
    if main is not None:
        rank, score = ranks.get(main, (None, None))
        positive = {"rank": rank, "score": score, **_passage(corpus.get(main))}
    return {
        "query_id": row["query_id"],
        "query": row["query"],
        "answers": row["answers"],
        "positive": positive,
        "negatives": row["negatives"],
        "first_negatives": [
            {"rank": rank, "score": score, **_passage(corpus.get(document))} for rank, score, document in row["first"]
        ],
    }


def _passage(passage: Passage) -> dict[str, str]:
    text = " ".join(passage.text.split())
    short = text if len(text) <= _SNIPPET else f"{text[: _SNIPPET - 3]}..."
    return {"document_id": passage.id, "title": passage.title, "text": short}


def _buckets(counts: Sequence[int]) -> list[dict[str, int]]:
    """Counts by rank, in wider buckets towards the end."""
    edges = [*_RANKS, max(_RANKS[-1], len(counts)) + 1]
    return [
        {"from": low, "to": min(high - 1, len(counts)), "count": sum(counts[low - 1 : high - 1])}
        for low, high in pairwise(edges)
        if low <= len(counts)
    ]


def _scores(sample: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The distribution of the scores of retrieved positives, and of negatives."""
    positives = [score for row in sample for _, score, _ in row["found"]]
    negatives = [score for row in sample for score in row["scores"]]
    values = [*positives, *negatives]
    if not values:
        return {}
    low, high = min(values), max(values)
    width = (high - low) / _BINS or 1.0
    return {
        "questions": len(sample),
        "from": low,
        "bin": width,
        "positives": {"count": len(positives), **_quartiles(positives), "bins": _histogram(positives, low, width)},
        "negatives": {"count": len(negatives), **_quartiles(negatives), "bins": _histogram(negatives, low, width)},
    }


def _histogram(values: Sequence[float], low: float, width: float) -> list[int]:
    bins = [0] * _BINS
    for value in values:
        bins[min(int((value - low) / width), _BINS - 1)] += 1
    return bins


def _quartiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    cuts = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [float(values[0])] * 3
    return dict(zip(("lower_quartile", "median", "upper_quartile"), cuts, strict=True))


def distribution(counts: Mapping[int, int]) -> dict[str, float]:
    """The distribution of the number of negatives: extremes, quartiles, mean, and how many examples have none.

    Args:
        counts: Number of negatives -> how many examples have that many.
    """
    values = [number for number in sorted(counts) for _ in range(counts[number])]
    return {
        "least": values[0],
        **_quartiles(values),
        "most": values[-1],
        "mean": statistics.fmean(values),
        "examples_without": counts.get(0, 0),
    }


def audit_table(audit: Mapping[str, Any]) -> str:
    """The audit as text for a terminal."""
    counts, spread, source = audit["counts"], audit["negatives"], audit["source"]
    lines = [
        f"{counted(counts['questions'], 'questions')}, {counted(audit['hits'], 'hits')} from {describe_source(source)}",
        f"  {counted(audit['questions_whose_positive_was_found'], 'questions')} found their positive, "
        f"{audit['questions_without_hits']:,} found nothing",
    ]
    for entry in audit["filters"]:
        lines.append(f"{entry['dropped']:>11,} dropped: {entry['name']}")
        lines += [f"{'':13}{_line(shown)}" for shown in entry["examples"][:3]]
    lines.append(f"{audit['left']:>11,} left")
    lines.append(
        f"{counted(counts['written'], 'examples')} written, {counts['mined']:,} of them mined, with {spread['least']} "
        f"to {spread['most']} negatives (mean {spread['mean']:.1f}); {spread['examples_without']:,} have none"
    )
    lines += [f"Warning: {warning}" for warning in audit["warnings"]]
    return "\n".join(map(printable, lines))


def describe_source(source: Mapping[str, str]) -> str:
    """The source of the hits, with its kind unless that is its name."""
    return source["source"] if source["source"] == source["kind"] else f"{source['kind']} {source['source']}"


def _line(shown: Mapping[str, Any]) -> str:
    title = shown["title"] or shown["document_id"]
    reason = f" ({shown['reason']})" if shown["reason"] else ""
    return f"{shown['query'][:60]!r} found at rank {shown['rank']}: {title[:40]}: {shown['text'][:50]!r}{reason}"
