"""`rk.Examples`: training examples from a file or from memory, as rows and as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

from retrievalkit.contracts.declarations import Place
from retrievalkit.data import inputs
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.reporting.table import Tabular
from retrievalkit.reporting.terminal import counted

if TYPE_CHECKING:
    from pandas import DataFrame


class Examples(Sequence[Example], Tabular):
    """Training examples: queries with the ids of their positives and hard negatives.

    Args:
        data: A file or another source, rows (dicts, a table, a data set) in any known format, or examples.
        corpus: The passages of the examples, used in training.

    Attributes:
        corpus: The address of the passages; None = unknown, or the examples contain the texts.
        address: The address of the original source, texts included.
        report: The result of the command that wrote the examples: the audit of mining, the counts of scoring.
        summary: The report as text.

    Raises:
        InputError: A row is damaged, or no row has a positive.
    """

    def __init__(self, data: Any, corpus: Any = None) -> None:
        self.corpus = None if corpus is None else inputs.passages(corpus)
        self.report: dict[str, Any] | None = None
        self.summary = ""
        self.address = inputs.examples(data)
        self._rows  # noqa: B018 - damaged rows are refused here

    @classmethod
    def written(cls, path: Place, corpus: str, report: dict[str, Any], summary: str, *, stays: bool = True) -> Self:
        """Create from the file that a command wrote; a file that stays is read at the first access."""
        examples = cls.__new__(cls)
        rows = None if stays else read_examples(str(path)).rows
        examples.corpus, examples.report, examples.summary = corpus, report, summary
        examples.address = inputs.examples(path if rows is None else rows)
        return examples

    @cached_property
    def _rows(self) -> tuple[Example, ...]:
        return tuple(read_examples(self.address).rows)

    def as_json(self) -> dict[str, Any] | None:
        """Return the output of `--json`."""
        return self.report

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Example, ...]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Example | tuple[Example, ...]:
        return self._rows[place]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the examples as JSON lines of ids; the file appears when it is complete."""
        write_examples(os.fspath(path), self)

    def to_pandas(self) -> DataFrame:
        """Return a table with one row per example."""
        import pandas

        columns = ["query_id", "query", "positives", "negatives", "answers"]
        return pandas.DataFrame([[getattr(example, name) for name in columns] for example in self], columns=columns)

    def __repr__(self) -> str:
        negatives = sum(len(example.negatives) for example in self)
        return f"Examples({counted(len(self), 'queries')}, {counted(negatives, 'negatives')})"
