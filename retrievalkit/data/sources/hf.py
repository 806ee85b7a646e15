"""Data sets of the Hugging Face hub or of a local folder, by `datasets`: `hf:NAME[:CONFIG][@SPLIT][#REVISION]`.

Data sets with a loading script, which `datasets` no longer runs, are read at the revision `refs/convert/parquet`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from retrievalkit import consent
from retrievalkit.artifacts import fingerprint_value
from retrievalkit.data.sources.remote import need, quiet, readable
from retrievalkit.data.sources.source import Part, Source
from retrievalkit.errors import DataError, InputError

# Others are folders of this machine, or read the files of the working directory (`hf:text`).
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+([:@#]|$)", re.ASCII)


class HuggingFace(Source):
    """A data set of Hugging Face `datasets`: `hf:NAME[:CONFIG][@SPLIT][#REVISION]`.

    All its splits contain the same kind of data, which the column names determine. If a name comes from the manifest of
    an index and not from the user, the hub is asked without the user's token.
    """

    # What `datasets` computes contains the commit, which nobody knows who cannot read the data set.
    content_hashed = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._access: dict[str, Any] = {"token": False} if consent.is_anonymous() else {}
        if consent.is_anonymous() and (not _HUB_NAME.match(name) or os.path.exists(re.split("[:@#]", name)[0])):
            msg = f"'hf:{name}' is named by a file alone, and is not hf:OWNER/NAME. It is opened only if you name it."
            raise InputError(msg)

    def parts(self) -> tuple[Part, ...] | None:
        """None: it depends on the columns."""
        return None

    def passages(self) -> Iterator[dict[str, Any]]:
        """The split named in the address, or else the only one, or "corpus"."""
        return self._read("corpus")

    def queries(self) -> Iterator[dict[str, Any]]:
        """The split named in the address, or else the only one, or "queries"."""
        return self._read("queries")

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:
        """The split named in the address, or else the only one, or `split`."""
        return self._read(split)

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """The split named in the address, or else the only one, or `split`."""
        return self._read(split)

    def fingerprint(self) -> str:
        """The fingerprint that `datasets` computes."""
        with readable(f"hf:{self.name}"):
            loaded = self._loaded
            splits = loaded.values() if isinstance(loaded, dict) else [loaded]
            return fingerprint_value(["hf", self.name, [loaded_split._fingerprint for loaded_split in splits]])

    def size(self) -> int | None:
        """The rows of the split that `passages` reads."""
        with readable(f"hf:{self.name}"):
            return len(self._split("corpus"))

    def _read(self, split: str) -> Iterator[dict[str, Any]]:
        with readable(f"hf:{self.name}"):
            yield from self._split(split)

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
        """A data set, or a dictionary of its splits."""
        datasets = need("datasets", "datasets", f"hf:{self.name}")
        path, _, revision = self.name.partition("#")
        path, _, split = path.partition("@")
        path, _, config = path.partition(":")
        with quiet():
            return datasets.load_dataset(
                path, config or None, split=split or None, revision=revision or None, **self._access
            )
