"""The program behind `rkit index`: a vectors/ folder or a corpus in, an index/ folder out.

The folder holds the indexer's files and a manifest that names the indexer, what was indexed, and the checkpoint that
encodes queries for it. Of shards see `retrievalkit.indexing.shards`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from retrievalkit import registry, storage
from retrievalkit.contracts import Indexer
from retrievalkit.contracts.cluster import ClusterOptions
from retrievalkit.data.corpus import Corpus, open_corpus, write_corpus
from retrievalkit.data.fields import FIELDS, write_fields
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, InputError, UnknownNameError
from retrievalkit.indexing import shards
from retrievalkit.registry import describe, trust

Indexed = Literal["vectors", "texts"]
TEXTS = "texts.jsonl"
"""The passages, in an index of texts that were in memory."""

_DEFAULTS: dict[Indexed, str] = {"vectors": "flat", "texts": "bm25"}


def build_index(
    source: str | Path,
    *,
    indexer: str | None = None,
    output: str | Path,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    texts: str | Path | None = None,
    parts: int | None = None,
    cluster: ClusterOptions | None = None,
) -> dict[str, Any]:
    """Build an index of a vectors folder or a corpus, and return its manifest; see `IndexOptions`.

    `texts` are passages that are nowhere else, and are kept in the folder. Of its `parts`, the shards, a killed build
    goes on with those that lack.
    """
    storage.check_output(output, overwrite=overwrite)
    kind = storage.kind_of(source)
    if kind == "checkpoint":
        do = f"rkit encode {source} CORPUS --output vectors"
        msg = f"'{source}' is a checkpoint. Encode a corpus with it first: {do}"
        raise ArtifactError(msg)
    if kind == "index":
        msg = f"'{source}' is an index already."
        raise ArtifactError(msg)
    holds: Indexed = "vectors" if kind == "vectors" else "texts"
    try:
        component = registry.component("indexer", indexer or _DEFAULTS[holds])
    except UnknownNameError as error:
        if indexer not in (None, "bm25"):
            raise
        msg = f"{error} To index the texts of '{source}', install one: pip install retrievalkit-pyserini"
        raise InputError(msg) from error
    component_class: Any = component.load()
    if component_class.indexes != holds:
        msg = f"indexer '{component.name}' indexes {component_class.indexes}, and '{source}' is "
        msg += (
            "a vectors folder. Give the corpus instead, or an indexer of vectors, such as --indexer flat."
            if holds == "vectors"
            else "no vectors folder. Encode the corpus first "
            f"(rkit encode CHECKPOINT {source} --output vectors), then: rkit index vectors --indexer {component.name}"
        )
        raise InputError(msg)
    owner = f"indexer '{component.name}'"
    checked = registry.check_options(owner, component_class, options or {})
    made: Indexer = component_class(**checked)
    if trust.in_recipe():
        made.from_files = frozenset(checked)
    opened: VectorStore | Corpus = VectorStore(source) if holds == "vectors" else open_corpus(source)
    described = {**describe("indexer", component.name, checked), "indexes": holds}
    if parts is not None:
        shards.check(component.name, made, opened, parts)
    with storage.write_folder(output, overwrite=overwrite, keep_partial=parts is not None) as staging:
        more: dict[str, Any] = {}
        if parts is None:
            counts = made.build(opened, staging)
        else:
            counts, more = shards.build(made, described, opened, staging, parts, cluster)
        origin = _origin(opened, source, Path(output))
        if texts is not None:
            write_corpus(staging / TEXTS, open_corpus(texts))
            kept = {"source": TEXTS, "fingerprint": open_corpus(texts).fingerprint()}
            origin["corpus"] = _located(kept, os.path.abspath(os.path.join(output, TEXTS)), Path(output))
        if isinstance(opened, Corpus):
            write_fields(staging / FIELDS, ((passage.id, passage.fields) for passage in opened))
        elif (opened.folder / FIELDS).is_file():
            shutil.copyfile(opened.folder / FIELDS, staging / FIELDS)
        if (staging / FIELDS).exists():
            more["fields"] = FIELDS
        manifest = storage.write_manifest(
            staging,
            "index",
            command="index",
            options={"indexer": component.name, **checked},
            counts=counts,
            files=storage.describe_files(staging),
            indexer=described,
            **more,
            **origin,
        )
        for name in (shards.IDENTITY, shards.JOINED):  # only a killed build needs them
            storage.discard(staging / name)
        return manifest


def _origin(opened: VectorStore | Corpus, source: str | Path, output: Path) -> dict[str, Any]:
    """The manifest's entries about the source: its fingerprint, the corpus, and the checkpoint for queries."""
    if isinstance(opened, Corpus):
        fingerprint = opened.fingerprint()
        corpus = {"source": str(source), "fingerprint": fingerprint}
        inputs = {"corpus": storage.describe_input(source, fingerprint)}
        return {"inputs": inputs, "corpus": _located(corpus, inputs["corpus"]["path"], output)}
    manifest = opened.manifest
    found: dict[str, Any] = {"inputs": {"vectors": storage.describe_input(source, opened.fingerprint)}}
    if "checkpoint" in manifest:
        found["checkpoint"] = _located(manifest["checkpoint"], manifest["checkpoint"]["path"], output)
    if "dimensions" in manifest:
        # Vectors of a model that is not known; what encodes queries is given when it is opened.
        found["dimensions"] = manifest["dimensions"]
    if "corpus" in manifest:
        path = manifest["inputs"].get("texts", {}).get("path", manifest["corpus"]["source"])
        found["corpus"] = _located(manifest["corpus"], path, output)
    return found


def _located(entry: Mapping[str, Any], path: str, output: Path) -> dict[str, Any]:
    """The entry with its path, also relative to the index, so that both can be moved together."""
    if storage.is_address(path) or storage.store_of(output):
        return {**entry, "path": path}
    if not os.path.isabs(path):
        return dict(entry)
    return {**entry, "path": path, "relative_path": os.path.relpath(path, output.absolute())}
