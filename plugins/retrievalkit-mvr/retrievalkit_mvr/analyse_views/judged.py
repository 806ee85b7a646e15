"""The pairs to analyse: judged documents and the queries they answer, from judgements or training examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from retrievalkit.contracts.commands import describe_source
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import check_examples, read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.errors import InputError, shortlist

Pair = tuple[str, str]
"""The ids of a query and a document."""


@dataclass
class Judged:
    """Pairs of a query and a document that answers it, grouped by document.

    Attributes:
        by_document: Document id -> the ids of its queries.
        text: Query id -> the query.
        passage: Looks up the passage of a document id.
        inputs: The manifest's entry for each source.
        notes: Descriptions of the data left out, as sentences.
    """

    by_document: dict[str, list[str]]
    text: Mapping[str, str]
    passage: Callable[[str], Passage]
    inputs: dict[str, dict[str, str]]
    notes: list[str]

    @classmethod
    def read(
        cls,
        corpus: str | Path | None,
        queries: str | Path | None,
        qrels: str | Path | None,
        examples: str | Path | None,
        limit: int | None,
    ) -> Judged:
        """Read the pairs; see `analyse_views` for the arguments."""
        opened = open_corpus(corpus) if corpus is not None else None
        if examples is not None:
            if queries is not None or qrels is not None:
                msg = "--examples already contain queries and judgements. Leave out --queries and --qrels."
                raise InputError(msg)
            judged = cls._of_examples(examples, opened)
        elif opened is None or queries is None or qrels is None:
            msg = "there are no judged queries to analyse. Add --corpus, --queries and --qrels, or --examples."
            raise InputError(msg)
        else:
            judged = cls._of_qrels(opened, queries, qrels)
        sources = {"corpus": corpus, "queries": queries, "qrels": qrels, "examples": examples}
        judged.inputs = {name: describe_source(source) for name, source in sources.items() if source is not None}
        judged.by_document = dict(islice(judged.by_document.items(), limit))
        return judged

    @classmethod
    def _of_examples(cls, source: str | Path, corpus: Corpus | None) -> Judged:
        examples = read_examples(source)
        check_examples(examples, corpus)

        def passage(document_id: str) -> Passage:
            # The corpus takes precedence over texts in the examples, because its texts are indexed.
            if corpus is not None and document_id in corpus:
                return corpus.get(document_id)
            return examples.passages[document_id]

        pairs = [(row.query_id, document_id) for row in examples for document_id in row.positives]
        return cls(_grouped(pairs), {row.query_id: row.query for row in examples}, passage, {}, [])

    @classmethod
    def _of_qrels(cls, corpus: Corpus, queries: str | Path, qrels: str | Path) -> Judged:
        text = {query.id: query.text for query in read_queries(queries)}
        judgements = read_qrels(qrels).items()
        judged = [(query, document) for query, grades in judgements for document, grade in grades.items() if grade > 0]
        missing = corpus.missing({document for _, document in judged})
        unknown = {query for query, _ in judged if query not in text}
        pairs = [(query, document) for query, document in judged if query in text and document not in missing]
        notes = [*_left_out(missing, "judged documents", "corpus"), *_left_out(unknown, "judged queries", "queries")]
        if not pairs:
            msg = " ".join(["there is no pair of a query and a relevant document. Use other judgements.", *notes])
            raise InputError(msg)
        return cls(_grouped(pairs), text, corpus.get, {}, notes)


def _grouped(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the queries of each document, in order, without duplicates."""
    by_document: dict[str, dict[str, None]] = {}
    for query_id, document_id in pairs:
        by_document.setdefault(document_id, {})[query_id] = None
    return {document_id: list(query_ids) for document_id, query_ids in by_document.items()}


def _left_out(ids: Collection[str], kind: str, place: str) -> list[str]:
    return [f"{len(ids)} {kind} are not in the {place} and are left out: {shortlist(sorted(ids), 3)}."] if ids else []
