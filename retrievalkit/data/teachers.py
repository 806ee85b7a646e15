"""The teacher's scores in the record of a training example, in all known forms.

By document id (our own form), as a list for the positives and then the negatives, with each passage, or as two lists:

    {"teacher": {"d1": 9.5, "d7": -2.1}}
    {"teacher": [9.5, -2.1]}
    {"positive_passages": [{"docid": "d1", "ce_score": 9.5, ...}], ...}
    {"pos": ["text 1"], "neg": ["text 2"], "pos_scores": [9.5], "neg_scores": [-2.1]}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from retrievalkit.data.json_text import shown
from retrievalkit.data.records import Record
from retrievalkit.errors import nearest
from retrievalkit.report.counts import counted

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
        passages: The passages in the record, if any: positives, then negatives, as read.
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
            for name, ids_of_list, kind in zip(
                _TWO_LISTS, (positives, negatives), ("positives", "negatives"), strict=True
            )
            for pair in _aligned(record, name, ids_of_list, kind)
        ]
        return _collected(record, " and ".join(_TWO_LISTS), pairs)
    pairs = [
        (document, passage[WITH_PASSAGE])
        for document, passage in zip(ids, passages, strict=False)
        if isinstance(passage, Mapping) and passage.get(WITH_PASSAGE) is not None
    ]
    return _collected(record, WITH_PASSAGE, pairs) if pairs else None


def _by_id(record: Record, ids: Sequence[str], scores: Mapping[object, object]) -> dict[str, float]:
    by_id = _collected(record, "teacher", ((str(document), score) for document, score in scores.items()))
    unknown = by_id.keys() - set(ids)
    if unknown:
        document = min(unknown)
        close = nearest(document, ids)
        offer = f"; did you mean '{close}'?" if close else "."
        msg = (
            f"'teacher' scores the document '{document}', which is neither a positive nor a negative of this "
            f"example{offer}"
        )
        raise record.error(msg)
    return by_id


def _aligned(record: Record, name: str, ids: Sequence[str], kind: str) -> list[tuple[str, object]]:
    scores = record.items(name)
    if len(scores) != len(ids):
        msg = f"'{name}' has {counted(len(scores), 'scores')} for {len(ids)} {kind}. Give one for each, in their order."
        raise record.error(msg)
    return list(zip(ids, scores, strict=True))


def _collected(record: Record, name: str, pairs: Iterable[tuple[str, object]]) -> dict[str, float]:
    scores: dict[str, float] = {}
    for document, value in pairs:
        score = _number(value)
        if score is None:
            msg = f"'{name}' of document '{document}' is {shown(value)}, but should be a number."
            raise record.error(msg)
        if scores.setdefault(document, score) != score:
            msg = f"'{name}' gives the document '{document}' two scores, {scores[document]} and {score}. Keep one."
            raise record.error(msg)
    return scores


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        score = float(value)
    except OverflowError:
        return None
    return score if math.isfinite(score) else None
