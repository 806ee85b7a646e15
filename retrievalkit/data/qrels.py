"""Judgements: which documents answer which query, and how well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from retrievalkit.data import sources
from retrievalkit.data.sources import Record
from retrievalkit.errors import DataError

Qrels = dict[str, dict[str, int]]

FORMS = (
    "TREC (query 0 document grade)",
    "BEIR (a table with the header query-id, corpus-id, score)",
    "query document grade",
)
_QUERIES = ("query-id", "query_id", "qid", "query")
_DOCUMENTS = ("corpus-id", "corpus_id", "doc_id", "docid", "document_id", "pid")
_GRADES = ("score", "relevance", "label", "grade")


def read_qrels(source: str | Path, split: str = "test") -> Qrels:
    """Read judgements: query id -> document id -> grade.

    Args:
        source: A TREC or BEIR file, a BEIR folder, `pydoc:`, `hf:` or `irds:`.
        split: Which of a BEIR folder's files, or of a Hugging Face dataset's splits.

    Raises:
        DataError: A line is damaged, or judges what another line judges otherwise.
    """
    qrels: Qrels = {}
    places: dict[tuple[str, str], int] = {}
    for record, query_id, document_id, grade in judgements(source, split):
        judged = qrels.setdefault(query_id, {})
        if judged.setdefault(document_id, grade) != grade:
            first = _first_line(source, split, query_id, document_id)
            msg = f"query '{query_id}' and document '{document_id}' were judged {judged[document_id]} at line {first}"
            raise record.error(f"{msg}, and {grade} here. Keep one of the lines.")
    if not qrels:
        msg = "there is no judgement in it."
        raise DataError(msg, file=source)
    del places
    return qrels


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]], form: Literal["trec", "beir"] | None = None) -> int:
    """Write judgements and return how many there were; without a form, `.tsv` is BEIR and the rest TREC."""
    name = Path(path).name
    beir = form == "beir" if form else name.removesuffix(".gz").removesuffix(".zst").endswith(".tsv")
    count = 0
    with sources.write_text(path) as stream:
        if beir:
            stream.write("query-id\tcorpus-id\tscore\n")
        for query_id, judged in qrels.items():
            for document_id, grade in judged.items():
                stream.write(f"{query_id}\t{document_id}\t{grade}\n" if beir else f"{query_id} 0 {document_id} {grade}\n")
                count += 1
    return count


def judgements(source: str | Path, split: str = "test") -> Iterator[tuple[Record, str, str, int]]:
    """Place, query id, document id and grade of each judgement, in order."""
    prefix, rest = sources.split_prefix(source)
    if prefix == "pydoc":
        yield from _documentation(str(source), rest)
    elif prefix:
        yield from (_from_fields(record) for record in sources.fetched_records(prefix, rest, "qrels", split))
    else:
        yield from _from_lines(_file(sources.existing(rest), split))


def splits(folder: Path) -> list[str]:
    """The names of the splits that a BEIR folder has judgements for."""
    return sorted({path.name.partition(".tsv")[0] for path in (folder / "qrels").glob("*.tsv*")})


def _file(path: Path, split: str) -> Path:
    if not path.is_dir():
        return path
    folder = path / "qrels" if (path / "qrels").is_dir() else path
    if found := sources.find_file(folder, f"{split}.tsv"):
        return found
    known = ", ".join(splits(path)) or "none"
    msg = f"the folder has no judgements for the split '{split}' (qrels/{split}.tsv). Splits there: {known}."
    raise DataError(msg, file=path)


def _from_lines(path: Path) -> Iterator[tuple[Record, str, str, int]]:
    file = str(path)
    for line, text in sources.read_lines(path):
        cells = text.split("\t") if "\t" in text else text.split()
        if not cells or (line == 1 and cells[0].strip().lower() in _QUERIES):
            continue
        record = Record(file, line, {})
        if len(cells) == 4:
            query_id, _, document_id, grade = cells
        elif len(cells) == 3:
            query_id, document_id, grade = cells
        else:
            msg = f"the line has {len(cells)} columns. Known forms: {'; '.join(FORMS)}."
            raise record.error(msg)
        yield record, query_id, document_id, _grade(grade, record)


def _from_fields(record: Record) -> tuple[Record, str, str, int]:
    query, document, grade = (
        next((name for name in names if name in record.fields), None) for names in (_QUERIES, _DOCUMENTS, _GRADES)
    )
    if query is None or document is None or grade is None:
        raise sources.unknown_form(record, "judgement", FORMS)
    return record, record.identifier(query), record.identifier(document), _grade(record.fields[grade], record)


def _grade(value: Any, record: Record) -> int:
    try:
        number = float(value)
        if number == int(number):
            return int(number)
    except (ValueError, TypeError, OverflowError):
        pass
    msg = f"the grade is {value!r}, and should be a whole number."
    raise record.error(msg)


def _documentation(source: str, packages: str) -> Iterator[tuple[Record, str, str, int]]:
    from retrievalkit.data import pydoc

    for number, question in enumerate(pydoc.questions(packages), 1):
        yield Record(source, number, {}), question.id, question.passage_id, 1


def _first_line(source: str | Path, split: str, query_id: str, document_id: str) -> int:
    found: Iterable[int] = (r.line for r, query, document, _ in judgements(source, split) if (query, document) == (query_id, document_id))
    return next(iter(found))
