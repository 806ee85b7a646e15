"""Teacher scores in training examples: all formats, and errors."""

from __future__ import annotations

import re

import pytest

from retrievalkit.data import files
from retrievalkit.data.examples import check_teacher, read_examples
from retrievalkit.data.queries import hashed_id
from retrievalkit.errors import DataError, InputError

OURS = {"query_id": "q1", "query": "who", "positives": ["1", "2"], "negatives": ["3"]}
TEVATRON_2 = {"query_id": "q1", "query_text": "who", "positive_document_ids": [1, "2"], "negative_document_ids": ["3"]}
TRIPLE = {"query": "who", "pos": ["one"], "neg": ["two", "three"]}
HASHED = [hashed_id(text) for text in ("one", "two", "three")]


def read(tmp_path, *rows):
    files.write_jsonl(tmp_path / "train.jsonl", rows)
    return read_examples(tmp_path / "train.jsonl")


def passage(number, **more):
    return {"docid": number, "title": "", "text": f"text {number}", **more}


PASSAGES = {"negative_passages": [passage("2", ce_score=-3), passage("3"), passage("4", ce_score=None)]}
PASSAGES |= {"positive_passages": [passage("1", ce_score=9.5)]}
CONTEXTS = {"positive_ctxs": [passage("1", ce_score=9.5, score=1000)], "hard_negative_ctxs": [passage("2", score=12.5)]}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        *(
            ({**row, "teacher": teacher}, {"1": 2.0, "2": 0.5, "3": -1.0})
            for row in (OURS, TEVATRON_2)
            for teacher in ({"1": 2, "2": 0.5, "3": -1.0}, [2, 0.5, -1.0])
        ),
        ({**OURS, "teacher": {"3": -1}}, {"3": -1.0}),
        ({**OURS, "teacher": None}, None),
        (OURS, None),
        ({"query_id": "q1", "query": "who", **PASSAGES}, {"1": 9.5, "2": -3.0}),
        ({"question": "who", "answers": [], **CONTEXTS}, {"1": 9.5}),
        ({**TRIPLE, "pos_scores": [3], "neg_scores": [2, 1]}, dict(zip(HASHED, (3.0, 2.0, 1.0), strict=True))),
        ({**OURS, "positives": ["1", "1"], "teacher": [2, 2, 1]}, {"1": 2.0, "3": 1.0}),
    ],
)
def test_scores_are_read_by_id_in_order_with_each_passage_and_from_two_lists(tmp_path, row, expected):
    """The formats of CoT-MAE v2's data and others; null is a missing score."""
    assert read(tmp_path, row).rows[0].teacher == expected


MINED = {"query": "who", "positive": "one", "negative_1": "two", "negative_2": "three"}
LISTED = {"query": "who", "positive": ["two", "one", "three"]}


@pytest.mark.parametrize(
    ("row", "scores"),
    [
        ({"query": "who", "positive": "one", "negative": "two", "label": 11.5}, (0, -11.5)),
        ({"query": "who", "positive": "one", "negative": "two", "score": "11.5"}, (0, -11.5)),
        ({"query": "who", "positive": "one", "negative": "two", "label": [7]}, (0, -7)),
        ({"query": "who", "positive": "one", "negative": "two", "scores": [9, -2.5]}, (9, -2.5)),
        ({"query": "who", "positive": "one", "negative": "two", "scores": "[9, -2.5]"}, (9, -2.5)),
        ({**MINED, "scores": [9, 8, 7]}, (9, 8, 7)),
        ({**MINED, "label": [1, 2.5]}, (0, -1, -2.5)),
        (LISTED | {"labels": [0, 1, 0], "scores": [8, 9, 7]}, (9, 8, 7)),
        (LISTED | {"labels": [0, 1, 0]}, None),
        ({"query": "who", "positive": "one", "label": 1}, None),
        (MINED | {"label": "history"}, None),
    ],
)
def test_scores_margins_and_labels_of_sentence_transformers(tmp_path, row, scores):
    """A number per document is its score; a number per negative is the positive's margin; labels separate a list."""
    (example,) = read(tmp_path, row).rows
    assert example.positives == (HASHED[0],)
    assert example.teacher == (scores and dict(zip(HASHED, scores, strict=False)))
    assert set(example.negatives) == {
        *(HASHED[1:3] if "negative_1" in row or "labels" in row else HASHED[1:2] if scores else ())
    }


@pytest.mark.parametrize("form", ["triplet", "n-tuple", "labeled-pair", "labeled-list"])
@pytest.mark.parametrize("scored", [False, True])
def test_mined_negatives_of_sentence_transformers_are_read_or_refused(tmp_path, form, scored, tiny_model):
    """Formats that do not say which documents are positives are refused, and the message names formats that do."""
    library, datasets = pytest.importorskip("sentence_transformers"), pytest.importorskip("datasets")
    pairs = {"query": [f"capital of {n}" for n in "abcdef"], "positive": [f"the town {n}" for n in "uvwxyz"]}
    options = {"num_negatives": 2, "output_format": form, "output_scores": scored, "verbose": False}
    model = library.SentenceTransformer(str(tiny_model), device="cpu")
    mined = library.util.mine_hard_negatives(datasets.Dataset.from_dict(pairs), model, **options)
    if form == "labeled-pair" or (scored and form == "labeled-list"):
        with pytest.raises(DataError, match=r'which documents are positives.*output_format="n-tuple"'):
            read(tmp_path, *mined)
        return
    rows = read(tmp_path, *mined).rows
    assert len(rows) == len(mined)
    for row, source in zip(rows, mined, strict=True):
        assert row.positives == (hashed_id(pairs["positive"][pairs["query"].index(row.query)]),)
        assert len(row.negatives) == (1 if form == "triplet" else 2)
        assert list((row.teacher or {}).values()) == pytest.approx(source.get("scores", []))


def test_fields_that_are_not_read_are_named_once(tmp_path, capsys):
    read(tmp_path, *[{**OURS, "query_id": f"q{n}", "negatvie": ["4"], "topic": "x", "source": None} for n in range(3)])
    assert capsys.readouterr().err.count("'negatvie', 'topic'") == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**OURS, "teacher": [1, 2]}, "'teacher' has 2 scores for 3 positives and negatives. Give one score for each"),
        ({**OURS, "teacher": 3}, "'teacher' is 3, but should be a list"),
        ({**OURS, "teacher": {"1": "high"}}, "'teacher' of document '1' is 'high', but should be a number"),
        ({**OURS, "teacher": [1, None, 2]}, "'teacher' of document '2' is null, but should be a number"),
        ({**OURS, "teacher": [1, True, 2]}, "'teacher' of document '2' is true, but should be a number"),
        ({**OURS, "teacher": [1, float("nan"), 2]}, "'teacher' of document '2' is NaN, but should be a number"),
        ({**OURS, "teacher": [1, 10**400, 2]}, "'teacher' of document '2' is 1000"),
        ({**OURS, "teacher": {"1": 2, "33": 1}}, "scores the document '33', which is neither"),
        ({**OURS, "positives": ["1", "3"], "teacher": [1, 2, 3]}, "gives the document '3' two scores, 2.0 and 3.0"),
        ({**TRIPLE, "pos_scores": [3, 3], "neg_scores": [2, 1]}, "'pos_scores' has 2 scores for 1 positives"),
        ({"query_id": "q2", "query": "w", "positive_passages": [passage("1", ce_score="9")]}, "'ce_score' of document"),
        ({"query": "who", "positive": "one", "label": 0}, "'label' does not say which documents are positives"),
        ({"query": "who", "positive": "one", "score": 0.7}, "'score' does not say which documents are positives"),
        (LISTED | {"labels": [1, 0]}, "'labels' is [1, 0] for 3 documents"),
        (LISTED | {"labels": [1, 0, 2]}, "'labels' is [1, 0, 2] for 3 documents"),
        ({**MINED, "label": 3.5}, "'label' has 1 number for 1 positive and 2 negatives. Give one per document"),
        ({**MINED, "scores": "[1 2 3]"}, "'scores' is '[1 2 3]', not a JSON list"),
    ],
)
def test_errors_name_line_and_problem(tmp_path, row, message):
    with pytest.raises(DataError, match=rf"train\.jsonl:2: .*{re.escape(message)}"):
        read(tmp_path, OURS, row)


def test_distillation_needs_negatives(tmp_path):
    check_teacher(read(tmp_path, {**OURS, "teacher": {"1": 2, "3": 1}}))
    with pytest.raises(InputError, match=r"negatives is 0\. Set --negatives"):
        check_teacher(read(tmp_path, {**OURS, "teacher": [1, 2, 3]}), negatives=0)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, "a positive or a negative"),
        ({"teacher": {}}, "a positive or a negative"),
        ({"teacher": {"1": 1, "2": 1}}, "a negative"),
        ({"teacher": {"2": 1, "3": 1}}, "a positive"),
        ({"teacher": {"1": 1}, "negatives": []}, "a negative"),
    ],
)
def test_missing_scores_are_refused(tmp_path, changes, missing):
    whole = {**OURS, "teacher": [1, 2, 3]}
    with pytest.raises(DataError, match=rf"train\.jsonl:2: the query 'q2' has no teacher score of {missing}, .*--loss"):
        check_teacher(read(tmp_path, whole, {**OURS, "query_id": "q2", **changes}))
