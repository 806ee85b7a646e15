"""Runs compared on the same queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from retrievalkit.api import notebook
from retrievalkit.api.options import call, options_of
from retrievalkit.api.runs import Run, as_address, as_run
from retrievalkit.api.tables import Tabular
from retrievalkit.data import inputs as given
from retrievalkit.data.sources import InMemory
from retrievalkit.evaluate.compare import result

if TYPE_CHECKING:
    from pandas import DataFrame

_COLUMNS = ("metric", "run", "mean", "interval", "against", "difference", "interval of difference", "p (Holm)")


@dataclass(frozen=True)
class Comparison(result.Comparison, Tabular):
    """What `compare` found: means, differences with intervals and tests, wins and losses."""

    def to_pandas(self) -> DataFrame:
        """A table with a row for each metric and run, or for each pair of runs."""
        import pandas

        return pandas.DataFrame(self.to_table(), columns=list(result.HEADER))

    def __repr__(self) -> str:
        means = ", ".join(f"{one.run} {one.metric} {one.mean:.4f}" for one in self.means)
        return f"Comparison({means})"

    def _repr_html_(self) -> str:
        rows = [dict(zip(result.HEADER, row, strict=True)) for row in self.to_table()]
        cells = [[row[name] for name in _COLUMNS] for row in rows]
        numeric = [name for name in _COLUMNS if name not in ("metric", "run", "against")]
        title = f"{', '.join(self.metrics)} of {', '.join(self.runs)}"
        return notebook.table(title, _COLUMNS, cells, numeric=numeric, texts=self.notes, pictures=self._pictures())

    def _pictures(self) -> list[Any]:
        if find_spec("matplotlib") is None:
            return []
        from retrievalkit.evaluate.compare.plot import draw_differences, draw_means

        return [draw_means(self), draw_differences(self, self.metrics[0])]


@options_of("compare", without=("runs",))
def compare(
    runs: Sequence[Any] | Mapping[str, Any], qrels: Any, metrics: str | Sequence[str] | None = None, **options: Any
) -> Comparison:
    """Compare runs: paired significance tests, wins and losses.

    Args:
        runs: Runs or their files, in a list or by name.
        qrels: Judgements: a file or another source, a dict query -> document -> grade, or a table.
        metrics: Names as ir-measures writes them.
        **options: Of `rkit compare`; `output` writes a page, a table or a folder too.

    Returns:
        The comparison, which notebooks show as a table with plots.

    Raises:
        InputError: There are fewer than two runs, or they share no query with the judgements.
    """
    words = {"runs": _addresses(runs), "qrels": given.judgements(qrels), "metrics": metrics} | options
    if options.get("queries") is not None:
        words["queries"] = given.queries(options["queries"])
    if options.get("corpus") is not None:
        words["corpus"] = given.passages(options["corpus"])
    return Comparison(**vars(call("compare", words)))


def _addresses(runs: Sequence[Any] | Mapping[str, Any]) -> list[str]:
    """Their files, or their names with their hits; runs with the same name are numbered."""
    if isinstance(runs, Mapping):
        return [InMemory.of(name, run=as_run(run)) for name, run in runs.items()]
    names = [run.name for run in runs if isinstance(run, Run)]
    return [
        as_address(run, f"{run.name} {number}" if isinstance(run, Run) and names.count(run.name) > 1 else None)
        for number, run in enumerate(runs, 1)
    ]
