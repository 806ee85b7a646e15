"""What `rkit compare --output` writes, by the name it is given.

A page (.html) is one file for a browser. A table (.csv, .md, .tex) has the means, differences and p-values, a row per
run and metric. Figures (.json) are all of it for programs. Any other name is a folder with the page (compare.html), its
plots as PNG (means.png, differences-METRIC.png), the figures (comparison.json), and per_query.tsv with the value of
each query: metric, query, a column per run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.errors import MissingDependencyError
from retrievalkit.evaluate.compare.page import Picture, comparison_page
from retrievalkit.evaluate.compare.plot import draw_differences, draw_means
from retrievalkit.evaluate.compare.result import HEADER, NUMERIC, Comparison
from retrievalkit.report.page import PAGES, write_page
from retrievalkit.report.table import csv_table, latex_table, markdown_table

PAGE, RESULT, PER_QUERY, MEANS = "compare.html", "comparison.json", "per_query.tsv", "means.png"
DIFFERENCES = "differences-{}.png"
_TABLES = {".csv": csv_table, ".md": markdown_table, ".tex": latex_table}
_NOT_IN_NAMES = re.compile(r"[^\w@.-]+")


@dataclass(frozen=True)
class Output:
    """Where a comparison is written, and in which form; see the module.

    Attributes:
        path: The file or folder.
        plot: Whether page and folder have plots, which need matplotlib.
        overwrite: Replace a folder that exists.
    """

    path: Path
    plot: bool = True
    overwrite: bool = False

    @property
    def page(self) -> Path | None:
        """The page that is written, if any."""
        if self.path.suffix in PAGES:
            return self.path
        return None if self._is_file else self.path / PAGE

    @property
    def _is_file(self) -> bool:
        return self.path.suffix in (*PAGES, *_TABLES, ".json")

    def check(self) -> None:
        """Refuse what cannot be written, before anything is read.

        Raises:
            ArtifactError: There is something else at the path.
            MissingDependencyError: Plots are asked for and matplotlib is not installed.
        """
        if self._is_file:
            artifacts.check_output_file(self.path, stream=True)
        else:
            artifacts.check_output(self.path, overwrite=self.overwrite)
        if self.plot and self.page is not None:
            try:
                import matplotlib  # noqa: F401
            except ImportError as error:
                needed_for = "the plots of a comparison (--no-plot leaves them out)"
                raise MissingDependencyError("matplotlib", needed_for, "'retrievalkit[plot]'") from error

    def write(self, comparison: Comparison, inputs: Callable[[], dict[str, Any]]) -> None:
        """Write a comparison; the output appears when it is complete.

        Args:
            comparison: What to write.
            inputs: Describes runs, judgements and queries for the manifest of a folder.
        """
        suffix = self.path.suffix
        if suffix == ".json":
            artifacts.write_json(self.path, comparison.as_json())
        elif suffix in _TABLES:
            table = _TABLES[suffix]([HEADER, *comparison.to_table()], right=NUMERIC)
            with artifacts.write_file(self.path) as staging:
                staging.write_text(f"{table}\n", encoding="utf-8")
        else:
            means = draw_means(comparison) if self.plot else None
            differences = {one: draw_differences(comparison, one) for one in comparison.metrics if self.plot}
            page = comparison_page(comparison, means=means, differences=differences, alone=self._is_file)
            if self._is_file:
                write_page(self.path, page)
            else:
                self._write_folder(comparison, page, means, differences, inputs())

    def _write_folder(
        self,
        comparison: Comparison,
        page: str,
        means: Picture | None,
        differences: dict[str, Picture],
        inputs: dict[str, Any],
    ) -> None:
        with artifacts.write_folder(self.path, overwrite=self.overwrite) as staging:
            write_page(staging / PAGE, page)
            if means is not None:
                (staging / MEANS).write_bytes(means.light)
            for metric, picture in differences.items():
                (staging / DIFFERENCES.format(_NOT_IN_NAMES.sub("-", metric))).write_bytes(picture.light)
            artifacts.write_json(staging / RESULT, comparison.as_json())
            (staging / PER_QUERY).write_text(_per_query_table(comparison), encoding="utf-8")
            artifacts.write_manifest(
                staging,
                "comparison",
                command="compare",
                options=comparison.options | {"metrics": comparison.metrics, "baseline": comparison.baseline},
                inputs=inputs,
                counts={"runs": len(comparison.runs), "queries": max(mean.queries for mean in comparison.means)},
            )


def _per_query_table(comparison: Comparison) -> str:
    lines = ["\t".join(("metric", "query", *comparison.runs))]
    for metric, by_run in comparison.per_query.items():
        for query_id in by_run[comparison.runs[0]]:
            lines.append("\t".join((metric, query_id, *(f"{by_run[run][query_id]:.6g}" for run in comparison.runs))))
    return "\n".join(lines) + "\n"
