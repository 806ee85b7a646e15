"""Teacher scores in the record of a training example, in all known formats.

By document id (our own format), as one list for positives then negatives, with each passage, or as two lists:

    {"teacher": {"d1": 9.5, "d7": -2.1}}
    {"teacher": [9.5, -2.1]}
    {"positive_passages": [{"docid": "d1", "ce_score": 9.5, ...}], ...}
    {"pos": ["text 1"], "neg": ["text 2"], "pos_scores": [9.5], "neg_scores": [-2.1]}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from retrievalkit.data.forms import number
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import Record
from retrievalkit.errors import nearest
from retrievalkit.reporting.counts import counted

_TWO_LISTS = (("pos_scores", "positives"), ("neg_scores", "negatives"))


def teacher_scores(
    record: Record, positives: Sequence[str], negatives: Sequence[str], passages: Iterable[object] = ()
) -> dict[str, float] | None:
    """Return document id -> teacher score, or None if the record has no scores.

    `passages` are the passages in the record, if any: positives, then negatives, as read.
    """
    ids, teacher, name = (*positives, *negatives), record.fields.get("teacher"), "teacher"
    pairs: list[tuple[str, object]]
    if isinstance(teacher, Mapping):
        pairs = [(str(document), score) for document, score in teacher.items()]
    elif teacher is not None:
        pairs = _aligned(record, name, ids, "positives and negatives")
    elif any(record.fields.get(field) is not None for field, _ in _TWO_LISTS):
        name = " and ".join(field for field, _ in _TWO_LISTS)
        lists = zip(_TWO_LISTS, (positives, negatives), strict=True)
        pairs = [pair for (field, kind), documents in lists for pair in _aligned(record, field, documents, kind)]
    else:
        name = "ce_score"
        pairs = [
            (document, passage[name])
            for document, passage in zip(ids, passages, strict=False)
            if isinstance(passage, Mapping) and passage.get(name) is not None
        ]
        if not pairs:
            return None
    scores: dict[str, float] = {}
    for document, value in pairs:
        score = math.nan if isinstance(value, str | bool) else number(value)
        if not math.isfinite(score):
            msg = f"'{name}' of document '{document}' is {shown(value)}, but should be a number."
            raise record.error(msg)
        if scores.setdefault(document, score) != score:
            msg = f"'{name}' gives the document '{document}' two scores, {scores[document]} and {score}. Keep one."
            raise record.error(msg)
    if unknown := scores.keys() - set(ids):
        close = nearest(min(unknown), ids)
        offer = f"; did you mean '{close}'?" if close else "."
        msg = f"'teacher' scores the document '{min(unknown)}', which is neither a positive nor a negative of this "
        msg += f"example{offer}"
        raise record.error(msg)
    return scores


def _aligned(record: Record, name: str, ids: Sequence[str], kind: str) -> list[tuple[str, object]]:
    scores = record.items(name)
    if len(scores) != len(ids):
        msg = f"'{name}' has {counted(len(scores), 'scores')} for {len(ids)} {kind}. Give one score for each, in order."
        raise record.error(msg)
    return list(zip(ids, scores, strict=True))
