"""Writer of vectors/ folders: shards, ids and offsets, all validated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors.store import DTYPES, IDENTITY, IDS, KEYS, OFFSETS, VectorStore, in_order
from retrievalkit.errors import ArtifactError, DataError, InputError
from retrievalkit.storage.schemas import Count, File

_SENT_IDENTITY = IDENTITY.removeprefix(".")


@dataclass(frozen=True)
class _Record:
    """The schema of a shard's record."""

    texts: Count
    dim: Count
    vocabulary: Count
    files: dict[str, File]
    parts: dict[str, File]


class VectorWriter:
    """Writer of a vectors/ folder, shard by shard; the same texts give the same bytes.

    A shard is complete when `write_shard` returns; shards may come in any order. A writer in the folder of an earlier,
    killed writer keeps its shards if both have the same `identity`; otherwise it starts from scratch.

    Args:
        folder: An existing staging folder to write to.
        identity: The texts and the encoding settings, as JSON values.
        store: The object store that receives each complete shard and holds the shards of an earlier writer; None =
            shards stay in the folder.
    """

    def __init__(
        self, folder: str | Path, *, identity: Mapping[str, Any] | None = None, store: storage.Store | None = None
    ) -> None:
        self.folder = Path(folder)
        self._checksums: dict[str, dict[str, Any]] = {}
        self._store, self._sent = store, {} if store is None else store.names()
        fingerprint = storage.fingerprint_value(dict(identity or {}))
        path = self.folder / IDENTITY
        if store is not None:
            _clear(self.folder)
            self._resume(store, fingerprint)
        if not storage.holds(path, fingerprint):
            _clear(self.folder)
            path.write_text(fingerprint)

    def _resume(self, store: storage.Store, fingerprint: str) -> None:
        """Fetch the files of an earlier writer from the store, except vectors; or start from scratch there."""
        partial = [name for name in self._sent if name.startswith(f"{storage.PARTIAL}/")]
        identity = f"{storage.PARTIAL}/{_SENT_IDENTITY}"
        # Without its manifest, the folder in the store is not a vectors folder.
        store.remove([storage.MANIFEST])
        if identity in partial and store.read(identity).decode() == fingerprint:
            for name in partial:
                storage.inside(self.folder, name.partition("/")[2])
                store.fetch(name, self.folder / name.partition("/")[2])
            (self.folder / _SENT_IDENTITY).rename(self.folder / IDENTITY)
            return
        store.remove(partial)
        (self.folder / IDENTITY).write_text(fingerprint)
        store.put(self.folder / IDENTITY, identity)

    def keep(self, path: Path) -> None:
        """Upload another file of the folder to the store, for a writer that resumes."""
        if self._store is not None:
            self._store.put(path, f"{storage.PARTIAL}/{path.name}")

    def completed_shards(self) -> tuple[frozenset[int], Path | None]:
        """Find the complete, unchanged shards; all bytes are read, except those in a store.

        Returns:
            The numbers of these shards, and the first file that changed or is missing.
        """
        complete, changed = set(), None
        for record in self._parts("shard-*.json"):
            number = int(record.stem.rpartition("-")[2])
            changed_file = self._first_changed(number)
            if changed_file is None:
                complete.add(number)
            changed = changed or changed_file
        return frozenset(complete), changed

    def write_shard(
        self,
        number: int,
        ids: Sequence[str],
        vectors: np.ndarray | None,
        *,
        counts: np.ndarray | None = None,
        weights: Any = None,
        keys: np.ndarray | None = None,
    ) -> None:
        """Write a shard. All shards have vectors of the same dim, or none has vectors; equally for weights and keys.

        Args:
            number: The number of the shard, from 0.
            ids: Ids of the texts, without tabs and line breaks.
            vectors: (texts, m, dim), or (rows, dim) with `counts`, or None.
            counts: (texts,) the number of rows of each text, at least 1.
            weights: scipy sparse (texts, vocabulary), or None.
            keys: (texts, m) or (rows,) integers of 32 bits, the keys of the vectors, or None.

        Raises:
            DataError: An id is empty, or contains a tab or a line break.
            InputError: A vector or a weight is not finite.
            ValueError: The shapes do not match.
        """
        if not ids:
            msg = f"shard {number} has no texts"
            raise ValueError(msg)
        rows, counts, matrix, keys = check_shard(ids, vectors, counts, weights, keys)
        ids_file, counts_file, keys_file = _parts_of(number)
        parts = self._write(
            ids_file, lambda path: path.write_bytes("".join(f"{identifier}\n" for identifier in ids).encode())
        )
        files: dict[str, dict[str, Any]] = {}
        if rows is not None:
            assert counts is not None
            files |= self._write(f"vectors-{number:05d}.npy", lambda path: np.save(path, rows))
            parts |= self._write(counts_file, lambda path: np.save(path, counts))
        if keys is not None:
            parts |= self._write(keys_file, lambda path: np.save(path, keys))
        if matrix is not None:
            import scipy.sparse

            lexical = f"lexical-{number:05d}.npz"
            files |= self._write(lexical, lambda path: scipy.sparse.save_npz(path, matrix, compressed=False))
        record = {
            "texts": len(ids),
            "dim": 0 if rows is None else int(rows.shape[1]),
            "vocabulary": 0 if weights is None else int(weights.shape[1]),
            "files": files,
            # Removed when `finish` joins them.
            "parts": parts,
        }
        record["fingerprint"] = storage.fingerprint_value(record)
        # Write the record last: it marks the shard as complete.
        if self._store is not None:
            for name in files:
                self._store.put(self.folder / name, name)
                (self.folder / name).unlink()
            for name in parts:
                self.keep(self.folder / name)
        self._write(self._record(number).name, lambda path: path.write_text(json.dumps(record)))
        self.keep(self._record(number))

    def finish(self) -> dict[str, int]:
        """Join the ids, counts and keys of all shards and write the manifest; returns its counts.

        Raises:
            ValueError: There is no shard, or dim or vocabulary differ between shards, or some lack keys.
        """
        shards = len(self._parts("shard-*.json"))
        records = [self._read_record(number) for number in range(shards)]
        kinds = {
            (record["dim"], record["vocabulary"], _parts_of(number)[2] in record["parts"])
            for number, record in enumerate(records)
        }
        if len(kinds) != 1:
            msg = f"{shards} shards with different (dim, vocabulary, keyed): {sorted(kinds)}"
            raise ValueError(msg if kinds else "there is no shard")
        dim, vocabulary, keyed = next(iter(kinds))
        self._checksums = {name: entry for record in records for name, entry in record["files"].items()}

        def join(path: Path) -> None:
            with path.open("wb") as target:
                for part in self._parts("ids-*.txt"):
                    target.write(part.read_bytes())

        self._checksums |= self._write(IDS, join)
        counts = {"texts": sum(record["texts"] for record in records), "shards": shards}
        if dim:
            counts |= {"vectors": self._write_offsets(counts["texts"]), "dim": dim}
        if keyed:
            self._checksums |= self._write(KEYS, lambda path: self._join_keys(path, counts["vectors"]))
        if vocabulary:
            counts["vocabulary"] = vocabulary
        storage.write_manifest(
            self.folder, "vectors", command="write", options={}, counts=counts, files=self.checksums()
        )
        # Remove the first shard's parts last: after a kill here, a new writer continues from the remaining shards.
        for number in reversed(range(shards)):
            self._record(number).unlink()
            for name in _parts_of(number):
                (self.folder / name).unlink(missing_ok=True)
        (self.folder / IDENTITY).unlink()
        return counts

    def checksums(self) -> dict[str, dict[str, Any]]:
        """Return size and checksum of each file, for the manifest's entry `files`; complete after `finish`."""
        return dict(sorted(self._checksums.items()))

    def _record(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.json"

    def _read_record(self, number: int) -> dict[str, Any]:
        path, do = self._record(number), "Remove the folder, and encode again."
        record: dict[str, Any] = storage.read_json(path, do=do)
        storage.check_document(record, _Record, file=path, do=do)
        return record

    def _first_changed(self, number: int) -> Path | None:
        """Return the first file of a shard that changed or is missing; None if all are intact."""
        try:
            record = self._read_record(number)
        except ArtifactError:
            return self._record(number)
        if record.pop("fingerprint", "") != storage.fingerprint_value(record):
            return self._record(number)
        for name, entry in (record["files"] | record["parts"]).items():
            path: Path = self.folder / name
            if self._store is not None and name in record["files"]:
                if self._sent.get(name) != entry["bytes"]:
                    return path
            elif not path.is_file() or storage.describe_file(path) != entry:
                return path
        return None

    def _parts(self, pattern: str) -> list[Path]:
        return in_order(self.folder.glob(pattern))

    def _write(self, name: str, write: Callable[[Path], object]) -> dict[str, dict[str, Any]]:
        path = self.folder / name
        with storage.write_file(path) as staging:
            write(staging)
        return {name: storage.describe_file(path)}

    def _write_offsets(self, texts: int) -> int:
        offsets = np.zeros(texts + 1, dtype=np.int64)
        start = 1
        for path in self._parts("counts-*.npy"):
            counts = np.load(path)
            offsets[start : start + len(counts)] = counts
            start += len(counts)
        varies = bool(texts) and (offsets[1:] != offsets[1]).any()
        np.cumsum(offsets, out=offsets)
        if varies:
            self._checksums |= self._write(OFFSETS, lambda path: np.save(path, offsets))
        return int(offsets[-1])

    def _join_keys(self, path: Path, rows: int) -> None:
        with path.open("wb") as stream:
            header = {"descr": "<i4", "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(stream, header)
            for part in self._parts("keys-*.npy"):
                stream.write(np.load(part).tobytes())


def check_shard(
    ids: Sequence[str],
    vectors: np.ndarray | None,
    counts: np.ndarray | None,
    weights: Any,
    keys: np.ndarray | None,
) -> tuple[np.ndarray | None, np.ndarray | None, Any, np.ndarray | None]:
    """Validate a shard; returns its rows, counts, weights and keys as written (see `VectorWriter.write_shard`)."""
    for identifier in ids:
        if not identifier or "\n" in identifier or "\t" in identifier or "\r" in identifier:
            msg = f"the id {identifier!r} cannot be written to {IDS}: an id may not be empty or contain tabs or line "
            msg += "breaks. Change it."
            raise DataError(msg)
    rows = None
    if vectors is not None:
        if counts is None:
            if vectors.ndim != 3:
                msg = f"vectors must be (texts, m, dim), or (rows, dim) with counts, not {vectors.shape}"
                raise ValueError(msg)
            texts, m, dim = vectors.shape
            vectors, counts = vectors.reshape(texts * m, dim), np.full(texts, m)
        counts = np.asarray(counts, dtype=np.int32)
        if len(counts) != len(ids) or counts.sum() != len(vectors) or (counts < 1).any():
            msg = f"{len(vectors)} vectors do not fit {len(ids)} texts and {len(counts)} counts, each at least 1"
            raise ValueError(msg)
        rows = np.ascontiguousarray(vectors if vectors.dtype.name in DTYPES else vectors.astype(np.float32))
        _check_finite(rows.max(axis=1, initial=0) - rows.min(axis=1, initial=0).astype(np.float32), ids, counts)
    matrix = None
    if weights is not None:
        import scipy.sparse

        # Canonical form, so that equal weights give equal bytes.
        matrix = scipy.sparse.csr_matrix(weights, dtype=np.float32, copy=True)
        if matrix.shape[0] != len(ids):
            msg = f"{matrix.shape[0]} rows of weights do not fit {len(ids)} texts"
            raise ValueError(msg)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        _check_finite(matrix.data, ids, np.diff(matrix.indptr))
    if keys is not None:
        wide = np.asarray(keys).reshape(-1)
        keys = wide.astype("<i4")
        if rows is None or len(keys) != len(rows) or (keys != wide).any():
            msg = f"{len(keys)} keys do not fit {0 if rows is None else len(rows)} vectors, or 32 bits"
            raise ValueError(msg)
    return rows, None if rows is None else counts, matrix, keys


def _parts_of(number: int) -> tuple[str, str, str]:
    """Return the files of a shard that `finish` joins for the whole folder: its ids, counts and keys."""
    return f"ids-{number:05d}.txt", f"counts-{number:05d}.npy", f"keys-{number:05d}.npy"


def _clear(folder: Path) -> None:
    """Remove the files of another writer, but only from a staging folder, which holds nothing else."""
    paths = list(folder.iterdir())
    if paths and not (folder.name.endswith(".partial") or (folder / IDENTITY).exists()):
        msg = f"'{folder}' is not empty, and vectors would be written to it. Choose another folder."
        raise ArtifactError(msg)
    for path in paths:
        storage.discard(path)


def _check_finite(values: np.ndarray, ids: Sequence[str], counts: np.ndarray) -> None:
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        text = ids[int(np.searchsorted(np.cumsum(counts), wrong[0], side="right"))]
        msg = f"the text '{text}' was encoded as numbers that are not finite. Check the model, or use precision fp32."
        raise InputError(msg)


def write_part(source: VectorStore, target: Path, first: int, last: int) -> None:
    """Write the shards from `first` to `last` (exclusive) as a folder; files are linked, not copied.

    Its blocks are the same as in the whole folder, so the scores of its texts are bit-identical.

    Args:
        source: The whole folder.
        target: The folder to write; its previous content is removed.
        first: The number of the first shard.
        last: The number after the last shard.
    """
    shutil.rmtree(target, ignore_errors=True)
    starts = source.starts
    start, end = starts[first], starts[last]
    paths = [path for pattern in ("vectors-*.npy", "lexical-*.npz") for path in source._listed(pattern)[first:last]]
    files = {path.name: source.manifest["files"][path.name] for path in paths}
    source.link_files(files, target)
    with (target / IDS).open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(f"{name}\n" for name in source.ids.take(np.arange(start, end)))
    files[IDS] = storage.describe_file(target / IDS)
    counts = {"texts": end - start, "shards": last - first}
    if source.dim:
        rows = (end - start) * (source.vectors_per_text or 0)
        if source.offsets is not None:
            offsets = np.asarray(source.offsets[start : end + 1]) - source.offsets[start]
            np.save(target / OFFSETS, offsets, allow_pickle=False)
            files[OFFSETS], rows = storage.describe_file(target / OFFSETS), int(offsets[-1])
        if source.keyed:
            own = source.take_keys(np.arange(*source._rows_of(np.array([start, end]))))
            np.save(target / KEYS, own, allow_pickle=False)
            files[KEYS] = storage.describe_file(target / KEYS)
        counts |= {"vectors": rows, "dim": source.dim}
    if source.vocabulary:
        counts["vocabulary"] = source.vocabulary
    manifest = {name: value for name, value in source.manifest.items() if name != "left_out"}
    storage.write_json(target / storage.MANIFEST, {**manifest, "counts": counts, "files": files})
