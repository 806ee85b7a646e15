"""The curves of a training as a page: `training.html`, drawn from `training.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from retrievalkit.artifacts import CURVES
from retrievalkit.report.chart import line_chart
from retrievalkit.report.page import Cell, Page
from retrievalkit.train.resume import LOG

Series = dict[str, list[tuple[float, float]]]
# Logged beside the loss, and no terms of it.
_OTHER = ("step", "epoch", "loss", "grad_norm", "learning_rate", "negatives_changed")


def write_curves(folder: Path) -> None:
    """Write the page of a training beside its log; nothing if nothing was logged."""
    series = read_series(folder / LOG)
    if not series:
        return
    page = Page("Training", "Curves over the optimiser steps")
    dev = {name: points for name, points in series.items() if name.startswith("dev_")}
    terms = {name: points for name, points in series.items() if name not in _OTHER and name not in dev}
    losses = {name: series[name] for name in ("loss",) if name in series} | terms
    for title, shown in (("Loss and its terms", losses), *((_title(name), {name: dev[name]}) for name in dev)):
        _figure(page, title, shown)
    for name, title in (("learning_rate", "Learning rate"), ("grad_norm", "Norm of the gradient before clipping")):
        _figure(page, title, {name: series[name]} if name in series else {})
    columns = ["measure", "first", "lowest", "at step", "last"]
    rows: list[list[Cell]] = [[name, *_summary(points)] for name, points in (losses | dev).items()]
    page.table(columns, rows, numeric=columns[1:], caption="Logged values")
    page.write(folder / CURVES)


def read_series(log: Path) -> Series:
    """Name -> (step, value) of everything that a log holds."""
    series: Series = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        values = json.loads(line)
        for name, value in values.items():
            if name not in ("step", "epoch"):
                series.setdefault(name, []).append((values["step"], value))
    return series


def _figure(page: Page, title: str, series: Mapping[str, list[tuple[float, float]]]) -> None:
    if series:
        page.figure(line_chart(series, x="step", y=title.lower()), title)


def _title(name: str) -> str:
    return f"Dev questions: {name.removeprefix('dev_').replace('_', ' ')}"


def _summary(points: list[tuple[float, float]]) -> list[float]:
    step, lowest = min(points, key=lambda point: point[1])
    return [points[0][1], lowest, step, points[-1][1]]
