"""Folders for Pyserini: Hugging Face models for its encoders, with the commands that encode and search with them."""

from __future__ import annotations

import json
from pathlib import Path

from retrievalkit import artifacts
from retrievalkit.contracts import SIDES
from retrievalkit.export.forms import check_encoder, lengths, prompts, refuse, single_vector, tower_of, write_encoder
from retrievalkit.export.sparse_encoder import check_splade, most_weights
from retrievalkit.export.targets import Written
from retrievalkit.model.retriever import Retriever

_NAME = "Pyserini"
# Pyserini's own constant for queries of SPLADE.
_SPLADE_QUERY_LENGTH = 256
_JAVA = "Pyserini's commands need a complete JDK 21 in JAVA_HOME, such as openjdk-21-jdk-headless of Debian and Ubuntu."
_FIELDS = {"pair": "title text --add-sep", "space": "title text", "none": "text"}


def write(retriever: Retriever, folder: Path) -> Written:
    """Write a model's folder `encoder`, or `query` and `document`, for Pyserini's encoders `auto` or `splade`.

    Raises:
        UnsupportedError: Pyserini's encoders cannot make the checkpoint's vectors.
    """
    check_encoder(retriever, _NAME, separate=True)
    sparse = "head" in _kinds(retriever)
    if sparse:
        check_splade(retriever, _NAME)
    separate = "query" in retriever.towers
    folders = {side: side if separate else "encoder" for side in SIDES}
    flags = _splade_flags(retriever) if sparse else _flags(retriever)
    taken = lengths(retriever)
    for side in SIDES if separate else SIDES[:1]:
        write_encoder(retriever, side, folder / folders[side])
    if not sparse:
        # The length of queries is no option there: their encoder asks the tokenizer.
        _set_length(folder / folders["query"] / "tokenizer_config.json", taken["query"])
    kind = "splade" if sparse else "auto"
    fields = _FIELDS[tower_of(retriever, "document").title]
    output = "--embeddings VECTORS" if sparse else "--embeddings INDEX --to-faiss"
    dimension = "" if sparse else f" --dimension {_dimension(retriever)}"
    encode = (
        f"python -m pyserini.encode input --corpus PASSAGES --fields {fields.removesuffix(' --add-sep')} "
        f"output {output} encoder --encoder FOLDER/{folders['document']} --encoder-class {kind} --fields {fields} "
        f"--max-length {taken['document']}{dimension} --device cpu{flags['document']}"
    )
    return Written(
        library="pyserini",
        language="bash",
        example="\n".join([encode, _search(folders["query"], flags["query"], sparse=sparse)]),
        notes=_notes(retriever, sparse=sparse, query_length=taken["query"]),
        tags=["pyserini", "feature-extraction"],
    )


def _kinds(retriever: Retriever) -> set[str]:
    return {"head"} if retriever.pooler.needs.vocabulary_head and _only_weights(retriever) else set()


def _only_weights(retriever: Retriever) -> bool:
    from retrievalkit.export.forms import states_of

    made = retriever.pooler(states_of(retriever, "document")[1], "document")
    return made.weights is not None and made.vectors is None


def _flags(retriever: Retriever) -> dict[str, str]:
    """The options of the encoder `auto` for each side."""
    form = single_vector(retriever, _NAME)
    if form.layers:
        refuse(_NAME, "a linear layer follows its pooling, and the encoder 'auto' has none")
    if form.poolings not in (("cls",), ("mean",)):
        refuse(_NAME, f"its pooling is '{' and '.join(form.poolings)}', and the encoder 'auto' has cls and mean")
    shared = f" --pooling {form.poolings[0]}" + (" --l2-norm" if form.normalize else "")
    return {side: shared + _prefix(prompt, side) for side, prompt in prompts(retriever).items()}


def _prefix(prompt: str, side: str) -> str:
    """Pyserini puts a space behind a prefix."""
    if not prompt:
        return ""
    if prompt != f"{prompt.strip()} ":
        refuse(_NAME, f"the prefix of a {side}, '{prompt}', does not end with one space, which Pyserini adds")
    option = "--prefix" if side == "document" else "--query-prefix"
    return f" {option} {json.dumps(prompt.strip())}"


def _splade_flags(retriever: Retriever) -> dict[str, str]:
    if any(prompts(retriever).values()):
        refuse(_NAME, "its texts have prefixes, and the encoder 'splade' takes none")
    if most_weights(retriever) is not None:
        refuse(_NAME, "its pooler keeps the largest weights alone (top_k), and the encoder 'splade' keeps all")
    return dict.fromkeys(SIDES, "")


def _set_length(path: Path, length: int) -> None:
    values = artifacts.read_json(path, do="Export again.", nan=True)
    artifacts.write_json(path, {**values, "model_max_length": length})


def _dimension(retriever: Retriever) -> int:
    vectors = retriever.encode([("", "text")], "document").vectors
    assert vectors is not None
    return vectors.shape[2]


def _search(query: str, flags: str, *, sparse: bool) -> str:
    if sparse:
        return (
            f"python -m pyserini.index.lucene --collection JsonVectorCollection --input VECTORS --index INDEX "
            f"--generator DefaultLuceneDocumentGenerator --impact --pretokenized --threads 4\n"
            f"python -m pyserini.search.lucene --impact --index INDEX --topics QUERIES.tsv --encoder FOLDER/{query} "
            f"--output RUN"
        )
    return (
        f"python -m pyserini.search.faiss --index INDEX --topics QUERIES.tsv --encoder FOLDER/{query} "
        f"--encoder-class auto --output RUN --device cpu{flags}"
    )


def _notes(retriever: Retriever, *, sparse: bool, query_length: int) -> list[str]:
    if not sparse:
        notes = [_JAVA, "PASSAGES is a folder of JSON lines with id, title and text."]
        if prompts(retriever)["document"] and tower_of(retriever, "document").title != "none":
            notes.append(
                "Pyserini puts the prefix between title and text, rkit in front of both: vectors of passages with a "
                "title differ. Put the title into the text, and encode --fields text."
            )
        return notes
    rounded = "Pyserini rounds SPLADE's weights to multiples of 5/256, so its scores differ a little from rkit's."
    if query_length == _SPLADE_QUERY_LENGTH:
        return [_JAVA, rounded]
    return [
        _JAVA,
        rounded,
        f"Pyserini cuts queries at {_SPLADE_QUERY_LENGTH} tokens, where rkit cuts at {query_length}.",
    ]
