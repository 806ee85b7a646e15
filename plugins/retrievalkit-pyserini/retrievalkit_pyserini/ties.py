"""Anserini's final step: round scores and break ties, so that scores determine the order."""

from __future__ import annotations

import numpy as np

ROUNDING = 1e4
CLOSE = np.float32(1e-4)
STEP = np.float32(1e-6)


def part_ties(scores: np.ndarray) -> np.ndarray:
    """Scores, best first, rounded to four decimals and lowered by a millionth for each that equals the one before.

    Computed sequentially in float32, as in Anserini: each score is compared with the preceding, already lowered score.
    """
    parted = rounded(scores)
    start = 0
    for first in np.flatnonzero(parted[:-1] - parted[1:] <= CLOSE) + 1:
        if first >= start:
            start = _lower(parted, int(first))
    return parted


def rounded(scores: np.ndarray) -> np.ndarray:
    """Scores rounded to four decimals, in float32."""
    return (np.floor(scores.astype(np.float64) * ROUNDING + 0.5) / ROUNDING).astype(np.float32)


def _lower(scores: np.ndarray, first: int) -> int:
    """Lower a run of ties that starts at a position; returns where the run has ended."""
    position, ties = first, 0
    while position < len(scores) and scores[position - 1] - scores[position] <= CLOSE:
        ties += 1
        scores[position] -= STEP * np.float32(ties)
        position += 1
    return position
