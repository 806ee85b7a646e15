"""Detection of the kind of data in a source, by keys or columns, or by the file name if these are ambiguous."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from retrievalkit.data import files, forms
from retrievalkit.data.forms import corpus_table, is_example, is_judgement_header, query_table
from retrievalkit.data.json_text import field_names, shown
from retrievalkit.data.records import first_row, read_records
from retrievalkit.data.run_forms import is_run_object, judgements_or_run
from retrievalkit.data.sources import Part, open_source
from retrievalkit.data.sources.local import Local
from retrievalkit.errors import DataError

Kind = Literal["corpus", "queries", "examples", "qrels", "run", "collection"]

_OF_PASSAGES = {"title", *forms.PASSAGE_IDS, *forms.PASSAGE_TEXTS} - {*forms.QUERY_IDS, "text"}

KIND_OF_PART: dict[Part, Kind] = {
    "passages": "corpus",
    "queries": "queries",
    "judgements": "qrels",
    "examples": "examples",
}


def kind_of(source: str | Path) -> Kind:
    """Detect the kind of data in a source."""
    opened = open_source(source)
    path = opened.path if isinstance(opened, Local) else None
    if isinstance(opened, Local) and opened.is_folder:
        return "collection" if opened.holds("queries") else "corpus"
    if path is None and (parts := opened.parts()) is not None:
        return KIND_OF_PART[parts[0]] if len(parts) == 1 else "collection"
    if path is not None and is_run_object(path):
        return "run"
    if path is not None and files.first_character(path) not in ("{", "["):
        return _of_row(path)
    records = opened.records("passages") if path is None else read_records(path, lambda _: None, "records")
    for record in records:
        return _of_keys(set(record.fields), path or source)
    msg = "it contains no records."
    raise DataError(msg, file=path or source)


def _of_keys(keys: set[str], source: str | Path) -> Kind:
    if is_example(keys):
        return "examples"
    if keys & {"query_id", "question", "qid", "query", "answers"}:
        return "queries"
    if keys & _OF_PASSAGES:
        return "corpus"
    names = field_names(sorted(keys))
    if "text" in keys:
        return _by_name(source, f"a record with the fields {names}")
    msg = f"no known kind of data has these fields: {names}. Set its kind, or name the fields of a passage: "
    msg += "text_field, title_field, id_field."
    raise DataError(msg, file=source)


def _of_row(path: Path) -> Kind:
    first = next(files.filled_lines(path), None)
    if first is None:
        msg = "the file is empty."
        raise DataError(msg, file=path)
    cells, gap = first_row(path)
    if gap != "\t":
        return _of_keys({cell.strip().lower() for cell in cells}, path)
    tabs = first.text.split("\t")
    if is_judgement_header(tabs):
        return "qrels"
    names = {cell.strip().lower() for cell in tabs}
    if is_example(names):
        return "examples"
    queries, corpus = query_table(tabs), corpus_table(tabs)
    of_corpus = corpus is not None and corpus.header and not names.isdisjoint(forms.PASSAGE_TEXTS)
    of_queries = queries is not None and queries.header and not names.isdisjoint(forms.QUERY_TEXTS)
    if of_corpus and (names & _OF_PASSAGES or not of_queries):
        return "corpus"
    if (of_queries and not of_corpus) or (queries and "answer_list" in queries.names):
        return "queries"
    return judgements_or_run(path) or _by_name(path, f"a line like {shown(first.text)}")


def _by_name(source: str | Path, content: str) -> Kind:
    """Guess the kind from the file name, for ambiguous content."""
    name = str(source).rpartition("/")[2].lower()
    hints: dict[str, Kind] = {
        "qrel": "qrels", "run": "run", "quer": "queries", "question": "queries", "topic": "queries",
        "corpus": "corpus", "collection": "corpus", "passage": "corpus", "psgs": "corpus", "docs": "corpus",
    }  # fmt: skip
    for hint, kind in hints.items():
        if hint in name:
            return kind
    msg = f"{content} fits more than one kind of file. Set its kind: corpus, queries, qrels or run."
    raise DataError(msg, file=source)
