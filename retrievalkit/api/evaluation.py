"""The quality of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrievalkit.evaluate import program
from retrievalkit.report import notebook
from retrievalkit.report.table import Tabular

if TYPE_CHECKING:
    from pandas import DataFrame


class Evaluation(program.Evaluation, Tabular):
    """The quality of a run: a mapping from metric to its mean; `per_query` has the values of each query."""

    def to_pandas(self) -> DataFrame:
        """A table with a row for each query, and a column for each metric."""
        import pandas

        table = pandas.DataFrame(self.per_query)
        table.index.name = "query_id"
        return table

    def to_arrow(self) -> Any:
        """The same as an Arrow table, with the queries in the column `query_id`."""
        import pyarrow

        return pyarrow.Table.from_pandas(self.to_pandas().reset_index(), preserve_index=False)

    def __repr__(self) -> str:
        return f"Evaluation({', '.join(f'{name}: {value:.4f}' for name, value in self.items())})"

    def _repr_html_(self) -> str:
        rows = [[name, value, self.queries[name]] for name, value in self.items()]
        columns = ["metric", "mean", "queries"]
        return notebook.table("Evaluation", columns, rows, numeric=columns[1:], texts=self.notes)
