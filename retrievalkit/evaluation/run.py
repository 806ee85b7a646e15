"""`Run`: search results in memory, to save, evaluate and show as a table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from retrievalkit.contracts.declarations import method
from retrievalkit.data import inputs
from retrievalkit.data.runs import Form, Hits, Ties, read_run, run_names, write_run
from retrievalkit.data.sources import InMemory
from retrievalkit.evaluation.evaluate import EvaluationOptions, evaluate
from retrievalkit.reporting import notebook
from retrievalkit.reporting.table import Tabular
from retrievalkit.reporting.terminal import counted

if TYPE_CHECKING:
    from pandas import DataFrame

    from retrievalkit.evaluation.results import Evaluation

_SHOWN = 10


class Run(dict[str, Hits], Tabular):
    """Search results: query id -> (document id, score), best first.

    Args:
        hits: A dict query -> hits, where hits are a dict document -> score or pairs; or a table (pandas, polars,
            Arrow) or rows with query_id, document_id and score.
        name: The name of the run in comparisons.

    Attributes:
        path: The file that it was read from, if any.
        report: The counts of the command that wrote it, if any.
        summary: The counts as a sentence.

    Raises:
        InputError: The hits have another form, or a query has a document twice.
    """

    def __init__(self, hits: Any = (), name: str = "run") -> None:
        super().__init__(hits if isinstance(hits, Run) else inputs.hits(hits))
        self.name = name
        self.path: str | None = None
        self.report: dict[str, Any] | None = None
        self.summary = ""

    @classmethod
    def of(cls, hits: Iterable[tuple[str, Hits]], name: str) -> Run:
        """Create a run without checking its hits."""
        run = cls(name=name)
        run.update(hits)
        return run

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, ties: Ties = "document_id") -> Run:
        """Read a run in TREC, MS MARCO or BEIR format.

        Args:
            path: The file.
            ties: The order of documents with equal scores: by descending id, or as in the "run".

        Raises:
            DataError: A line is damaged.
        """
        place = inputs.place(path, "the run")
        run = cls.of(read_run(place, ties).items(), run_names([place])[0])
        run.path = place
        return run

    def save(self, path: str | os.PathLike[str], *, form: Form = "trec") -> None:
        """Write the run like `rkit search --output`; the file appears when it is complete.

        Args:
            path: The file; .gz and .zst files are compressed.
            form: "trec", "msmarco" or "beir".
        """
        write_run(os.fspath(path), self, form=form)

    def as_json(self) -> dict[str, Any] | None:
        """Return the `--json` output of the command that wrote it."""
        return self.report

    @method(EvaluationOptions)
    def evaluate(self, options: EvaluationOptions) -> Evaluation:
        """Compute metrics from judgements, top-k accuracy from answers, or both.

        Raises:
            InputError: Judgements and run share no query, or an option is invalid.
        """
        (evaluation,) = evaluate(run=[self], **vars(options)).values()
        return evaluation

    @property
    def address(self) -> str:
        """The address for commands: name and hits."""
        return InMemory.of(self.name, run=self)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Query -> document -> score, the format of pytrec_eval, ranx and BEIR."""
        return {query: dict(hits) for query, hits in self.items()}

    def to_pandas(self) -> DataFrame:
        """Return a DataFrame with the columns query_id, document_id, rank and score."""
        import pandas

        columns = ["query_id", "document_id", "rank", "score"]
        rows: list[tuple[str, str, int, float]] = []
        for query, hits in self.items():
            rows += ((query, document, rank, score) for rank, (document, score) in enumerate(hits, 1))
        return pandas.DataFrame(rows, columns=columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Run, (dict(self), self.name)

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {counted(len(self), 'queries')}, {counted(sum(map(len, self.values())), 'hits')})"

    def _repr_html_(self) -> str:
        rows = [[query, len(hits), *(hits[0] if hits else ("", None))] for query, hits in list(self.items())[:_SHOWN]]
        rest = [f"and {len(self) - _SHOWN:,} more queries"] if len(self) > _SHOWN else []
        columns = ["query", "hits", "first document", "score"]
        return notebook.table(repr(self), columns, rows, numeric=["hits", "score"], texts=rest)
