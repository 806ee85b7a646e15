"""Time by size, on logarithmic axes, of both sides of the main cases: results/curves.json and curves.svg.

    python benchmarks/curves.py [--only encode,train]

The slope of a line is the growth of time: 1 = linear, 2 = quadratic.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import BUILD, RESULTS, ROOT, Pair, commit, machine
from cases import CASES, Case

import data


def points(case: Case, option: str, venvs: Path) -> Iterator[dict[str, float]]:
    """Yield the seconds of both sides at each size, the smaller of two rounds; other options are as in the guard."""
    for size in case.grows[option]:
        with tempfile.TemporaryDirectory() as folder:
            pair = Pair(case, Path(folder), {**case.small, option: size}, venvs)
            try:
                rounds = [pair.round() for _ in range(2)]
            finally:
                pair.end()
        seconds = {name: min(round_[name]["seconds"] for round_ in rounds) for name in pair.sides}
        print(case.name, option, size, seconds, flush=True)
        yield {"size": size, **seconds}


def slope(points: list[dict[str, float]], side: str) -> float:
    """Return the slope of log seconds over log size."""
    sizes, seconds = ([math.log(point[name]) for point in points] for name in ("size", side))
    return round(statistics.linear_regression(sizes, seconds).slope, 2)


def draw(seconds: dict[str, Any], path: Path) -> None:
    """Draw a panel for each case and option."""
    from matplotlib.figure import Figure

    columns = 3
    figure = Figure(figsize=(12, 3.2 * -(-len(seconds) // columns)), layout="constrained")
    panels = figure.subplots(-(-len(seconds) // columns), columns, squeeze=False).flatten()
    for panel, (name, points) in zip(panels, seconds.items(), strict=False):
        for side, mark in (("ours", "o-"), ("theirs", "s--")):
            panel.loglog(
                [point["size"] for point in points],
                [point[side] for point in points],
                mark,
                label=f"{side}: slope {slope(points, side)}",
            )
        sizes = [point["size"] for point in points]
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.minorticks_off()
        panel.set(title=name, xlabel=name.split(": ")[1], ylabel="seconds")
        panel.legend()
    for panel in panels[len(seconds) :]:
        panel.set_axis_off()
    figure.savefig(path)


def main() -> None:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="comma-separated names of cases")
    parser.add_argument("--venvs", type=Path, default=ROOT)
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    data.write(BUILD / "data", options.venvs)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "curves.json"
    seconds = json.loads(path.read_text())["seconds"] if path.exists() else {}
    for case in CASES:
        if case.name in options.only.split(",") or not options.only:
            seconds |= {f"{case.name}: {option}": list(points(case, option, options.venvs)) for option in case.grows}
    slopes = {name: {side: slope(points_, side) for side in ("ours", "theirs")} for name, points_ in seconds.items()}
    about = {"machine": machine(), "commit": commit()}
    path.write_text(json.dumps({"seconds": seconds, "slopes": slopes, **about}, indent=1) + "\n")
    draw(seconds, RESULTS / "curves.svg")


if __name__ == "__main__":
    main()
