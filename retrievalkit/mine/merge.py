"""Mined negatives put into examples, and two sets of examples merged into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        found = mined[row.query]
        if found.dropped or (found.positive is not None and row.query in seen):
            continue
        seen.add(row.query)
        positives = row.positives if found.positive is None else (found.positive,)
        yield _with_documents(row, positives, found.negatives)


def merge_examples(
    first: Sequence[Example], second: Sequence[Example], *, keep: int | None = None, merge: Merge = "concatenate"
) -> Iterator[Example]:
    """Merge two sets.

    Args:
        first: The set that comes first.
        second: The set that comes after it.
        keep: How many negatives of each example are kept; None = all.
        merge: "concatenate" keeps all examples apart; "pool" joins those of the same query text: the first set's
            negatives, then the second's, without the positives of either.

    Raises:
        DataError: The sets use one query id for two queries.
    """
    texts = {row.query_id: row.query for row in first}
    for row in second:
        if texts.get(row.query_id, row.query) != row.query:
            msg = (
                f"the query id '{row.query_id}' stands for {texts[row.query_id]!r} in one set, and for {row.query!r} "
                "in the other. Give each query an id of its own."
            )
            raise DataError(msg)
    cut_first = [_with_documents(row, row.positives, row.negatives[:keep]) for row in first]
    cut_second = [_with_documents(row, row.positives, row.negatives[:keep]) for row in second]
    yield from _pool(cut_first, cut_second) if merge == "pool" else [*cut_first, *cut_second]


def _with_documents(row: Example, positives: tuple[str, ...], negatives: tuple[str, ...]) -> Example:
    """The example with other documents, and the teacher's scores of these alone."""
    named = {*positives, *negatives}
    teacher = {one: score for one, score in (row.teacher or {}).items() if one in named}
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
        negatives=tuple(one for one in negatives if one not in positives),
        answers=tuple(dict.fromkeys((*row.answers, *other.answers))),
        teacher={**(other.teacher or {}), **(row.teacher or {})} or None,
    )
