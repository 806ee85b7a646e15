"""Data sets of ir_datasets: `irds:NAME`, such as `irds:msmarco-passage/dev/small`. See https://ir-datasets.com."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from retrievalkit.artifacts import fingerprint_value
from retrievalkit.data.sources.remote import need, quiet, readable
from retrievalkit.data.sources.source import Part, Source
from retrievalkit.errors import DataError, nearest

_THEIR_NAMES: dict[Part, str] = {"passages": "docs", "queries": "queries", "judgements": "qrels"}


class IrDatasets(Source):
    """A data set of ir_datasets: `irds:NAME`."""

    def parts(self) -> tuple[Part, ...]:
        """The parts of the data set."""
        return tuple(part for part, name in _THEIR_NAMES.items() if getattr(self._dataset, f"has_{name}")())

    def passages(self) -> Iterator[dict[str, Any]]:
        """The documents; one without a field "text" gets the default text of ir_datasets."""
        for row in self._iterate("docs"):
            fields = row._asdict()
            if "text" not in fields:
                fields["text"] = row.default_text()
            yield fields

    def queries(self) -> Iterator[dict[str, Any]]:
        """The queries."""
        return (row._asdict() for row in self._iterate("queries"))

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - the name determines the split
        """The judgements."""
        return (row._asdict() for row in self._iterate("qrels"))

    def fingerprint(self) -> str:
        """A fingerprint of the name, which always refers to the same version of the data."""
        return fingerprint_value(["irds", self.name])

    def size(self) -> int | None:
        """The number of documents, if ir_datasets knows it."""
        with readable(f"irds:{self.name}"):
            count = getattr(self._dataset, "docs_count", lambda: None)()
            return None if count is None else int(count)

    def _iterate(self, part: str) -> Iterator[Any]:
        with readable(f"irds:{self.name}"):
            rows = getattr(self._dataset, f"{part}_iter")()
            with quiet():
                first = list(itertools.islice(rows, 1))  # the first row downloads the data
            yield from itertools.chain(first, rows)

    @cached_property
    def _dataset(self) -> Any:
        ir_datasets = need("ir_datasets", "ir-datasets", f"irds:{self.name}")
        with readable(f"irds:{self.name}"):
            try:
                return ir_datasets.load(self.name)
            except KeyError:
                close = nearest(self.name, ir_datasets.registry)
                hint = f" Did you mean 'irds:{close}'?" if close else ""
                msg = f"ir_datasets knows no data set '{self.name}'.{hint} See https://ir-datasets.com for the names."
                raise DataError(msg) from None
