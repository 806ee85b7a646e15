"""Relevance judgements (qrels): query -> document -> grade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, get_args

from retrievalkit.data import files
from retrievalkit.data.forms import GRADES, JUDGED_DOCUMENTS, JUDGED_QUERIES, QRELS, incomplete, number
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import Record
from retrievalkit.data.sources import open_source
from retrievalkit.errors import DataError, check_choice

Qrels = dict[str, dict[str, int]]
Form = Literal["trec", "beir", "msmarco"]

LARGEST_GRADE = 1 << 20
"""trec_eval allocates an array as long as the largest grade, to count the documents of each grade."""


def read_qrels(source: str | Path, split: str = "test") -> Qrels:
    """Read judgements: query id -> document id -> grade.

    Args:
        source: A TREC, MS MARCO or BEIR file, a BEIR folder, or a source such as `irds:NAME`.
        split: The split of a BEIR folder or a Hugging Face data set.

    Raises:
        DataError: A line is damaged, or contradicts another line.
    """
    qrels: Qrels = {}
    for record, query_id, document_id, grade in judgements(source, split):
        judged = qrels.setdefault(query_id, {})
        if judged.setdefault(document_id, grade) != grade:
            pair = [query_id, document_id]
            first = next(earlier.line for earlier, *ids, _ in judgements(source, split) if ids == pair)
            before = f"judged {judged[document_id]} at line {first}"
            msg = f"document '{document_id}' of query '{query_id}' was {before}, but {grade} here. Keep one line."
            raise record.error(msg)
    if not qrels:
        msg = "it contains no judgements."
        raise DataError(msg, file=source)
    return qrels


def write_qrels(path: str | Path, qrels: Mapping[str, Mapping[str, int]], form: Form | None = None) -> int:
    """Write judgements; returns their number.

    Args:
        path: The file; `.gz` and `.zst` files are compressed.
        qrels: The judgements.
        form: "trec", "beir", or "msmarco" (TREC with tabs); None = BEIR for `.tsv`, else TREC.
    """
    name = Path(path).name.removesuffix(".gz").removesuffix(".zst")
    form = form or ("beir" if name.endswith(".tsv") else "trec")
    check_choice("form of qrels", form, get_args(Form))
    rows = [(query, document, grade) for query, judged in qrels.items() for document, grade in judged.items()]
    with files.write_text(path) as stream:
        if form == "beir":
            stream.write("query-id\tcorpus-id\tscore\n")
            stream.writelines(f"{query}\t{document}\t{grade}\n" for query, document, grade in rows)
        else:
            for query, document, grade in rows:
                spaced = form == "msmarco" or any(
                    identifier.split() != [identifier] for identifier in (query, document)
                )
                stream.write(("\t" if spaced else " ").join((query, "0", document, str(grade))) + "\n")
    return len(rows)


def judgements(source: str | Path, split: str = "test") -> Iterator[tuple[Record, str, str, int]]:
    """Yield record, query id, document id and grade of each judgement, in order."""
    for record in open_source(source).records("judgements", split):
        query, document, name = (
            next((name for name in names if name in record.fields), None)
            for names in (JUDGED_QUERIES, JUDGED_DOCUMENTS, GRADES)
        )
        if query is None or document is None or name is None:
            raise incomplete(record, "judgement", QRELS, query=JUDGED_QUERIES, document=JUDGED_DOCUMENTS, grade=GRADES)
        grade = number(record.fields[name])
        if not abs(grade) <= LARGEST_GRADE or grade != int(grade):
            msg = f"the grade is {shown(record.fields[name])}, but should be a whole number of at most"
            msg += f" {LARGEST_GRADE:,}."
            raise record.error(msg)
        yield record, record.identifier(query), record.identifier(document), int(grade)
