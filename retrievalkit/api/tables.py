"""Rows as a table: the results of commands that have no object of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from retrievalkit.report import notebook
from retrievalkit.report.table import Tabular, text_table

if TYPE_CHECKING:
    from pandas import DataFrame


class Table(list[dict[str, Any]], Tabular):
    """Rows as dicts, which notebooks show as a table.

    Attributes:
        title: What they are.
    """

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
