"""Data sets fetched by other packages.

- `hf:NAME[:CONFIG][@SPLIT][#REVISION]`: from the Hugging Face hub or a local folder, with `datasets`. Data sets with a
  loading script, which `datasets` no longer runs, can be read at the revision `refs/convert/parquet`.
- `irds:NAME`, such as `irds:msmarco-passage/dev/small`: from ir_datasets, see https://ir-datasets.com.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from retrievalkit.data.forms import PASSAGE_IDS
from retrievalkit.data.sources import Part, Source
from retrievalkit.errors import DataError, InputError, MissingDependencyError, RetrievalkitError, nearest

# Other names are local folders, or read files of the working directory (`hf:text`).
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+([:@#]|$)", re.ASCII)
_IR_DATASETS_PARTS: dict[Part, str] = {"passages": "docs", "queries": "queries", "judgements": "qrels"}


class HuggingFace(Source):
    """A data set of Hugging Face `datasets`: `hf:NAME[:CONFIG][@SPLIT][#REVISION]`.

    All splits contain the same kind of data, which the column names determine. If a name comes from an index manifest,
    not from the user, the hub is accessed without the user's token.
    """

    # The fingerprint of `datasets` contains the commit, which is known only to those who can read the data set.
    content_hashed = True

    def parts(self) -> tuple[Part, ...] | None:
        """None: the parts depend on the columns."""
        return None

    def _rows(self, part: Part, split: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of the split in the address, or of the only split, or of "corpus", "queries" or `split`."""
        with _readable(f"hf:{self.name}"):
            yield from self._split({"passages": "corpus", "queries": "queries"}.get(part, split))

    def fingerprint(self) -> str:
        """Return the fingerprint that `datasets` computes."""
        from retrievalkit.contracts.commands import fingerprint_value  # imports models

        with _readable(f"hf:{self.name}"):
            loaded = self._loaded
            splits = loaded.values() if isinstance(loaded, dict) else [loaded]
            return fingerprint_value(["hf", self.name, [loaded_split._fingerprint for loaded_split in splits]])

    def size(self) -> int | None:
        """Return the number of rows in the split of the passages."""
        with _readable(f"hf:{self.name}"):
            return len(self._split("corpus"))

    def _split(self, wanted: str) -> Any:
        if not isinstance(self._loaded, dict):
            return self._loaded
        known = list(self._loaded)
        if wanted in known:
            return self._loaded[wanted]
        if len(known) == 1:
            return self._loaded[known[0]]
        path, mark, revision = self.name.partition("#")
        choice = f"hf:{path}@{known[0]}{mark}{revision}"
        msg = f"hf:{self.name}: it has no split '{wanted}'. Known: {', '.join(known)}. Choose one: {choice}"
        raise DataError(msg)

    @cached_property
    def _loaded(self) -> Any:
        """The data set, or a dictionary of its splits."""
        if self.anonymous and (not _HUB_NAME.match(self.name) or os.path.exists(re.split("[:@#]", self.name)[0])):
            msg = f"'{self.address}' comes from a file, not from you, and is not hf:OWNER/NAME. Name it yourself."
            raise InputError(msg)
        try:
            import datasets
        except ImportError:
            raise MissingDependencyError("datasets", f"reading 'hf:{self.name}'", "'retrievalkit[hf]'") from None
        path, _, revision = self.name.partition("#")
        path, _, split = path.partition("@")
        path, _, config = path.partition(":")
        with _quiet():
            access: dict[str, Any] = {"token": False} if self.anonymous else {}
            return datasets.load_dataset(path, config or None, split=split or None, revision=revision or None, **access)


class IrDatasets(Source):
    """A data set of ir_datasets: `irds:NAME`."""

    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the data set."""
        return tuple(part for part, name in _IR_DATASETS_PARTS.items() if getattr(self._dataset, f"has_{name}")())

    def _rows(self, part: Part, split: str) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - the name determines the split
        """Yield the rows; a document without a field "text" gets the default text of ir_datasets."""
        with _readable(f"irds:{self.name}"):
            rows = getattr(self._dataset, f"{_IR_DATASETS_PARTS[part]}_iter")()
            with _quiet():
                first = list(itertools.islice(rows, 1))  # the first row downloads the data
            for row in itertools.chain(first, rows):
                fields = row._asdict()
                if part == "passages" and "text" not in fields:
                    text, named = row.default_text(), ("title", *PASSAGE_IDS)
                    # Fields contained in the text are not metadata.
                    rest = {name: value for name, value in fields.items() if name in named or str(value) not in text}
                    fields = {**rest, "text": text}
                yield fields

    def fingerprint(self) -> str:
        """Return a fingerprint of the name, which always refers to the same version of the data."""
        from retrievalkit.contracts.commands import fingerprint_value  # imports models

        return fingerprint_value(["irds", self.name])

    def size(self) -> int | None:
        """Return the number of documents, if ir_datasets knows it."""
        with _readable(f"irds:{self.name}"):
            count = getattr(self._dataset, "docs_count", lambda: None)()
            return None if count is None else int(count)

    @cached_property
    def _dataset(self) -> Any:
        address = f"irds:{self.name}"
        try:
            import ir_datasets
        except ImportError:
            raise MissingDependencyError("ir_datasets", f"reading '{address}'", "'retrievalkit[irds]'") from None
        with _readable(address):
            try:
                return ir_datasets.load(self.name)
            except KeyError:
                close = nearest(self.name, ir_datasets.registry)
                hint = f" Did you mean 'irds:{close}'?" if close else ""
                msg = f"ir_datasets has no data set '{self.name}'.{hint} See https://ir-datasets.com for the names."
                raise DataError(msg) from None


@contextmanager
def _readable(address: str) -> Iterator[None]:
    """Convert any fetching failure to a DataError."""
    try:
        yield
    except (RetrievalkitError, GeneratorExit):
        raise
    except Exception as error:
        # The libraries raise dozens of exception types, from several layers of network code.
        text = str(error.args[0] if error.args else "").strip() or type(error).__name__
        reason = text.splitlines()[0][:300].rstrip(".")
        msg = f"'{address}' could not be read: {reason}. Check the name and the network, or give a local file."
        raise DataError(msg) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the libraries' log messages about retries; `_readable` reports the final failure once."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
