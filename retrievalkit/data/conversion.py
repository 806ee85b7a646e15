"""From any known data format to ours: `rkit convert IN OUT`.

    rkit convert biencoder-nq-train.json nq/            examples and the passages that came with them
    rkit convert psgs_w100.tsv corpus.jsonl.gz          a corpus, as BEIR
    rkit convert dev.run dev.trec                       a run, as TREC
    rkit convert dev.trec dev.tsv --form msmarco        a run, as MS MARCO: query, document, rank
    rkit convert pydoc:pandas pandas/                   a whole collection, as a BEIR folder
    rkit convert pydoc:pandas test.tsv --kind qrels     a part of it
    rkit convert notes/ corpus.jsonl --passages 100     a folder of .txt, .md, .html and .pdf, in passages of 100 words
    rkit convert faq.csv faq/ --text-field answer       a table of one's own
    rkit convert msmarco-hard-negatives.jsonl.gz train.jsonl --queries queries.tsv --per-system 5

The kind of data follows from keys or columns (`data.kinds`); `--kind` sets it if these are ambiguous. `Contents` reads
it; `retrievalkit.data.passage_parts` has some that change it on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from retrievalkit import storage
from retrievalkit.data.columns import Columns, open_own
from retrievalkit.data.corpus import Corpus, Passage, open_corpus, write_corpus
from retrievalkit.data.examples import Examples, against_corpus, read_examples, write_examples
from retrievalkit.data.files import COMPRESSIONS
from retrievalkit.data.hard_negatives import HardNegatives
from retrievalkit.data.kinds import KIND_OF_PART, Kind, kind_of
from retrievalkit.data.qrels import Qrels, read_qrels, write_qrels
from retrievalkit.data.queries import read_queries, write_queries
from retrievalkit.data.runs import Form, Hits, open_run, write_run
from retrievalkit.data.sources import fingerprint, is_folder, open_source
from retrievalkit.data.sources.documents import Documents, as_documents
from retrievalkit.errors import ArtifactError, InputError, OptionError, UnknownNameError
from retrievalkit.reporting import notices

Counts = dict[str, int]


class Contents:
    """What is read of a source, as it is; a subclass may change it.

    Args:
        columns: The fields of a passage that the user named.

    Attributes:
        options: What distinguishes a subclass, for the manifest.
    """

    options: Mapping[str, Any] = {}

    def __init__(self, columns: Columns | None = None) -> None:
        self.columns = columns

    def check(self, kind: Kind, source: str | Path) -> None:
        """Refuse a kind of data that cannot be read in this way."""

    def passages(self, source: str | Path) -> Iterable[Passage]:
        """The passages of a corpus."""
        return self.corpus(source)

    def corpus(self, source: str | Path) -> Corpus:
        """The corpus as it is in the source."""
        return open_own(source, self.columns)

    def judgements(self, source: str | Path, split: str, corpus: str | Path | None) -> Qrels:  # noqa: ARG002
        """The judgements of a split; `corpus` has their passages."""
        return read_qrels(source, split)

    def examples(self, source: str | Path, split: str, corpus: str | Path | None) -> Examples:
        """The examples of a split, whose documents must be in `corpus`, if that is given."""
        examples = read_examples(source, split=split)
        return examples if corpus is None else against_corpus(examples, self.corpus(corpus))

    def results(self, source: str | Path) -> Mapping[str, Hits] | Iterable[tuple[str, Hits]]:
        """The hits of a run, query after query."""
        return open_run(source)


AS_IT_IS = Contents()

_FILES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".trec", ".run", ".qrels", ".qrel")


def convert(
    source: str | Path,
    output: str | Path,
    *,
    kind: Kind | None = None,
    split: str | None = None,
    corpus: str | Path | None = None,
    form: Form | None = None,
    hard_negatives: HardNegatives | None = None,
    root: str | Path | None = None,
    contents: Contents = AS_IT_IS,
) -> Counts:
    """Read a source in any known form and write it in ours.

    Args:
        source: A file, a folder, or a source such as `hf:NAME` or `pydoc:PACKAGE,...`.
        output: A file (.jsonl, .tsv, .trec ..., with .gz or .zst to compress it); any other name is a folder.
        kind: The kind of data in the source, or the part of a collection to convert.
        split: The split, for a collection with several.
        corpus: The passages of examples or judgements; if given, those of examples must be in it.
        form: The form of a run (None = "trec") or of judgements (None = "beir" for `.tsv`, else "trec").
        hard_negatives: Of sentence-transformers' file of hard negatives, which are taken.
        root: The folder that ids of documents are relative to; None = the folder or file that is converted.
        contents: How the source is read.

    Returns:
        Kind of what was written -> its count.

    Raises:
        InputError: The source is damaged or of an unknown kind, or does not fit the output.
    """
    if kind is not None and kind not in get_args(Kind):
        raise UnknownNameError("kind", kind, get_args(Kind))
    if (other := storage.kind_of(source)) in _WANTED_BY:
        # The folder of another command has JSON files, but no data.
        named = "vectors" if other == "vectors" else f"an {other}" if other[0] in "aeiou" else f"a {other}"
        msg = (
            f"'{source}' holds {named} (its manifest.json says so), and convert reads corpora, queries, examples, "
            f"judgements and runs. {_WANTED_BY[other].format(source)}"
        )
        raise ArtifactError(msg)
    if kind in (None, "corpus") or root is not None:
        source = as_documents(source, root)
    if hard_negatives is not None:
        if contents is not AS_IT_IS:
            msg = "hard negatives by system are not cut into parts. Write them first, then convert what was written."
            raise OptionError(msg)
        return _hard_negatives(source, Path(output), hard_negatives, kind, corpus)
    if kind is None:
        kind = "corpus" if contents.columns else kind_of(source)
        converted = ("passages", "queries", "judgements") if kind == "collection" else ("passages",)
        for part in (open_source(source).parts() or ()) if is_folder(source) else ():
            if part not in converted:
                notices.note(f"the {part} in '{source}' are not converted. Convert them as kind {KIND_OF_PART[part]}.")
    if contents.columns is not None and kind not in ("corpus", "collection"):
        msg = f"text_field names a field of passages, and '{source}' is read as {kind}. Leave out such names."
        raise OptionError(msg)
    contents.check(kind, source)
    path, read = Path(output), _Read(source, split, corpus, contents)
    if form is not None and kind not in ("run", "qrels"):
        msg = f"form is for runs and qrels, and '{source}' is read as {kind}. Leave it out, or give the kind."
        raise OptionError(msg)
    if form is not None and path.is_dir():
        msg = f"'{path}' is a folder. With a form, give the name of a file."
        raise OptionError(msg)
    if form is not None or _is_file(path):
        return _write(kind, read, path, form)
    if path.is_dir() and any(path.iterdir()):
        msg = f"output folder '{path}' exists already. Choose another name, or remove it."
        raise ArtifactError(msg)
    with storage.write_folder(path) as staging:
        counts = _write_folder(kind, read, staging)
        inputs = {"source": storage.describe_input(source, fingerprint(source))}
        if corpus is not None:
            inputs["corpus"] = storage.describe_input(corpus, fingerprint(corpus))
        fields = {} if contents.columns is None else {"fields": asdict(contents.columns)}
        opened = open_source(source)
        rooted = {"root": str(opened.root.absolute())} if isinstance(opened, Documents) else {}
        options = {"kind": kind, "split": split, **rooted, **fields, **contents.options}
        storage.write_manifest(staging, "collection", command="convert", options=options, inputs=inputs, counts=counts)
    return counts


_WANTED_BY = {
    "checkpoint": "It encodes texts: rkit encode {0} CORPUS --output VECTORS",
    "model": "It is trained further: rkit train --model {0}",
    "reranker": "It scores passages again: rkit rerank apply {0}",
    "vectors": "They are indexed: rkit index {0} --output INDEX",
    "index": "It is searched: rkit search {0} --queries FILE",
}


@dataclass(frozen=True)
class _Read:
    """A source, and how to read it."""

    source: str | Path
    split: str | None
    corpus: str | Path | None
    contents: Contents


_NAMES = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "qrels/{}.tsv", "run": "run.trec"}


def _is_file(path: Path) -> bool:
    name = path.name
    for end in COMPRESSIONS[1:]:
        name = name.removesuffix(end)
    return not path.is_dir() and (name.endswith(_FILES) or storage.is_stream(path))


def _write(kind: Kind, read: _Read, path: Path, form: Form | None = None) -> Counts:
    """Write a file of one kind."""
    contents, source = read.contents, read.source
    if kind == "collection":
        msg = (
            f"'{source}' is a whole collection, and '{path}' one file. Give a folder as output, or say which part "
            f"is wanted by its kind: {', '.join(_NAMES)} or examples."
        )
        raise OptionError(msg)
    if kind == "corpus":
        return {"passages": write_corpus(path, contents.passages(source))}
    if kind == "queries":
        return {"queries": write_queries(path, read_queries(source, read.split))}
    if kind == "qrels":
        return {"judgements": write_qrels(path, contents.judgements(source, read.split or "test", read.corpus), form)}
    if kind == "run":
        return {"results": write_run(path, contents.results(source), form=form or "trec")}
    return _examples(read, path)


def _write_folder(kind: Kind, read: _Read, folder: Path) -> Counts:
    if kind == "examples":
        return _examples(read, folder / f"{read.split or 'train'}.jsonl", beside=folder / "corpus.jsonl")
    if kind != "collection":
        return _write(kind, read, folder / _NAMES[kind].format(read.split or "test"))
    counts = _write("corpus", read, folder / _NAMES["corpus"]) | _write("queries", read, folder / _NAMES["queries"])
    splits = [read.split] if read.split is not None else open_source(read.source).splits()
    written = [_write("qrels", replace(read, split=one), folder / _NAMES["qrels"].format(one)) for one in splits]
    return {**counts, "judgements": sum(one["judgements"] for one in written)}


def _examples(read: _Read, path: Path, *, beside: Path | None = None) -> Counts:
    """Write examples, and the passages that came with them into the file `beside`."""
    examples = read.contents.examples(read.source, read.split or "train", read.corpus)
    if examples.dropped:
        # The command's last line counts them.
        notices.check(f"{examples.dropped:,} of the examples of '{examples.source}' have no positive.")
    if examples.passages and beside is None and read.corpus is None:
        msg = (
            f"'{read.source}' contains the texts of {len(examples.passages)} passages, and '{path}' would hold ids "
            f"alone. Give a folder as output: the texts are written beside the examples."
        )
        raise InputError(msg)
    counts = {"examples": write_examples(path, examples)}
    if examples.passages and beside is not None:
        counts["passages"] = write_corpus(beside, examples.passages.values())
    return {**counts, "without a positive": examples.dropped} if examples.dropped else counts


def _hard_negatives(
    source: str | Path, path: Path, chosen: HardNegatives, kind: Kind | None, corpus: str | Path | None
) -> Counts:
    """Write the examples of sentence-transformers' file."""
    if kind not in (None, "examples") or not _is_file(path):
        msg = f"negatives chosen by system are examples, which go to a file. Give '{path}.jsonl', and no kind."
        raise OptionError(msg)
    known = None if corpus is None else open_corpus(corpus)
    examples = read_examples(source, corpus=known, hard_negatives=chosen)
    without = sum(not row.negatives for row in examples)
    counts = {"examples": write_examples(path, examples), "without a negative": without}
    counts["without a positive"] = examples.dropped
    return {name: count for name, count in counts.items() if count}
