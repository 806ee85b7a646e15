"""The vectors of a change: those of texts that come, and those of texts that stay, for an index that is compacted."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors import Ids, VectorWriter
from retrievalkit.data.vectors.joined import SHARD_TEXTS
from retrievalkit.data.vectors.postings import Postings
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.indexing.encoding import encode
from retrievalkit.indexing.open_indexes import OpenIndex
from retrievalkit.indexing.options import EncodingOptions
from retrievalkit.indexing.query_encoders import Encoders
from retrievalkit.indexing.segments import Segment, joined_vectors, segments_of
from retrievalkit.models.precision import Precision
from retrievalkit.registry.trust import anonymously

Segments = Sequence[tuple[Segment, frozenset[str]]]


def encoded(
    index: OpenIndex, texts: Path, output: Path, *, model: str | Path | None, precision: Precision | None
) -> Path:
    """Encode texts as those of an index were; what a killed change has encoded is kept."""
    place = Encoders(model, [index]).place_of(index)
    if storage.kind_of(output) == "vectors":
        encoded_texts = storage.read_manifest(output, "vectors")["inputs"].get("texts", {})
        if encoded_texts.get("fingerprint") == storage.fingerprint_file(texts):
            return output
        shutil.rmtree(output)
    recorded = _recorded(index)
    names = ("precision", "stored", "batch_tokens", "shard_texts")
    settings = {name: recorded[name] for name in names if recorded.get(name)}
    if precision is not None:
        settings["precision"] = precision
    options = EncodingOptions(**_model_options(index), **settings)
    # What the manifest alone names may be a stranger's choice: no token is sent to fetch it.
    with anonymously(place != str(model)):
        manifest = encode(place, texts, side="document", output=output, options=options)
    assert index.checkpoint is not None
    if manifest["checkpoint"]["fingerprint"] != index.checkpoint["fingerprint"]:
        msg = f"'{place}' is another model than the one that encoded '{index.folder}'. Give the right one: --model."
        raise ArtifactError(msg)
    return output


def write_live(index: OpenIndex, segments: Segments, target: Path) -> Path:
    """Write the vectors of the texts that an index holds, as if they were encoded anew."""
    if target.exists():
        shutil.rmtree(target)
    manifest = index.manifest
    with storage.write_folder(target) as staging:
        writer = VectorWriter(staging)
        for number, (ids, vectors, rows, weights) in enumerate(_shards(index, segments)):
            writer.write_shard(number, ids, vectors, counts=rows, weights=weights)
        counts = writer.finish()
        storage.write_manifest(
            staging,
            "vectors",
            command="encode",
            options=_recorded(index),
            counts=counts,
            files=writer.checksums(),
            **({"checkpoint": manifest["checkpoint"]} if "checkpoint" in manifest else {}),
        )
    return target


Shard = tuple[list[str], np.ndarray | None, np.ndarray | None, Any]


def _shards(index: OpenIndex, segments: Segments) -> Iterator[Shard]:
    size = int(_recorded(index).get("shard_texts") or SHARD_TEXTS)
    joined = joined_vectors(index.folder, index.manifest)
    if joined is None:
        yield from _of_weights(_weights(index, segments), size)
        return
    for start in range(0, len(joined), size):
        rows = np.arange(start, min(start + size, len(joined)))
        block = joined.take(rows)
        yield joined.ids.take(rows), block.vectors, block.counts if joined.dim else None, block.weights


def _weights(index: OpenIndex, segments: Segments) -> Iterator[tuple[list[str], Any]]:
    """The ids and weights of the texts that are left, from the postings of each segment."""
    for segment, deleted in segments:
        folder = segment.folder(index.folder)
        if not (folder / "postings").is_dir():
            msg = f"'{index.folder}' (indexer '{index.name}') holds no vectors to make one index of. Index anew."
            raise UnsupportedError(msg)
        ids = Ids(folder / "ids.txt")
        for block in Postings(folder / "postings").blocks():
            names = ids[block.first : block.first + block.texts]
            rows = np.array([row for row, name in enumerate(names) if name not in deleted], dtype=np.int64)
            if len(rows):
                yield [names[row] for row in rows.tolist()], block.weights.tocsr()[rows]


def _of_weights(pieces: Iterator[tuple[list[str], Any]], size: int) -> Iterator[Shard]:
    import scipy.sparse

    names: list[str] = []
    waiting: list[Any] = []
    for ids, weights in itertools.chain(pieces, [([], None)]):
        names += ids
        waiting += [] if weights is None else [weights]
        while len(names) >= size or (names and weights is None):
            whole = scipy.sparse.vstack(waiting, format="csr")
            yield names[:size], None, None, whole[:size]
            names, waiting = names[size:], [whole[size:]]


def _recorded(index: OpenIndex) -> dict[str, Any]:
    """How the texts of an index were encoded, as far as that is recorded in it or beside it."""
    places = [segment.folder(index.folder) / "vectors" for segment in segments_of(index.manifest)]
    places.append(Path(index.manifest["inputs"].get("vectors", {}).get("path", "")))
    for place in places:
        if storage.kind_of(place) == "vectors":
            return dict(storage.read_manifest(place, "vectors").get("options", {}))
    return {}


def _model_options(index: OpenIndex) -> dict[str, Any]:
    """What names the parts of a model that is no checkpoint, and the lengths and dimensions of any."""
    assert index.checkpoint is not None
    lengths: Mapping[str, Any] = index.checkpoint.get("encoder_options", {})
    described, dimensions = index.checkpoint.get("description"), index.checkpoint.get("dimensions")
    if described is None:
        return {"encoder_options": dict(lengths), "dimensions": dimensions}
    return {
        "dimensions": dimensions,
        "encoder": described["encoder"]["name"],
        "encoder_options": {**described["encoder"]["options"], **lengths},
        "pooler": described["pooler"]["name"],
        "pooler_options": described["pooler"]["options"],
    }
