"""Encoded texts, in memory and as arrays of other libraries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.indexing.corpus_encoding import EncodedShard
from retrievalkit.indexing.options import SHARD_TEXTS
from retrievalkit.reporting.terminal import counted

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Table
    from scipy.sparse import csr_matrix
    from torch import Tensor

    from retrievalkit.contracts import Representation


@dataclass(frozen=True, repr=False)
class Vectors:
    """Encoded texts. `np.asarray(vectors)` is their array if each text has one vector.

    Attributes:
        ids: The ids of the texts.
        vectors: (texts, m, dim) float32, m vectors per text; or (rows, dim) if the number varies; None = none.
        counts: (texts,) number of rows of `vectors` per text, if it varies; else None.
        weights: (texts, vocabulary) term weights, scipy.sparse.csr_matrix; None = none.
        dimensions: Number of dimensions kept of each vector; an index truncates its queries to it; None = all.
        keys: The key of each vector, in the form of `vectors` without its last axis; None = none.
    """

    ids: Sequence[str]
    vectors: np.ndarray | None = None
    counts: np.ndarray | None = None
    weights: csr_matrix | None = None
    dimensions: int | None = None
    keys: np.ndarray | None = None

    @classmethod
    def of(cls, data: Any, ids: Iterable[Any] | None = None) -> Vectors:
        """Create `Vectors` from other data.

        Args:
            data: `Vectors`; (dim,) for a single text, (texts, dim) or (texts, m, dim) numbers of NumPy, torch or
                pandas; a list of (m, dim) arrays; scipy.sparse (texts, vocabulary) term weights; or a table with
                the columns `id` and `vector`.
            ids: The ids of the texts, in order; None = the ids of the table, else numbers from 0.

        Raises:
            InputError: The data has another form, or the ids do not fit.
        """
        if isinstance(data, Vectors):
            encoded = data if ids is None else replace(data, ids=_ids(ids, len(data)))
        elif hasattr(data, "columns") and hasattr(data, "__arrow_c_stream__"):
            import pyarrow

            table = pyarrow.table(data)
            columns = table.column_names
            if "vector" not in columns or (ids is None and "id" not in columns):
                msg = f"the table has the columns {', '.join(columns)}, and should have id and vector. Rename them."
                raise InputError(msg)
            encoded = _of_array(table["vector"].to_pylist(), table["id"].to_pylist() if ids is None else ids)
        elif hasattr(data, "tocsr"):
            weights = data.tocsr().astype(np.float32)
            encoded = Vectors(_ids(ids, weights.shape[0]), weights=weights)
        else:
            encoded = _of_array(data, ids)
        if not len(encoded):
            msg = "there are no vectors. Pass at least one."
            raise InputError(msg)
        for values in (encoded.vectors, None if encoded.weights is None else encoded.weights.data):
            if values is not None and not np.isfinite(values).all():
                msg = "a vector has numbers that are not finite (NaN or infinity). Correct or remove it."
                raise InputError(msg)
        counts = encoded.counts
        if encoded.vectors is not None and (0 in encoded.vectors.shape or (counts is not None and (counts < 1).any())):
            msg = f"the vectors are empty: their shape is {encoded.vectors.shape}. {_KNOWN}"
            raise InputError(msg)
        return encoded

    @classmethod
    def joined(cls, shards: Iterable[EncodedShard], dimensions: int | None = None) -> Vectors:
        """Join encoded shards; `dimensions` is the number of dimensions they keep."""
        from scipy.sparse import vstack

        parts = list(shards)
        ids = [name for part in parts for name in part.ids]
        arrays = [part.vectors for part in parts if part.vectors is not None]
        weights = [part.weights for part in parts if part.weights is not None]
        stacked = vstack(weights, format="csr") if weights else None
        if len({array.shape[1:] for array in arrays}) <= 1 and all(part.counts is None for part in parts):
            return cls(ids, np.concatenate(arrays) if arrays else None, None, stacked, dimensions)
        pairs = zip(parts, arrays, strict=True)
        counts = [
            np.full(len(part.ids), array.shape[1]) if part.counts is None else part.counts for part, array in pairs
        ]
        rows = np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])
        keys = [part.keys for part in parts if part.keys is not None]
        return cls(ids, rows, np.concatenate(counts), stacked, dimensions, np.concatenate(keys) if keys else None)

    def __len__(self) -> int:
        return len(self.ids)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.to_numpy()
        return array.astype(dtype) if dtype is not None and dtype != array.dtype else array.copy() if copy else array

    def write(self, folder: Path, **entries: Any) -> None:
        """Write a vectors folder for indexers; `entries` are further entries of its manifest, such as `checkpoint`."""
        writer = VectorWriter(folder, identity={})
        for number, start in enumerate(range(0, len(self), SHARD_TEXTS)):
            part = slice(start, start + SHARD_TEXTS)
            rows, counts = part, self.counts
            if counts is not None:
                first, counts = int(counts[:start].sum()), counts[part]
                rows = slice(first, first + int(counts.sum()))
            vectors, keys = (None if array is None else array[rows] for array in (self.vectors, self.keys))
            weights = None if self.weights is None else self.weights[part]
            writer.write_shard(number, self.ids[part], vectors, counts=counts, weights=weights, keys=keys)
        written, files = writer.finish(), writer.checksums()
        if self.dimensions is not None and "checkpoint" not in entries:
            entries["dimensions"] = self.dimensions
        storage.write_manifest(folder, "vectors", command="write", options={}, counts=written, files=files, **entries)

    def to_numpy(self) -> np.ndarray:
        """Return the vectors, (texts, dim) float32, or (texts, m, dim) if each text has m vectors.

        Raises:
            UnsupportedError: The texts have only term weights, or varying numbers of vectors.
        """
        if self.vectors is None:
            msg = "the texts have term weights and no vectors. Use `weights`."
            raise UnsupportedError(msg)
        if self.counts is not None:
            msg = "the number of vectors varies from text to text. Use `vectors` (rows) and `counts`, or `to_list()`."
            raise UnsupportedError(msg)
        return self.vectors[:, 0] if self.vectors.shape[1] == 1 else self.vectors

    def to_torch(self) -> Tensor:
        """Return the array of `to_numpy` as a tensor."""
        import torch

        return torch.from_numpy(self.to_numpy())

    def to_list(self) -> list[np.ndarray]:
        """Return the vectors of each text, (m, dim) float32.

        Raises:
            UnsupportedError: The texts have only term weights.
        """
        if self.counts is None:
            array = self.to_numpy()
            return list(array[:, None] if array.ndim == 2 else array)
        assert self.vectors is not None
        return np.split(self.vectors, np.cumsum(self.counts)[:-1])

    def to_pandas(self) -> DataFrame:
        """Return a table with the columns `id` and `vector`."""
        import pandas

        array = self.to_list() if self.counts is not None else self.to_numpy()
        return pandas.DataFrame({"id": list(self.ids), "vector": list(array)})

    def to_arrow(self) -> Table:
        """Return a table with the columns `id` and `vector`; for polars, `polars.from_arrow(vectors.to_arrow())`."""
        import pyarrow

        array = self.to_list() if self.counts is not None else self.to_numpy()
        return pyarrow.table({"id": list(self.ids), "vector": pyarrow.array(list(array))})

    @property
    def representation(self) -> Representation:
        """The texts as an input of `retrievalkit.scoring.scores`."""
        import torch

        from retrievalkit.contracts import Representation

        weights = None if self.weights is None else torch.from_numpy(self.weights.toarray())
        if self.vectors is None:
            return Representation(weights=weights)
        vectors, keys = (None if array is None else torch.from_numpy(array) for array in (self.vectors, self.keys))
        if self.counts is None:
            return Representation(vectors, weights=weights, keys=keys)
        lengths = self.counts.tolist()
        padded, padded_keys = (
            None
            if rows is None
            else torch.nn.utils.rnn.pad_sequence(list(torch.split(rows, lengths)), batch_first=True)
            for rows in (vectors, keys)
        )
        mask = torch.arange(max(lengths)) < torch.from_numpy(self.counts)[:, None]
        return Representation(padded, mask, weights, keys=padded_keys)

    def scores(self, documents: Vectors) -> np.ndarray:
        """Return the scores (texts, documents) of these queries with documents, by the scoring rule of indexes."""
        from retrievalkit.scoring import scores

        return scores(self.representation, documents.representation).numpy()

    def __repr__(self) -> str:
        parts = [counted(len(self), "texts")]
        if self.vectors is not None and self.counts is not None:
            parts.append(f"{counted(len(self.vectors), 'vectors')} of {self.vectors.shape[-1]}")
        elif self.vectors is not None:
            several = f"{self.vectors.shape[1]} vectors each of " if self.vectors.shape[1] > 1 else "vectors of "
            parts.append(f"{several}{self.vectors.shape[-1]}")
        if self.weights is not None:
            parts.append(f"weights of {self.weights.shape[1]:,} terms")
        return f"Vectors({', '.join(parts)})"


_KNOWN = (
    "Pass a numeric array (texts, dim) or (texts, m, dim) of NumPy or torch; a list of arrays if the number of "
    "vectors varies; scipy.sparse term weights; or a table with the columns id and vector."
)


def _of_array(data: Any, ids: Iterable[Any] | None) -> Vectors:
    if hasattr(data, "detach"):  # a tensor, possibly on a GPU and of a type that NumPy lacks
        data = data.detach().cpu().float().numpy()
    if hasattr(data, "to_numpy") and not isinstance(data, np.ndarray):
        data = data.to_numpy()
    if isinstance(data, Mapping | str | bytes) or not hasattr(data, "__len__"):
        msg = f"vectors of the type {type(data).__name__} are unknown. {_KNOWN}"
        raise InputError(msg)
    if isinstance(data, np.ndarray) and data.dtype == object:
        data = list(data)
    try:
        array = np.asarray(data)
        varies = array.dtype == object
    except ValueError:
        varies = True
    if varies:  # arrays (m, dim), whose m varies
        try:
            parts = [np.atleast_2d(np.asarray(rows, dtype=np.float32)) for rows in data]
            counts = np.array([len(rows) for rows in parts], dtype=np.int64)
            return Vectors(_ids(ids, len(parts)), np.concatenate(parts), counts)
        except (TypeError, ValueError):
            msg = f"the vectors differ in their number of dimensions, or are not numbers. {_KNOWN}"
            raise InputError(msg) from None
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2, 3):
        msg = f"the vectors are an array {array.shape} of {array.dtype}. {_KNOWN}"
        raise InputError(msg)
    if array.dtype != np.float16:
        array = array.astype(np.float32)
    if array.ndim == 1:
        array = array[None]
    return Vectors(_ids(ids, len(array)), array[:, None] if array.ndim == 2 else array)


def _ids(ids: Iterable[Any] | None, count: int) -> list[str]:
    if ids is None:
        return [str(number) for number in range(count)]
    names = [str(name) for name in ids]
    if len(names) != count:
        msg = f"there are {len(names):,} ids for {count:,} vectors. Pass an id for each vector."
        raise InputError(msg)
    if len(set(names)) < count:
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"the id '{twice}' occurs twice. Ids must be unique."
        raise InputError(msg)
    return names
