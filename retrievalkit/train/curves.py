"""The curves of a training as a page: `training.html`, drawn from `training.jsonl`."""

from __future__ import annotations

from pathlib import Path

from retrievalkit.artifacts import CURVES
from retrievalkit.report.chart import line_chart
from retrievalkit.report.page import render, write_page
from retrievalkit.train.resume import LOG, read_log

Series = dict[str, list[tuple[float, float]]]
# Logged beside the loss, and no terms of it.
_OTHER = ("step", "epoch", "loss", "grad_norm", "learning_rate", "negatives_changed")


def write_curves(folder: Path) -> None:
    """Write the page of a training beside its log; nothing if nothing was logged."""
    series = read_series(folder / LOG)
    if not series:
        return
    dev = {name: points for name, points in series.items() if name.startswith("dev_")}
    terms = {name: points for name, points in series.items() if name not in _OTHER and name not in dev}
    losses = {name: series[name] for name in ("loss",) if name in series} | terms
    shown = {"Loss and its terms": losses} | {_title(name): {name: points} for name, points in dev.items()}
    for name, title in (("learning_rate", "Learning rate"), ("grad_norm", "Norm of the gradient before clipping")):
        shown[title] = {name: series[name]} if name in series else {}
    html = render(
        "curves.html.j2",
        title="Training",
        subtitle="Curves over the optimiser steps",
        charts=[(title, line_chart(lines, x="step", y=title.lower())) for title, lines in shown.items() if lines],
        columns=["measure", "first", "lowest", "at step", "last"],
        rows=[[name, *_summary(points)] for name, points in (losses | dev).items()],
    )
    write_page(folder / CURVES, html)


def read_series(log: Path) -> Series:
    """Name -> (step, value) of everything that a log holds."""
    series: Series = {}
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else ()
    for values in read_log(lines, log):
        for name, value in values.items():
            if name not in ("step", "epoch"):
                series.setdefault(name, []).append((values["step"], value))
    return series


def _title(name: str) -> str:
    return f"Dev questions: {name.removeprefix('dev_').replace('_', ' ')}"


def _summary(points: list[tuple[float, float]]) -> list[float]:
    step, lowest = min(points, key=lambda point: point[1])
    return [points[0][1], lowest, step, points[-1][1]]
