"""Tables as text in four formats: terminal, Markdown, LaTeX and CSV.

All functions take rows of formatted cells, so that every format shows the same digits.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from retrievalkit.reporting import notebook
from retrievalkit.reporting.terminal import printable

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = Sequence[Sequence[str]]

_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def text_table(rows: Rows, *, right: Collection[int] = ()) -> str:
    """Format a table for a terminal, with columns padded by spaces.

    Args:
        rows: Rows with the same number of cells.
        right: Right-aligned columns (from 0).
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def markdown_table(rows: Rows, *, right: Collection[int] = ()) -> str:
    """Format a table in GitHub's Markdown; see `text_table`. The first row has the column names."""
    cells = [[_one_line(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in row] for row in rows]
    if not cells:
        return ""
    rule = ["---:" if place in right else "---" for place in range(len(cells[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:]))


def latex_table(rows: Rows, *, right: Collection[int] = ()) -> str:
    """Format a LaTeX `tabular` with rules of booktabs; see `text_table`. The first row has the column names."""
    columns = "".join("r" if place in right else "l" for place in range(len(rows[0]) if rows else 0))
    lines = [f"{' & '.join(map(_latex, row))} \\\\" for row in rows]
    ruled = ["\\toprule", *lines[:1], *(["\\midrule"] if lines else []), *lines[1:], "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *ruled, "\\end{tabular}"])


def csv_table(rows: Rows, *, right: Collection[int] = ()) -> str:
    """Format comma-separated values; see `text_table`; `right` is ignored."""
    del right
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue().removesuffix("\n")


def _latex(text: str) -> str:
    return re.sub(r"[\\{}$&#%_~^<>]", lambda match: _LATEX[match[0]], _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Tabular:
    """Mixin for conversion to pandas, and from there to other libraries."""

    def to_pandas(self) -> DataFrame:
        """Convert to a pandas DataFrame."""
        raise NotImplementedError

    def to_arrow(self) -> Any:
        """Convert to an Arrow table, also for polars and `datasets`: `polars.from_arrow`, `datasets.Dataset`."""
        import pyarrow

        table = self.to_pandas()
        return pyarrow.Table.from_pandas(table.reset_index() if table.index.name else table, preserve_index=False)


class Table(list[dict[str, Any]], Tabular):
    """List of rows as dicts, shown as a table in notebooks."""

    def __init__(self, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(map(dict, rows))
        self.title = title

    @property
    def columns(self) -> list[str]:
        """Fields of the rows."""
        return list(dict.fromkeys(name for row in self for name in row))

    def to_pandas(self) -> DataFrame:
        """Convert to a pandas DataFrame with these rows."""
        import pandas

        return pandas.DataFrame(list(self), columns=self.columns)

    def __repr__(self) -> str:
        if not self:
            return f"{self.title}: none"
        cells = [[_cell(row.get(name)) for name in self.columns] for row in self]
        right = [self.columns.index(name) for name in self._numeric()]
        return f"{self.title}\n{text_table([self.columns, *cells], right=right)}"

    def _repr_html_(self) -> str:
        rows = [[row.get(name) for name in self.columns] for row in self]
        return notebook.table(self.title, self.columns, rows, numeric=self._numeric())

    def _numeric(self) -> list[str]:
        return [name for name in self.columns if all(_is_number(row.get(name)) for row in self)]


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
