"""The end of a change: its files get their names, then the manifest is replaced; and what became superfluous goes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.data.corpus import Passage
from retrievalkit.indexing.change.texts import write_corpus
from retrievalkit.indexing.open_indexes import OpenIndex
from retrievalkit.indexing.segments import FOLDER, Segment, segments_of, unused

_OURS = re.compile(r"[0-9]{4,12}|deleted-[0-9]+-[0-9]*\.txt|corpus-[0-9]+\.jsonl")

Kept = Sequence[tuple[Segment, frozenset[str]]]
"""Segments that stay, and for each the ids of its texts that are gone."""


def commit(index: OpenIndex, kept: Kept, built: Path | None, *, corpus: Iterator[Passage] | None) -> None:
    """Replace the segments of an index."""
    folder, manifest = index.folder, index.manifest
    number = int(manifest.get("change", 0)) + 1
    (folder / FOLDER).mkdir(exist_ok=True)
    counts = {one.get("name", ""): one["counts"] for one in manifest.get("segments", [{"counts": manifest["counts"]}])}
    entries = [
        {"name": segment.name, **_write_deleted(folder, segment, deleted, number), "counts": counts[segment.name]}
        for segment, deleted in kept
    ]
    if built is not None:
        name = f"{number:04d}"
        entries.append({"name": name, "counts": storage.read_manifest(built, "index")["counts"]})
        built.rename(folder / FOLDER / name)
    files = _files(folder, manifest, entries)
    # The inputs have the fingerprint of what the index holds: it is no longer that of what it was built from.
    holds = storage.fingerprint_value(files)
    # The files and folders of the index as it was built go once it consists of others.
    gone: set[str] = set()
    if all(entry["name"] for entry in entries):
        gone = {name.partition("/")[0] for name in manifest["files"]} - {FOLDER} | set(manifest.get("superseded", ()))
    after = {
        **manifest,
        "inputs": {name: {**entry, "fingerprint": holds} for name, entry in manifest["inputs"].items()},
        "counts": _counts(entries, sum(len(deleted) for _, deleted in kept)),
        "files": files,
        "segments": entries,
        "change": number,
        "superseded": sorted(gone),
    }
    after.pop("check", None)
    after.pop("corpus", None)
    if corpus is not None:
        name = os.path.join(FOLDER, f"corpus-{number:04d}.jsonl")
        place, fingerprint = str((folder / name).absolute()), write_corpus(folder / name, corpus)
        after["corpus"] = {"source": place, "fingerprint": fingerprint, "path": place, "relative_path": name}
        if "corpus" in after["inputs"]:
            after["inputs"]["corpus"]["fingerprint"] = fingerprint
    storage.write_json(folder / storage.MANIFEST, after)


def sweep(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Remove what an index consists of no more, except for what a reader holds, and what a killed change left."""
    listed = {one.name for one in segments_of(manifest)} | {one.deleted for one in segments_of(manifest)}
    listed.add(Path(manifest.get("corpus", {}).get("path", "")).name)
    place = folder / FOLDER
    left = (
        [path for path in place.iterdir() if path.name not in listed and _OURS.fullmatch(path.name)]
        if place.is_dir()
        else []
    )
    for path in left:
        with unused(path if path.is_dir() else place) as free:
            if free:
                storage.discard(path)
    if manifest.get("superseded"):
        with unused(folder) as free:
            for name in manifest["superseded"] if free else ():
                storage.discard(folder / name)


def _write_deleted(folder: Path, segment: Segment, deleted: frozenset[str], number: int) -> dict[str, str]:
    """Write which texts of a segment are gone, if these are others than before."""
    if not deleted:
        return {}
    if segment.deleted and segment.deleted_ids(folder) == deleted:
        return {"deleted": segment.deleted}
    name = f"deleted-{number:04d}-{segment.name}.txt"
    with storage.write_file(folder / FOLDER / name) as staging:
        staging.write_bytes("".join(f"{one}\n" for one in sorted(deleted)).encode())
    return {"deleted": name}


def _files(folder: Path, manifest: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the manifest lists: the files of the index as it was built, and of each segment its own manifest."""
    files: dict[str, Any] = {}
    for entry in entries:
        if entry["name"]:
            name = f"{FOLDER}/{entry['name']}/{storage.MANIFEST}"
            files[name] = storage.describe_file(folder / name)
        else:
            files |= {name: one for name, one in manifest["files"].items() if not name.startswith(f"{FOLDER}/")}
        if entry.get("deleted"):
            name = f"{FOLDER}/{entry['deleted']}"
            files[name] = storage.describe_file(folder / name)
    return files


def _counts(entries: Sequence[Mapping[str, Any]], deleted: int) -> dict[str, float]:
    counts = [entry["counts"] for entry in entries]
    if len(counts) == 1 and not deleted:
        return dict(counts[0])
    texts = sum(int(one["texts"]) for one in counts) - deleted
    found: dict[str, float] = {"texts": texts}
    if all("vectors" in one for one in counts):
        single = all(one["vectors"] == one["texts"] for one in counts)
        found["vectors"] = texts if single else sum(int(one["vectors"]) for one in counts)
    return {**found, "segments": len(counts), "deleted": deleted}
