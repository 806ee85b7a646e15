"""Output files of a comparison: the file name of `rkit compare --output` selects the format.

A page (.html) is a single file for a browser. A table (.csv, .md, .tex) has the means, differences and p-values, with a
row per run and metric. Figures (.json) are all results for programs. Any other name is a folder with the page
(compare.html), its plots as PNG (means.png, differences-METRIC.png), the figures (comparison.json), and per_query.tsv
with the value of each query: metric, query, a column per run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.data import sources
from retrievalkit.errors import MissingDependencyError
from retrievalkit.evaluation.compare.comparison import HEADER, NUMERIC, Comparison, Difference, Mean, judgement
from retrievalkit.evaluation.compare.plot import Picture, draw_differences, draw_means
from retrievalkit.reporting.page import PAGES, render, write_page
from retrievalkit.reporting.table import csv_table, latex_table, markdown_table
from retrievalkit.reporting.terminal import counted

PAGE = "compare.html"
_TABLES = {".csv": csv_table, ".md": markdown_table, ".tex": latex_table}
MOST_ROWS = 1_000
"""More rows make a browser slow; per_query.tsv has them all."""
_MOST_VERDICTS = 12


def page_of(output: Path) -> Path | None:
    """Return the page written for an output, if any."""
    return output if output.suffix in PAGES else None if _is_file(output) else output / PAGE


def _is_file(output: Path) -> bool:
    return output.suffix in (*PAGES, *_TABLES, ".json")


def check_output(output: Path, *, plot: bool, overwrite: bool) -> None:
    """Refuse an unwritable output before anything is read."""
    if _is_file(output):
        storage.check_output_file(output, stream=True)
    else:
        storage.check_output(output, overwrite=overwrite)
    if plot and page_of(output) is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            needed_for = "the plots of a comparison (--no-plot leaves them out)"
            raise MissingDependencyError("matplotlib", needed_for, "'retrievalkit[plot]'") from error


def write(comparison: Comparison, output: Path, *, plot: bool, overwrite: bool, inputs: Mapping[str, Any]) -> None:
    """Write a comparison; the output appears when it is complete."""
    if output.suffix == ".json":
        storage.write_json(output, comparison.as_json())
        return
    if output.suffix in _TABLES:
        table = _TABLES[output.suffix]([HEADER, *comparison.to_table()], right=NUMERIC)
        with storage.write_file(output) as staging:
            staging.write_text(f"{table}\n", encoding="utf-8")
        return
    means = draw_means(comparison) if plot else None
    differences = {metric: draw_differences(comparison, metric) for metric in comparison.metrics if plot}
    page = comparison_page(comparison, means=means, differences=differences, single_file=_is_file(output))
    if _is_file(output):
        write_page(output, page)
        return
    runs, lines = comparison.runs, [["metric", "query", *comparison.runs]]
    for metric, by_run in comparison.per_query.items():
        lines += [[metric, query, *(f"{by_run[run][query]:.6g}" for run in runs)] for query in by_run[runs[0]]]
    with storage.write_folder(output, overwrite=overwrite) as staging:
        write_page(staging / PAGE, page)
        if means is not None:
            (staging / "means.png").write_bytes(means.light)
        for metric, picture in differences.items():
            name = re.sub(r"[^\w@.-]+", "-", metric)
            (staging / f"differences-{name}.png").write_bytes(picture.light)
        storage.write_json(staging / "comparison.json", comparison.as_json())
        table = "".join("\t".join(line) + "\n" for line in lines)
        (staging / "per_query.tsv").write_text(table, encoding="utf-8")
        storage.write_manifest(
            staging,
            "comparison",
            command="compare",
            options=comparison.options | {"metrics": comparison.metrics, "baseline": comparison.baseline},
            inputs={
                name: storage.describe_input(place, sources.fingerprint(place))
                for name, place in inputs.items()
                if place is not None
            },
            counts={"runs": len(runs), "queries": max(mean.queries for mean in comparison.means)},
        )


def comparison_page(
    comparison: Comparison,
    *,
    means: Picture | None = None,
    differences: Mapping[str, Picture] | None = None,
    single_file: bool = False,
) -> str:
    """Render a comparison as an HTML page."""
    names, metrics = comparison.runs, comparison.metrics
    of_pairs = {(pair.run, pair.metric): pair for pair in comparison.differences}
    rows: dict[str, list[tuple[Mean, Difference | None]]] = {metric: [] for metric in metrics}
    for mean in comparison.means:
        # A row per run, or per pair if a run is compared with several.
        pairs = [pair for pair in comparison.differences if (pair.metric, pair.run) == (mean.metric, mean.run)]
        rows[mean.metric] += [(mean, pair) for pair in pairs] or [(mean, None)]
    many = len(comparison.differences) > _MOST_VERDICTS
    by_run = comparison.per_query[metrics[0]]
    queries = [(query_id, [by_run[run][query_id] for run in names]) for query_id in by_run[names[0]]]
    # The queries on which the runs differ most come first.
    queries.sort(key=lambda row: (min(row[1]) - max(row[1]), row[0]))
    return render(
        "compare.html.j2",
        title=f"Comparison of {' and '.join(names) if len(names) == 2 else f'{len(names)} runs'}",
        subtitle=f"{', '.join(metrics)} over {counted(max(mean.queries for mean in comparison.means), 'queries')}",
        comparison=comparison,
        verdicts=[pair for pair in comparison.differences if not many or pair.metric == metrics[0]],
        means=means,
        differences=differences or {},
        means_of={(mean.run, mean.metric): (mean, of_pairs.get((mean.run, mean.metric))) for mean in comparison.means},
        best={metric: max(mean.mean for mean in comparison.means if mean.metric == metric) for metric in metrics},
        rows=rows,
        queries=queries[:MOST_ROWS],
        left_out=max(0, len(queries) - MOST_ROWS),
        in_words=judgement,
        single_file=single_file,
    )
