"""`rkit convert`: conversion of data in any known format to ours.

    rkit convert biencoder-nq-train.json nq/            examples, and the passages embedded in them
    rkit convert psgs_w100.tsv corpus.jsonl.gz          a corpus, as BEIR
    rkit convert dev.trec dev.tsv --form msmarco        a run, as MS MARCO: query, document, rank
    rkit convert pydoc:pandas pandas/                   a whole collection, as a BEIR folder
    rkit convert pydoc:pandas test.tsv --kind qrels     a part of it
    rkit convert notes/ corpus.jsonl --passages 100     a folder of .txt, .md, .html ..., in passages of 100 words
    rkit convert notes/ corpus.jsonl --model MODEL      in passages that the model reads whole
    rkit convert data parts --parts sentences           sentences as passages, with judgements (`data.passage_parts`)
    rkit convert parts.trec passages.trec --merge-parts     a run: each passage gets the score of its best part
    rkit convert faq.csv faq/ --text-field answer       a custom table
    rkit convert msmarco-hard-negatives.jsonl.gz train.jsonl --queries queries.tsv --per-system 5

The kind of data is detected from its keys or columns (`data.kinds`); `kind` sets it if these are ambiguous.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from retrievalkit import registry, storage
from retrievalkit.contracts.declarations import Argument, CommandOptions, Flag, Place, Reads, command
from retrievalkit.data import inputs, passage_parts
from retrievalkit.data.corpus import Columns, Corpus, open_corpus, open_own, write_corpus
from retrievalkit.data.examples import Examples, against_corpus, check_examples, read_examples, write_examples
from retrievalkit.data.files import COMPRESSIONS
from retrievalkit.data.hard_negatives import HardNegatives
from retrievalkit.data.kinds import KIND_OF_PART, Kind, kind_of
from retrievalkit.data.passage_parts import Parts, equal_parts, parts_of, windows
from retrievalkit.data.qrels import Qrels, read_qrels, write_qrels
from retrievalkit.data.queries import read_queries, write_queries
from retrievalkit.data.runs import open_run, write_run
from retrievalkit.data.sources import Part, as_documents, fingerprint, is_folder, open_source
from retrievalkit.errors import ArtifactError, InputError, MissingDependencyError, OptionError
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import counted

_OF_DATA = {
    "corpus": inputs.passages,
    "queries": inputs.queries,
    "examples": inputs.examples,
    "qrels": inputs.judgements,
}


@dataclass(frozen=True, kw_only=True)
class FieldOptions:
    """Field names of custom tables.

    Args:
        text_field: The field (column) of a table with the texts.
        title_field: The field with the titles.
        id_field: The field with the ids; by default a hash of title and text.
    """

    heading: ClassVar = "Custom files"

    text_field: Annotated[str | None, Flag(metavar="NAME")] = None
    title_field: Annotated[str | None, Flag(metavar="NAME")] = None
    id_field: Annotated[str | None, Flag(metavar="NAME")] = None

    @property
    def columns(self) -> Columns:
        """The fields by their roles."""
        return Columns(self.text_field or "", self.title_field or "", self.id_field or "")


@dataclass(frozen=True, kw_only=True)
class OwnFileOptions(FieldOptions):
    """Options for custom files: cutting of documents into passages, and field names of tables.

    Args:
        passages: Cut documents into passages of N words, or of up to N tokens of the model.
        stride: With passages: start a passage every N words; by default passages do not overlap. Of a model: share at
            most passages - N tokens, a fifth of a passage by default.
        by: With passages: the unit of N without a model; by default words.
        model: Cut by tokens of the model that will read the passages, at headings, pages and sentences.
        root: The base folder of the document ids; by default the source. Set it to convert a part of a folder.
    """

    heading: ClassVar = "Custom files"

    passages: Annotated[int, Ge(1)] | None = None
    stride: Annotated[int, Ge(1)] | None = None
    by: Literal["words", "sentences"] | None = None
    model: Annotated[Any, Reads(inputs.model)] = None
    root: Annotated[Place | None, Flag(metavar="FOLDER")] = None


@dataclass(frozen=True)
class ConvertOptions(HardNegatives, OwnFileOptions, CommandOptions):
    """Options of `convert`.

    Args:
        source: A file, a folder or another source; in Python also data in memory, with its kind.
        output: The file or folder to write.
        kind: The kind of data in the source, or the part of a collection to convert; detected by default.
        split: The split of a collection, if it has several.
        form: The output format of a run or qrels.
        parts: Cut passages into sentences or K equal parts, ID#1, ID#2 ...; judgements and examples follow.
        merge_parts: Merge a run of the parts in `corpus` into a run of passages, scored by their best part.
        corpus: The passages of the examples or judgements, if the source does not contain them; the parts of a run.
    """

    source: Annotated[Any, Argument(), Reads(accepts=("passages", "queries", "examples", "judgements", "run"))]
    output: Annotated[Place, Argument()]
    _: KW_ONLY
    kind: Literal["corpus", "queries", "examples", "qrels", "run", "collection"] | None = None
    split: str | None = None
    form: Literal["trec", "msmarco", "beir"] | None = None
    parts: Annotated[str | None, Flag(metavar="sentences|K")] = None
    merge_parts: bool = False
    corpus: Annotated[Any, Reads(inputs.passages)] = None

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments, with the address of a source in memory."""
        source, kind = values.get("source"), values.get("kind")
        if source is None or isinstance(source, str | os.PathLike):
            return dict(values)
        if kind not in _OF_DATA:
            msg = f"data in memory needs a kind ({', '.join(_OF_DATA)}), and kind is {kind!r}. Set it."
            raise OptionError(msg)
        return {**values, "source": _OF_DATA[kind](source)}


_FILES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".trec", ".run", ".qrels", ".qrel")
_NAMES = {"corpus": "corpus.jsonl", "queries": "queries.jsonl", "qrels": "qrels/{}.tsv", "run": "run.trec"}
_CACHED = 1 << 16  # number of passages whose parts are cached


class Converted(dict[str, int]):
    """Counts of the written rows: kind of row -> number of rows."""

    def __init__(self, output: Place, counts: Mapping[str, int]) -> None:
        super().__init__(counts)
        self.summary = f"{output}: " + ", ".join(counted(value, name) for name, value in counts.items())

    def as_json(self) -> dict[str, int]:
        """Return the output of `--json`."""
        return self


@command("convert", ConvertOptions)
def convert(options: ConvertOptions) -> Converted:
    """Convert a source in any known format, or a folder of .txt, .md, .html, .pdf and .docx files, to our format."""
    source, path, kind, form = options.source, Path(options.output), options.kind, options.form
    if kind in (None, "corpus") or options.root is not None:
        source = as_documents(source, None if options.root is None else Path(options.root))
    columns = None if options.columns == Columns() else options.columns
    cut, cutting = _cutter(options)
    hard_negatives = HardNegatives(**{option.name: getattr(options, option.name) for option in fields(HardNegatives)})
    if hard_negatives != HardNegatives():
        if columns or cut or options.merge_parts or kind not in (None, "examples") or not _is_file(path):
            msg = f"hard negatives become examples in a file. Write to '{path.name}.jsonl', without kind or parts."
            raise OptionError(msg)
        return Converted(options.output, _hard_negatives(source, path, hard_negatives, options.corpus))
    if kind is None:
        kind = "corpus" if columns else kind_of(source)
        converted = ("passages", "queries", "judgements") if kind == "collection" else ("passages",)
        for part in (open_source(source).parts() or ()) if is_folder(source) else ():
            if part not in converted:
                notices.note(f"the {part} in '{source}' are not converted. Convert them as kind {KIND_OF_PART[part]}.")
    misfits = {
        "text_field names a field of passages": columns and kind not in ("corpus", "collection"),
        f"{next(iter(cutting), '')} cuts passages": cut and kind in ("run", "queries"),
        "merge_parts is for runs": options.merge_parts and kind != "run",
        "form is for runs and qrels": form and kind not in ("run", "qrels"),
    }
    if misfit := next((problem for problem, holds in misfits.items() if holds), None):
        msg = f"{misfit}, but '{source}' is read as {kind}. Leave it out, or set another kind."
        raise OptionError(msg)
    reader = _Reader(source, options.split, options.corpus, columns, cut, options.merge_parts)
    if form is not None or _is_file(path):
        return Converted(options.output, _write(kind, reader, path, form))
    if path.is_dir() and any(path.iterdir()):
        msg = f"output folder '{path}' exists already. Choose another name, or remove it."
        raise ArtifactError(msg)
    with storage.write_folder(path) as staging:
        counts = _write_folder(kind, reader, staging)
        places = {"source": source} | ({} if options.corpus is None else {"corpus": options.corpus})
        read = {name: storage.describe_input(place, fingerprint(place)) for name, place in places.items()}
        opened = open_source(source)
        settings = {
            "kind": kind,
            "split": options.split,
            **({"root": str(opened.root.absolute())} if opened.root is not None else {}),
            **({} if columns is None else {"fields": asdict(columns)}),
            **cutting,
            **({"merge_parts": True} if options.merge_parts else {}),
        }
        storage.write_manifest(staging, "collection", command="convert", options=settings, inputs=read, counts=counts)
    return Converted(options.output, counts)


def _cutter(options: ConvertOptions) -> tuple[Parts | None, dict[str, Any]]:
    """Return the function that cuts texts, or None, and its options for the manifest."""
    size, stride, parts, model = options.passages, options.stride, options.parts, options.model
    if model is not None:
        if options.by is not None or parts is not None:
            msg = "model cuts by its tokens, and by and parts by other units. Set only model, or leave it out."
            raise OptionError(msg)
        if "documents" not in registry.names("source"):
            raise MissingDependencyError("retrievalkit-documents", "cutting by tokens", "'retrievalkit[documents]'")
        documents: Any = registry.get("source", "documents")
        by_tokens: tuple[Parts, dict[str, Any]] = documents.cutter(model, size, stride)
        return by_tokens
    if size is None and (stride is not None or options.by is not None):
        name = "by" if stride is None else "stride"
        msg = f"{name} is set, but passages, to which it applies, is not. Set passages too, or leave {name} out."
        raise OptionError(msg)
    if size is not None and parts is not None:
        msg = "parts and passages both cut passages. Set one of them; with by=sentences, passages counts sentences."
        raise OptionError(msg)
    if size is not None:
        step, by = stride or size, options.by or "words"
        if step > size:
            msg = f"stride is {step}, but should be 1 to {size} (passages), so that no word is lost."
            raise OptionError(msg)
        settings = {"passages": size, "stride": step, "by": by}
        return lambda passage: parts_of(passage, windows(passage.text, size, step, by)), settings
    if parts is None:
        return None, {}
    if parts == "sentences":
        return lambda passage: parts_of(passage, windows(passage.text, 1, by="sentences")), {"parts": parts}
    if not (parts.isascii() and parts.isdigit() and 2 <= int(parts) <= 1000):
        msg = f"parts is '{parts}', but should be 'sentences' or a number of equal parts, at least 2."
        raise OptionError(msg)
    return lambda passage: parts_of(passage, equal_parts(passage.text, int(parts))), {"parts": parts}


@dataclass(frozen=True)
class _Reader:
    """Reader of a source, with custom fields, cutting into parts, or merging of parts."""

    source: Any
    split: str | None
    corpus: Any
    columns: Columns | None
    cut: Parts | None
    merge: bool

    def judgements(self) -> Qrels:
        """Read the judgements of a split, or derive those of the parts, with the answers of the queries."""
        qrels = read_qrels(self.source, self.split or "test")
        if self.cut is None:
            return qrels
        if (place := self._place_of("passages")) is None:
            msg = f"'{self.source}' refers to passages whose texts it does not contain. Give the corpus."
            raise OptionError(msg)
        queries = self._place_of("queries")
        answers = {} if queries is None else {query.id: query.answers for query in read_queries(queries)}
        return passage_parts.judged_parts(qrels, self._parts_in(open_own(place, self.columns)), answers)

    def examples(self) -> Examples:
        """Read the examples of a split, mapped to the corpus if there is one; or derive the examples of the parts."""
        examples = read_examples(self.source, split=self.split or "train")
        if self.cut is None:
            return examples if self.corpus is None else against_corpus(examples, open_own(self.corpus, self.columns))
        if (place := self._place_of("passages")) is not None:
            known = open_own(place, self.columns)
            examples = replace(against_corpus(examples, known), passages={})
            return passage_parts.examples_of_parts(examples, self._parts_in(known))
        check_examples(examples, None)
        parts = {passage.id: self.cut(passage) for passage in examples.passages.values()}
        passages = {part.id: part for group in parts.values() for part in group}
        return passage_parts.examples_of_parts(replace(examples, passages=passages), parts.__getitem__)

    def _parts_in(self, corpus: Corpus) -> passage_parts.PartsOf:
        cut = self.cut
        assert cut is not None
        return lru_cache(_CACHED)(lambda document: cut(corpus.get(document)))

    def _place_of(self, part: Part) -> Any:
        """Return the address of the passages or queries: the corpus option, or the source."""
        if part == "passages" and self.corpus is not None:
            return self.corpus
        # A single file holds one kind of data.
        places = [place for place in (self.corpus, self.source) if place is not None and not Path(place).is_file()]
        return next((place for place in places if open_source(place).holds(part)), None)


def _is_file(path: Path) -> bool:
    name = path.name
    for end in COMPRESSIONS[1:]:
        name = name.removesuffix(end)
    return not path.is_dir() and (name.endswith(_FILES) or storage.is_stream(path))


def _write(kind: Kind, reader: _Reader, path: Path, form: Any = None) -> dict[str, int]:
    """Write a single file."""
    if kind == "collection":
        msg = (
            f"'{reader.source}' is a whole collection, but '{path}' is a single file. Write to a folder, or select a "
            f"part with kind: {', '.join(_NAMES)} or examples."
        )
        raise OptionError(msg)
    if kind == "corpus":
        cut, passages = reader.cut, open_own(reader.source, reader.columns)
        parts = passages if cut is None else (part for whole in passages for part in cut(whole))
        return {"passages": write_corpus(path, parts)}
    if kind == "queries":
        return {"queries": write_queries(path, read_queries(reader.source, reader.split))}
    if kind == "qrels":
        return {"judgements": write_qrels(path, reader.judgements(), form)}
    if kind == "run":
        run = open_run(reader.source).items()
        if reader.merge and reader.corpus is None:
            msg = f"'{reader.source}' has the ids of parts, not of their passages. Give the corpus of the parts."
            raise OptionError(msg)
        hits = passage_parts.merged(run, reader.source, open_corpus(reader.corpus)) if reader.merge else run
        return {"results": write_run(path, hits, form=form or "trec")}
    return _examples(reader, path)


def _write_folder(kind: Kind, reader: _Reader, folder: Path) -> dict[str, int]:
    if kind == "examples":
        return _examples(reader, folder / f"{reader.split or 'train'}.jsonl", passages_path=folder / "corpus.jsonl")
    if kind != "collection":
        return _write(kind, reader, folder / _NAMES[kind].format(reader.split or "test"))
    counts = _write("corpus", reader, folder / _NAMES["corpus"]) | _write("queries", reader, folder / _NAMES["queries"])
    splits = [reader.split] if reader.split is not None else open_source(reader.source).splits()
    written = [_write("qrels", replace(reader, split=name), folder / _NAMES["qrels"].format(name)) for name in splits]
    return {**counts, "judgements": sum(counts["judgements"] for counts in written)}


def _examples(reader: _Reader, path: Path, *, passages_path: Path | None = None) -> dict[str, int]:
    """Write examples, and the passages embedded in them to a second file."""
    examples = reader.examples()
    if examples.dropped:
        # The last line of the command's output counts them.
        notices.check(f"{counted(examples.dropped, 'examples')} of '{examples.source}' without a positive.")
    if examples.passages and passages_path is None and reader.corpus is None:
        msg = (
            f"'{reader.source}' contains the texts of {counted(len(examples.passages), 'passages')}, but '{path}' "
            f"would only hold their ids. Write to a folder: the texts are written next to the examples."
        )
        raise InputError(msg)
    counts = {"examples": write_examples(path, examples)}
    if examples.passages and passages_path is not None:
        counts["passages"] = write_corpus(passages_path, examples.passages.values())
    return {**counts, "without a positive": examples.dropped} if examples.dropped else counts


def _hard_negatives(source: Any, path: Path, selection: HardNegatives, corpus: Any) -> dict[str, int]:
    """Write examples from a hard negatives file."""
    known = None if corpus is None else open_corpus(corpus)
    examples = read_examples(source, corpus=known, hard_negatives=selection)
    counts = {
        "examples": write_examples(path, examples),
        "without a negative": sum(not row.negatives for row in examples),
        "without a positive": examples.dropped,
    }
    return {name: count for name, count in counts.items() if count}
