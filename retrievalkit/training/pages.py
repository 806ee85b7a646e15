"""Pages of a training: its model card, `training.html` with curves, and `logs/pace.html` with throughput and memory.

Throughput and memory have a separate page, since equal trainings write equal files except in `logs`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from retrievalkit import storage
from retrievalkit.errors import ArtifactError
from retrievalkit.reporting.chart import line_chart
from retrievalkit.reporting.page import render, write_page
from retrievalkit.storage import CURVES
from retrievalkit.training.checkpoints import LOG, PACE
from retrievalkit.training.selection import NDCG, RR, dev_summary

Manifest = dict[str, Any]
Points = list[tuple[float, float]]
# Logged along with the loss, but not terms of it.
_OTHER = ("step", "epoch", "loss", "grad_norm", "learning_rate", "negatives_changed")
_MEASURED = {"texts_per_second": "Texts per second", "memory_gib": "Memory in GiB"}
_PAGE = Path(PACE).with_suffix(".html")


def write_curves(folder: Path) -> None:
    """Write the pages of a training next to its logs; write nothing if nothing was logged."""
    series, pace = read_series(folder / LOG), read_series(folder / PACE)
    if pace:
        _write(
            folder / _PAGE,
            title="Pace of the training",
            subtitle="Includes dev evaluations, mining and saving; memory is a GPU's peak, or the process's",
            charts=[(_MEASURED[name], {name: points}, _MEASURED[name]) for name, points in pace.items()],
            columns=["measure", "mean", "lowest", "highest", "last"],
            rows=[
                [_MEASURED[name], sum(values) / len(values), min(values), max(values), values[-1]]
                for name, values in ((name, [value for _, value in points]) for name, points in pace.items())
            ],
            links=[(f"../{CURVES}", "Loss, learning rate and dev questions")],
        )
    if not series:
        return
    dev = {name: points for name, points in series.items() if name.startswith("dev_")}
    terms = {name: points for name, points in series.items() if name not in _OTHER and name not in dev}
    losses = {name: series[name] for name in ("loss",) if name in series} | terms
    shown = {"Loss and its terms": losses}
    shown |= {f"Dev questions: {name.removeprefix('dev_').replace('_', ' ')}": {name: dev[name]} for name in dev}
    for name, title in (("learning_rate", "Learning rate"), ("grad_norm", "Norm of the gradient before clipping")):
        shown[title] = {name: series[name]} if name in series else {}
    rows = []
    for name, points in (losses | dev).items():
        best = max if name in (f"dev_{NDCG}", f"dev_{RR}") else min
        step, value = best(points, key=lambda point: point[1])
        rows.append([name, points[0][1], value, step, points[-1][1]])
    _write(
        folder / CURVES,
        title="Training",
        subtitle="Curves over the optimiser steps",
        charts=[(title, lines, title.lower()) for title, lines in shown.items() if lines],
        columns=["measure", "first", "best", "at step", "last"],
        rows=rows,
        links=[(_PAGE.as_posix(), "Texts per second and memory")] if pace else [],
    )


def _write(path: Path, charts: Sequence[tuple[str, dict[str, Points], str]], **parts: Any) -> None:
    drawn = [(title, line_chart(lines, x="step", y=axis)) for title, lines, axis in charts]
    write_page(path, render("curves.html.j2", charts=drawn, **parts))


def read_series(log: Path) -> dict[str, Points]:
    """Read all values of a log: name -> (step, value) pairs."""
    series: dict[str, Points] = {}
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ()
    for number, line in enumerate(lines, 1):
        try:
            values = storage.loads_json(line, nan=True)
        except ValueError:
            values = None
        numbers = values.values() if isinstance(values, dict) and "step" in values else [None]
        if not all(isinstance(value, int | float) for value in numbers):
            msg = f"{log}:{number}: the line is damaged: it is not an entry of a training's log. Train again."
            raise ArtifactError(msg)
        for name, value in values.items():
            if name in ("step", "epoch"):
                continue
            points = series.setdefault(name, [])
            # A resumed training repeats the steps after its state; the log itself is restored with the state.
            while points and points[-1][0] >= values["step"]:
                points.pop()
            points.append((values["step"], value))
    return series


def model_card(
    manifest: Manifest, *, title: str, about: str, facts: Mapping[str, Any], use: Sequence[str], **metadata: Any
) -> str:
    """Return the model card: the README.md that the Hugging Face hub shows, with the figures of the dev set."""
    options, inputs = manifest["options"], manifest["inputs"]
    facts = {"started from": options["model"], **facts}
    if dev := manifest.get("dev"):
        data = Path(inputs.get("dev", inputs["examples"])["path"]).name
        questions = f"{dev['questions']} {'held-out' if dev['held_out'] else 'dev'} questions of {data}"
        described = [metadata.get("pipeline_tag", "text-retrieval"), data, questions]
        metadata["eval_results"] = [
            EvalResult(*described, name.lower().replace("@", "_at_"), value, metric_name=name)
            for name, value in dev["after"].items()
        ]
        metadata["model_name"] = title
    if not os.path.isabs(options["model"]) and not options["model"].startswith("package:"):
        metadata["base_model"] = options["model"]
    if training := options.get("training"):
        names = ("epochs", "batch_size", "learning_rate")
        facts["epochs, batch size, learning rate"] = ", ".join(str(training[name]) for name in names)
    if measured := dev_summary(manifest):
        facts["what training changed"] = measured
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    about = f"{about} Trained with retrievalkit {manifest['versions'].get('retrievalkit', '')}."
    head = ["---", ModelCardData(**metadata).to_yaml(), "---", f"# {title}", "", about, ""]
    action, *commands = use
    commands = [f"    {command}" for command in commands]
    card = "\n".join([*head, "| | |", "|---|---|", *rows, "", f"{action}:", "", *commands, ""])
    for path in filter(os.path.isabs, (entry["path"] for entry in inputs.values())):
        card = card.replace(path, Path(path).name)  # the card may be published
    return card
