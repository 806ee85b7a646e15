"""Audit of mined negatives: the hits that each filter dropped, the negatives' ranks, and a sample to check by hand.

Audits are written part by part as JSON and added up, so that an interruption does not change the final audit. All
counts are exact; scores come from a seeded sample of questions.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, Literal, get_args

from retrievalkit.contracts import Filter, Found
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.same_text import normal_form
from retrievalkit.errors import shortlist
from retrievalkit.mining.filters import Filtered
from retrievalkit.reporting.chart import line_chart
from retrievalkit.reporting.page import render
from retrievalkit.reporting.terminal import counted, printable

SHOWN = 5
SAMPLED_SCORES = 1_000
SAMPLED_QUESTIONS = 20
NEGATIVES_SHOWN = 3
_SCORES = 1_000  # maximum scores per sampled question, spread evenly over its negatives
_SNIPPET = 300
_BINS = 30
_OPENED = 3  # questions that are unfolded on the page, to show that there is something to read
Count = Literal["questions", "hits", "without_hits", "positives_found", "left", "compared", "above"]
_RANKS = (1, 2, 3, 4, 6, 11, 21, 51, 101, 201, 501, 1001)
_FIRST_RANKS = 3
_COUNTS: tuple[Count, ...] = get_args(Count)


@dataclass(frozen=True)
class Shown:
    """A dropped hit."""

    query_id: str
    query: str
    positive: str | None
    document_id: str
    rank: int
    score: float
    reason: str


@dataclass(frozen=True)
class Sampled:
    """A question to check by hand; hits are (rank, score, id)."""

    key: float
    query_id: str
    query: str
    answers: list[str]
    positives: list[str]
    positive_hits: list[tuple[int, float, str]]
    first: list[tuple[int, float, str]]
    negatives: int
    scores: list[float]


@dataclass
class Audit:
    """Counts of a mining run, or of a part of it, stored with the part.

    Attributes:
        counts: Questions, hits and their outcomes.
        dropped: Filter -> number of dropped hits, in the order of the filters.
        shown: Filter -> some of the dropped hits.
        sample: A seeded sample of the questions.
        ranks: Rank (from 0) -> number of negatives.
        positive_ranks: Rank (from 0) -> number of best positives.
    """

    counts: dict[Count, int]
    dropped: dict[str, int]
    shown: dict[str, list[Shown]]
    sample: list[Sampled]
    ranks: list[int]
    positive_ranks: list[int]

    @classmethod
    def of(cls, outcomes: Sequence[Filtered], filters: Sequence[Filter], *, questions: int, seed: int = 0) -> Audit:
        """Compute the audit of a part; `questions` is the total of all parts, which sets the rate of the sample.

        Call it before the filters process the next part: they keep the reasons of a single part.
        """
        names = [step.name for step in filters]
        audit = cls(dict.fromkeys(_COUNTS, 0), dict.fromkeys(names, 0), {name: [] for name in names}, [], [], [])
        ranks: Counter[int] = Counter()
        positive_ranks: Counter[int] = Counter()
        for outcome in outcomes:
            hits, query, negatives = outcome.hits, outcome.hits.question.query, outcome.negatives
            audit.counts["questions"] += 1
            audit.counts["hits"] += len(hits.ids)
            audit.counts["without_hits"] += not hits.ids
            audit.counts["left"] += len(hits.ids) - sum(map(len, outcome.dropped))
            places = hits.positive_places
            if places:
                audit.counts["positives_found"] += 1
                positive_ranks[places[0]] += 1
                audit.counts["compared"] += len(negatives)
                highest = hits.scores[places[0]]
                audit.counts["above"] += sum(hits.scores[place] > highest for place in negatives)
            ranks.update(negatives)
            for step, dropped in zip(filters, outcome.dropped, strict=True):
                audit.dropped[step.name] += len(dropped)
                if dropped and len(audit.shown[step.name]) < SHOWN:
                    positive, (rank, score, document) = min(hits.positives, default=None), _hits(hits, dropped[:1])[0]
                    details = positive, document, rank, score, step.reason(hits, dropped[0])
                    audit.shown[step.name].append(Shown(query.id, query.text, *details))
            # The key depends only on the question, so the order of the questions does not change the sample.
            text = f"audit {seed} {normal_form(query.text)}"
            digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=6).digest()
            key = int.from_bytes(digest) / (1 << 48)
            if key < SAMPLED_SCORES / max(1, questions):
                texts = key, query.id, query.text, list(query.answers), sorted(hits.positives)
                first = _hits(hits, negatives[:NEGATIVES_SHOWN])
                scores = [hits.scores[place] for place in negatives[:: -(-len(negatives) // _SCORES) or 1]]
                audit.sample.append(Sampled(*texts, _hits(hits, places), first, len(negatives), scores))
        audit.ranks, audit.positive_ranks = (
            [counts[place] for place in range(max(counts, default=-1) + 1)] for counts in (ranks, positive_ranks)
        )
        return audit

    def add(self, other: Audit) -> None:
        """Add the counts of a later part."""
        for name, value in other.counts.items():
            self.counts[name] += value
        for step, count in other.dropped.items():
            self.dropped[step] += count
            self.shown[step] = [*self.shown[step], *other.shown[step]][:SHOWN]
        self.ranks = list(map(sum, zip_longest(self.ranks, other.ranks, fillvalue=0)))
        self.positive_ranks = list(map(sum, zip_longest(self.positive_ranks, other.positive_ranks, fillvalue=0)))
        self.sample += other.sample

    def report(self, corpus: Corpus, *, without: int, examples: int) -> dict[str, Any]:
        """Return the audit for the file and the page: counts, examples with their texts, and warnings.

        `without` is the number of examples without negatives.
        """
        sample = sorted(self.sample, key=lambda row: row.key)
        report = {
            "hits": self.counts["hits"],
            "left": self.counts["left"],
            "questions_without_hits": self.counts["without_hits"],
            "questions_whose_positive_was_found": self.counts["positives_found"],
            "filters": [
                {"name": name, "dropped": count, "examples": [self._described(hit, corpus) for hit in self.shown[name]]}
                for name, count in self.dropped.items()
            ],
            "ranks_of_negatives": _buckets(self.ranks),
            "ranks_of_positives": _buckets(self.positive_ranks),
            "negatives_with_a_positive_to_compare": self.counts["compared"],
            "negatives_that_score_above_the_positive": self.counts["above"],
            "scores": _scores(sample),
            "sample": [_sampled_question(row, corpus) for row in sample[:SAMPLED_QUESTIONS]],
        }
        return {**report, "warnings": list(self._warnings(without, examples))}

    def complaint(self, source: str) -> str:
        """Return the error message for a mining run without any negatives."""
        if not self.counts["hits"]:
            return f"'{source}' has no hits for any question. Check that it belongs to this corpus and these questions."
        counts = ", ".join(f"{name} {count}" for name, count in self.dropped.items() if count)
        return f"the filters dropped all {self.counts['hits']} hits ({counts}). Raise --depth, or relax the filters."

    def _described(self, shown: Shown, corpus: Corpus) -> dict[str, Any]:
        positive = None if shown.positive is None else _passage(corpus.get(shown.positive))
        return {**vars(shown), "positive": positive, **_passage(corpus.get(shown.document_id))}

    def _warnings(self, without: int, examples: int) -> Iterable[str]:
        questions, hits, negatives = self.counts["questions"], self.counts["hits"], sum(self.ranks)
        missing = questions - self.counts["positives_found"]
        if missing >= 0.3 * questions:
            yield (
                f"The hits of {missing / questions:.0%} of the questions do not include their positive. Check that the "
                "source belongs to this corpus; if it is weak, its negatives are easy."
            )
        if without >= 0.01 * examples:
            yield f"{without / examples:.0%} of the examples have no negatives. Raise --depth, or relax the filters."
        first = sum(self.ranks[:_FIRST_RANKS])
        if negatives and first > 0.5 * negatives:
            yield (
                f"{first / negatives:.0%} of the negatives are from the first {_FIRST_RANKS} ranks, where unlabelled "
                "positives are likely. Keep more negatives, skip the first ranks, or filter by a re-ranker."
            )
        if self.counts["above"] > 0.25 * self.counts["compared"]:
            yield (
                f"{self.counts['above'] / self.counts['compared']:.0%} of the negatives score above the retrieved "
                "positive: some may answer the question. A margin or a re-ranker drops these hits."
            )
        heavy = [name for name, count in self.dropped.items() if hits and count > 0.5 * hits]
        if heavy:
            yield f"More than half of all hits were dropped by: {shortlist(heavy)}."


def _hits(hits: Found, places: Sequence[int]) -> list[tuple[int, float, str]]:
    return [(place + 1, hits.scores[place], hits.ids[place]) for place in places]


def _sampled_question(row: Sampled, corpus: Corpus) -> dict[str, Any]:
    """Add the texts needed to check a sampled question by hand."""
    ranks = {document: (rank, score) for rank, score, document in row.positive_hits}
    unranked = (len(ranks) + 1_000_000,)
    main = min(row.positives, key=lambda document: (ranks.get(document, unranked)[0], document), default=None)
    positive = None
    if main is not None:
        rank, score = ranks.get(main, (None, None))
        positive = {"rank": rank, "score": score, **_passage(corpus.get(main))}
    return {
        "query_id": row.query_id,
        "query": row.query,
        "answers": row.answers,
        "positive": positive,
        "negatives": row.negatives,
        "first_negatives": [
            {"rank": rank, "score": score, **_passage(corpus.get(document))} for rank, score, document in row.first
        ],
    }


def _passage(passage: Passage) -> dict[str, str]:
    text = " ".join(passage.text.split())
    short = text if len(text) <= _SNIPPET else f"{text[: _SNIPPET - 3]}..."
    return {"document_id": passage.id, "title": passage.title, "text": short}


def _buckets(counts: Sequence[int]) -> list[dict[str, int]]:
    """Sum counts by rank in buckets that get wider with rank."""
    edges = [*_RANKS, max(_RANKS[-1], len(counts)) + 1]
    return [
        {"from": low, "to": min(high - 1, len(counts)), "count": sum(counts[low - 1 : high - 1])}
        for low, high in pairwise(edges)
        if low <= len(counts)
    ]


def _scores(sample: Sequence[Sampled]) -> dict[str, Any]:
    """Return the score distributions of retrieved positives and of negatives."""
    positives = [score for row in sample for _, score, _ in row.positive_hits]
    negatives = [score for row in sample for score in row.scores]
    values = [*positives, *negatives]
    if not values:
        return {}
    low, high = min(values), max(values)
    width = (high - low) / _BINS or 1.0
    report: dict[str, Any] = {"questions": len(sample), "from": low, "bin": width}
    for name, scores in (("positives", positives), ("negatives", negatives)):
        bins = [0] * _BINS
        for score in scores:
            bins[min(int((score - low) / width), _BINS - 1)] += 1
        report[name] = {"count": len(scores), **_quartiles(scores), "bins": bins}
    return report


def _quartiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    cuts = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [float(values[0])] * 3
    return dict(zip(("lower_quartile", "median", "upper_quartile"), cuts, strict=True))


def distribution(counts: Mapping[int, int]) -> dict[str, float]:
    """Summarise the number of negatives: extremes, quartiles, mean, and examples without any.

    `counts` maps each number of negatives to the number of examples with it.
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
    """Format the audit as text for a terminal."""
    counts, spread, source = audit["counts"], audit["negatives"], audit["source"]
    lines = [
        f"{counted(counts['questions'], 'questions')}, {counted(audit['hits'], 'hits')} from {describe_source(source)}",
        f"  {counted(audit['questions_whose_positive_was_found'], 'questions')} whose positive was retrieved, "
        f"{audit['questions_without_hits']:,} without hits",
    ]
    for entry in audit["filters"]:
        lines.append(f"{entry['dropped']:>11,} dropped: {entry['name']}")
        for shown in entry["examples"][:3]:
            title, text = shown["title"] or shown["document_id"], shown["text"][:50]
            line = f"{'':13}{shown['query'][:60]!r}, rank {shown['rank']}: {title[:40]}: {text!r}"
            lines.append(f"{line} ({shown['reason']})" if shown["reason"] else line)
    lines.append(f"{audit['left']:>11,} left")
    lines.append(
        f"{counted(counts['written'], 'examples')} written, {counts['mined']:,} of them mined, with {spread['least']} "
        f"to {spread['most']} negatives (mean {spread['mean']:.1f}); {spread['examples_without']:,} have none"
    )
    lines += [f"Warning: {warning}" for warning in audit["warnings"]]
    return "\n".join(map(printable, lines))


def describe_source(source: Mapping[str, str]) -> str:
    """Name the source of the hits, with its kind unless they are the same."""
    return source["source"] if source["source"] == source["kind"] else f"{source['kind']} {source['source']}"


def audit_page(audit: Mapping[str, Any], *, title: str) -> str:
    """Render the page of an audit as HTML."""
    return render(
        "audit.html.j2",
        title=f"Mined negatives: {title}",
        subtitle=f"from {describe_source(audit['source'])}",
        audit=audit,
        negatives=sum(bucket["count"] for bucket in audit["ranks_of_negatives"]),
        ranks=_ranks(audit),
        chart=_score_chart(audit["scores"]) if audit["scores"] else "",
        options=[[option, str(value)] for option, value in audit["options"].items()],
        opened=_OPENED,
    )


def _ranks(audit: Mapping[str, Any]) -> list[dict[str, int]]:
    """Put the counts of negatives and best positives side by side, by rank; either may lack a bucket."""
    negatives, positives = (
        {bucket["from"]: bucket["count"] for bucket in audit[name]}
        for name in ("ranks_of_negatives", "ranks_of_positives")
    )
    ends = {bucket["from"]: bucket["to"] for bucket in (*audit["ranks_of_positives"], *audit["ranks_of_negatives"])}
    return [
        {"low": low, "high": high, "negatives": negatives.get(low, 0), "positives": positives.get(low, 0)}
        for low, high in sorted(ends.items())
    ]


def _score_chart(scores: Mapping[str, Any]) -> str:
    """Chart the frequency of scores, one line per kind of passage; each point is the middle of a bin."""
    low, width = scores["from"], scores["bin"]
    series = {
        name: [
            (low + (place + 0.5) * width, 100 * count / scores[name]["count"])
            for place, count in enumerate(scores[name]["bins"])
        ]
        for name in ("positives", "negatives")
        if scores[name]["count"]
    }
    return line_chart(series, x="score", y="share in %")
