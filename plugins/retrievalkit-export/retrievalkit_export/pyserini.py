"""Folders for Pyserini: Hugging Face models for its encoders with example commands, and faiss indexes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrievalkit.contracts import SIDES, Side, Text
from retrievalkit.contracts.commands import kind_of, read_manifest
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import MissingDependencyError, UnsupportedError
from retrievalkit_export.card import Written
from retrievalkit_export.forms import check_encoder, refuse, single_vector, states_of, write_encoder
from retrievalkit_export.sparse_encoder import check_splade

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

_NAME = "Pyserini"
# Pyserini's constant for SPLADE queries.
_SPLADE_QUERY_LENGTH = 256
_JAVA = "Pyserini's commands need a complete JDK 21 in JAVA_HOME, such as openjdk-21-jdk-headless of Debian and Ubuntu."
_BLOCK = 8192
_OPENED_AS_THEY_ARE = ("bm25", "impact", "lucene_hnsw")
_FIELDS = {"pair": "title text --add-sep", "space": "title text", "none": "text"}


def write(retriever: Retriever, folder: Path) -> Written:
    """Write a model folder `encoder`, or `query` and `document`, for Pyserini's encoders `auto` or `splade`.

    Raises:
        UnsupportedError: Pyserini's encoders cannot compute the checkpoint's vectors.
    """
    encoder = check_encoder(retriever, _NAME, separate=True)
    sparse = retriever.pooler.needs.vocabulary_head
    if sparse:
        pooled = retriever.pooler(states_of(retriever, "document")[1], "document")
        sparse = pooled.weights is not None and pooled.vectors is None
    if sparse:
        check_splade(retriever, _NAME)
        if any(encoder.prefixes.values()):
            refuse(_NAME, "its texts have prefixes, but the encoder 'splade' does not support any")
        if getattr(retriever.pooler, "top_k", None) is not None:
            refuse(_NAME, "its pooler keeps only the largest weights (top_k), but the encoder 'splade' keeps all")
    separate = "query" in retriever.towers
    folders = {side: side if separate else "encoder" for side in SIDES}
    flags = dict.fromkeys(SIDES, "") if sparse else _flags(retriever, encoder.prefixes)
    for side in SIDES if separate else SIDES[:1]:
        write_encoder(retriever, side, folder / folders[side])
    if not sparse:
        # There is no option for the length of queries: their encoder uses the tokenizer's.
        path = folder / folders["query"] / "tokenizer_config.json"
        settings = json.loads(path.read_text("utf-8")) | {"model_max_length": encoder.lengths["query"]}
        path.write_text(json.dumps(settings, indent=2), "utf-8")
    kind = "splade" if sparse else "auto"
    fields = _FIELDS[encoder.title]
    output = "--embeddings VECTORS" if sparse else "--embeddings INDEX --to-faiss"
    vectors = None if sparse else retriever.encode([Text("", "text")], "document").vectors
    dimension = "" if vectors is None else f" --dimension {vectors.shape[2]}"
    encode = (
        f"python -m pyserini.encode input --corpus PASSAGES --fields {fields.removesuffix(' --add-sep')} "
        f"output {output} encoder --encoder FOLDER/{folders['document']} --encoder-class {kind} --fields {fields} "
        f"--max-length {encoder.lengths['document']}{dimension} --device cpu{flags['document']}"
    )
    notes = [_JAVA]
    if sparse:
        search = (
            "python -m pyserini.index.lucene --collection JsonVectorCollection --input VECTORS --index INDEX "
            "--generator DefaultLuceneDocumentGenerator --impact --pretokenized --threads 4\n"
            f"python -m pyserini.search.lucene --impact --index INDEX --topics QUERIES.tsv "
            f"--encoder FOLDER/{folders['query']} --output RUN"
        )
        notes.append(
            "Pyserini rounds SPLADE's weights to multiples of 5/256, so its scores differ a little from rkit's."
        )
        if (length := encoder.lengths["query"]) != _SPLADE_QUERY_LENGTH:
            notes.append(f"Pyserini truncates queries to {_SPLADE_QUERY_LENGTH} tokens, rkit to {length}.")
    else:
        search = (
            f"python -m pyserini.search.faiss --index INDEX --topics QUERIES.tsv --encoder FOLDER/{folders['query']} "
            f"--encoder-class auto --output RUN --device cpu{flags['query']}"
        )
        notes.append("PASSAGES is a folder of JSON lines with id, title and text.")
        if encoder.prefixes["document"] and encoder.title != "none":
            notes.append(
                "Pyserini adds the prefix between title and text, rkit adds it in front of both: vectors of passages "
                "with a title differ. Prepend the title to the text, and encode with --fields text."
            )
    example, tags = f"{encode}\n{search}", ["pyserini", "feature-extraction"]
    return Written(library="pyserini", language="bash", example=example, notes=notes, tags=tags)


def _flags(retriever: Retriever, prefixes: Mapping[Side, str]) -> dict[Side, str]:
    """Return the options of the encoder `auto` for each side."""
    form = single_vector(retriever, _NAME)
    if form.layers:
        refuse(_NAME, "a linear layer follows its pooling, but the encoder 'auto' has none")
    if form.poolings not in (("cls",), ("mean",)):
        refuse(_NAME, f"its pooling is '{' and '.join(form.poolings)}', but the encoder 'auto' has cls and mean")
    shared = f" --pooling {form.poolings[0]}" + (" --l2-norm" if form.normalize else "")
    return {side: shared + _prefix(prompt, side) for side, prompt in prefixes.items()}


def _prefix(prompt: str, side: str) -> str:
    """Return the option for a prefix, without its last space, which Pyserini appends."""
    if not prompt:
        return ""
    if prompt != f"{prompt.strip()} ":
        refuse(_NAME, f"the prefix of a {side}, '{prompt}', must end with one space, which Pyserini adds")
    option = "--prefix" if side == "document" else "--query-prefix"
    return f" {option} {json.dumps(prompt.strip())}"


def write_index(source: Path, folder: Path) -> Written:
    """Write vectors, or an index `flat`, as an exact inner-product faiss `index` with a list of ids, `docid`.

    Raises:
        UnsupportedError: A text has several vectors or has weights, or the index is of another kind.
        MissingDependencyError: faiss is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("faiss", "an index for Pyserini", "'retrievalkit[faiss]'") from error
    place = source
    if kind_of(source) == "index":
        name, place = read_manifest(source, "index")["indexer"]["name"], source / "vectors"
        if name in _OPENED_AS_THEY_ARE:
            msg = f"'{source}' is a '{name}' index, which Pyserini can open directly: --index {source}/lucene"
            if name == "bm25":
                msg += " (--pretokenized, with queries as terms, if Anserini has no analyzer for its language)"
            raise UnsupportedError(msg)
        if name != "flat":
            msg = f"'{source}' is a '{name}' index, but Pyserini needs a flat index. Export its vectors folder instead."
            raise UnsupportedError(msg)
    store = VectorStore(place)
    if store.vectors_per_text != 1 or store.vocabulary:
        values = "weights over the vocabulary" if store.vocabulary else "several vectors"
        msg = f"'{source}' cannot become a Pyserini index: its texts have {values}, but Pyserini needs a single vector."
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
