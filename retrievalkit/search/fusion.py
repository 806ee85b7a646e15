"""Fusion of the hits of several systems into one run: `rkit search INDEX INDEX --fusion`.

`rrf` is reciprocal rank fusion: the sum of 1 / (k + rank) over the runs (Cormack, Clarke and Buettcher, 2009). `sum`
adds raw scores, `linear` weighted, normalised scores; plugins register other methods. Fused scores are 32-bit floats;
documents with equal scores are ordered by id.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrievalkit import registry, storage
from retrievalkit.contracts import Candidates, FusionMethod
from retrievalkit.data.runs import Ranking
from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.registry.component_options import read_call
from retrievalkit.reporting.terminal import counted
from retrievalkit.search.options import Missing, Normalization, RankConstant

Scores = NDArray[np.float64]
RRF_K = 60


@dataclass(frozen=True)
class Fusion:
    """Fusion of several runs into one; see `FusionOptions`."""

    method: str = "rrf"
    weights: tuple[float, ...] | None = None
    normalization: Normalization | None = None
    missing: Missing | None = None
    rrf_k: RankConstant | None = None

    def __post_init__(self) -> None:
        # An option without effect is refused: the user expects it to change something.
        others = {"rrf_k": "rrf", "weights": "rrf or linear", "normalization": "linear", "missing": "sum or linear"}
        for name in ("weights", "rrf_k", "normalization", "missing"):
            value = getattr(self, name)
            if not self.takes(name) and value not in (None, "none"):
                method = read_call(self.method)[0]
                msg = f"{name}={value} has no effect with fusion '{method}'. Leave it out, or use {others[name]}."
                raise OptionError(msg)
        if self.weights is not None and not all(map(math.isfinite, self.weights)):
            msg = f"weights {list(self.weights)} are not all finite numbers. Give one number per run."
            raise OptionError(msg)
        if self.weights is not None and not any(self.weights):
            msg = f"weights {list(self.weights)} are all 0: every score would be 0. Give at least one other number."
            raise OptionError(msg)
        self._fusion_method  # noqa: B018 - refuses wrong options of the method

    def takes(self, name: str) -> bool:
        """True if the method uses an option: weights, normalization, missing or rrf_k."""
        return self._class.weighted if name == "weights" else name in registry.options(self._class)

    @cached_property
    def _class(self) -> type[FusionMethod]:
        return registry.component("fusion", read_call(self.method)[0]).load()  # type: ignore[no-any-return]

    @cached_property
    def _fusion_method(self) -> FusionMethod:
        name, options, _ = read_call(self.method)
        for flag in ("normalization", "missing", "rrf_k"):
            if flag in options:
                msg = f"'{self.method}' sets {flag}. Set it with --{flag.replace('_', '-')} instead."
                raise OptionError(msg)
            if (value := getattr(self, flag)) is not None and self.takes(flag):
                options[flag] = value
        return registry.create("fusion", name, **options)  # type: ignore[no-any-return]

    @property
    def looks_at_scores(self) -> bool:
        """True if the method uses scores, rather than ranks."""
        return self._class.uses_scores

    def weights_of(self, runs: int) -> Scores:
        """Return the weight of each run, shape (runs,)."""
        if not runs:
            msg = "there are no runs to fuse. Give at least one."
            raise InputError(msg)
        if self.weights is not None and len(self.weights) != runs:
            msg = f"{counted(len(self.weights), 'weights')} for {counted(runs, 'runs')}. Give each run one, in order."
            raise OptionError(msg)
        return np.array(self.weights or [1.0] * runs, dtype=np.float64)

    def parts(self, found: Candidates) -> Scores:
        """Return each run's contribution to each document before weighting, shape (documents, runs)."""
        parts = self._fusion_method.parts(found)
        form = f"{type(parts).__name__} of shape {np.shape(parts)}"
        if not isinstance(parts, np.ndarray) or parts.shape != found.scores.shape or parts.dtype.kind not in "fiu":
            problem = (
                f"parts() returns {form}, and should return numbers of shape {found.scores.shape}, (documents, runs)"
            )
            raise registry.wrong_result("fusion", self._fusion_method, problem)
        if not np.isfinite(parts).all():
            raise registry.wrong_result(
                "fusion", self._fusion_method, f"parts() returns {form} with numbers that are not finite"
            )
        return parts.astype(np.float64, copy=False)

    def __call__(self, found: Candidates, depth: int) -> tuple[list[str], NDArray[np.float32]]:
        """Return the ids and scores of a query's best documents, at most `depth`."""
        return best(found.ids, self.total(self.parts(found)), depth)

    def total(self, parts: Scores) -> NDArray[np.float32]:
        """Compute the fused scores, shape (documents,), from each run's contributions."""
        weighted = parts * self.weights_of(parts.shape[1])
        if weighted.shape[1] > 2:
            # Added in order of size, so that rounding does not depend on the order of the runs.
            weighted.sort(axis=1)
        total: Scores = weighted[:, 0].copy()
        for run in range(1, weighted.shape[1]):
            total += weighted[:, run]
        return total.astype(np.float32)


@dataclass(frozen=True)
class _Index:
    name: str
    identity: str


@dataclass(frozen=True)
class _Choice:
    """The entries that a search reads from a file of tuned weights."""

    indexes: list[_Index]
    fusion: Fusion


def read_choice(path: str | Path, identities: Sequence[str]) -> Fusion:
    """Read the best fusion from a file written by `--tune`."""
    try:
        do = "'rkit search INDEX INDEX --tune QRELS --output FILE' writes a file of tuned weights."
        choice = storage.read_document(path, _Choice, do=do)
    except (OptionError, UnknownNameError) as error:
        raise DataError(str(error), file=path) from error
    names = ", ".join(index.name for index in choice.indexes)
    order = [index.identity for index in choice.indexes]
    if len(order) != len(identities) or (order != list(identities) and sorted(order) == sorted(identities)):
        msg = f"the weights in '{path}' belong to {len(order)} indexes in this order: {names}. Use the same order."
        raise InputError(msg)
    return choice.fusion


class ReciprocalRanks(FusionMethod):
    """Reciprocal rank fusion (RRF): the sum of 1 / (k + rank) over the runs (Cormack, Clarke and Buettcher, 2009).

    Args:
        rrf_k: The constant k; a larger value gives the first ranks less weight.
    """

    uses_scores = False

    def __init__(self, *, rrf_k: int = RRF_K) -> None:
        self.rrf_k = rrf_k

    def parts(self, found: Candidates) -> Scores:
        """Return the reciprocals; 0 for documents that a run did not retrieve."""
        reciprocal: Scores = 1.0 / np.maximum(found.ranks + self.rrf_k, 1)
        return np.where(found.ranks > 0, reciprocal, 0.0)


class Sum(FusionMethod):
    """CombSUM: the sum of the raw scores.

    Args:
        missing: The score of a document that only other runs retrieved.
    """

    weighted = False
    normalization: Normalization = "none"

    def __init__(self, *, missing: Missing = "minimum") -> None:
        self.missing = missing

    def parts(self, found: Candidates) -> Scores:
        """Return the normalised scores."""
        missing = "minimum" if self.missing == "computed" else self.missing
        parts = np.zeros(found.scores.shape)
        for run, column in enumerate(found.scores.T):
            known = ~np.isnan(column)
            if not known.any():
                continue
            values = column[known]
            low, spread = values.min(), np.ptp(values)
            if self.normalization == "min_max":
                values = (values - low) / spread if spread else np.ones_like(values)
            elif self.normalization == "z_score":
                deviation = values.std()
                values = (values - values.mean()) / deviation if spread and deviation else np.zeros_like(values)
            # "min_max" maps equal scores to 1, above missing documents, which get 0.
            lowest = 0.0 if self.normalization == "min_max" else values.min()
            parts[:, run] = lowest if missing == "minimum" else 0.0
            parts[known, run] = values
        return parts


class Linear(Sum):
    """Linear combination of normalised scores.

    Args:
        normalization: Normalisation of scores, per run and query.
        missing: The score of a document that only other runs retrieved.
    """

    weighted = True

    def __init__(self, *, normalization: Normalization = "none", missing: Missing = "minimum") -> None:
        super().__init__(missing=missing)
        self.normalization = normalization


def gather(rankings: Sequence[Ranking], query_id: str) -> Candidates:
    """Collect the hits of all runs for one query."""
    for number, (ids, _) in enumerate(rankings, 1):
        if len(set(ids)) < len(ids):
            twice, _ = Counter(ids).most_common(1)[0]
            msg = f"run {number} has document '{twice}' twice for query '{query_id}'. Remove the duplicate."
            raise InputError(msg)
    documents = list(dict.fromkeys(itertools.chain.from_iterable(ids for ids, _ in rankings)))
    position = dict(zip(documents, range(len(documents)), strict=True))
    rows = [np.fromiter(map(position.__getitem__, ids), np.int64, len(ids)) for ids, _ in rankings]
    shape = (len(documents), len(rankings))
    candidates = Candidates(documents, np.full(shape, np.nan), np.zeros(shape, np.int32))
    for run, (row, (ids, run_scores)) in enumerate(zip(rows, rankings, strict=True)):
        scores = np.asarray(run_scores, dtype=np.float64)
        if not np.isfinite(scores).all():
            wrong = int(np.argmin(np.isfinite(scores)))
            msg = f"run {run + 1} has the score {scores[wrong]} for query '{query_id}' and document '{ids[wrong]}'. "
            msg += "Correct the run: scores must be finite."
            raise InputError(msg)
        candidates.scores[row, run] = scores
        candidates.ranks[row, run] = np.arange(1, len(ids) + 1)
    return candidates


def best(ids: Sequence[str], scores: NDArray[Any], depth: int) -> tuple[list[str], NDArray[np.float32]]:
    """Return the documents with the highest scores (as 32-bit floats); ties in ascending order of id."""
    rounded = scores.astype(np.float32)
    order = np.argsort(-rounded, kind="stable")
    ranked = rounded[order]
    order = order[: depth + int(np.count_nonzero(ranked[depth:] == ranked[depth - 1 : depth]))]
    named = [ids[row] for row in order.tolist()]
    same = np.concatenate([[False], ranked[1 : len(order)] == ranked[: len(order) - 1], [False]])
    starts, ends = np.flatnonzero(~same[:-1] & same[1:]).tolist(), np.flatnonzero(same[:-1] & ~same[1:]).tolist()
    for start, end in zip(starts, ends, strict=True):
        named[start : end + 1] = sorted(named[start : end + 1])
    return named[:depth], ranked[:depth]


def as_hits(ids: Sequence[str], scores: Sequence[float] | NDArray[Any]) -> list[tuple[str, float]]:
    """Pair ids with scores."""
    return list(zip(ids, np.asarray(scores, dtype=np.float32).tolist(), strict=True))
