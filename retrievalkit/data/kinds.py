"""What a source holds: told by the keys of its first record, or by its columns."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from retrievalkit.data import examples, files, sources
from retrievalkit.data.corpus import corpus_table
from retrievalkit.data.qrels import is_header
from retrievalkit.data.queries import query_table
from retrievalkit.data.records import read_records, shown
from retrievalkit.data.remote import fetched_records
from retrievalkit.data.run_forms import is_run_object, judgements_or_run
from retrievalkit.errors import DataError

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
