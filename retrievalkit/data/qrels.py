"""Judgements: which documents answer which query, and how well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from retrievalkit.data import files, sources
from retrievalkit.data.records import Record, shown
from retrievalkit.data.sources.remote import fetched_records
from retrievalkit.errors import DataError, UnknownNameError

Qrels = dict[str, dict[str, int]]
Form = Literal["trec", "beir", "msmarco"]

FORMS = (
    "TREC and MS MARCO (query 0 document grade)",
    "BEIR (a table with the header query-id, corpus-id, score)",
    "query document grade",
)
_QUERIES = ("query-id", "query_id", "qid", "query")
_DOCUMENTS = ("corpus-id", "corpus_id", "doc_id", "docid", "document_id", "pid")
_RUN_WIDTH = 6
_GRADES = ("score", "relevance", "label", "grade")


def read_qrels(source: str | Path, split: str = "test") -> Qrels:
    """Read judgements: query id -> document id -> grade.

    Args:
        source: A TREC, MS MARCO or BEIR file, a BEIR folder, `pydoc:`, `hf:` or `irds:`.
        split: Which of a BEIR folder's files, or of a Hugging Face dataset's splits.

    Raises:
        DataError: A line is damaged, or judges what another line judges otherwise.
    """
    qrels: Qrels = {}
    for record, query_id, document_id, grade in judgements(source, split):
        judged = qrels.setdefault(query_id, {})
        if judged.setdefault(document_id, grade) != grade:
            first = _first_line(source, split, query_id, document_id)
            before = f"judged {judged[document_id]} at line {first}"
            msg = f"document '{document_id}' of query '{query_id}' was {before}, and is {grade} here. Keep one line."
            raise record.error(msg)
    if not qrels:
        msg = "there is no judgement in it."
        raise DataError(msg, file=source)
    return qrels


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]], form: Form | None = None) -> int:
    """Write judgements and return how many there were.

    Args:
        path: The file; `.gz` and `.zst` are packed.
        qrels: The judgements.
        form: "trec", "beir", or "msmarco", which is TREC's with tabs; None takes BEIR's for `.tsv` and else TREC's.
    """
    name = Path(path).name.removesuffix(".gz").removesuffix(".zst")
    form = form or ("beir" if name.endswith(".tsv") else "trec")
    if form not in get_args(Form):
        raise UnknownNameError("form of qrels", form, get_args(Form))
    rows = [(query, document, grade) for query, judged in qrels.items() for document, grade in judged.items()]
    with files.write_text(path) as stream:
        if form == "beir":
            stream.write("query-id\tcorpus-id\tscore\n")
            stream.writelines(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)
        else:
            gap = "\t" if form == "msmarco" else " "
            stream.writelines(_trec_line((query, "0", document, str(grade)), gap) for query, document, grade in rows)
    return len(rows)


def _trec_line(cells: tuple[str, ...], gap: str) -> str:
    """Cells with something between; with tabs where a cell holds white space itself."""
    return ("\t" if any(cell.split() != [cell] for cell in cells) else gap).join(cells) + "\n"


def judgements(source: str | Path, split: str = "test") -> Iterator[tuple[Record, str, str, int]]:
    """Place, query id, document id and grade of each judgement, in order."""
    prefix, rest = sources.split_prefix(source)
    if prefix == "pydoc":
        yield from _documentation(str(source), rest)
    elif prefix:
        yield from (_from_fields(record) for record in fetched_records(prefix, rest, "qrels", split))
    else:
        yield from _from_lines(_file(files.existing(rest), split))


def splits(folder: Path) -> list[str]:
    """The names of the splits that a BEIR folder has judgements for."""
    return sorted({path.name.partition(".tsv")[0] for path in (folder / "qrels").glob("*.tsv*")})


def _file(path: Path, split: str) -> Path:
    if not path.is_dir():
        return path
    folder = path / "qrels" if (path / "qrels").is_dir() else path
    if found := files.find_file(folder, f"{split}.tsv"):
        return found
    known = ", ".join(splits(path)) or "none"
    msg = f"the folder has no judgements for the split '{split}' (qrels/{split}.tsv). Splits there: {known}."
    raise DataError(msg, file=path)


def _from_lines(path: Path) -> Iterator[tuple[Record, str, str, int]]:
    file = str(path)
    for line in files.filled_lines(path):
        cells = columns(line.text, (3, 4))
        if line.number == 1 and is_header(cells):
            continue
        record = Record(file, line.number, {})
        if len(cells) == _RUN_WIDTH and line.number == 1:
            msg = "this is a run (query Q0 document rank score tag), and judgements were expected. "
            raise record.error(msg + "Change the places of the two.")
        if len(cells) not in (3, 4):
            msg = f"the line has {len(cells)} columns. Known forms: {'; '.join(FORMS)}."
            raise record.error(msg)
        yield record, cells[0], cells[-2], _grade(cells[-1], record)


def is_header(cells: list[str]) -> bool:
    """Whether the first line of a file of judgements names its columns."""
    return cells[0].strip().lower() in _QUERIES and len(cells) > 1 and cells[1].strip().lower() in _DOCUMENTS


def columns(text: str, widths: tuple[int, ...]) -> list[str]:
    """The cells of a line of a TREC file: separated by tabs if that gives a known width, or else by any space."""
    cells = text.split("\t")
    return cells if len(cells) in widths else text.split()


def _from_fields(record: Record) -> tuple[Record, str, str, int]:
    query, document, grade = (
        next((name for name in names if name in record.fields), None) for names in (_QUERIES, _DOCUMENTS, _GRADES)
    )
    if query is None or document is None or grade is None:
        raise record.unknown_form("judgement", FORMS)
    return record, record.identifier(query), record.identifier(document), _grade(record.fields[grade], record)


def _grade(value: Any, record: Record) -> int:
    try:
        number = float(value)
        if number == int(number):
            return int(number)
    except (ValueError, TypeError, OverflowError):
        pass
    msg = f"the grade is {shown(value)}, and should be a whole number."
    raise record.error(msg)


def _documentation(source: str, packages: str) -> Iterator[tuple[Record, str, str, int]]:
    from retrievalkit.data.sources import pydoc

    for number, question in enumerate(pydoc.questions(packages), 1):
        yield Record(source, number, {}), question.id, question.passage_id, 1


def _first_line(source: str | Path, split: str, query_id: str, document_id: str) -> int:
    pairs = ((record.line, query, document) for record, query, document, _ in judgements(source, split))
    return next(line for line, query, document in pairs if (query, document) == (query_id, document_id))
