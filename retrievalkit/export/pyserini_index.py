"""Vectors, or an index `flat`, as a faiss index with a list of ids, which Pyserini's FaissSearcher opens."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np

from retrievalkit import artifacts
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import UnsupportedError
from retrievalkit.export.targets import Written

_BLOCK = 8192
_OPENED_AS_THEY_ARE = ("bm25", "impact", "lucene_hnsw")


def write(source: str | Path, folder: Path) -> Written:
    """Write `index` (inner products, exact) and `docid`.

    Raises:
        UnsupportedError: A text has several vectors, or weights, or the index is of another kind.
    """
    store = VectorStore(_vectors(Path(source)))
    if store.vectors_per_text != 1 or store.vocabulary:
        has = "weights over the vocabulary" if store.vocabulary else "several vectors"
        msg = f"'{source}' cannot become a Pyserini index: its texts have {has}, and there a text has one vector."
        raise UnsupportedError(msg)
    index = faiss.IndexFlatIP(store.dim)
    for block in store.blocks(_BLOCK):
        index.add(np.ascontiguousarray(block.vectors, dtype=np.float32))
    faiss.write_index(index, str(folder / "index"))
    ids = store.ids
    with (folder / "docid").open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{ids[row]}\n" for row in range(len(store)))
    example = (
        "# MODEL: the checkpoint, exported too (rkit export CHECKPOINT MODEL --to pyserini), options in its README\n"
        "python -m pyserini.search.faiss --index FOLDER --topics QUERIES.tsv --encoder MODEL/encoder "
        "--encoder-class auto --output RUN --device cpu"
    )
    return Written(
        library="pyserini", language="bash", example=example, figures={"texts": len(store), "dimension": store.dim}
    )


def _vectors(source: Path) -> Path:
    if artifacts.kind_of(source) == "vectors":
        return source
    name = artifacts.read_manifest(source, "index")["indexer"]["name"]
    if name in _OPENED_AS_THEY_ARE:
        msg = f"'{source}' is an index '{name}', which Pyserini opens as it is: --index {source}/lucene"
        raise UnsupportedError(msg)
    if name != "flat":
        msg = f"'{source}' is an index '{name}', and Pyserini takes a flat one. Export its vectors folder instead."
        raise UnsupportedError(msg)
    return source / "vectors"
