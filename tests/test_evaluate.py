"""Metrics of a run and top-k accuracy."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.evaluate import evaluate, per_query, top_k_accuracy
from retrievalkit.metrics import mean, metric_names

# q1: relevant at rank 2 of 3, one more never found; q2: not found; q3: at rank 11; q4: not in the run.
RUN = {
    "q1": [("d3", 9.0), ("d1", 8.0), ("d2", 7.0)],
    "q2": [("d9", 5.0), ("d8", 4.0)],
    "q3": [(f"d{20 + rank}", 80.0 - rank) for rank in range(12)],
}
QRELS = {"q1": {"d1": 1, "d7": 1}, "q2": {"d5": 1}, "q3": {"d30": 1}, "q4": {"d1": 1}}
GRADED_RUN = {"q": [("a", 10.0), ("b", 9.0), ("c", 8.0), ("d", 7.0)]}
GRADED = {"q": {"a": 1, "c": 3, "d": 0, "z": 2, "neg": -1}}


def value(metric, run=RUN, qrels=QRELS, **options):
    return evaluate(run, qrels=qrels, metrics=metric, **options)[metric]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("RR@10", 0.125),
        ("MRR@10", 0.125),
        ("RR@11", 0.1477272727),
        ("Success@1000", 0.5),
        ("R@1000", 0.375),
    ],
)
def test_means_are_over_all_queries_of_the_qrels(metric, expected):
    assert value(metric) == pytest.approx(expected, abs=1e-9)


def test_means_can_be_over_the_queries_of_the_run():
    assert value("RR@10", over="run") == pytest.approx(0.1666666667, abs=1e-9)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("nDCG@10", 0.5250049894),
        ("nDCG@2", 0.234639363),
        ("nDCG(dcg='exp-log2')@10", 0.4790909149),
    ],
)
def test_the_gain_of_ndcg_is_the_grade_and_negative_grades_count_nothing(metric, expected):
    assert value(metric, GRADED_RUN, GRADED) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", ["nDCG@10", "RR", "RR@10", "P@1", "Success@1", "Judged@1", "Compat(p=0.5)"])
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
@pytest.mark.parametrize("lower", [0.0, 1e-9])
def test_equal_scores_stand_by_id_descending_whatever_the_metric(metric, order, lower):
    """Scores are 32-bit numbers as in trec_eval, so a difference of a billionth is none."""
    run = {"q": [(document, 1.0 - lower * rank) for rank, document in enumerate(order)]}
    qrels = {"q": {"c": 1}}
    assert value(metric, run, qrels) == value(metric, {"q": [("c", 3.0), ("b", 2.0), ("a", 1.0)]}, qrels)


def test_ties_can_stand_in_the_order_of_the_run():
    run = {"q": [("a", 1.0), ("c", 1.0), ("b", 1.0)]}
    assert value("RR@10", run, {"q": {"c": 1}}, ties="run") == 0.5
    assert value("RR@10", run, {"q": {"c": 1}}) == 1.0


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(-1, 3), min_size=1),
)
def test_values_agree_with_the_formulas(found, judged):
    metrics = ["RR@3", "nDCG@4", "R@4", "Success@2", "P@3", "AP"]
    ranked = [document for score, document in sorted(((s, d) for d, s in found.items()), reverse=True)]
    relevant = {document for document, grade in judged.items() if grade > 0}
    hits = [document in relevant for document in ranked]
    discounts = [1 / math.log2(rank + 2) for rank in range(8)]
    gain = sum(max(0, judged.get(d, 0)) * w for d, w in zip(ranked[:4], discounts, strict=False))
    ideal = sum(max(0, g) * w for g, w in zip(sorted(judged.values(), reverse=True)[:4], discounts, strict=False))
    expected = {
        "RR@3": next((1 / (rank + 1) for rank, hit in enumerate(hits[:3]) if hit), 0.0),
        "nDCG@4": gain / ideal if ideal else 0.0,
        "R@4": sum(hits[:4]) / len(relevant) if relevant else 0.0,
        "Success@2": float(any(hits[:2])),
        "P@3": sum(hits[:3]) / 3,
        "AP": sum(sum(hits[: r + 1]) / (r + 1) for r, hit in enumerate(hits) if hit) / max(1, len(relevant)),
    }
    values = per_query({"q": list(found.items())}, {"q": judged}, metrics)
    assert {name: by_query["q"] for name, by_query in values.items()} == pytest.approx(expected, abs=1e-6)


def test_values_of_each_query_are_kept_under_the_names_asked_for():
    values = per_query(RUN, QRELS, "MRR@10 RR@10,AP(rel=2)")
    assert values["MRR@10"] == values["RR@10"] == {"q1": 0.5, "q2": 0.0, "q3": 0.0, "q4": 0.0}
    assert list(values) == ["MRR@10", "RR@10", "AP(rel=2)"]


def test_names_are_cut_outside_parentheses_and_come_once():
    text = "nDCG(dcg='log2', judged_only=True)@10, RR@10 RR@10"
    assert metric_names(text) == ["nDCG(dcg='log2', judged_only=True)@10", "RR@10"]
    assert mean("NumRel", {"q1": 2.0, "q2": 1.0}) == 3.0


def test_ids_may_be_any_text():
    run = {"a query/1 é": [("d/1 é", 1.0), ("", 0.5)]}
    assert value("nDCG@10", run, {"a query/1 é": {"d/1 é": 1}}) == 1.0


def test_documents_with_the_id_of_the_query_can_be_left_out():
    run = {"x": [("x", 2.0), ("y", 1.0)]}
    assert value("RR@10", run, {"x": {"y": 1}}) == 0.5
    assert value("RR@10", run, {"x": {"y": 1}}, ignore_same_id=True) == 1.0


def test_notes_say_what_the_numbers_hide():
    qrels = QRELS | {"q5": {"d1": 0}}
    notes = evaluate(RUN | {"q9": [("d1", 1.0)]}, qrels=qrels, metrics="RR@10").notes
    assert notes == [
        "1 of 4 queries of the run are not in the qrels and are left out: 'q9'.",
        "2 of 5 queries of the qrels are not in the run and count 0: 'q4', 'q5'.",
        "1 of 5 queries of the qrels have no relevant document and count 0: 'q5'.",
    ]


def test_a_note_says_where_graded_judgements_count_as_binary():
    (note,) = evaluate(GRADED_RUN, qrels=GRADED, metrics="RR@10 nDCG@10 AP(rel=2)").notes
    assert "every grade from 1 on is relevant to RR@10." in note
    assert "write RR(rel=2)@10." in note
    assert not evaluate(GRADED_RUN, qrels=GRADED, metrics="nDCG@10").notes


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("ndcg@10", r"unknown metric 'ndcg@10'.* Write 'nDCG@10'"),
        ("Sucess@5", r"did you mean|Write 'Success@5'"),
        ("qqq", r"unknown metric 'qqq'.* Write metrics as in"),
        ("@10", r"unknown metric '@10'"),
    ],
)
def test_an_unknown_metric_offers_the_nearest(metric, message):
    with pytest.raises(UnknownNameError, match=message):
        value(metric)


@pytest.mark.parametrize(
    "metric",
    ["nDCG@0", "P@-1", "P@1.5", "P", "RR@x", "RR(foo=1)", "nDCG(", "AP(rel=0)", "nDCG@True", "Judged@0", "RR@10@5", ""],
)
def test_a_metric_that_cannot_be_read_is_refused(metric):
    """Among them those on which trec_eval would end the process."""
    with pytest.raises(InputError):
        value(metric)


def test_a_metric_that_needs_another_package_says_so():
    with pytest.raises(InputError, match=r"cannot compute alpha_nDCG@10.*pyndeval"):
        value("alpha_nDCG@10")


def test_no_query_in_common_is_refused():
    with pytest.raises(
        InputError, match="no query of the run is in the qrels: the run has 'q1', 'q2', 'q3', the qrels"
    ):
        evaluate(RUN, qrels={"1": {"d1": 1}})


def test_broken_runs_are_refused():
    with pytest.raises(InputError, match="twice for query 'q1'"):
        value("RR", {"q1": [("d1", 2.0), ("d1", 1.0)]})
    with pytest.raises(InputError, match="no number, for query 'q1'"):
        value("RR", {"q1": [("d1", math.nan)]})
    with pytest.raises(UnknownNameError, match="'rank'"):
        value("RR", ties="rank")


def test_nothing_to_evaluate_by_is_refused():
    with pytest.raises(InputError, match="--qrels"):
        evaluate(RUN)
    with pytest.raises(InputError, match="--corpus"):
        evaluate(RUN, queries=[Query("q1", "a", ("b",))])


# Hits by rank: q1 0010, q2 1001, q3 0000; the title of d1 does not count.
PASSAGES = [Passage("yes", "", "It is Paris."), *(Passage(f"d{n}", "Paris", "It is not.") for n in range(1, 5))]
PASSAGES += [Passage("again", "", "Paris, once more.")]
ANSWER_RUN = {
    "q1": [("d1", 4.0), ("d2", 3.0), ("yes", 2.0), ("d3", 1.0)],
    "q2": [("yes", 4.0), ("d1", 3.0), ("d2", 2.0), ("again", 1.0)],
    "q3": [("d1", 4.0), ("d2", 3.0), ("d3", 2.0), ("d4", 1.0)],
}
QUESTIONS = [Query(query_id, "where?", ("Paris", "Lutetia")) for query_id in ("q1", "q2", "q3")]


def test_top_k_accuracy_is_the_share_of_questions_with_a_hit():
    accuracy = top_k_accuracy(ANSWER_RUN, QUESTIONS, PASSAGES, ks=(1, 2, 3, 4))
    assert accuracy == pytest.approx({"top1": 1 / 3, "top2": 1 / 3, "top3": 2 / 3, "top4": 2 / 3})


def test_questions_without_results_or_answers_count_zero_and_are_noted():
    questions = [*QUESTIONS, Query("q4", "who?", ("Paris",)), Query("q5", "why?")]
    found = evaluate(ANSWER_RUN, queries=questions, corpus=PASSAGES, ks=(4, 20))
    assert found["top4"] == found["top20"] == pytest.approx(2 / 5)
    assert found.notes == [
        "2 of 5 queries are not in the run and count 0: 'q4', 'q5'.",
        "1 of 5 queries have no answers and count 0: 'q5'.",
        "the run has at most 4 documents a query, so top20 look no further.",
    ]


def test_answers_can_be_patterns():
    patterns = [Query("q1", "where?", (r"^it is p\w+",))]
    assert top_k_accuracy(ANSWER_RUN, patterns, PASSAGES, ks=(2, 3), mode="regex") == {"top2": 0.0, "top3": 1.0}


def test_answers_that_cannot_be_looked_for_are_refused():
    with pytest.raises(InputError, match="no query has answers"):
        top_k_accuracy(ANSWER_RUN, [Query("q1", "where?")], PASSAGES)
    with pytest.raises(InputError, match="no query of the run is among the queries"):
        top_k_accuracy(ANSWER_RUN, [Query("z", "where?", ("a",))], PASSAGES)
    with pytest.raises(OptionError, match="top-k"):
        top_k_accuracy(ANSWER_RUN, QUESTIONS, PASSAGES, ks=(0, 5))
    with pytest.raises(DataError, match="d3"):
        top_k_accuracy(ANSWER_RUN, QUESTIONS, PASSAGES[:3])


def test_from_files_to_json(tmp_path):
    (tmp_path / "run.trec").write_text("q1 Q0 d2 1 2.0 x\nq1 Q0 d1 2 1.0 x\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    rows = [{"_id": "d1", "title": "", "text": "Paris"}, {"_id": "d2", "title": "", "text": "Rome"}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "where?", "answers": ["rome"]}) + "\n")
    found = evaluate(
        tmp_path / "run.trec",
        qrels=str(tmp_path / "qrels.tsv"),
        metrics="RR@10",
        queries=tmp_path / "queries.jsonl",
        corpus=tmp_path / "corpus.jsonl",
        ks=(1,),
    )
    assert dict(found) == {"RR@10": 0.5, "top1": 1.0}
    written = json.loads(json.dumps(found.to_json(per_query=True)))
    assert written == {
        "metrics": {"RR@10": 0.5, "top1": 1.0},
        "queries": {"RR@10": 1, "top1": 1},
        "notes": [],
        "per_query": {"RR@10": {"q1": 0.5}, "top1": {"q1": 1.0}},
    }
    assert "per_query" not in found.to_json()
