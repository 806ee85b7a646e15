"""Building of an index/ folder from a vectors/ folder or a corpus (`rkit index`).

The folder contains the indexer's files and a manifest that records the indexer, its source, and the checkpoint that
encodes queries. For shards, see `retrievalkit.indexing.shards`.
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
from retrievalkit.data.passage_parts import TABLES, write_tables
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, InputError, UnknownNameError, UnsupportedError
from retrievalkit.indexing import shards
from retrievalkit.registry import describe, trust

TEXTS = "texts.jsonl"
"""File of the passages, in an index built from texts in memory."""


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
    """Build an index from a vectors folder or a corpus, and return its manifest; see `IndexOptions`.

    `texts` are passages that exist only in memory; the folder keeps a copy. With `parts`, the number of shards, a
    killed build resumes with the missing shards.
    """
    storage.check_output(output, overwrite=overwrite)
    kind = storage.kind_of(source)
    if kind == "checkpoint":
        do = f"rkit encode {source} CORPUS --output vectors"
        msg = f"'{source}' is a checkpoint. Encode a corpus with it first: {do}"
        raise ArtifactError(msg)
    if kind == "index":
        msg = f"'{source}' is an index already. Name a vectors folder or a corpus."
        raise ArtifactError(msg)
    form: Literal["vectors", "texts"] = "vectors" if kind == "vectors" else "texts"
    try:
        component = registry.component("indexer", indexer or ("flat" if form == "vectors" else "bm25"))
    except UnknownNameError as error:
        if indexer not in (None, "bm25"):
            raise
        msg = f"{error} To index the texts of '{source}', install one: pip install retrievalkit-pyserini"
        raise InputError(msg) from error
    component_class: Any = component.load()
    if component_class.indexes != form:
        msg = f"indexer '{component.name}' indexes {component_class.indexes}, and '{source}' is "
        msg += "a vectors folder. Index the corpus, or choose an indexer of vectors, such as --indexer flat."
        if form == "texts":
            do = f"rkit encode CHECKPOINT {source} --output vectors, then: rkit index vectors"
            msg = f"'{source}' is not a vectors folder. Encode the corpus first: {do} --indexer {component.name}"
        raise InputError(msg)
    owner = f"indexer '{component.name}'"
    checked = registry.check_options(owner, component_class, options or {})
    opened: VectorStore | Corpus = VectorStore(source) if form == "vectors" else open_corpus(source)
    checked |= component_class(**checked).options_for(opened)
    builder: Indexer = component_class(**checked)
    if trust.in_recipe():
        builder.from_files = frozenset(checked)
    if isinstance(opened, VectorStore) and opened.keyed and not builder.compares_keys and builder.view != "weights":
        msg = f"'{source}' holds vectors with keys, and {owner} compares vectors without regard to keys. "
        msg += "Use --indexer flat."
        raise UnsupportedError(msg)
    described = {**describe("indexer", component.name, checked), "indexes": form}
    if parts is not None:
        shards.check(component.name, builder, opened, parts)
    with storage.write_folder(output, overwrite=overwrite, keep_partial=parts is not None) as staging:
        more: dict[str, Any] = {}
        if parts is None:
            counts = shards.built(builder, opened, staging)
        else:
            counts, more = shards.build(builder, described, opened, staging, parts, cluster)
        origin = _origin(opened, source, Path(output))
        if texts is not None:
            write_corpus(staging / TEXTS, open_corpus(texts))
            copy = {"source": TEXTS, "fingerprint": open_corpus(texts).fingerprint()}
            origin["corpus"] = _located(copy, os.path.abspath(os.path.join(output, TEXTS)), Path(output))
        if isinstance(opened, Corpus):
            more |= write_tables(staging, opened)[1]
        elif "text_form" in opened.manifest:
            more["text_form"] = opened.manifest["text_form"]
        for entry, name in TABLES.items():
            if isinstance(opened, VectorStore) and (opened.folder / name).is_file():
                shutil.copyfile(opened.folder / name, staging / name)
            if (staging / name).exists():
                more[entry] = name
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
        for name in (shards.IDENTITY, shards.JOINED):  # needed only to resume a killed build
            storage.discard(staging / name)
        return manifest


def _origin(opened: VectorStore | Corpus, source: str | Path, output: Path) -> dict[str, Any]:
    """Return the manifest entries that describe the source: fingerprint, corpus and query checkpoint."""
    if isinstance(opened, Corpus):
        fingerprint = opened.fingerprint()
        corpus = {"source": str(source), "fingerprint": fingerprint}
        inputs = {"corpus": storage.describe_input(source, fingerprint)}
        return {"inputs": inputs, "corpus": _located(corpus, inputs["corpus"]["path"], output)}
    manifest = opened.manifest
    entries: dict[str, Any] = {"inputs": {"vectors": storage.describe_input(source, opened.fingerprint)}}
    if "checkpoint" in manifest:
        entries["checkpoint"] = _located(manifest["checkpoint"], manifest["checkpoint"]["path"], output)
    if "dimensions" in manifest:
        # The model is unknown; the caller names the query encoder when the index is opened.
        entries["dimensions"] = manifest["dimensions"]
    if "corpus" in manifest:
        path = manifest["inputs"].get("texts", {}).get("path", manifest["corpus"]["source"])
        entries["corpus"] = _located(manifest["corpus"], path, output)
    return entries


def _located(entry: Mapping[str, Any], path: str, output: Path) -> dict[str, Any]:
    """Add the path, also relative to the index, so that index and input can move together."""
    if storage.is_address(path) or storage.store_of(output):
        return {**entry, "path": path}
    if not os.path.isabs(path):
        return dict(entry)
    return {**entry, "path": path, "relative_path": os.path.relpath(path, output.absolute())}
