"""Two ways to do the same work, timed in turn within one run: what a claim of speed rests on.

A machine's speed drifts, so single times mean little. Each round runs A, then B; the ratio is taken round by round.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import torch

from retrievalkit.model.precision import default_device, resolve_precision


def compare(ours: Callable[[], object], peer: Callable[[], object], *, amount: int, unit: str, rounds: int) -> dict:
    """Run both in turn, after a warm-up of each, and return amounts a second and the ratio ours / peer."""
    ours(), peer()
    times = [(_seconds(ours), _seconds(peer)) for _ in range(rounds)]
    ratios = sorted(theirs / own for own, theirs in times)
    return {
        "unit": f"{unit}/s",
        "ours": round(amount / statistics.median(own for own, _ in times), 1),
        "peer": round(amount / statistics.median(theirs for _, theirs in times), 1),
        "ratio": {
            "min": round(ratios[0], 2),
            "median": round(statistics.median(ratios), 2),
            "max": round(ratios[-1], 2),
        },
        "rounds": rounds,
        "machine": machine(),
    }


def machine() -> str:
    """The device, its threads and the precision that "auto" means on it."""
    device = default_device()
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU"
    return f"{name}, {torch.get_num_threads()} threads, precision auto = {resolve_precision('auto', device)}"


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
