"""Teacher scores in the record of a training example, in all known formats.

By document id (our own format), as one list for positives then negatives, with each passage, as two lists, or in a
column of sentence-transformers, as the scores of all documents or the positive's margins over the negatives:

    {"teacher": {"d1": 9.5, "d7": -2.1}}
    {"teacher": [9.5, -2.1]}
    {"positive_passages": [{"docid": "d1", "ce_score": 9.5, ...}], ...}
    {"pos": ["text 1"], "neg": ["text 2"], "pos_scores": [9.5], "neg_scores": [-2.1]}
    {"query": "...", "positive": "text 1", "negative": "text 2", "label": 11.6}
    {"query": "...", "positive": "text 1", "negative_1": "text 2", "negative_2": "text 3", "scores": [9.5, -2.1, 0.3]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from retrievalkit.data.forms import TEACHER_COLUMNS, number
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import Record
from retrievalkit.errors import nearest
from retrievalkit.reporting.terminal import counted

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
    elif column := next((column for column in TEACHER_COLUMNS if _column(record, column) is not None), None):
        name, pairs = column, _of_column(record, column, positives, negatives)
        if not pairs:
            return None
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


def labelled(record: Record, count: int) -> list[int] | None:
    """Return the labels, 1 or 0, of the `count` documents in the column of positives; None if they have none.

    `mine_hard_negatives` of sentence-transformers writes them with the output format "labeled-list".
    """
    columns = {name: value for name in TEACHER_COLUMNS if (value := _column(record, name)) is not None}
    labels, label = columns.get("labels"), columns.get("label")
    if count == 1 and labels is None and label == [1.0]:
        return [1]
    if labels is not None:
        if len(labels) == count and all(number(value) in (0, 1) for value in labels):
            return [int(number(value)) for value in labels]
        msg = f"'labels' is {shown(labels)} for {counted(count, 'documents')}. Give 1 for each positive, 0 for others."
        raise record.error(msg)
    if columns:
        msg = (
            f"'{min(columns)}' does not say which documents are positives, and there are no negatives. In "
            'mine_hard_negatives, set output_format="n-tuple" with output_scores=True, or "labeled-list" without.'
        )
        raise record.error(msg)
    return None


def _column(record: Record, name: str) -> list[Any] | None:
    """Return the numbers in a column of sentence-transformers; None for other text, such as a topic: it is metadata."""
    value = record.fields.get(name)
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return [number(value)] if math.isfinite(number(value)) else None
        try:
            value = json.loads(value)
        except ValueError:
            msg = f"'{name}' is {shown(value)}, not a JSON list. Write the examples as JSON lines."
            raise record.error(msg) from None
    if value is None or isinstance(value, Mapping):
        return None
    return list(value) if isinstance(value, list | tuple) else [value]


def _of_column(
    record: Record, name: str, positives: Sequence[str], negatives: Sequence[str]
) -> list[tuple[str, object]]:
    """Return the scores in a column: of all documents, or margins, for which the positive has the score 0."""
    values = _column(record, name) or []
    if negatives or len(values) != 1:
        if len(values) == len(positives) + len(negatives):
            return list(zip((*positives, *negatives), values, strict=True))
        if len(positives) == 1 and len(values) == len(negatives):
            margins = ((negative, -number(margin)) for negative, margin in zip(negatives, values, strict=True))
            return [(positives[0], 0.0), *margins]
    elif values[0] == 1:
        return []  # the label of a positive
    documents = f"{counted(len(positives), 'positives')} and {counted(len(negatives), 'negatives')}"
    msg = f"'{name}' has {counted(len(values), 'numbers')} for {documents}. Give one per document or one per negative."
    raise record.error(msg)


def _aligned(record: Record, name: str, ids: Sequence[str], kind: str) -> list[tuple[str, object]]:
    scores = record.items(name)
    if len(scores) != len(ids):
        msg = f"'{name}' has {counted(len(scores), 'scores')} for {len(ids)} {kind}. Give one score for each, in order."
        raise record.error(msg)
    return list(zip(ids, scores, strict=True))
