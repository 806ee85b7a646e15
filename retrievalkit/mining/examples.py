"""Training examples: grouping by question, addition of mined negatives, and merging of two sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from retrievalkit.contracts import Question
from retrievalkit.data.corpus import Corpus, text_digest
from retrievalkit.data.examples import Example
from retrievalkit.data.queries import Query
from retrievalkit.errors import DataError
from retrievalkit.mining.options import Merge
from retrievalkit.mining.parts import MinedParts

_NONE: frozenset[str] = frozenset()


def group_questions(rows: Sequence[Example], corpus: Corpus | None = None) -> list[Question]:
    """Group examples by question; with a corpus, include the copies of their positives in it."""
    grouped: dict[str, list[Example]] = {}
    for row in rows:
        grouped.setdefault(row.query, []).append(row)
    copies = find_copies({positive for row in rows for positive in row.positives}, corpus) if corpus is not None else {}
    questions = []
    for text, examples in grouped.items():
        positives = frozenset(positive for example in examples for positive in example.positives)
        answers = tuple(dict.fromkeys(answer for example in examples for answer in example.answers))
        ids = tuple(dict.fromkeys(example.query_id for example in examples))
        same_text = [copies[positive] for positive in positives & copies.keys()]
        # Usually empty: a new empty set for each question would take 200 bytes.
        others = frozenset().union(*same_text) - positives if same_text else _NONE
        # The smallest id, not the first: random samples depend on it, but must not depend on the order of the examples.
        questions.append(Question(Query(min(ids), text, answers, examples[0].fields), ids, positives, others))
    return questions


def find_copies(document_ids: set[str], corpus: Corpus) -> dict[str, frozenset[str]]:
    """Map each document id with copies to all ids with its text. Memory use does not depend on the corpus's size."""
    digests = {document: text_digest(corpus.get(document)) for document in sorted(document_ids)}
    same_text: dict[bytes, list[str]] = {digest: [] for digest in digests.values()}
    if same_text:
        for passage in corpus:
            if (digest := text_digest(passage)) in same_text:
                same_text[digest].append(passage.id)
    return {
        document: frozenset(same_text[digest]) for document, digest in digests.items() if len(same_text[digest]) > 1
    }


def mined_examples(rows: Sequence[Example], mined: MinedParts) -> Iterator[Example]:
    """Yield the examples with their mined negatives; with a mined positive, one example per query text."""
    seen: set[str] = set()
    for row in rows:
        result = mined[row.query]
        if result.dropped or (result.positive is not None and row.query in seen):
            continue
        seen.add(row.query)
        positives = row.positives if result.positive is None else (result.positive,)
        yield _with_documents(row, positives, result.negatives)


def merge_examples(
    first: Sequence[Example], second: Iterable[Example], *, keep: int | None = None, merge: Merge = "concatenate"
) -> Iterator[Example]:
    """Merge two sets, with at most `keep` negatives per example.

    "pool" joins examples with the same query text: the first set's negatives, then the second's, without the positives
    of either. "concatenate" keeps all examples separate, and streams the second set.
    """
    texts = {row.query_id: row.query for row in first}

    def of_same_ids() -> Iterator[Example]:
        for row in second:
            if texts.get(row.query_id, row.query) != row.query:
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
    pool = list(cut_second)
    partners: dict[str, Example] = {}
    for row in pool:
        partners.setdefault(row.query, row)
    for row in cut_first:
        partner = partners.get(row.query)
        if partner is None:
            yield row
            continue
        positives = tuple(dict.fromkeys((*row.positives, *partner.positives)))
        negatives = dict.fromkeys((*row.negatives, *partner.negatives))
        yield replace(
            row,
            positives=positives,
            negatives=tuple(negative for negative in negatives if negative not in positives),
            answers=tuple(dict.fromkeys((*row.answers, *partner.answers))),
            teacher={**(partner.teacher or {}), **(row.teacher or {})} or None,
        )
    known = {row.query for row in first}
    yield from (row for row in pool if row.query not in known)


def _with_documents(row: Example, positives: tuple[str, ...], negatives: tuple[str, ...]) -> Example:
    """Return the example with other documents, and only their teacher scores."""
    documents = {*positives, *negatives}
    teacher = {document: score for document, score in (row.teacher or {}).items() if document in documents}
    return replace(row, positives=positives, negatives=negatives, teacher=teacher or None)
