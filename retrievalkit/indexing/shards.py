"""Building of an index in shards, by position of the texts: `rkit index SOURCE --shards N`.

For vectors, each shard becomes a segment of the index (see `indexing.segments`), as if added later. For texts, the
indexer joins the shards at the end. Each shard is written atomically, so a killed build resumes with the missing
shards. Only one shard is in memory at a time, unless the workers of a Ray cluster build several.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrievalkit import registry, storage
from retrievalkit.contracts import Indexer
from retrievalkit.contracts.cluster import ClusterOptions, spread_map
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.json_text import shown
from retrievalkit.data.vectors import VectorStore
from retrievalkit.data.vectors.writer import write_part
from retrievalkit.errors import ArtifactError, InputError, UnsupportedError
from retrievalkit.indexing.segments import FOLDER
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import counted

IDENTITY = ".shards.json"
JOINED = ".shards"
"""Folder of shards that are joined at the end."""


def check(name: str, indexer: Indexer, source: VectorStore | Corpus, number: int) -> None:
    """Refuse shards that cannot be built."""
    if not indexer.segmented or (indexer.indexes == "texts" and type(indexer).join is Indexer.join):
        msg = f"indexer '{name}' with these options indexes all texts together. Leave out --shards."
        raise UnsupportedError(msg)
    if isinstance(source, VectorStore) and (most := len(source.starts) - 1) < number:
        msg = f"'{source.folder}' has {counted(most, 'shards')} of texts, fewer than {number:,}. Use fewer --shards."
        raise InputError(msg)


def build(
    indexer: Indexer,
    described: Mapping[str, Any],
    source: VectorStore | Corpus,
    staging: Path,
    number: int,
    cluster: ClusterOptions | None,
) -> tuple[Mapping[str, float], dict[str, Any]]:
    """Build the missing shards of a folder, here or on the workers of a cluster.

    Shards that an identical earlier build left in the staging folder are kept. Returns the counts of the index and
    further entries of its manifest, in which `described` is the entry of the indexer.
    """
    segments = staging / (JOINED if indexer.indexes == "texts" else FOLDER)
    origin = source.fingerprint if isinstance(source, VectorStore) else source.fingerprint()
    identity, path = json.dumps([origin, described, number], sort_keys=True, default=str), staging / IDENTITY
    same = storage.holds(path, identity)
    for item in list(staging.iterdir()):
        if not (same and item.name in (FOLDER, JOINED)):
            storage.discard(item)
    path.write_text(identity, encoding="utf-8")
    segments.mkdir(exist_ok=True)
    names = [f"{shard:04d}" for shard in range(1, number + 1)]
    missing = [shard for shard, name in enumerate(names) if storage.kind_of(segments / name) != "index"]
    with ProgressBar("index", number, unit="shards", done=number - len(missing)) as progress:
        parts = _write_parts(source, segments, names, missing)
        make = functools.partial(functools.partial, _build, dict(described), indexer.from_files)
        if cluster is None:
            built: Iterator[Path] = map(make(), parts)
        else:
            built = spread_map(make, functools.partial(list, parts), cluster, ordered=False)
        for part in built:
            if storage.kind_of(_target(part)) != "index":
                msg = f"'{_target(part)}' was built by a worker and is not here. Choose an --output on a shared disk."
                raise ArtifactError(msg)
            storage.discard(part)
            progress.advance(1)
    folders = [segments / name for name in names]
    counts = [storage.read_manifest(folder, "index")["counts"] for folder in folders]
    total = {name: sum(shard[name] for shard in counts) for name in ("texts", "vectors", "empty") if name in counts[0]}
    if indexer.indexes == "texts":
        indexer.join(folders, staging)
        return total, {}
    entries = [{"name": name, "counts": shard} for name, shard in zip(names, counts, strict=True)]
    return {**total, "segments": number}, {"segments": entries, "change": number}


def _write_parts(
    source: VectorStore | Corpus, folder: Path, names: Sequence[str], missing: Sequence[int]
) -> list[Path]:
    """Write the sources of the missing shards: folders of links, or files of texts."""
    if isinstance(source, VectorStore):
        shards, number = len(source.starts) - 1, len(names)
        parts = [folder / f".{names[shard]}.vectors" for shard in missing]
        for shard, part in zip(missing, parts, strict=True):
            write_part(source, part, shards * shard // number, shards * (shard + 1) // number)
        return parts
    parts = [folder / f".{names[shard]}.jsonl" for shard in missing]
    places = dict(zip(missing, parts, strict=True))
    with contextlib.ExitStack() as stack:
        streams = {shard: stack.enter_context(part.open("w", encoding="utf-8")) for shard, part in places.items()}
        row = 0
        for row, passage in enumerate(source, 1):
            if stream := streams.get((row - 1) % len(names)):
                stream.write(json.dumps({"_id": passage.id, "title": passage.title, "text": passage.text}) + "\n")
        if missing and row < len(names):
            msg = f"'{source.source}' holds {row:,} passages, fewer than {len(names):,} shards. Give fewer --shards."
            raise InputError(msg)
    return parts


def built(indexer: Indexer, source: VectorStore | Corpus, folder: Path) -> Mapping[str, float]:
    """Build an index, and return its counts; refuse an indexer that returns none."""
    counts = indexer.build(source, folder)
    if not isinstance(counts, Mapping) or "texts" not in counts:
        problem = f'build() returns {shown(counts)}, and should return counts, such as {{"texts": 1000}}'
        raise registry.wrong_result("indexer", indexer, problem)
    return counts


def _target(part: Path) -> Path:
    return part.with_name(part.name.split(".")[1])


def _build(described: Mapping[str, Any], from_files: frozenset[str], part: Path) -> Path:
    """Build a shard, possibly on another machine."""
    if not part.exists():
        msg = f"on {socket.gethostname()}, '{part}' does not exist. Choose an --output on a shared disk, or drop --ray."
        raise ArtifactError(msg)
    indexer: Indexer = registry.create("indexer", described["name"], **described["options"])
    indexer.from_files = from_files
    opened: VectorStore | Corpus = VectorStore(part) if part.is_dir() else open_corpus(part)
    if isinstance(opened, Corpus):
        opened.counts_empty = False  # reported when the parts were written
    with storage.write_folder(_target(part)) as staging:
        counts = built(indexer, opened, staging)
        storage.write_manifest(
            staging,
            "index",
            command="index",
            options={"indexer": described["name"], **described["options"]},
            counts=counts,
            files=storage.describe_files(staging),
            indexer=described,
        )
    return part
