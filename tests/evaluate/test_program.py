"""Metrics of a run and top-k accuracy."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.cli import main
from retrievalkit.contracts import Judged
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import write_run
from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.evaluate.measures import IrMeasure, mean, metric_names
from retrievalkit.evaluate.options import Conventions
from retrievalkit.evaluate.program import AnswerOptions, evaluate, per_query

# q1: relevant at rank 2 of 3, one more never found; q2: not found; q3: at rank 11; q4: not in the run.
RUN = {
    "q1": [("d3", 9.0), ("d1", 8.0), ("d2", 7.0)],
    "q2": [("d9", 5.0), ("d8", 4.0)],
    "q3": [(f"d{20 + rank}", 80.0 - rank) for rank in range(12)],
}
QRELS = {"q1": {"d1": 1, "d7": 1}, "q2": {"d5": 1}, "q3": {"d30": 1}, "q4": {"d1": 1}}
GRADED_RUN = {"q": [("a", 10.0), ("b", 9.0), ("c", 8.0), ("d", 7.0)]}
GRADED = {"q": {"a": 1, "c": 3, "d": 0, "z": 2, "neg": -1}}


def value(metric, run=RUN, qrels=QRELS, **conventions):
    return evaluate(run, qrels=qrels, metrics=metric, conventions=Conventions(**conventions))[metric]


def accuracy_of(run, questions, passages=None, **options):
    passages = PASSAGES if passages is None else passages
    return dict(evaluate(run, queries=questions, corpus=passages, answers=AnswerOptions(**options)))


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


@pytest.mark.parametrize("metric", ["nDCG@10", "AP", "R@100", "P@10", "RR@10"])
def test_grades_far_below_zero_count_as_those_below_zero(metric):
    """trec_eval reads outside of its arrays at -2, which stands for spam in judgements of TREC's web track."""
    run = {"q": [("a", 3.0), ("b", 2.0)], "r": [("a", 1.0)]}
    for grade in (-2, -1_000_000):
        found = value(metric, run, {"q": {"a": grade, "b": 1}, "r": {"a": grade}})
        assert found == value(metric, run, {"q": {"a": -1, "b": 1}, "r": {"a": -1}})


@pytest.mark.parametrize(
    "metric", ["nDCG@10", "AP", "RR@10", "Bpref", "ERR@10", "Judged@10", "Compat", "SetF", "Accuracy"]
)
@pytest.mark.parametrize("judged", [{"a": -1, "b": -2}, {"a": 0}, {}, {"z": 1}], ids=str)
@pytest.mark.parametrize("found", [[("a", 1.0)], []], ids=["one hit", "no hit"])
def test_a_query_without_relevant_hits_has_a_value_and_no_program_complains(metric, judged, found, capfd):
    run, qrels = {"q": found, "other": [("a", 1.0)]}, {"q": judged, "other": {"z": 1}}
    expected = 0.5 if metric == "Judged@10" and "a" in judged and found else 0.0
    assert value(metric, run, qrels) == expected
    assert (
        IrMeasure.of(metric).value(Judged([judged.get(one) for one, _ in found], list(judged.values()))) == 2 * expected
    )
    assert capfd.readouterr().err == ""


def test_err_is_for_the_grades_of_its_script(capfd):
    assert value("ERR@10", {"q": [("a", 1.0)]}, {"q": {"a": 4, "b": -2}}) == 15 / 16
    with pytest.raises(InputError, match=r"grade 5.*ERR@10.*up to 4"):
        value("ERR@10", {"q": [("a", 1.0)]}, {"q": {"a": 5}})
    assert capfd.readouterr().err == ""


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


# Name for us, and for trec_eval.
TREC_EVAL = {
    "nDCG": "ndcg", "nDCG@5": "ndcg_cut_5", "AP": "map", "AP@5": "map_cut_5", "RR": "recip_rank", "P@5": "P_5",
    "R@5": "recall_5", "Success@5": "success_5", "Rprec": "Rprec", "Bpref": "bpref", "infAP": "infAP",
    "IPrec@0.5": "iprec_at_recall_0.50", "NumRel": "num_rel", "NumRet": "num_ret",
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(0, 20).map(str), st.sampled_from([0.0, 0.1, 0.25, 0.5, 3.0]), min_size=1),
    st.dictionaries(st.integers(0, 20).map(str), st.integers(0, 3), min_size=1),
)
def test_values_are_those_of_trec_eval(found, judged):
    """Which gets the scores themselves, equal ones among them, where we hand on ranks."""
    import pytrec_eval

    expected = pytrec_eval.RelevanceEvaluator({"q": judged}, set(TREC_EVAL.values())).evaluate({"q": found})["q"]
    values = per_query({"q": list(found.items())}, {"q": judged}, list(TREC_EVAL))
    assert {name: values[name]["q"] for name in TREC_EVAL} == pytest.approx(
        {name: expected[theirs] for name, theirs in TREC_EVAL.items()}, abs=1e-6
    )


def mrr_of_ms_marco(qrels, ranked, depth=10):
    """As its script counts: the first relevant passage in the first 10, over all queries of the qrels."""
    total = 0.0
    for query_id, ids in ranked.items():
        relevant = {one for one, grade in qrels.get(query_id, {}).items() if grade > 0}
        total += next((1 / rank for rank, one in enumerate(ids[:depth], 1) if one in relevant), 0.0)
    return total / len(qrels)


ORDERS = st.permutations([str(n) for n in range(14)]).map(lambda ids: ids[:12])


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), ORDERS, min_size=1), st.sampled_from(["msmarco", "trec"]))
def test_mrr_is_that_of_ms_marcos_script(tmp_path_factory, ranked, form):
    """With scores that are all equal the ranks decide, where --ties run asks for it."""
    path = tmp_path_factory.getbasetemp() / f"mrr.{form}"
    write_run(path, {query_id: [(one, 1.0) for one in ids] for query_id, ids in ranked.items()}, form=form)
    qrels = {query_id: {"3": 1, "7": 1, "1": 0} for query_id in "abcd"}
    found = evaluate(path, qrels=qrels, metrics="RR@10", conventions=Conventions(ties="run"))
    assert found["RR@10"] == pytest.approx(mrr_of_ms_marco(qrels, ranked))


@settings(max_examples=30, deadline=None)
@given(ORDERS, st.dictionaries(st.integers(0, 20).map(str), st.integers(0, 2), min_size=1), st.integers(1, 13))
def test_what_stands_below_a_cutoff_does_not_count(ids, judged, k):
    """Also where it is not handed on to those who compute."""
    run = {"q": [(one, -float(rank)) for rank, one in enumerate(ids)]}
    names = [f"{name}@{k}" for name in ("nDCG", "RR", "P", "R", "AP", "Success", "Judged")]
    values = per_query(run, {"q": judged}, names)
    assert values == per_query({"q": run["q"][:k]}, {"q": judged}, names)
    only = f"nDCG(judged_only=True)@{k}"
    alone = {"q": [hit for hit in run["q"] if hit[0] in judged]}
    if alone["q"]:
        expected = per_query(alone, {"q": judged}, f"nDCG@{k}")[f"nDCG@{k}"]
        assert per_query(run, {"q": judged}, only)[only] == pytest.approx(expected)


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
    assert value("RR@10", run, {"x": {"y": 1}}, exclude_self=True) == 1.0


def test_notes_say_what_the_numbers_hide():
    qrels = QRELS | {"q5": {"d1": 0}}
    notes = evaluate(RUN | {"q9": [("d1", 1.0)]}, qrels=qrels, metrics="RR@10").notes
    assert notes == [
        "1 of 4 queries of the run are not in the qrels and are left out: 'q9'.",
        "2 of 5 queries of the qrels are not in the run and count 0: 'q4', 'q5'.",
        "1 of 5 queries of the qrels have no relevant document and count 0: 'q5'.",
    ]


def test_judgements_of_another_collection_are_doubted():
    run = {"q1": [("doc-1", 2.0), ("doc-2", 1.0)], "q2": [("doc-3", 1.0)]}
    (note,) = evaluate(run, qrels={"q1": {"1": 1}, "q2": {"3": 1}}, metrics="RR@10").notes
    assert note == (
        "no document of the run is judged: for query 'q1' the run has 'doc-1', 'doc-2', the qrels '1'. "
        "Do they belong to the same collection?"
    )


def test_queries_that_find_themselves_are_told():
    run = {f"d{n}": [(f"d{n}", 2.0), ("r", 1.0)] for n in range(3)} | {"d9": [("r", 1.0)]}
    qrels = {query_id: {"r": 1} for query_id in run}
    (note,) = evaluate(run, qrels=qrels, metrics="RR@10").notes
    assert note.startswith("the first document of 3 of 4 queries has the query's own id.")
    assert "--exclude-self" in note
    assert evaluate(run, qrels=qrels, metrics="RR@10", conventions=Conventions(exclude_self=True)).notes == []
    half = {"d1": run["d1"], "d9": run["d9"]}
    assert evaluate(half, qrels={one: qrels[one] for one in half}, metrics="RR@10").notes == []


def test_a_note_says_where_graded_judgements_count_as_binary():
    note, *_ = evaluate(GRADED_RUN, qrels=GRADED, metrics="RR@10 nDCG@10 AP(rel=2)").notes[::-1]
    assert "RR@10 counts every grade from 1 on as relevant." in note
    assert "write RR(rel=2)@10." in note
    assert not any("relevant" in one for one in evaluate(GRADED_RUN, qrels=GRADED, metrics="nDCG@10").notes)


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


@pytest.mark.parametrize(("metric", "needs"), [("P", "cutoff"), ("ERR", "cutoff"), ("BPM", "cutoff and max_rel")])
def test_a_metric_without_a_parameter_it_needs_names_it(metric, needs):
    with pytest.raises(OptionError, match=f"needs {needs}"):
        value(metric)


def test_a_metric_that_needs_another_package_says_so():
    with pytest.raises(InputError, match=r"cannot compute alpha_nDCG@10.*pyndeval"):
        value("alpha_nDCG@10")


def test_a_metric_that_ir_measures_divides_by_zero_for_is_refused():
    with pytest.raises(InputError, match="cannot compute Accuracy: float division by zero"):
        value("Accuracy", {"q": [("a", 1.0)]}, {"q": {"a": 1}})


def test_no_query_in_common_is_refused():
    with pytest.raises(
        InputError, match="no query of the run is in the qrels: the run has 'q1', 'q2', 'q3', the qrels"
    ):
        evaluate(RUN, qrels={"1": {"d1": 1}})


def test_broken_runs_are_refused():
    with pytest.raises(InputError, match="twice for query 'q1'"):
        value("RR", {"q1": [("d1", 2.0), ("d1", 1.0)]})
    with pytest.raises(InputError, match="not a number, for query 'q1'"):
        value("RR", {"q1": [("d1", math.nan)]})
    with pytest.raises(UnknownNameError, match="'rank'"):
        value("RR", ties="rank")


def test_a_document_twice_in_a_file_is_located(tmp_path):
    """Reading columns does not look for it: the metrics do."""
    (tmp_path / "run").write_text("p Q0 a 1 3 t\nq1 Q0 a 1 3 t\nq1 Q0 b 2 2 t\nq1 Q0 a 3 1 t\n")
    with pytest.raises(DataError, match=r"run:4: document 'a' is already at line 2 for query 'q1'"):
        evaluate(tmp_path / "run", qrels={"q1": {"b": 1}})


def test_the_document_with_the_id_of_its_query_is_noticed_at_the_first_rank():
    """Wherever a run that is given in Python lists it."""
    run = {"a": [("b", 1.0), ("a", 2.0)]}
    assert any("the query's own id" in note for note in evaluate(run, qrels={"a": {"b": 1}}).notes)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([0.0, 1.0, 2.0])), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from("abcdefxyz"), st.integers(-1, 3), min_size=1),
)
def test_metrics_have_the_same_value_alone_and_beside_others(runs, judged):
    """Some are computed together, from whole rankings instead of their first ranks."""
    run = {str(number): list(found.items()) for number, found in enumerate(runs)}
    qrels = dict.fromkeys(run, judged)
    names = ["nDCG@2", "R@1", "P(rel=2)@3", "AP@2", "Success@1", "AP@1000", "P@3", "AP(rel=2)", "RR@2"]
    assert per_query(run, qrels, names) == {name: per_query(run, qrels, name)[name] for name in names}


def test_nothing_to_evaluate_by_is_refused():
    with pytest.raises(InputError, match="qrels"):
        evaluate(RUN)
    with pytest.raises(InputError, match="corpus"):
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
    accuracy = accuracy_of(ANSWER_RUN, QUESTIONS, ks=(1, 2, 3, 4))
    assert accuracy == pytest.approx({"top1": 1 / 3, "top2": 1 / 3, "top3": 2 / 3, "top4": 2 / 3})


def test_questions_without_results_or_answers_count_zero_and_are_noted():
    questions = [*QUESTIONS, Query("q4", "who?", ("Paris",)), Query("q5", "why?")]
    found = evaluate(ANSWER_RUN, queries=questions, corpus=PASSAGES, answers=AnswerOptions(ks=(4, 20)))
    assert found["top4"] == found["top20"] == pytest.approx(2 / 5)
    assert found.notes == [
        "2 of 5 queries are not in the run and count 0: 'q4', 'q5'.",
        "1 of 5 queries have no answers and count 0: 'q5'.",
        "the run has at most 4 documents per query, so top20 looks no further.",
    ]


def test_answers_can_be_patterns():
    patterns = [Query("q1", "where?", (r"^it is p\w+",))]
    assert accuracy_of(ANSWER_RUN, patterns, ks=(2, 3), mode="regex") == {"top2": 0.0, "top3": 1.0}


def test_without_answers_judgements_alone_count():
    """One recipe serves collections with answers and without."""
    bare = [Query(query_id, "where?") for query_id in ANSWER_RUN]
    qrels = {query_id: {hits[0][0]: 1} for query_id, hits in ANSWER_RUN.items()}
    found = evaluate(ANSWER_RUN, qrels=qrels, metrics="RR", queries=bare, corpus=PASSAGES)
    assert dict(found) == {"RR": 1.0}
    assert found.notes == ["no query has answers, so there is no top-k accuracy."]


def test_answers_that_cannot_be_looked_for_are_refused():
    with pytest.raises(InputError, match="no query has answers"):
        accuracy_of(ANSWER_RUN, [Query("q1", "where?")])
    with pytest.raises(InputError, match="no query of the run is among the queries"):
        accuracy_of(ANSWER_RUN, [Query("z", "where?", ("a",))])
    with pytest.raises(OptionError, match="top-k"):
        accuracy_of(ANSWER_RUN, QUESTIONS, ks=(0, 5))
    with pytest.raises(DataError, match="d3"):
        accuracy_of(ANSWER_RUN, QUESTIONS, PASSAGES[:3])


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
        answers=AnswerOptions(ks=(1,)),
    )
    assert dict(found) == {"RR@10": 0.5, "top1": 1.0}
    written = json.loads(json.dumps(found.as_json(per_query=True)))
    assert written == {
        "metrics": {"RR@10": 0.5, "top1": 1.0},
        "queries": {"RR@10": 1, "top1": 1},
        "notes": [],
        "per_query": {"RR@10": {"q1": 0.5}, "top1": {"q1": 1.0}},
    }
    assert "per_query" not in found.as_json()


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """A folder, which is the present one, with a.trec, b.trec and qrels."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a.trec", {"q1": [("d1", 2.0), ("d2", 1.0)], "q2": [("d3", 1.0)]})
    write_run(tmp_path / "b.trec", {"q1": [("d2", 2.0), ("d1", 1.0)]})
    (tmp_path / "qrels").write_text("q1 0 d1 1\nq2 0 d3 1\n")
    return tmp_path


def rkit(*arguments):
    ran = CliRunner().invoke(main, ["evaluate", *map(str, arguments)])
    return ran.exit_code, ran.output


def test_one_run_at_the_command_line(two_runs):
    code, output = rkit("a.trec", "--qrels", "qrels", "--metrics", "RR@10 P@2")
    assert (code, output) == (0, "RR@10  1.0000\nP@2    0.5000\n")


def test_several_runs_make_a_table(two_runs):
    code, output = rkit("a.trec", "b.trec", "--qrels", "qrels", "--metrics", "RR@10 P@2")
    assert code == 0
    assert output == (
        "run   RR@10     P@2\na    1.0000  0.5000\nb    0.2500  0.2500\n"
        "Note: b: 1 of 2 queries of the qrels are not in the run and count 0: 'q2'.\n"
    )
    _, output = rkit("a.trec", "b.trec", "--qrels", "qrels", "--metrics", "RR@10", "--json")
    assert json.loads(output)["runs"]["b"]["metrics"] == {"RR@10": 0.25}
    _, output = rkit("b.trec", "--qrels", "qrels", "--metrics", "RR@10", "--json", "--per-query")
    assert json.loads(output)["per_query"] == {"RR@10": {"q1": 0.5, "q2": 0.0}}


def test_values_of_queries_are_lines_with_tabs(two_runs):
    _, output = rkit("b.trec", "--qrels", "qrels", "--metrics", "RR@10 P@2", "--per-query")
    assert output.splitlines()[:4] == [
        "run\tquery\tRR@10\tP@2",
        "b\tq1\t0.5000\t0.5000",
        "b\tq2\t0.0000\t0.0000",
        "b\tall\t0.2500\t0.2500",
    ]


def test_answers_at_the_command_line(two_runs):
    rows = [{"_id": "d1", "text": "Rome"}, {"_id": "d2", "text": "Paris, 1900"}, {"_id": "d3", "text": "Oslo"}]
    (two_runs / "corpus.jsonl").write_text("".join(json.dumps(row | {"title": ""}) + "\n" for row in rows))
    answers = [{"_id": "q1", "text": "?", "answers": ["paris"]}, {"_id": "q2", "text": "?", "answers": ["19\\d\\d"]}]
    (two_runs / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    options = ("--answers", "queries.jsonl", "--corpus", "corpus.jsonl")
    for processes in (1, 2):
        _, output = rkit("a.trec", *options, "--top", "1,2", "--processes", processes)
        assert output == "top1  0.0000\ntop2  0.5000\n"
    answers[0]["answers"] = ["pa.is"]
    (two_runs / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    _, output = rkit("b.trec", *options, "--top", "1", "--answer-mode", "regex")
    assert output.startswith("top1  0.5000\n")
    code, output = rkit("a.trec", *options, "--top", "5 x")
    assert code == 2
    assert "'5 x' is not a list of cutoffs" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["qrels", "--qrels", "qrels"], "is a file of judgements (qrels), and RUN takes a run"),
        (["a.trec", "--qrels", "b.trec"], "is a run, and --qrels takes"),
        (["a.trec", "--qrels", "qrel"], "did you mean 'qrels'"),
        (["a.trec", "a.trec", "--qrels", "qrels"], "a run is given twice"),
        (["a.trec", "--qrels", "qrels", "--metrics", "RR@10,ncdg@10"], "Write 'nDCG@10'"),
        (["a.trec"], "Give judgements"),
        (["a.trec", "--answers", "qrels", "--corpus", "no"], "qrels"),
        (["empty", "--qrels", "qrels"], "empty: the file contains no results"),
        (["other", "--qrels", "qrels"], "no query of the run is in the qrels: the run has 'x', the qrels 'q1', 'q2'"),
        (["twice", "--qrels", "qrels"], "twice:2: document 'd1' is already at line 1"),
        (["nan", "--qrels", "qrels"], "nan:1: 'nan' is not a score"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(two_runs, arguments, message):
    (two_runs / "empty").write_text("")
    (two_runs / "other").write_text("x Q0 d1 1 1 t\n")
    (two_runs / "twice").write_text("q1 Q0 d1 1 1 t\nq1 Q0 d1 2 0.5 t\n")
    (two_runs / "nan").write_text("q1 Q0 d1 1 nan t\n")
    code, output = rkit(*arguments)
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert output.count("Error:") == 1
