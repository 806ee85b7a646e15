"""Joins the runs of several systems into one: what `rkit search INDEX INDEX --fusion` does with their hits.

`rrf` adds 1 / (k + rank) over the runs (Cormack, Clarke and Buettcher, 2009), `sum` adds scores as they are, `linear`
adds weighted, normalised scores. Documents of equal score stand in the order of their ids.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from retrievalkit.data.runs import Run
from retrievalkit.errors import InputError, OptionError, UnknownNameError

Method = Literal["rrf", "sum", "linear"]
Normalization = Literal["none", "min_max", "z_score"]
Missing = Literal["minimum", "zero"]

Hits = Sequence[tuple[str, float]]


def fuse(
    runs: Sequence[Run],
    *,
    method: Method = "rrf",
    weights: Sequence[float] | None = None,
    k: int | None = None,
    normalization: Normalization | None = None,
    missing: Missing | None = None,
    depth: int = 1000,
) -> Run:
    """One run out of several.

    Args:
        runs: The runs; a query's hits are best first, and their order is what ranks mean. A run without hits for a
            query adds nothing to that query.
        method: "rrf" looks at ranks, counted from 1; "sum" and "linear" at scores.
        weights: One weight a run, 1 each by default; not for "sum".
        k: The constant of "rrf", 60 by default: the greater, the less the first ranks count.
        normalization: For "linear", what is done with a run's scores for a query: "none" (the default), "min_max" (the
            lowest is 0, the highest 1; where all are equal, all are 1), or "z_score" (mean 0, deviation 1; where all
            are equal, all are 0).
        missing: For "linear" and "sum", the score of a document that only other runs have: "minimum" (the default), the
            run's lowest normalised score for the query (0 for "min_max"), or "zero".
        depth: How many documents to keep for a query.

    Returns:
        The fused run, best first, equal scores by document id ascending; queries in order of first appearance.

    Raises:
        OptionError: An option is out of range, has no effect with the method, or the weights do not fit the runs.
        UnknownNameError: The method, the normalization or the choice of `missing` is unknown.
        InputError: There is no run, a run has a document twice for a query, or a score is not a finite number.
    """
    _check_choice("fusion method", method, get_args(Method))
    _check_effect(method, weights=weights, k=k, normalization=normalization, missing=missing)
    checked = _check_weights(weights, len(runs))
    if depth < 1:
        msg = f"depth is {depth}; it must be 1 or more."
        raise OptionError(msg)
    if method == "rrf":
        contribution = _reciprocal_rank(60 if k is None else k)
    else:
        contribution = _normalised(normalization or "none", missing or "minimum")
    queries = dict.fromkeys(query_id for run in runs for query_id in run)
    return {
        query_id: _fuse_query(query_id, [run.get(query_id, []) for run in runs], checked, contribution, depth)
        for query_id in queries
    }


Contribution = Callable[[Hits], tuple[list[float], float]]


def _fuse_query(
    query_id: str, lists: list[Hits], weights: list[float], contribution: Contribution, depth: int
) -> list[tuple[str, float]]:
    """The fused hits of one query; `contribution` gives each hit's part of the score, and that of a missing one."""
    parts: list[tuple[dict[str, float], float]] = []
    for number, (hits, weight) in enumerate(zip(lists, weights, strict=True), start=1):
        if hits:
            values, absent = contribution(hits)
            part = {document_id: weight * value for (document_id, _), value in zip(hits, values, strict=True)}
            _check_hits(query_id, number, hits, part)
            parts.append((part, weight * absent))
    documents = dict.fromkeys(document_id for part, _ in parts for document_id in part)
    # fsum rounds once, whatever the order of the runs: equal scores stay equal
    scored = [(-math.fsum(part.get(document, absent) for part, absent in parts), document) for document in documents]
    return [(document_id, -score) for score, document_id in sorted(scored)[:depth]]


def _reciprocal_rank(k: int) -> Contribution:
    if k < 0:
        msg = f"k of reciprocal rank fusion is {k}; it must be 0 or more (60 is usual)."
        raise OptionError(msg)
    return lambda hits: ([1.0 / (k + rank) for rank in range(1, len(hits) + 1)], 0.0)


def _normalised(normalization: Normalization, missing: Missing) -> Contribution:
    _check_choice("normalization", normalization, get_args(Normalization))
    _check_choice("way to score missing documents", missing, get_args(Missing))

    def contribution(hits: Hits) -> tuple[list[float], float]:
        scores = [float(score) for _, score in hits]
        low, high = min(scores), max(scores)
        if normalization == "min_max":
            spread = high - low
            scores = [(score - low) / spread if spread else 1.0 for score in scores]
            low = 0.0
        elif normalization == "z_score":
            mean = math.fsum(scores) / len(scores)
            deviation = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
            scores = [(score - mean) / deviation if deviation else 0.0 for score in scores]
            low = min(scores)
        return scores, low if missing == "minimum" else 0.0

    return contribution


def _check_hits(query_id: str, number: int, hits: Hits, part: dict[str, float]) -> None:
    if len(part) != len(hits):
        twice, _ = Counter(document_id for document_id, _ in hits).most_common(1)[0]
        msg = f"run {number} has document '{twice}' twice for query '{query_id}'. Remove one of them."
        raise InputError(msg)
    if not all(map(math.isfinite, part.values())):
        wrong = next(document_id for document_id, value in part.items() if not math.isfinite(value))
        msg = f"run {number} has a score that is no finite number, for query '{query_id}' and document '{wrong}'."
        raise InputError(msg)


def _check_weights(weights: Sequence[float] | None, runs: int) -> list[float]:
    if not runs:
        msg = "there is no run to fuse. Give one or more."
        raise InputError(msg)
    if weights is None:
        return [1.0] * runs
    if len(weights) != runs:
        msg = f"{len(weights)} weights for {runs} runs. Give one weight a run, in their order."
        raise OptionError(msg)
    if not all(math.isfinite(weight) for weight in weights):
        msg = f"weights {list(weights)} are not all finite numbers. Give one number a run."
        raise OptionError(msg)
    return [float(weight) for weight in weights]


def _check_effect(method: Method, **options: object) -> None:
    """An option that would change nothing is a mistake of the user's, and is said."""
    without_effect = {
        "rrf": ("normalization", "missing"),
        "sum": ("weights", "k", "normalization"),
        "linear": ("k",),
    }[method]
    for name in without_effect:
        if options[name] is not None and options[name] != "none":
            fitting = "rrf" if name == "k" else "rrf or linear" if name == "weights" else "linear"
            msg = f"{name}={options[name]} has no effect with fusion '{method}'. Leave it out, or fuse by {fitting}."
            raise OptionError(msg)


def _check_choice(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise UnknownNameError(kind, name, known)
