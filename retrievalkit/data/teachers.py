"""The teacher's scores in a record of a training example, in all known forms.

By document id (ours), in the order of the positives and then the negatives, with each passage, or in two lists:

    {"teacher": {"d1": 9.5, "d7": -2.1}}
    {"teacher": [9.5, -2.1]}
    {"positive_passages": [{"docid": "d1", "ce_score": 9.5, ...}], ...}
    {"pos": ["text 1"], "neg": ["text 2"], "pos_scores": [9.5], "neg_scores": [-2.1]}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from retrievalkit.data.records import Record, shown
from retrievalkit.errors import nearest

WITH_PASSAGE = "ce_score"
_TWO_LISTS = ("pos_scores", "neg_scores")


def teacher_scores(
    record: Record, positives: Sequence[str], negatives: Sequence[str], passages: Iterable[object] = ()
) -> dict[str, float] | None:
    """Document id -> the teacher's score, or None if the record has no scores.

    Args:
        record: The record.
        positives: Ids of its positives.
        negatives: Ids of its negatives.
        passages: The passages in the record, if it has them: positives, then negatives, as read.

    Raises:
        DataError: The number of scores differs from that of the documents, a score is no number, or the example has
            no such document.
    """
    ids = (*positives, *negatives)
    scores = record.fields.get("teacher")
    if isinstance(scores, Mapping):
        return _by_id(record, ids, scores)
    if scores is not None:
        return _collected(record, "teacher", _aligned(record, "teacher", ids, "positives and negatives"))
    if any(record.fields.get(name) is not None for name in _TWO_LISTS):
        pairs = [
            pair
            for name, own, what in zip(_TWO_LISTS, (positives, negatives), ("positives", "negatives"), strict=True)
            for pair in _aligned(record, name, own, what)
        ]
        return _collected(record, " and ".join(_TWO_LISTS), pairs)
    found = [
        (one, passage[WITH_PASSAGE])
        for one, passage in zip(ids, passages, strict=False)
        if isinstance(passage, Mapping) and passage.get(WITH_PASSAGE) is not None
    ]
    return _collected(record, WITH_PASSAGE, found) if found else None


def _by_id(record: Record, ids: Sequence[str], scores: Mapping[object, object]) -> dict[str, float]:
    found = _collected(record, "teacher", ((str(one), score) for one, score in scores.items()))
    unknown = found.keys() - set(ids)
    if unknown:
        one = min(unknown)
        close = nearest(one, ids)
        offer = f"; did you mean '{close}'?" if close else "."
        msg = f"'teacher' scores the document '{one}', which is no positive and no negative of this example{offer}"
        raise record.error(msg)
    return found


def _aligned(record: Record, name: str, ids: Sequence[str], what: str) -> list[tuple[str, object]]:
    scores = record.items(name)
    if len(scores) != len(ids):
        msg = f"'{name}' has {len(scores)} scores for {len(ids)} {what}. Give one for each, in their order."
        raise record.error(msg)
    return list(zip(ids, scores, strict=True))


def _collected(record: Record, name: str, pairs: Iterable[tuple[str, object]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one, value in pairs:
        score = _number(value)
        if score is None:
            msg = f"'{name}' of document '{one}' is {shown(value)}, and should be a number."
            raise record.error(msg)
        if found.setdefault(one, score) != score:
            msg = f"'{name}' gives the document '{one}' two scores, {found[one]} and {score}. Keep one."
            raise record.error(msg)
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        score = float(value)
    except OverflowError:
        return None
    return score if math.isfinite(score) else None
