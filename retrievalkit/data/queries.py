"""Queries: texts to search for, with their answers if known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrievalkit.contracts.encoding import Text
from retrievalkit.data import files
from retrievalkit.data.fields import Value, fields_of
from retrievalkit.data.forms import (
    ANCHORS,
    NEGATIVES,
    POSITIVES,
    QUERIES,
    QUERY_IDS,
    QUERY_TEXTS,
    incomplete,
    is_example,
    is_numbered,
)
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import HALF_CHARACTER, QuestionNamer, Record, hashed_id
from retrievalkit.data.same_text import same_text
from retrievalkit.data.sources import is_folder, open_source
from retrievalkit.errors import DataError, InputError
from retrievalkit.reporting.notices import Blanks

_KNOWN = {
    *QUERY_IDS, *QUERY_TEXTS, *ANCHORS, "answer", "answers", "positives", "negatives", "positive_document_ids",
    "negative_document_ids", "teacher", "pos_scores", "neg_scores", "scores", "labels",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Query:
    """A query; `answers` are strings that a passage with the answer contains, `fields` are metadata (`data.fields`)."""

    id: str
    text: str
    answers: tuple[str, ...] = ()
    fields: Mapping[str, Value] = field(default_factory=dict, hash=False)

    @property
    def content(self) -> Text:
        """The text to encode."""
        return Text("", self.text, self.fields)


def read_queries(source: str | Path, split: str | None = None) -> list[Query]:
    """Read queries: BEIR, TSV, DPR, examples in any format, a BEIR folder, or a source such as `irds:NAME`.

    Empty queries are counted.

    Args:
        source: A file, a folder or `PREFIX:NAME`.
        split: For a BEIR folder, read only the queries judged in this split.

    Raises:
        DataError: A query is damaged, has no text, or has a duplicate id.
    """
    by_id: dict[str, tuple[Record, Query]] = {}
    namer = QuestionNamer()
    for record in open_source(source).records("queries"):
        query = query_of(record, namer)
        # Drop the fields, which take as much memory as the query.
        first = by_id.setdefault(query.id, (record._replace(fields={}), query))
        # Examples may repeat a query; a queries file may not. No id may have two texts.
        repeated = is_example(record.fields.keys()) and same_text(first[1].text, query.text)
        if first[1] is not query and not repeated:
            raise record.duplicated(query.id, first[0])
    queries = [query for _, query in by_id.values()]
    if not queries:
        msg = "it contains no queries."
        raise DataError(msg, file=source)
    if split is not None and is_folder(source):
        from retrievalkit.data.qrels import read_qrels

        judged = read_qrels(source, split)
        queries = [query for query in queries if query.id in judged]
    blanks = Blanks("queries", str(source))
    for query in queries:
        blanks.see(query.id, query.text)
    blanks.report()
    return queries


def check_query(text: str) -> Query:
    """Return a text as a query; raise an error if it cannot be searched.

    Among several queries a blank query has no hits, and `read_queries` counts it.
    """
    if not text.strip():
        msg = "the query is empty. Give it a text."
        raise InputError(msg)
    query = Query("query", text)
    check_queries([query])
    return query


def check_queries(queries: Sequence[Query]) -> None:
    """Raise an error for queries that cannot be searched."""
    if not queries:
        msg = "there are no queries to search for. Give at least one."
        raise InputError(msg)
    seen: set[str] = set()
    for query in queries:
        if not (query.id + query.text).isascii() and HALF_CHARACTER.search(query.id + query.text):
            msg = f"the query {shown(query.text)} holds bytes that are not UTF-8, or half a surrogate pair."
            raise InputError(msg)
        if query.id in seen:
            msg = f"two queries have the id '{query.id}'. Every query needs its own id."
            raise InputError(msg)
        seen.add(query.id)


def write_queries(path: str | Path, queries: Iterable[Query]) -> int:
    """Write queries as BEIR JSON lines; returns their number."""
    rows = (
        {"_id": query.id, "text": query.text}
        | ({"answers": list(query.answers)} if query.answers else {})
        | ({"metadata": dict(query.fields)} if query.fields else {})
        for query in queries
    )
    return files.write_jsonl(path, rows)


def query_of(record: Record, namer: QuestionNamer) -> Query:
    """Return the query in a record of any known format."""
    fields = record.fields
    identifier = next((name for name in QUERY_IDS if name in fields), None)
    example = is_example(fields.keys()) and "positive_ctxs" not in fields
    text = next((name for name in ((*ANCHORS, *QUERY_TEXTS) if example else QUERY_TEXTS) if name in fields), None)
    if example and identifier is None and text is not None:
        query = record.text(text)
        return Query(hashed_id(query), query, record.texts("answers"), query_fields(record))
    if text is None or (identifier is None and text != "question"):
        raise incomplete(record, "query", QUERIES.known, id=QUERY_IDS, text=QUERY_TEXTS)
    if identifier is None:
        question = straight_quotes(record.text(text))
        return Query(namer.name(question), question, record.texts("answers"), query_fields(record))
    return Query(record.identifier(identifier), record.text(text), record.texts("answers"), query_fields(record))


def query_fields(record: Record) -> dict[str, Value]:
    """Return the metadata of a query or a training example: all fields except ids, texts, documents and answers."""
    own = {name: value for name, value in record.fields.items() if not is_numbered(name, POSITIVES + NEGATIVES)}
    return fields_of(own, _KNOWN)


def straight_quotes(question: str) -> str:
    """Normalise a question like DPR's reader: the right single quotation mark becomes an apostrophe."""
    return question.replace("’", "'")  # noqa: RUF001 - this character is the point
