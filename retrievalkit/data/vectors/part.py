"""Some shards of a vectors/ folder as a folder of their own, whose files are linked and not copied."""

from __future__ import annotations

import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from retrievalkit import artifacts
from retrievalkit.data.vectors.store import IDS, OFFSETS, VectorStore


def write_part(source: VectorStore, target: Path, first: int, last: int) -> None:
    """Write the shards from `first` to `last`, without the last, as a folder.

    Its blocks are those of the whole folder, so that scores of its texts are the same to the last bit.

    Args:
        source: The whole folder.
        target: The folder to write; what is there is removed.
        first: The number of the first shard.
        last: The number of the shard after the last one.
    """
    shutil.rmtree(target, ignore_errors=True)
    starts = source.starts
    start, end = starts[first], starts[last]
    files = {name: source.manifest["files"][name] for name in _names(source, first, last)}
    source.link_files(files, target)
    with (target / IDS).open("w", encoding="utf-8", newline="") as stream:
        stream.writelines(f"{name}\n" for name in source.ids.take(np.arange(start, end)))
    files[IDS] = artifacts.describe_file(target / IDS)
    counts = {"texts": end - start, "shards": last - first}
    if source.dim:
        rows = (end - start) * (source.vectors_per_text or 0)
        if source.offsets is not None:
            offsets = np.asarray(source.offsets[start : end + 1]) - source.offsets[start]
            np.save(target / OFFSETS, offsets, allow_pickle=False)
            files[OFFSETS], rows = artifacts.describe_file(target / OFFSETS), int(offsets[-1])
        counts |= {"vectors": rows, "dim": source.dim}
    if source.vocabulary:
        counts["vocabulary"] = source.vocabulary
    manifest = {name: value for name, value in source.manifest.items() if name != "left_out"}
    artifacts.write_json(target / artifacts.MANIFEST, {**manifest, "counts": counts, "files": files})


def _names(source: VectorStore, first: int, last: int) -> list[str]:
    """The files of some shards."""
    found: list[str] = []
    for pattern in ("vectors-*.npy", "lexical-*.npz"):
        names = [name for name in source.manifest["files"] if fnmatchcase(name, pattern)]
        found += sorted(names, key=lambda name: (len(name), name))[first:last]
    return found
