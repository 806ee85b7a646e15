"""Time and peak memory of our side of every case at growing sizes: results/curves.json and curves.svg.

    python benchmarks/curves.py [--only encode,train]

Sizes and seconds are compared on logarithmic axes: slope 1 is linear time, 2 quadratic. Cases that differ only in the
peer are measured once. The peak is the resident memory of the process, with its index or model, or of the command.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import BUILD, HERE, RESULTS, ROOT, Worker, commit, machine
from cases import CASES, Case

import data


def points(case: Case, option: str, sizes: Sequence[int]) -> list[dict[str, float]]:
    """Return seconds and peak memory at each size; rounds above the usual size have no warm-up round."""
    measured = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            worker = Worker(sys.executable, HERE / "ours" / f"{case.ours[0]}.py", Path(folder) / "log")
            options = {**case.options, **case.only_ours, option: size}
            try:
                worker.ask("prepare", side=case.ours[1], data=str(BUILD / "data"), folder=folder, options=options)
                if size <= sizes[1]:
                    worker.ask("round")
                measured.append({"size": size, **worker.ask("round")})
            finally:
                worker.end()
        print(case.name, option, measured[-1], flush=True)
    return measured


def slope(points: list[dict[str, float]], values: str) -> float:
    """Return the slope of the logarithm of values over the logarithm of the size."""
    sizes, logs = ([math.log(point[name]) for point in points] for name in ("size", values))
    return round(statistics.linear_regression(sizes, logs).slope, 2)


def draw(curves: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Draw a panel for each case and option."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = 5
    figure = Figure(figsize=(20, 3 * -(-len(curves) // columns)), layout="constrained")
    panels = figure.subplots(-(-len(curves) // columns), columns, squeeze=False).flatten()
    for panel, (name, points) in zip(panels, curves.items(), strict=False):
        sizes = [point["size"] for point in points]
        for axes, values, mark, color in (
            (panel, "seconds", "o-", "tab:blue"),
            (panel.twinx(), "peak MB", "s--", "gray"),
        ):
            measured = [point[values] for point in points]
            axes.loglog(sizes, measured, mark, color=color)
            # Both axes span as many decades, so that slope 1 is the diagonal.
            axes.set_ylim(min(measured) / 1.3, 1.3 * max(*measured, min(measured) * sizes[-1] / sizes[0]))
            axes.set_ylabel(f"{values}: slope {slope(points, values)}", color=color)
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.minorticks_off()
        panel.set(title=name, xlabel=name.split(": ")[1])
    for panel in panels[len(curves) :]:
        panel.set_axis_off()
    with rc_context({"svg.fonttype": "none"}):  # text, not outlines, in a fifth of the bytes
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
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"curves": {}}
    for case in CASES:
        if case.name in options.only.split(",") or not options.only:
            for option, sizes in case.grows.items():
                curve = points(case, option, sizes)
                slopes = {values: slope(curve, values) for values in ("seconds", "peak MB")}
                known["curves"][f"{case.name}: {option}"] = {"points": curve, "slopes": slopes, "commit": commit()}
                path.write_text(json.dumps({**known, "machine": machine()}, indent=1) + "\n")
    draw({name: curve["points"] for name, curve in known["curves"].items()}, RESULTS / "curves.svg")


if __name__ == "__main__":
    main()
