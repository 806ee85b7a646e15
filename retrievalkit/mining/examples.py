"""Training examples: grouping by question, addition of mined negatives, and merging of two sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from retrievalkit.contracts import Question
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.examples import Example
from retrievalkit.data.queries import Query
from retrievalkit.data.same_text import normal_form, passage_digest, same_text
from retrievalkit.errors import DataError
from retrievalkit.mining.options import Merge
from retrievalkit.mining.parts import MinedParts

_NONE: frozenset[str] = frozenset()


def group_questions(rows: Sequence[Example], corpus: Corpus | None = None) -> list[Question]:
    """Group examples by question; with a corpus, include the copies of their positives in it."""
    grouped: dict[str, list[Example]] = {}
    for row in rows:
        grouped.setdefault(normal_form(row.query), []).append(row)
    copies = find_copies({positive for row in rows for positive in row.positives}, corpus) if corpus is not None else {}
    questions = []
    for examples in grouped.values():
        positives = frozenset(positive for example in examples for positive in example.positives)
        answers = tuple(dict.fromkeys(answer for example in examples for answer in example.answers))
        ids = tuple(dict.fromkeys(example.query_id for example in examples))
        of_positives = [copies[positive] for positive in positives & copies.keys()]
        # Usually empty; an empty set per question would take 200 bytes.
        others = frozenset().union(*of_positives) - positives if of_positives else _NONE
        # The smallest id, so that random samples do not depend on the order of the examples.
        first = min(examples, key=lambda row: (row.query_id, row.query))
        query = Query(first.query_id, first.query, answers, first.fields)
        questions.append(Question(query, ids, positives, others))
    return questions


def find_copies(document_ids: set[str], corpus: Corpus) -> dict[str, frozenset[str]]:
    """Map each document that has copies to all ids with its text. Memory use does not grow with the corpus."""
    digests = {document: passage_digest(corpus.get(document)) for document in sorted(document_ids)}
    copies: dict[bytes, list[str]] = {digest: [] for digest in digests.values()}
    if copies:
        for passage in corpus:
            if (digest := passage_digest(passage)) in copies:
                copies[digest].append(passage.id)
    return {document: frozenset(copies[digest]) for document, digest in digests.items() if len(copies[digest]) > 1}


def mined_examples(rows: Sequence[Example], mined: MinedParts) -> Iterator[Example]:
    """Yield the examples with their mined negatives; with a mined positive, one example per query text."""
    seen: set[str] = set()
    for row in rows:
        question = normal_form(row.query)
        result = mined[question]
        if result.dropped or (result.positive is not None and question in seen):
            continue
        seen.add(question)
        positives = row.positives if result.positive is None else (result.positive,)
        yield _with_documents(row, positives, result.negatives)


def merge_examples(
    first: Sequence[Example], second: Iterable[Example], *, keep: int | None = None, merge: Merge = "concatenate"
) -> Iterator[Example]:
    """Merge two sets, with at most `keep` negatives per example.

    "pool" joins the examples of a question: the first set's negatives, then the second's, without the positives of
    either. "concatenate" keeps all examples separate, and streams the second set.
    """
    texts = {row.query_id: row.query for row in first}

    def of_same_ids() -> Iterator[Example]:
        for row in second:
            if not same_text(texts.get(row.query_id, row.query), row.query):
                msg = (
                    f"the query id '{row.query_id}' is {texts[row.query_id]!r} in the first set, but {row.query!r} in "
                    "the second. Give each query a unique id."
                )
                raise DataError(msg)
            yield row

    cut_first, cut_second = (
        (_with_documents(row, row.positives, row.negatives[:keep]) for row in rows) for rows in (first, of_same_ids())
    )
    if merge == "concatenate":
        yield from itertools.chain(cut_first, cut_second)
        return
    questions: dict[str, list[Example]] = {}
    for row in itertools.chain(cut_first, cut_second):
        questions.setdefault(normal_form(row.query), []).append(row)
    yield from map(_pooled, questions.values())


def _pooled(rows: Sequence[Example]) -> Example:
    """Join the examples of a question; the first has precedence."""

    def joined(lists: Iterable[Sequence[str]]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(itertools.chain.from_iterable(lists)))

    positives, negatives = joined(row.positives for row in rows), joined(row.negatives for row in rows)
    return replace(
        rows[0],
        positives=positives,
        negatives=tuple(negative for negative in negatives if negative not in positives),
        answers=joined(row.answers for row in rows),
        teacher={name: score for row in reversed(rows) for name, score in (row.teacher or {}).items()} or None,
    )


def _with_documents(row: Example, positives: tuple[str, ...], negatives: tuple[str, ...]) -> Example:
    """Return the example with other documents, and only their teacher scores."""
    documents = {*positives, *negatives}
    teacher = {document: score for document, score in (row.teacher or {}).items() if document in documents}
    return replace(row, positives=positives, negatives=negatives, teacher=teacher or None)
