"""The vectors/ folder, written by `rkit encode` and read by indexers.

    manifest.json      provenance, and the size and checksum of every other file
    ids.txt            the id of each text, one per line
    vectors-00000.npy  rows of the first shard: text-major, then vector; float32 or float16
    offsets.npy        only if the number of vectors varies: text t has the rows offsets[t] to offsets[t + 1]
    keys.npy           only if vectors have keys: the key of each row, int32
    lexical-00000.npz  only if there are weights over a vocabulary: scipy CSR, one row per text

Row numbers and offsets refer to the whole folder. Files are mapped when the folder is opened, which they outlive, and
their pages leave memory block by block, so memory use does not grow with the folder. Folders are written shard by
shard: a shard is complete or absent, so a killed encoding can be resumed.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors.arrays import REMEDY, array_in, check_starts, groups, open_array, reading
from retrievalkit.data.vectors.csr import MappedCsr, joined, spread
from retrievalkit.data.vectors.ids import Ids
from retrievalkit.data.vectors.ranges import RangedRows, ranged_rows, read_ahead
from retrievalkit.errors import ArtifactError, UnsupportedError

IDS = "ids.txt"
OFFSETS = "offsets.npy"
KEYS = "keys.npy"
IDENTITY = ".identity.json"
DTYPES = ("float32", "float16")
View = Literal["all", "vectors", "weights"]


@dataclass(frozen=True)
class VectorBlock:
    """Consecutive texts of a folder.

    Attributes:
        first: The row (in ids.txt) of the first text.
        texts: The number of texts.
        vectors: (rows, dim), text-major, mapped into memory; or None.
        starts: (texts + 1,) the first row of each text in the block; None if all texts have equally many rows.
        weights: scipy CSR (texts, vocabulary), or None.
        keys: (rows,) the key of each vector, or None.
    """

    first: int
    texts: int
    vectors: np.ndarray | None
    starts: np.ndarray | None
    weights: Any
    keys: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """The number of vectors, or of texts if there are no vectors."""
        return self.texts if self.vectors is None else len(self.vectors)

    @property
    def counts(self) -> np.ndarray:
        """(texts,) the number of vectors of each text."""
        return np.full(self.texts, self.most_vectors) if self.starts is None else np.diff(self.starts)

    @property
    def most_vectors(self) -> int:
        """The maximum number of vectors per text; 1 if there are no vectors."""
        return self.rows // self.texts if self.starts is None else int(np.diff(self.starts).max())

    def take(self, texts: np.ndarray) -> VectorBlock:
        """Return any of the texts, counted from 0, in the order of `texts`; the result's `first` has no meaning."""
        vectors, starts, keys = self.vectors, self.starts, self.keys
        if vectors is not None:
            if starts is not None:
                rows, starts = spread(starts, texts)
            else:
                rows = np.arange(len(vectors)).reshape(self.texts, -1)[texts].reshape(-1)
            vectors, keys = vectors[rows], None if keys is None else keys[rows]
        weights = None if self.weights is None else self.weights[texts]
        return VectorBlock(0, len(texts), vectors, starts, weights, keys)


@dataclass(frozen=True)
class _Shard:
    """The location of a shard: its files, texts and rows."""

    first_text: int
    texts: int
    first_row: int
    vectors: MappedRows | RangedRows | None
    weights: MappedCsr | None


class MappedRows:
    """A matrix mapped from a file; `RangedRows` is the counterpart in an object store."""

    def __init__(self, path: Path) -> None:
        with reading(path):
            self._file = storage.MappedFile.of(path)
            self._array = array_in(self._file, ("<f4", "<f2"), 2)
        if not self._array.size:
            msg = f"'{path}' contains no vectors. Encode again."
            raise ArtifactError(msg)
        self.filename, self.shape, self.dtype = path, self._array.shape, self._array.dtype

    def rows(self, start: int, end: int) -> np.ndarray:
        """(end - start, dim): the rows from `start` to `end`."""
        return self._file.lent(self._array[start:end])

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(rows, dim): any rows, in the order of `rows`."""
        return self._file.lent(self._array).take(rows, axis=0)


class VectorStore:
    """A vectors/ folder opened for reading, after its files are checked (see `storage.integrity`).

    Args:
        folder: The folder.
        view: "vectors" or "weights" opens only that part of a folder that has both.

    Attributes:
        folder: The folder.
        manifest: The content of its manifest.json.
        ids: The ids of the texts, in order.
        dim: Dimension of the vectors; 0 if there are none.
        rows: The number of vectors.
        vectors_per_text: The number of vectors of each text; None if it varies, or there are none.
        offsets: (texts + 1,) int64, the first row of each text, if the number varies; else None.
        vocabulary: Number of columns of the weights; 0 if there are none.
        keyed: True if vectors have keys.
        dtype: The type of the vectors.

    Raises:
        ArtifactError: It is not a vectors folder, or a file is missing or damaged.
    """

    def __init__(self, folder: str | Path, *, view: View = "all") -> None:
        self.folder = Path(folder)
        self.manifest = storage.read_manifest(self.folder, "vectors")
        self._store = storage.store_of(self.folder)
        files = self.manifest.get("files")
        if not isinstance(files, dict) or IDS not in files:
            msg = f"'{self.folder}' is damaged: its {storage.MANIFEST} does not list its files. Encode again."
            raise ArtifactError(msg)
        if self._store is not None:
            files = {name: entry for name, entry in files.items() if not fnmatch.fnmatchcase(name, storage.VECTORS)}
        storage.check_files(self.folder, files, remedy=REMEDY)
        self.ids = Ids(self.folder / IDS)
        paths = [] if view == "weights" else self._listed(storage.VECTORS)
        headers: Sequence[MappedRows | RangedRows] = [MappedRows(path) for path in paths if self._store is None]
        if self._store is not None and paths:
            headers = ranged_rows(self._store, self.manifest["files"], [path.name for path in paths])
        lexical = [] if view == "vectors" else self._listed("lexical-*.npz")
        weights = []
        for path in lexical:
            with reading(path):
                weights.append(MappedCsr(path))
        if not headers and not weights:
            msg = f"'{self.folder}' contains no {'vectors' if view == 'vectors' else 'weights over a vocabulary'}."
            raise UnsupportedError(msg)
        self.rows = sum(header.shape[0] for header in headers)
        self.dim = int(headers[0].shape[1]) if headers else 0
        self.dtype = headers[0].dtype if headers else np.dtype(np.float32)
        self.vocabulary = weights[0].shape[1] if weights else 0
        self.offsets = self._open_offsets() if headers else None
        self.keyed = bool(headers) and KEYS in self.manifest["files"]
        if self.keyed:
            with reading(self.folder / KEYS):
                self._keys = open_array(self.folder / KEYS, ("<i4",), 1)
                if len(self._keys) != self.rows:
                    msg = f"it holds {len(self._keys)} keys for {self.rows} vectors"
                    raise ValueError(msg)
        self.vectors_per_text = None
        if headers and self.offsets is None:
            if not len(self) or self.rows % len(self):
                counts = f"{self.rows} vectors for {len(self)} texts, no {OFFSETS}"
                msg = f"'{self.folder}' is damaged: {counts}. Encode again."
                raise ArtifactError(msg)
            self.vectors_per_text = self.rows // len(self)
        self._shards = list(self._arrange(headers, weights))
        self._starts = [*(shard.first_text for shard in self._shards), len(self)]

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"VectorStore({str(self.folder)!r})"

    @property
    def most_vectors(self) -> int:
        """The maximum number of vectors per text."""
        if self.offsets is None:
            return self.vectors_per_text or 0
        return int(np.diff(self.offsets).max(initial=0))

    @property
    def starts(self) -> list[int]:
        """The first text of each shard, then the number of texts."""
        return self._starts

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the vectors and their ids, computed from the files' checksums."""
        described = ("fields.parquet", "documents.json")
        files = {name: entry for name, entry in self.manifest["files"].items() if name not in described}
        return storage.fingerprint_value(files)

    def shards(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the vectors, shard by shard: the row of the shard's first text, and (rows, dim) mapped into memory."""
        for first, last in pairwise(self._starts) if self.dim else ():
            vectors = self._between(first, last, weights=False).vectors
            assert vectors is not None
            yield first, vectors

    def lexical(self) -> Iterator[tuple[int, Any]]:
        """Yield the weights, shard by shard: the row of the shard's first text, and a scipy CSR matrix."""
        for first, last in pairwise(self._starts) if self.vocabulary else ():
            yield first, self._between(first, last, vectors=False).weights

    def blocks(self, rows: int) -> Iterator[VectorBlock]:
        """Yield all texts in order, in blocks of about `rows` vectors (or texts, if there are only weights).

        The pages of a block's vectors leave memory when it is dropped. Vectors in an object store are read one block
        ahead.
        """
        blocks = (self._between(start, end) for start, end in self._cuts(rows))
        yield from blocks if self._store is None else read_ahead(blocks)

    def block(self, start: int, end: int) -> VectorBlock:
        """Return the vectors of the texts from `start` to `end`; copied into memory if they span several shards."""
        return self._between(start, end, weights=False)

    def block_rows(self, rows: int) -> int:
        """Return the number of vectors in each of `blocks(rows)`, except the last block of each shard."""
        m = self.vectors_per_text or 1
        return min(max(1, rows // m) * m, int(np.diff(self._rows_of(np.array(self._starts))).max()))

    def take(self, texts: np.ndarray) -> VectorBlock:
        """Return any texts, in the order of `texts`, read into memory; the block's `first` has no meaning."""
        texts = np.asarray(texts, dtype=np.int64)
        vectors, starts, weights, keys = None, None, None, None
        if self.dim:
            if self.offsets is None:
                m = self.vectors_per_text or 1
                rows = (texts[:, None] * m + np.arange(m)).reshape(-1)
            else:
                rows, starts = spread(self.offsets, texts)
            vectors = self.take_vectors(rows)
            keys = self.take_keys(rows) if self.keyed else None
        if self.vocabulary:
            weights = self.take_weights(texts)
        return VectorBlock(0, len(texts), vectors, starts, weights, keys)

    def take_vectors(self, rows: np.ndarray) -> np.ndarray:
        """(rows, dim): any vectors by row, in the order of `rows`, read into memory."""
        result = np.empty((len(rows), self.dim), dtype=self.dtype)
        numbers = np.searchsorted([shard.first_row for shard in self._shards], rows, side="right") - 1
        for number, places in groups(numbers):
            shard = self._shards[number]
            assert shard.vectors is not None
            vectors = shard.vectors.take(rows[places] - shard.first_row)
            if len(places) == len(rows):
                return vectors
            result[places] = vectors
        return result

    def take_keys(self, rows: np.ndarray) -> np.ndarray:
        """(rows,) int32: the keys of any vectors by row, in the order of `rows`, read into memory."""
        keys: np.ndarray = self._keys[rows]
        return keys

    def take_weights(self, texts: np.ndarray) -> Any:
        """(texts, vocabulary) scipy CSR: the weights of any texts, in the order of `texts`, read into memory."""
        firsts = np.array([shard.first_text for shard in self._shards])
        numbers = np.searchsorted(firsts, texts, side="right") - 1
        files = [shard.weights for shard in self._shards if shard.weights is not None]
        return joined(files, numbers, texts - firsts[numbers])

    def texts_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the text of each vector."""
        if self.offsets is None:
            return rows // (self.vectors_per_text or 1)
        texts: np.ndarray = np.searchsorted(self.offsets, rows, side="right") - 1
        return texts

    def link(self, target: str | Path) -> None:
        """Copy the folder to `target`, with hard links if possible."""
        self.link_files([*self.manifest["files"], storage.MANIFEST], Path(target))

    def link_files(self, names: Iterable[str], target: Path) -> None:
        """Copy files of the folder to `target`, with hard links if possible."""
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            if self._store is not None and fnmatch.fnmatchcase(name, storage.VECTORS):
                self._store.fetch(name, target / name)
                storage.check_files(target, {name: self.manifest["files"][name]}, remedy=REMEDY)
                continue
            try:
                # Resolve symlinks first: a hard-linked relative symlink would be broken in the target folder.
                os.link(os.path.realpath(self.folder / name), target / name)
            except OSError:
                shutil.copyfile(self.folder / name, target / name)

    def _listed(self, pattern: str) -> list[Path]:
        return in_order(self.folder / name for name in self.manifest["files"] if fnmatch.fnmatchcase(name, pattern))

    def _open_offsets(self) -> np.ndarray | None:
        path = self.folder / OFFSETS
        if OFFSETS not in self.manifest["files"]:
            return None
        with reading(path):
            offsets = open_array(path, ("<i8",), 1)
            check_starts(offsets, self.rows)
            if len(offsets) != len(self) + 1 or (np.diff(offsets) < 1).any():
                msg = f"it does not fit the other files: {len(self)} texts and {self.rows} vectors"
                raise ValueError(msg)
        return offsets

    def _arrange(self, headers: Sequence[MappedRows | RangedRows], weights: list[MappedCsr]) -> Iterator[_Shard]:
        if headers and weights and len(headers) != len(weights):
            counts = f"{len(headers)} shards of vectors and {len(weights)} of weights"
            msg = f"'{self.folder}' is damaged: it has {counts}. Encode again."
            raise ArtifactError(msg)
        text = row = 0
        for number in range(max(len(headers), len(weights))):
            vectors = headers[number] if headers else None
            matrix = weights[number] if weights else None
            texts, rows = 0 if matrix is None else matrix.shape[0], 0 if vectors is None else vectors.shape[0]
            if vectors is not None:
                end = row + rows
                m = self.vectors_per_text or 1
                texts = (end // m if self.offsets is None else int(np.searchsorted(self.offsets, end))) - text
                fits = vectors.shape[1] == self.dim and vectors.dtype == self.dtype
                if not fits or self._rows_of(text + texts) != end:
                    msg = f"'{vectors.filename}' does not fit the other files of its folder. Encode again."
                    raise ArtifactError(msg)
            if matrix is not None and matrix.shape != (texts, self.vocabulary):
                shape = f"{matrix.shape[0]} x {matrix.shape[1]} weights for {texts} texts"
                msg = f"'{self.folder}' is damaged: its shard {number} has {shape}. Encode again."
                raise ArtifactError(msg)
            yield _Shard(text, texts, row, vectors, matrix)
            text, row = text + texts, row + rows
        if text != len(self):
            msg = f"'{self.folder}' is damaged: {len(self)} ids for {text} texts. Encode again."
            raise ArtifactError(msg)

    def _rows_of(self, texts: Any) -> Any:
        return texts * (self.vectors_per_text or 0) if self.offsets is None else self.offsets[texts]

    def _cuts(self, rows: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of blocks of at most `rows` vectors, but at least one text, within shards."""
        for start, last in pairwise(self._starts):
            while start < last:
                if self.offsets is None:
                    end = start + max(1, rows // (self.vectors_per_text or 1))
                else:
                    end = int(np.searchsorted(self.offsets, self.offsets[start] + rows, side="right")) - 1
                end = min(max(start + 1, end), last)
                yield start, end
                start = end

    def _between(self, start: int, end: int, *, vectors: bool = True, weights: bool = True) -> VectorBlock:
        """Return the texts from `start` to `end`."""
        rows, matrices = [], []
        for number in range(bisect_right(self._starts, start) - 1, len(self._shards)):
            shard = self._shards[number]
            first, last = max(start, shard.first_text), min(end, shard.first_text + shard.texts)
            if first >= last:
                break
            if vectors and shard.vectors is not None:
                places = self._rows_of(np.array([first, last])) - shard.first_row
                rows.append(shard.vectors.rows(*map(int, places)))
            if weights and shard.weights is not None:
                matrices.append(shard.weights.rows(first - shard.first_text, last - shard.first_text))
        return self._as_block(start, end, rows, matrices)

    def _as_block(self, start: int, end: int, rows: Sequence[np.ndarray], matrices: Sequence[Any]) -> VectorBlock:
        vectors = np.concatenate(rows) if len(rows) > 1 else next(iter(rows), None)
        weights = next(iter(matrices), None)
        if len(matrices) > 1:
            import scipy.sparse

            weights = scipy.sparse.vstack(matrices, format="csr")
        varied = self.offsets is not None and vectors is not None
        starts = self.offsets[start : end + 1] - self.offsets[start] if varied else None  # type: ignore[index]
        keys = None
        if self.keyed and vectors is not None:
            keys = self.take_keys(np.arange(*self._rows_of(np.array([start, end]))))
        return VectorBlock(start, end - start, vectors, None if starts is None else np.asarray(starts), weights, keys)


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort files by the numbers in their names."""
    return sorted(paths, key=lambda path: (len(path.name), path.name))
