"""Queries: what is searched for, with the answers where they are known."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retrievalkit.data import files, sources
from retrievalkit.data.records import Record, Table, read_records, shown
from retrievalkit.data.sources.remote import fetched_records
from retrievalkit.errors import DataError, InputError

FORMS = (
    "BEIR (_id, text)",
    "Tevatron (query_id, query) or (query_id, query_text)",
    "a table id, text",
    'DPR (a table question, ["answer", ...]; or question, answers)',
)
_IDS = ("_id", "query_id", "qid", "query-id", "id")
_TEXTS = ("query", "query_text", "question", "text", "contents")


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for; `answers` are the strings that a passage with the answer holds."""

    id: str
    text: str
    answers: tuple[str, ...] = ()


def read_queries(source: str | Path, split: str | None = None) -> list[Query]:
    """Read queries: BEIR, TSV, DPR, examples in any form, a BEIR folder, `pydoc:`, `hf:` or `irds:`.

    Args:
        source: A file, a folder or the name of a remote source.
        split: Of a BEIR folder, only the queries that the qrels of this split judge.

    Raises:
        DataError: A query is damaged, has no text, or has the id of another.
    """
    queries = _unique(query_records(source))
    if not queries:
        msg = "there is no query in it."
        raise DataError(msg, file=source)
    if split is not None and sources.is_folder(source):
        from retrievalkit.data.qrels import read_qrels

        judged = read_qrels(source, split)
        queries = [query for query in queries if query.id in judged]
    return queries


def check_queries(queries: Sequence[Query]) -> None:
    """Refuse queries that cannot be searched for.

    Raises:
        InputError: There is none, one is empty, or two have one id.
    """
    if not queries:
        msg = "there is no query to search for."
        raise InputError(msg)
    seen: set[str] = set()
    for query in queries:
        if not query.text.strip():
            msg = f"the query '{query.id}' is empty. Give it a text, or leave it out."
            raise InputError(msg)
        if query.id in seen:
            msg = f"two queries have the id '{query.id}'. Every query needs an id of its own."
            raise InputError(msg)
        seen.add(query.id)


def write_queries(path: str | Path, queries: Iterable[Query]) -> int:
    """Write queries as BEIR JSON lines and return how many there were."""
    return files.write_jsonl(path, map(_row, queries))


def _row(query: Query) -> dict[str, object]:
    row: dict[str, object] = {"_id": query.id, "text": query.text}
    return {**row, "answers": list(query.answers)} if query.answers else row


def query_records(source: str | Path) -> Iterator[tuple[Record, Query]]:
    """The queries of a source with their places, repeated ones too."""
    prefix, rest = sources.split_prefix(source)
    if prefix == "pydoc":
        from retrievalkit.data.sources import pydoc

        for number, question in enumerate(pydoc.questions(rest), 1):
            yield Record(str(source), number, {}), Query(question.id, question.text)
        return
    namer = QuestionNamer()
    for record in _records(prefix, rest):
        yield record, query_of(record, namer)


def query_of(record: Record, namer: QuestionNamer) -> Query:
    """The query in a record, whichever form it has."""
    fields = record.fields
    text = next((name for name in _TEXTS if name in fields), None)
    identifier = next((name for name in _IDS if name in fields), None)
    if text is None or (identifier is None and text != "question"):
        raise record.unknown_form("query", FORMS)
    if identifier is None:
        question = straight_quotes(record.text(text))
        return Query(namer.name(question), question, record.texts("answers"))
    return Query(record.identifier(identifier), record.text(text), record.texts("answers"))


def straight_quotes(question: str) -> str:
    """A question as DPR's reader gives it: the right single quotation mark becomes an apostrophe."""
    return question.replace("’", "'")  # noqa: RUF001 - this character is the point


def hashed_id(text: str) -> str:
    """An id for a text that came without one, equal wherever the same text comes."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class QuestionNamer:
    """Gives ids to questions that have none: a hash of the text, so that a question has one id in all DPR files.

    A question that comes again in the same file gets "-2", "-3" ..., because it counts once more in DPR's figures.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def name(self, question: str) -> str:
        """The id of the next occurrence of a question."""
        count = self._seen[question] = self._seen.get(question, 0) + 1
        return hashed_id(question) if count == 1 else f"{hashed_id(question)}-{count}"


def query_table(row: list[str]) -> Table | None:
    """How queries in a table are read: id and text, or DPR's question and answers."""
    names = tuple(cell.strip().lower() for cell in row)
    if names[0] in _IDS and any(name in names for name in _TEXTS):
        return Table(names, header=True)
    if len(row) != 2:
        return None
    if row[1].startswith("[") and row[1].rstrip().endswith("]"):
        return Table(("question", "answer_list"), quoted=True)
    return Table(("id", "text"))


def _records(prefix: str, rest: str) -> Iterator[Record]:
    if prefix:
        yield from fetched_records(prefix, rest, "queries", "queries")
        return
    path = files.inside(files.existing(rest), "queries.jsonl", "queries")
    for record in read_records(path, query_table, "queries", FORMS):
        if "answer_list" in record.fields:
            record.fields["answers"] = _literal_answers(record)
        yield record


def _literal_answers(record: Record) -> list[str]:
    """DPR writes answers as a Python list, which is parsed as a literal and never run."""
    cell = record.fields.pop("answer_list")
    try:
        answers = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        answers = None
    if not isinstance(answers, list | tuple):
        msg = f'the answers are no list of texts: {shown(cell)}. Write them as ["one", "two"].'
        raise record.error(msg)
    return [str(one) for one in answers]


def _unique(found: Iterable[tuple[Record, Query]]) -> list[Query]:
    """Each query once: examples may repeat one, a file of queries may not, and nowhere does an id have two texts."""
    kept: dict[str, tuple[Record, Query]] = {}
    for record, query in found:
        first = kept.setdefault(query.id, (record, query))
        if first[0] is not record and (first[1].text != query.text or not _is_example(record)):
            raise record.duplicated(query.id, first[0])
    return [query for _, query in kept.values()]


def _is_example(record: Record) -> bool:
    return any(name.startswith(("positive", "negative")) for name in record.fields)
