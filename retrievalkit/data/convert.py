"""Any known data format in, ours out: `rkit convert IN OUT`.

    rkit convert biencoder-nq-train.json nq/            examples and the passages that came with them
    rkit convert psgs_w100.tsv corpus.jsonl.gz          a corpus, as BEIR
    rkit convert dev.run dev.trec                       a run, as TREC
    rkit convert dev.trec dev.tsv --form msmarco        a run, as MS MARCO: query, document, rank
    rkit convert pydoc:pandas pandas/                   a whole collection, as a BEIR folder
    rkit convert pydoc:pandas test.tsv --kind qrels     a part of it

What a file holds is told by its keys or columns; `--kind` says it where they fit two things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, get_args

from retrievalkit import artifacts
from retrievalkit.data import examples, files, sources
from retrievalkit.data.corpus import Passage, corpus_table, open_corpus
from retrievalkit.data.examples import read_examples, write_examples
from retrievalkit.data.qrels import is_header, read_qrels, splits, write_qrels
from retrievalkit.data.queries import query_table, read_queries, write_queries
from retrievalkit.data.records import read_records, shown
from retrievalkit.data.run_forms import is_run_object, judgements_or_run
from retrievalkit.data.runs import Form, read_run, write_run
from retrievalkit.data.sources.remote import fetched_records
from retrievalkit.errors import DataError, InputError, OptionError, nearest

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
        source: A file, a folder, `hf:`, `irds:` or `pydoc:`.
        output: A file (.jsonl, .tsv, .trec ..., with .gz or .zst to pack it), or a folder, which is any other name.
        kind: What the source holds, or the part of a collection that is wanted.
        split: Of a collection with several.
        corpus: In which the documents of examples are looked up.
        form: Of a run ("trec" where None) or of judgements ("beir" for `.tsv`, else "trec").

    Returns:
        What was written -> how much.

    Raises:
        InputError: The source is damaged or of an unknown kind, or does not go into such an output.
    """
    if kind is not None and kind not in get_args(Kind):
        close = nearest(kind, get_args(Kind))
        hint = f" Did you mean '{close}'?" if close else ""
        msg = f"unknown kind '{kind}'.{hint} Known: {', '.join(get_args(Kind))}."
        raise OptionError(msg)
    kind = kind or kind_of(source)
    path = Path(output)
    if form is not None:
        return _write_in_form(kind, source, path, split, form)
    if _is_file(path):
        return _write_file(kind, source, path, split, corpus)
    with artifacts.write_folder(path) as staging:
        counts = _write_folder(kind, source, staging, split, corpus)
        inputs = {"source": artifacts.describe_input(source, sources.fingerprint(source))}
        options = {"kind": kind, "split": split}
        artifacts.write_manifest(
            staging, "collection", command="convert", options=options, inputs=inputs, counts=counts
        )
    return counts


def _write_in_form(kind: Kind, source: str | Path, path: Path, split: str | None, form: Form) -> Counts:
    if kind not in ("run", "qrels"):
        msg = f"--form is for runs and qrels, and '{source}' is taken for {kind}. Leave it out or give --kind."
        raise OptionError(msg)
    if path.is_dir():
        msg = f"'{path}' is a folder. With --form give the name of a file."
        raise OptionError(msg)
    if kind == "run":
        return {"results": write_run(path, read_run(source), form=form)}
    return {"judgements": write_qrels(path, read_qrels(source, split or "test"), form)}


def _is_file(path: Path) -> bool:
    name = path.name
    for end in files.COMPRESSIONS[1:]:
        name = name.removesuffix(end)
    return not path.is_dir() and name.endswith(_FILES)


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
    for one in _splits(source, split):
        counts["judgements"] += _judgements(source, folder / _NAMES["qrels"].format(one), one)["judgements"]
    return counts


def _splits(source: str | Path, split: str | None) -> list[str]:
    if split is not None:
        return [split]
    return splits(Path(source)) if sources.is_folder(source) else ["test"]


def _passages(source: str | Path, path: Path, _: str | None = None) -> Counts:
    return {"passages": _write_passages(path, open_corpus(source))}


def _queries(source: str | Path, path: Path, split: str | None) -> Counts:
    return {"queries": write_queries(path, read_queries(source, split))}


def _judgements(source: str | Path, path: Path, split: str | None) -> Counts:
    return {"judgements": write_qrels(path, read_qrels(source, split or "test"))}


def _results(source: str | Path, path: Path, _: str | None) -> Counts:
    return {"results": write_run(path, read_run(source))}


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
    """Write examples, and the passages that came with them to the file `beside`."""
    known = None if corpus is None else open_corpus(corpus)
    examples = read_examples(source, corpus=known, split=split or "train")
    if examples.passages and beside is None and known is None:
        msg = (
            f"'{source}' brings the texts of {len(examples.passages)} passages, and '{path}' would hold ids alone. "
            f"Give a folder as output: the texts are written beside the examples."
        )
        raise InputError(msg)
    counts = {"examples": write_examples(path, examples)}
    if examples.passages and beside is not None:
        counts["passages"] = _write_passages(beside, examples.passages.values())
    return {**counts, "without a positive": examples.dropped} if examples.dropped else counts


def _write_passages(path: Path, passages: Iterable[Passage]) -> int:
    return files.write_jsonl(path, ({"_id": one.id, "title": one.title, "text": one.text} for one in passages))


Kind = Literal["corpus", "queries", "examples", "qrels", "run", "collection"]


def kind_of(source: str | Path) -> Kind:
    """What a source holds.

    Raises:
        DataError: It is empty, or its keys or columns fit two kinds or none.
    """
    prefix, rest = sources.split_prefix(source)
    if prefix in ("pydoc", "irds"):
        return "collection"
    if prefix:
        return _of_keys(set(next(fetched_records(prefix, rest, "docs")).fields), source)
    path = files.existing(rest)
    if path.is_dir():
        return "collection" if files.find_file(path, "queries.jsonl") else "corpus"
    if is_run_object(path):
        return "run"
    if files.first_character(path) in ("{", "["):
        return _of_keys(set(next(read_records(path, lambda _: None, "records")).fields), path)
    return _of_row(path)


def _of_keys(keys: set[str], source: str | Path) -> Kind:
    if examples.has_form(keys):
        return "examples"
    if keys & {"query_id", "question", "qid", "query", "answers"}:
        return "queries"
    if keys & {"title", "contents", "docid", "doc_id"}:
        return "corpus"
    if "text" in keys:
        return _by_name(source, f"a record with the fields {', '.join(sorted(keys))}")
    msg = f"no form of anything has these fields: {', '.join(sorted(keys))}. Say what it is, with --kind."
    raise DataError(msg, file=source)


def _of_row(path: Path) -> Kind:
    first = next(files.filled_lines(path), None)
    if first is None:
        msg = "the file is empty."
        raise DataError(msg, file=path)
    tabs = first.text.split("\t")
    if is_header(tabs):
        return "qrels"
    names = {cell.strip().lower() for cell in tabs}
    if examples.has_form(names):
        return "examples"
    asked, told = query_table(tabs), corpus_table(tabs)
    if told and told.header and names & {"title", "contents", "docid", "doc_id"}:
        return "corpus"
    if asked and (asked.header or "answer_list" in asked.names) and not (told and told.header):
        return "queries"
    return judgements_or_run(path) or _by_name(path, f"a line like {shown(first.text)}")


def _by_name(source: str | Path, what: str) -> Kind:
    """Where the content fits two kinds, the file's name may say which one it is."""
    name = str(source).rpartition("/")[2].lower()
    hints: tuple[tuple[str, Kind], ...] = (
        ("qrel", "qrels"),
        ("run", "run"),
        ("quer", "queries"),
        ("question", "queries"),
        ("topic", "queries"),
        ("corpus", "corpus"),
        ("collection", "corpus"),
        ("passage", "corpus"),
        ("psgs", "corpus"),
        ("docs", "corpus"),
    )
    for hint, kind in hints:
        if hint in name:
            return kind
    msg = f"{what} may stand in more than one kind of file. Say which one it is: --kind corpus, queries, qrels or run."
    raise DataError(msg, file=source)
