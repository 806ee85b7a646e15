"""Tables as text, in the four forms that people paste: a terminal, Markdown, LaTeX and CSV.

All functions take rows of cells, which are texts already, so that every form of a table shows the same digits.
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
    """Columns padded with spaces, for a terminal.

    Args:
        rows: Equally many cells in each.
        right: The columns (from 0) that are aligned to the right.
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
    """A table of GitHub's Markdown; see `text_table`. The first row holds the names of the columns."""
    cells = [[_one_line(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in row] for row in rows]
    if not cells:
        return ""
    rule = ["---:" if place in right else "---" for place in range(len(cells[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:]))


def latex_table(rows: Rows, *, right: Collection[int] = ()) -> str:
    """A `tabular` with the rules of the package booktabs; see `text_table`. The first row names the columns."""
    columns = "".join("r" if place in right else "l" for place in range(len(rows[0]) if rows else 0))
    lines = [f"{' & '.join(map(_latex, row))} \\\\" for row in rows]
    ruled = ["\\toprule", *lines[:1], *(["\\midrule"] if lines else []), *lines[1:], "\\bottomrule"]
    return "\n".join([f"\\begin{{tabular}}{{{columns}}}", *ruled, "\\end{tabular}"])


def csv_table(rows: Rows, *, right: Collection[int] = ()) -> str:
    """Comma-separated values; see `text_table`, whose `right` changes nothing here."""
    del right
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue().removesuffix("\n")


def _latex(text: str) -> str:
    return re.sub(r"[\\{}$&#%_~^<>]", lambda match: _LATEX[match[0]], _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Tabular:
    """Something that becomes a table of pandas, and so of other libraries."""

    def to_pandas(self) -> DataFrame:
        """As a table of pandas."""
        raise NotImplementedError

    def to_arrow(self) -> Any:
        """As an Arrow table, which is also for polars and `datasets`: `polars.from_arrow`, `datasets.Dataset`."""
        import pyarrow

        return pyarrow.Table.from_pandas(self.to_pandas(), preserve_index=False)


class Table(list[dict[str, Any]], Tabular):
    """Rows as dicts, which notebooks show as a table."""

    def __init__(self, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(map(dict, rows))
        self.title = title

    @property
    def columns(self) -> list[str]:
        """The fields of the rows."""
        return list(dict.fromkeys(name for row in self for name in row))

    def to_pandas(self) -> DataFrame:
        """A table with a row for each."""
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
