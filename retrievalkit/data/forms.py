"""Keys and columns of the known file and data set formats, and their meanings.

Records are distinguished by their keys, tables by their header or number of columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

from retrievalkit.data.json_text import field_names
from retrievalkit.data.records import Record, Table
from retrievalkit.errors import DataError

PASSAGE_IDS = ("_id", "docid", "doc_id", "id", "passage_id", "psg_id", "pid", "docno", "document_id")
PASSAGE_TEXTS = ("text", "contents", "content", "body", "passage")
"""Fields of a passage in every format, also inside training examples, in upper or lower case; the first is used."""

QUERY_IDS = ("_id", "query_id", "qid", "query-id", "id")
QUERY_TEXTS = ("query", "query_text", "question", "text", "contents")

JUDGED_QUERIES = ("query-id", "query_id", "qid", "q_id", "query")
JUDGED_DOCUMENTS = ("corpus-id", "corpus_id", "doc_id", "docid", "document_id", "docno", "pid")
"""Fields of judgements and of hits."""
GRADES = ("score", "relevance", "label", "grade")

ANCHORS = ("anchor", "query", "question", "sentence1")
POSITIVES = ("positive", "pos")
NEGATIVES = ("negative", "neg", "negatives")
"""The fields of triples, which hold texts; "positives", and "negatives" next to it, hold ids."""
_EXAMPLE_FIELDS = {"positive_ctxs", "positive_passages", "positive_document_ids"}
HARD_NEGATIVES = {"qid", "pos", "neg"}
TEACHER_COLUMNS = ("scores", "labels", "score", "label")
"""The columns of sentence-transformers with teacher scores, margins or labels."""
_READ = {
    *ANCHORS, *POSITIVES, *NEGATIVES, *HARD_NEGATIVES, *_EXAMPLE_FIELDS, *TEACHER_COLUMNS, "query_id", "query_text",
    "_id", "positives", "answer", "answers", "negative_ctxs", "hard_negative_ctxs", "negative_passages",
    "negative_document_ids", "teacher", "pos_scores", "neg_scores", "metadata", "fields", "dataset",
}  # fmt: skip


class Form(NamedTuple):
    """File formats of one kind of data.

    Attributes:
        table: The cells of a table's first row -> the layout of the table; None if it is not of this kind.
        plural: The kind of the records, for messages.
        known: The known formats, for messages.
        damaged: Receives the error of each record that cannot be read, which is left out; None = it is raised.
    """

    table: Callable[[list[str]], Table | None]
    plural: str
    known: tuple[str, ...]
    damaged: Callable[[DataError], None] | None = None


@functools.lru_cache(maxsize=64)
def roles_of(names: tuple[object, ...]) -> tuple[str, str, str]:
    """Return the fields with the id, the title and the text of a passage; "" for each that is missing."""
    texts = [name for name in names if isinstance(name, str)]
    known = {name.lower(): name for name in texts} | {name: name for name in texts}
    identifier, title, text = (
        next((known[name] for name in usual if name in known), "") for usual in (PASSAGE_IDS, ("title",), PASSAGE_TEXTS)
    )
    return identifier, title, text


def corpus_table(row: list[str]) -> Table | None:
    """Return the layout of a corpus table: DPR, with or without a header, or MS MARCO."""
    names = _names(row)
    if is_judgement_header(row):
        return None
    identifier, title, text = roles_of(names)
    # Without a known text, reading the first row as a header reports its names.
    if names[0] in PASSAGE_IDS or (text and (identifier or title)):
        return Table(names, header=True, quoted=True, bare=text)
    if len(row) == 2:
        return Table(("id", "text"))
    if len(row) == 3:
        return Table(("id", "text", "title"), quoted=True, bare="text")
    return None


def query_table(row: list[str]) -> Table | None:
    """Return the layout of a query table: id and text, or DPR's question and answers."""
    names = _names(row)
    if names[0] in QUERY_IDS:
        return Table(names, header=True)
    if len(row) != 2:
        return None
    if row[1].startswith("[") and row[1].rstrip().endswith("]"):
        return Table(("question", "answer_list"), quoted=True)
    return Table(("id", "text"))


def triple_table(row: list[str]) -> Table | None:
    """Return the layout of a triples table with a header."""
    names = _names(row)
    return Table(names, header=True) if names[0] in ANCHORS and set(names) & set(POSITIVES) else None


def is_judgement_header(cells: list[str]) -> bool:
    """True if the cells are the header of a judgements table."""
    names = _names(cells)
    return names[0] in JUDGED_QUERIES and len(names) > 1 and names[1] in JUDGED_DOCUMENTS


def is_example(names: Set[str]) -> bool:
    """True if a record with these fields is a training example."""
    if names & _EXAMPLE_FIELDS or names >= HARD_NEGATIVES:
        return True
    return bool(names & {*ANCHORS}) and any(name == "positives" or is_numbered(name, POSITIVES) for name in names)


def unread(fields: Mapping[str, Any]) -> set[str]:
    """Return the fields of a training example that are neither texts, ids, scores nor metadata."""
    rest = fields.keys() - _READ
    return {name for name in rest if fields[name] is not None and not is_numbered(name, POSITIVES + NEGATIVES)}


def incomplete(record: Record, kind: str, known: tuple[str, ...], **needs: tuple[str, ...]) -> DataError:
    """Return the error for a record that lacks one of the fields it `needs`, or has no known format."""
    absent = {name: fields for name, fields in needs.items() if not record.fields.keys() & set(fields)}
    if len(absent) == len(needs):
        return record.unknown_form(kind, known)
    listed = " and ".join(f"no {name} ({', '.join(fields)})" for name, fields in absent.items())
    return record.error(f"the {kind} has {listed}. Its fields are: {field_names(record.fields)}.")


def is_numbered(name: str, names: tuple[str, ...]) -> bool:
    """True if a field is one of the names, optionally with a number: negative_1, negative_2 ..."""
    return name in names or (name.rpartition("_")[0] in names and name.rpartition("_")[2].isdigit())


def columns(text: str, widths: tuple[int, ...]) -> list[str]:
    """Split a line of a TREC file into cells: at tabs if that gives a known width, otherwise at blanks and tabs."""
    cells = text.split("\t")
    if len(cells) in widths:
        return cells
    # Unlike other programs, `split` also splits at control characters and non-ASCII white space.
    spaced = " ".join(cells)
    return spaced.split() if spaced.isascii() and spaced.isprintable() else [cell for cell in spaced.split(" ") if cell]


def number(value: Any) -> float:
    """Return the number in a cell or a JSON value; NaN if it is not a number, or only valid in Python (1_0)."""
    try:
        return math.nan if isinstance(value, str) and ("_" in value or not value.isascii()) else float(value)
    except (ValueError, TypeError, OverflowError):
        return math.nan


def _names(row: list[str]) -> tuple[str, ...]:
    return tuple(cell.strip().lower() for cell in row)


CORPUS = Form(
    corpus_table,
    "passages",
    (
        "BEIR (_id, title, text)",
        "Tevatron (docid, title, text)",
        "Pyserini (id, contents)",
        "DPR (a table with the header id, text, title)",
        "MS MARCO (a table id, text without a header)",
    ),
)

QUERIES = Form(
    query_table,
    "queries",
    (
        "BEIR (_id, text)",
        "Tevatron (query_id, query) or (query_id, query_text)",
        "a table id, text",
        'DPR (a table question, ["answer", ...]; or question, answers)',
    ),
)

EXAMPLES = Form(
    triple_table,
    "training examples",
    (
        "ours (query_id, query, positives, negatives), documents by id, query_id optional",
        "Tevatron (query_id, query, positive_passages, negative_passages)",
        "Tevatron 2 (query_id, query_text, positive_document_ids, negative_document_ids)",
        "DPR (question, answers, positive_ctxs, hard_negative_ctxs)",
        "triples (anchor, positive, negative) or (query, pos, neg)",
        "hard negatives by system (qid, pos, neg: {system: [ids]})",
    ),
)

QRELS = (
    "TREC and MS MARCO (query 0 document grade)",
    "BEIR (a table with the header query-id, corpus-id, score)",
    "query document grade",
    "ranx and pytrec_eval (a JSON object query -> document -> grade)",
)
"""Known formats of judgements."""
