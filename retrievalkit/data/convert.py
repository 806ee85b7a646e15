"""From any known data format to ours: `rkit convert IN OUT`.

    rkit convert biencoder-nq-train.json nq/            examples and the passages that came with them
    rkit convert psgs_w100.tsv corpus.jsonl.gz          a corpus, as BEIR
    rkit convert dev.run dev.trec                       a run, as TREC
    rkit convert dev.trec dev.tsv --form msmarco        a run, as MS MARCO: query, document, rank
    rkit convert pydoc:pandas pandas/                   a whole collection, as a BEIR folder
    rkit convert pydoc:pandas test.tsv --kind qrels     a part of it

The kind of data follows from keys or columns (`data.kinds`); `--kind` sets it if these are ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

from retrievalkit import artifacts, oddities
from retrievalkit.data.corpus import open_corpus, write_corpus
from retrievalkit.data.examples import read_examples, write_examples
from retrievalkit.data.kinds import Kind, kind_of
from retrievalkit.data.packing import COMPRESSIONS
from retrievalkit.data.qrels import read_qrels, write_qrels
from retrievalkit.data.queries import read_queries, write_queries
from retrievalkit.data.run_file import open_run
from retrievalkit.data.runs import Form, write_run
from retrievalkit.data.sources import fingerprint, open_source
from retrievalkit.errors import ArtifactError, InputError, OptionError, UnknownNameError

Counts = dict[str, int]


_FILES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".trec", ".run", ".qrels", ".qrel")


def convert(
    source: str | Path,
    output: str | Path,
    *,
    kind: Kind | None = None,
    split: str | None = None,
    corpus: str | Path | None = None,
    form: Form | None = None,
) -> Counts:
    """Read a source in any known form and write it in ours.

    Args:
        source: A file, a folder, or a source such as `hf:NAME` or `pydoc:PACKAGE,...`.
        output: A file (.jsonl, .tsv, .trec ..., with .gz or .zst to compress it); any other name is a folder.
        kind: The kind of data in the source, or the part of a collection to convert.
        split: The split, for a collection with several.
        corpus: If given, the documents of examples must be in it.
        form: The form of a run (None = "trec") or of judgements (None = "beir" for `.tsv`, else "trec").

    Returns:
        Kind of what was written -> its count.

    Raises:
        InputError: The source is damaged or of an unknown kind, or does not fit the output.
    """
    if kind is not None and kind not in get_args(Kind):
        raise UnknownNameError("kind", kind, get_args(Kind))
    _refuse_our_folder(source)
    kind = kind or kind_of(source)
    path = Path(output)
    if form is not None:
        return _write_in_form(kind, source, path, split, form)
    if _is_file(path):
        return _write_file(kind, source, path, split, corpus)
    if path.is_dir() and any(path.iterdir()):
        msg = f"output folder '{path}' exists already. Choose another name, or remove it."
        raise ArtifactError(msg)
    with artifacts.write_folder(path) as staging:
        counts = _write_folder(kind, source, staging, split, corpus)
        inputs = {"source": artifacts.describe_input(source, fingerprint(source))}
        options = {"kind": kind, "split": split}
        artifacts.write_manifest(
            staging, "collection", command="convert", options=options, inputs=inputs, counts=counts
        )
    return counts


_WANTED_BY = {
    "checkpoint": "It encodes texts: rkit encode {0} CORPUS --output VECTORS",
    "model": "It is trained further: rkit train --model {0}",
    "reranker": "It scores passages again: rkit rerank apply {0}",
    "vectors": "They are indexed: rkit index {0} --output INDEX",
    "index": "It is searched: rkit search {0} --queries FILE",
}


def _refuse_our_folder(source: str | Path) -> None:
    """Refuse the folder of another command, which contains JSON files but no data."""
    kind = artifacts.kind_of(source)
    if kind in _WANTED_BY:
        named = "vectors" if kind == "vectors" else f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
        msg = (
            f"'{source}' holds {named} (its manifest.json says so), and convert reads corpora, queries, examples, "
            f"judgements and runs. {_WANTED_BY[kind].format(source)}"
        )
        raise ArtifactError(msg)


def _write_in_form(kind: Kind, source: str | Path, path: Path, split: str | None, form: Form) -> Counts:
    if kind not in ("run", "qrels"):
        msg = f"--form is for runs and qrels, and '{source}' is taken for {kind}. Leave it out or give --kind."
        raise OptionError(msg)
    if path.is_dir():
        msg = f"'{path}' is a folder. With --form give the name of a file."
        raise OptionError(msg)
    return _results(source, path, split, form) if kind == "run" else _judgements(source, path, split, form)


def _is_file(path: Path) -> bool:
    name = path.name
    for end in COMPRESSIONS[1:]:
        name = name.removesuffix(end)
    return not path.is_dir() and (name.endswith(_FILES) or artifacts.is_stream(path))


def _write_file(kind: Kind, source: str | Path, path: Path, split: str | None, corpus: str | Path | None) -> Counts:
    if kind == "collection":
        msg = (
            f"'{source}' is a whole collection, and '{path}' one file. Give a folder as output, or say which part is "
            f"wanted: --kind {', '.join(_WRITERS)} or examples."
        )
        raise OptionError(msg)
    if kind == "examples":
        return _examples(source, path, split, corpus)
    return _WRITERS[kind](source, path, split)


def _write_folder(kind: Kind, source: str | Path, folder: Path, split: str | None, corpus: str | Path | None) -> Counts:
    if kind == "examples":
        return _examples(source, folder / f"{split or 'train'}.jsonl", split, corpus, beside=folder / "corpus.jsonl")
    if kind != "collection":
        return _WRITERS[kind](source, folder / _NAMES[kind].format(split or "test"), split)
    counts = {**_passages(source, folder / _NAMES["corpus"]), **_queries(source, folder / _NAMES["queries"], split)}
    counts["judgements"] = 0
    for name in [split] if split is not None else open_source(source).splits():
        counts["judgements"] += _judgements(source, folder / _NAMES["qrels"].format(name), name)["judgements"]
    return counts


def _passages(source: str | Path, path: Path, _: str | None = None) -> Counts:
    return {"passages": write_corpus(path, open_corpus(source))}


def _queries(source: str | Path, path: Path, split: str | None) -> Counts:
    return {"queries": write_queries(path, read_queries(source, split))}


def _judgements(source: str | Path, path: Path, split: str | None, form: Form | None = None) -> Counts:
    return {"judgements": write_qrels(path, read_qrels(source, split or "test"), form)}


def _results(source: str | Path, path: Path, _: str | None, form: Form = "trec") -> Counts:
    return {"results": write_run(path, open_run(source), form=form)}


_WRITERS: dict[str, Callable[[str | Path, Path, str | None], Counts]] = {
    "corpus": _passages,
    "queries": _queries,
    "qrels": _judgements,
    "run": _results,
}

_NAMES = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "qrels/{}.tsv", "run": "run.trec"}


def _examples(
    source: str | Path, path: Path, split: str | None, corpus: str | Path | None, *, beside: Path | None = None
) -> Counts:
    """Write examples, and the passages that came with them into the file `beside`."""
    known = None if corpus is None else open_corpus(corpus)
    examples = read_examples(source, corpus=known, split=split or "train")
    if examples.dropped:
        # The command's last line counts them.
        oddities.check(f"{examples.dropped:,} of the examples of '{examples.source}' have no positive.")
    if examples.passages and beside is None and known is None:
        msg = (
            f"'{source}' contains the texts of {len(examples.passages)} passages, and '{path}' would hold ids alone. "
            f"Give a folder as output: the texts are written beside the examples."
        )
        raise InputError(msg)
    counts = {"examples": write_examples(path, examples)}
    if examples.passages and beside is not None:
        counts["passages"] = write_corpus(beside, examples.passages.values())
    return {**counts, "without a positive": examples.dropped} if examples.dropped else counts
