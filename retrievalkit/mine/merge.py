"""Puts mined negatives into examples, and merges two sets of examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from retrievalkit.data.examples import Example
from retrievalkit.errors import DataError
from retrievalkit.mine.options import Merge, Mined


class MinedTexts(Protocol):
    """The mined negatives, by the text of the query."""

    def __getitem__(self, text: str, /) -> Mined: ...


def mined_examples(rows: Sequence[Example], mined: MinedTexts) -> Iterator[Example]:
    """The examples with the negatives mined for their texts; with a mined positive, one example per query text."""
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
    """Merge two sets.

    Args:
        first: The first set.
        second: The second set; "concatenate" takes one example at a time.
        keep: How many negatives to keep per example; None = all.
        merge: "concatenate" keeps all examples separate; "pool" joins those with the same query text: the first set's
            negatives, then the second's, without the positives of either.

    Raises:
        DataError: The sets use the same query id for different queries.
    """
    cut_first = (_with_documents(row, row.positives, row.negatives[:keep]) for row in first)
    cut_second = (_with_documents(row, row.positives, row.negatives[:keep]) for row in _of_same_ids(first, second))
    if merge == "pool":
        yield from _pool(list(cut_first), list(cut_second))
        return
    yield from cut_first
    yield from cut_second


def _of_same_ids(first: Sequence[Example], second: Iterable[Example]) -> Iterator[Example]:
    """The second set, checked: an id stands for the same query in both."""
    texts = {row.query_id: row.query for row in first}
    for row in second:
        if texts.get(row.query_id, row.query) != row.query:
            msg = (
                f"the query id '{row.query_id}' stands for {texts[row.query_id]!r} in one set, and for {row.query!r} "
                "in the other. Give each query its own id."
            )
            raise DataError(msg)
        yield row


def _with_documents(row: Example, positives: tuple[str, ...], negatives: tuple[str, ...]) -> Example:
    """The example with other documents, and only their scores by the teacher."""
    documents = {*positives, *negatives}
    teacher = {document: score for document, score in (row.teacher or {}).items() if document in documents}
    return replace(row, positives=positives, negatives=negatives, teacher=teacher or None)


def _pool(first: Sequence[Example], second: Sequence[Example]) -> Iterator[Example]:
    partners: dict[str, Example] = {}
    for row in second:
        partners.setdefault(row.query, row)
    known = {row.query for row in first}
    for row in first:
        yield _joined(row, partners[row.query]) if row.query in partners else row
    yield from (row for row in second if row.query not in known)


def _joined(row: Example, other: Example) -> Example:
    positives = tuple(dict.fromkeys((*row.positives, *other.positives)))
    negatives = dict.fromkeys((*row.negatives, *other.negatives))
    return replace(
        row,
        positives=positives,
        negatives=tuple(negative for negative in negatives if negative not in positives),
        answers=tuple(dict.fromkeys((*row.answers, *other.answers))),
        teacher={**(other.teacher or {}), **(row.teacher or {})} or None,
    )
