"""The curves of a training as pages: `training.html`, drawn from `training.jsonl`, and `logs/pace.html` beside it.

Texts per second and memory have a page of their own, since equal trainings write equal files but for `logs`.
"""

from __future__ import annotations

from pathlib import Path

from retrievalkit.artifacts import CURVES
from retrievalkit.report.chart import line_chart
from retrievalkit.report.page import render, write_page
from retrievalkit.training.resume import LOG, PACE, read_log

Series = dict[str, list[tuple[float, float]]]
# Logged beside the loss, and no terms of it.
_OTHER = ("step", "epoch", "loss", "grad_norm", "learning_rate", "negatives_changed")


_MEASURED = {"texts_per_second": "Texts per second", "memory_gib": "Memory in GiB"}
_PAGE = Path(PACE).with_suffix(".html")


def write_curves(folder: Path) -> None:
    """Write the pages of a training beside its logs; nothing if nothing was logged."""
    series, pace = read_series(folder / LOG), read_series(folder / PACE)
    if pace:
        _write_pace(folder / _PAGE, pace)
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
        links=[(_PAGE.as_posix(), "Texts per second and memory")] if pace else [],
    )
    write_page(folder / CURVES, html)


def _write_pace(path: Path, series: Series) -> None:
    charts = [
        (_MEASURED[name], line_chart({name: points}, x="step", y=_MEASURED[name])) for name, points in series.items()
    ]
    html = render(
        "curves.html.j2",
        title="Pace of the training",
        subtitle="Judging dev questions, mining and saving count in; memory is a GPU's peak, or what the process holds",
        charts=charts,
        columns=["measure", "mean", "lowest", "highest", "last"],
        rows=[[_MEASURED[name], *_extent([value for _, value in points])] for name, points in series.items()],
        links=[(f"../{CURVES}", "Loss, learning rate and dev questions")],
    )
    write_page(path, html)


def _extent(values: list[float]) -> list[float]:
    return [sum(values) / len(values), min(values), max(values), values[-1]]


def read_series(log: Path) -> Series:
    """Name -> (step, value) of everything that a log holds."""
    series: Series = {}
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ()
    for values in read_log(lines, log):
        for name, value in values.items():
            if name not in ("step", "epoch"):
                points = series.setdefault(name, [])
                # A resumed training repeats the steps after its state; the log itself goes back with the state.
                while points and points[-1][0] >= values["step"]:
                    points.pop()
                points.append((values["step"], value))
    return series


def _title(name: str) -> str:
    return f"Dev questions: {name.removeprefix('dev_').replace('_', ' ')}"


def _summary(points: list[tuple[float, float]]) -> list[float]:
    step, lowest = min(points, key=lambda point: point[1])
    return [points[0][1], lowest, step, points[-1][1]]
