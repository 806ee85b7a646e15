"""The rows of a Milvus collection for the texts of a vectors/ folder, and the index folder's record of them.

A row (a Milvus entity) has one vector: `row` is its number and primary key, `text` the number of its text, `id` the
text's id. A text's weights over a vocabulary are in its first row. Milvus rejects empty sparse vectors, so the
other rows have a single weight for a placeholder term past the vocabulary, which no query contains.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit.contracts.commands import read_document
from retrievalkit.data.vectors import Ids, VectorBlock, VectorStore, check_starts, open_array, spread
from retrievalkit.errors import ArtifactError, UnsupportedError

ROW, TEXT, ID, VECTOR, WEIGHTS, CONTENT, WORDS = "row", "text", "id", "vector", "weights", "content", "words"
MOST_DIM, MOST_BYTES, MOST_PARTITIONS = 32_768, 65_535, 1024
"""Milvus's limits; the limit in bytes applies to ids, and to passages whose words are searched."""

FOLDER = "milvus.db"
"""The subfolder of an index folder in which Milvus Lite keeps its files."""

_IDS, _DESCRIPTION, _OFFSETS = "ids.txt", "milvus.json", "offsets.npy"
_DO = "Index the vectors again."


@dataclass(frozen=True)
class _Contents:
    """The contents of a collection.

    Attributes:
        collection: The collection's name.
        fingerprint: Identifies the indexed data and the index parameters.
        texts: Number of texts.
        rows: Number of rows.
        dim: Length of a vector; 0 without vectors.
        vocabulary: Number of terms; 0 without weights.
        most_vectors: Maximum number of rows per text.
        partitions: Number of partitions, each with a range of the texts; 0 = no partitions.
        analyzer: Milvus's analyzer of the words of the texts, in JSON; "" = vectors and weights only.
    """

    collection: str
    fingerprint: str
    texts: int
    rows: int
    dim: int
    vocabulary: int
    most_vectors: int
    partitions: int = 0
    analyzer: str = ""


@dataclass(frozen=True, kw_only=True)
class _Description(_Contents):
    """Schema of milvus.json.

    Attributes:
        index: Index type and build parameters.
    """

    index: list[Any]


@dataclass(frozen=True)
class Layout(_Contents):
    """The contents of a collection, as recorded in the index folder.

    Attributes:
        offsets: (texts + 1,) the first row of each text; None if all texts have the same number of rows.
    """

    offsets: np.ndarray | None = None

    @classmethod
    def of(
        cls, source: VectorStore, fingerprint: str, collection: str, *, partitions: int = 0, analyzer: str = ""
    ) -> Layout:
        """Return the layout of a vectors folder.

        Raises:
            UnsupportedError: Milvus does not support vectors of this size.
        """
        rows, most = (source.rows, source.most_vectors) if source.dim else (len(source), 1)
        if source.dim > MOST_DIM:
            msg = (
                f"'{source.folder}' has vectors of {source.dim} dimensions, but Milvus supports at most {MOST_DIM:,}. "
                f"Use --indexer flat or faiss."
            )
            raise UnsupportedError(msg)
        size = (len(source), rows, source.dim, source.vocabulary, most)
        return cls(collection, fingerprint, *size, partitions, analyzer, source.offsets)

    @property
    def fields(self) -> list[str]:
        """The fields by which texts are compared."""
        return [*([VECTOR] if self.dim else []), *([WEIGHTS] if self.vocabulary else [])]

    def viewed(self, view: str) -> Layout:
        """Restrict the layout to a view: "vectors" drops the weights, "weights" the vectors, "all" nothing.

        Raises:
            UnsupportedError: The index lacks the view.
        """
        dim, vocabulary = 0 if view == "weights" else self.dim, 0 if view == "vectors" else self.vocabulary
        if not (dim or vocabulary):
            content = "vectors" if self.dim else "weights"
            msg = f"the index has only {content}, but option 'view' is '{view}'. Leave it out."
            raise UnsupportedError(msg)
        return dataclasses.replace(self, dim=dim, vocabulary=vocabulary)

    def texts_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each row's text."""
        if self.offsets is None:
            return rows // self.most_vectors
        texts: np.ndarray = np.searchsorted(self.offsets, rows, side="right") - 1
        return texts

    def rows_of(self, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of texts, text by text, and the offsets (texts + 1,) of each text among them."""
        if self.offsets is not None:
            return spread(self.offsets, texts)
        m = self.most_vectors
        return (texts[:, None] * m + np.arange(m)).reshape(-1), np.arange(len(texts) + 1) * m

    def partition_of(self, text: int) -> int:
        """Return the number of a text's partition."""
        return text * self.partitions // self.texts

    def texts_in(self, partitions: Sequence[int]) -> np.ndarray:
        """Return the texts of partitions, in ascending order."""
        starts = [-(-number * self.texts // self.partitions) for number in range(self.partitions + 1)]
        return np.concatenate([np.arange(starts[number], starts[number + 1]) for number in sorted(partitions)])

    def entities(
        self, source: VectorStore, rows: int, contents: Iterator[str] | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield all rows as Milvus entities, in lists of at most `rows`, each of one partition.

        Args:
            source: The vectors folder.
            rows: Maximum number of rows per list.
            contents: The words of each text, in order.
        """
        entities: list[dict[str, Any]] = []
        for block in source.blocks(rows):
            for entity in self._of_block(block, source.ids):
                if contents is not None:
                    entity[CONTENT] = next(contents)
                if entities and self.partition_of(entity[TEXT]) != self.partition_of(entities[0][TEXT]):
                    yield entities
                    entities = []
                entities.append(entity)
                if len(entities) == rows:
                    yield entities
                    entities = []
        if entities:
            yield entities

    def _of_block(self, block: VectorBlock, ids: Ids) -> Iterator[dict[str, Any]]:
        texts = np.arange(block.first, block.first + block.texts)
        rows, starts = self.rows_of(texts)
        names, owners = ids.take(texts), np.repeat(np.arange(block.texts), np.diff(starts)).tolist()
        vectors = None if block.vectors is None else np.asarray(block.vectors, dtype=np.float32)
        for number, (row, owner) in enumerate(zip(rows.tolist(), owners, strict=True)):
            entity: dict[str, Any] = {ROW: row, TEXT: block.first + owner, ID: names[owner]}
            if vectors is not None:
                entity[VECTOR] = vectors[number]
            if block.weights is not None:
                start, end = block.weights.indptr[owner : owner + 2] if number == starts[owner] else (0, 0)
                terms = (values[start:end].tolist() for values in (block.weights.indices, block.weights.data))
                entity[WEIGHTS] = dict(zip(*terms, strict=True)) or {self.vocabulary: 1.0}
            yield entity

    def write(self, folder: Path, ids: Ids, *, index: Any) -> None:
        """Write the layout, and the index's type and parameters."""
        with (folder / _IDS).open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{text_id}\n" for text_id in ids)
        if self.offsets is not None:
            np.save(folder / _OFFSETS, np.asarray(self.offsets), allow_pickle=False)
        values = {name: value for name, value in vars(self).items() if name != "offsets"}
        text = json.dumps({**values, "index": index}, indent=2, sort_keys=True)
        (folder / _DESCRIPTION).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, *, embedded: bool) -> tuple[Layout, Ids, Any]:
        """Read the output of `write`: the layout, the ids, and the index's type and parameters.

        Args:
            folder: The index folder.
            embedded: True to require the files of Milvus Lite, too.

        Raises:
            ArtifactError: A file is missing or damaged; or `embedded` is true but the index is on a server.
        """
        values = dataclasses.asdict(read_document(folder / _DESCRIPTION, _Description, do=_DO))
        if embedded and not (folder / FOLDER).is_dir():
            msg = f"'{folder}' refers to a Milvus server. Give its address with the option uri."
            raise ArtifactError(msg)
        index, texts = values.pop("index"), values["texts"]
        offsets, ids = None, Ids(folder / _IDS)
        try:
            if (folder / _OFFSETS).exists():
                offsets = open_array(folder / _OFFSETS, ("<i8",), 1)
                check_starts(offsets, values["rows"])
        except (OSError, ValueError) as error:
            msg = f"'{folder / _OFFSETS}' is damaged: {error}. {_DO}"
            raise ArtifactError(msg) from error
        if {len(ids), len(ids) if offsets is None else len(offsets) - 1} != {texts}:
            msg = f"'{folder}' is damaged: its ids or offsets do not match its {texts} texts. {_DO}"
            raise ArtifactError(msg)
        return cls(**values, offsets=offsets), ids, index


def fingerprint(*parts: Any) -> str:
    """Hash the fingerprint of the indexed data and the index parameters."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def longest_id(ids: Ids) -> int:
    """Return the length of the longest id in UTF-8 bytes, as Milvus counts it.

    Raises:
        UnsupportedError: The id exceeds Milvus's limit.
    """
    longest = max(ids, key=lambda text_id: len(text_id.encode()))
    size = len(longest.encode())
    if size > MOST_BYTES:
        msg = f"the id '{longest[:40]}…' has {size:,} bytes, but Milvus supports at most {MOST_BYTES:,}. Shorten it."
        raise UnsupportedError(msg)
    return size
