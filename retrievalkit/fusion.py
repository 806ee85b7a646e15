"""Joins the runs of several systems into one: what `rkit search INDEX INDEX --fusion` does with their hits.

`rrf` adds 1 / (k + rank) over the runs (Cormack, Clarke and Buettcher, 2009), `sum` adds scores as they are, `linear`
adds weighted, normalised scores. Documents of equal score stand in the order of their ids.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

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


Scores = NDArray[np.float64]
Contribution = Callable[[Hits], tuple[Scores, float]]


def _fuse_query(
    query_id: str, lists: list[Hits], weights: list[float], contribution: Contribution, depth: int
) -> list[tuple[str, float]]:
    """The fused hits of one query; `contribution` gives each hit's part of the score, and that of a missing one."""
    documents = sorted(set().union(*map(dict, lists)))
    position = {document_id: row for row, document_id in enumerate(documents)}
    parts = np.zeros((len(documents), len(lists)))  # (documents, runs)
    for run, (hits, weight) in enumerate(zip(lists, weights, strict=True)):
        if hits:
            values, absent = contribution(hits)
            _check_hits(query_id, run + 1, hits, values)
            parts[:, run] = weight * absent
            parts[[position[document_id] for document_id, _ in hits], run] = weight * values
    # added in the order of size, whatever the order of the runs, so that equal scores stay equal
    scores = np.sort(parts, axis=1).sum(axis=1)
    best = np.argsort(-scores, kind="stable")[:depth].tolist()
    return [(documents[row], float(scores[row])) for row in best]


def _reciprocal_rank(k: int) -> Contribution:
    if k < 0:
        msg = f"k of reciprocal rank fusion is {k}; it must be 0 or more (60 is usual)."
        raise OptionError(msg)
    return lambda hits: (1.0 / (k + np.arange(1, len(hits) + 1)), 0.0)


def _normalised(normalization: Normalization, missing: Missing) -> Contribution:
    _check_choice("normalization", normalization, get_args(Normalization))
    _check_choice("way to score missing documents", missing, get_args(Missing))

    def contribution(hits: Hits) -> tuple[Scores, float]:
        scores = np.array([score for _, score in hits], dtype=np.float64)
        low = scores.min()
        if normalization == "min_max":
            spread = np.ptp(scores)
            scores = (scores - low) / spread if spread else np.ones_like(scores)
            low = 0.0
        elif normalization == "z_score":
            deviation = scores.std()
            scores = (scores - scores.mean()) / deviation if np.ptp(scores) and deviation else np.zeros_like(scores)
            low = scores.min()
        return scores, float(low) if missing == "minimum" else 0.0

    return contribution


def _check_hits(query_id: str, number: int, hits: Hits, values: Scores) -> None:
    if len(dict(hits)) < len(hits):
        twice, _ = Counter(document_id for document_id, _ in hits).most_common(1)[0]
        msg = f"run {number} has document '{twice}' twice for query '{query_id}'. Remove one of them."
        raise InputError(msg)
    if not np.isfinite(values).all():
        document_id, score = hits[int(np.argmin(np.isfinite([score for _, score in hits])))]
        msg = f"run {number} has the score {score} for query '{query_id}' and document '{document_id}'. Mend the run."
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
