"""Metrics of a run and top-k accuracy."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import retrievalkit as rk
from retrievalkit.cli import main
from retrievalkit.contracts import Judged
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import write_run
from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.evaluation.evaluate import evaluate as command
from retrievalkit.evaluation.metric_names import IrMeasure, mean, metric_names
from retrievalkit.evaluation.metrics import per_query

# q1: relevant at rank 2 of 3, another not retrieved; q2: none retrieved; q3: at rank 11; q4: not in the run.
RUN = {
    "q1": [("d3", 9.0), ("d1", 8.0), ("d2", 7.0)],
    "q2": [("d9", 5.0), ("d8", 4.0)],
    "q3": [(f"d{20 + rank}", 80.0 - rank) for rank in range(12)],
}
QRELS = {"q1": {"d1": 1, "d7": 1}, "q2": {"d5": 1}, "q3": {"d30": 1}, "q4": {"d1": 1}}
GRADED_RUN = {"q": [("a", 10.0), ("b", 9.0), ("c", 8.0), ("d", 7.0)]}
GRADED = {"q": {"a": 1, "c": 3, "d": 0, "z": 2, "neg": -1}}


def evaluate(run, **options):
    return rk.Run(run).evaluate(**options)


def value(metric, run=RUN, qrels=QRELS, **conventions):
    return evaluate(run, qrels=qrels, metrics=metric, **conventions)[metric]


@pytest.mark.parametrize(
    ("metric", "run", "qrels", "options", "expected"),
    [
        ("RR@10", RUN, QRELS, {}, 0.125),
        ("MRR@10", RUN, QRELS, {}, 0.125),
        ("RR@11", RUN, QRELS, {}, 0.1477272727),
        ("Success@1000", RUN, QRELS, {}, 0.5),
        ("R@1000", RUN, QRELS, {}, 0.375),
        ("RR@10", RUN, QRELS, {"over": "run"}, 0.1666666667),
        ("nDCG@10", GRADED_RUN, GRADED, {}, 0.5250049894),
        ("nDCG@2", GRADED_RUN, GRADED, {}, 0.234639363),
        ("nDCG(dcg='exp-log2')@10", GRADED_RUN, GRADED, {}, 0.4790909149),
        ("RR@10", {"x": [("x", 2.0), ("y", 1.0)]}, {"x": {"y": 1}}, {}, 0.5),
        ("RR@10", {"x": [("x", 2.0), ("y", 1.0)]}, {"x": {"y": 1}}, {"exclude_self": True}, 1.0),
        ("nDCG@10", {"a query/1 é": [("d/1 é", 1.0), ("", 0.5)]}, {"a query/1 é": {"d/1 é": 1}}, {}, 1.0),
        ("nDCG(judged_only=True)@1", {"q": [("x", 2.0), ("a", 1.0)]}, {"q": {"a": 1}}, {}, 1.0),
        ("ERR@10", {"q": [("a", 1.0)]}, {"q": {"a": 4, "b": -2}}, {}, 15 / 16),
    ],
)
def test_values_worked_out_by_hand(metric, run, qrels, options, expected):
    """Means over all queries of the qrels; nDCG's gain is the grade, and negative grades count as 0."""
    assert value(metric, run, qrels, **options) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("metric", ["nDCG@10", "AP", "R@100", "P@10", "RR@10"])
def test_very_negative_grades_count_like_minus_one(metric):
    run = {"q": [("a", 3.0), ("b", 2.0)], "r": [("a", 1.0)]}
    expected = value(metric, run, {"q": {"a": -1, "b": 1}, "r": {"a": -1}})
    for grade in (-2, -1_000_000):
        assert value(metric, run, {"q": {"a": grade, "b": 1}, "r": {"a": grade}}) == expected


@pytest.mark.parametrize(
    "metric", ["nDCG@10", "AP", "RR@10", "Bpref", "ERR@10", "Judged@10", "Compat", "SetF", "Accuracy"]
)
@pytest.mark.parametrize("judged", [{"a": -1, "b": -2}, {"a": 0}, {}, {"z": 1}], ids=str)
@pytest.mark.parametrize("hits", [[("a", 1.0)], []], ids=["one hit", "no hit"])
def test_a_query_without_relevant_hits_has_a_value_without_warnings(metric, judged, hits, capfd):
    run, qrels = {"q": hits, "other": [("a", 1.0)]}, {"q": judged, "other": {"z": 1}}
    expected = 1.0 if metric == "Judged@10" and "a" in judged and hits else 0.0
    assert mean(metric, per_query(run, qrels, metric)[metric]) == expected / 2
    assert (
        IrMeasure.of(metric).value(Judged([judged.get(document) for document, _ in hits], list(judged.values())))
        == expected
    )
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("metric", ["nDCG@10", "RR", "RR@10", "P@1", "Success@1", "Judged@1", "Compat(p=0.5)"])
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
@pytest.mark.parametrize("lower", [0.0, 1e-9])
def test_equal_scores_rank_by_descending_id_for_all_metrics(metric, order, lower):
    """Scores are 32-bit floats as in trec_eval, so scores that differ by a billionth are equal."""
    run = {"q": [(document, 1.0 - lower * rank) for rank, document in enumerate(order)]}
    expected = per_query({"q": [("c", 3.0), ("b", 2.0), ("a", 1.0)]}, {"q": {"c": 1}}, metric)
    assert per_query(run, {"q": {"c": 1}}, metric) == expected


# Our name -> trec_eval's name.
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
def test_values_equal_trec_eval(scores, judged):
    """trec_eval gets the scores, including ties; ir-measures gets ranks."""
    import pytrec_eval

    expected = pytrec_eval.RelevanceEvaluator({"q": judged}, set(TREC_EVAL.values())).evaluate({"q": scores})["q"]
    values = per_query({"q": list(scores.items())}, {"q": judged}, list(TREC_EVAL))
    assert {name: values[name]["q"] for name in TREC_EVAL} == pytest.approx(
        {name: expected[trec_name] for name, trec_name in TREC_EVAL.items()}, abs=1e-6
    )


ORDERS = st.permutations([str(n) for n in range(14)]).map(lambda ids: ids[:12])


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), ORDERS, min_size=1), st.sampled_from(["msmarco", "trec"]))
def test_mrr_equals_ms_marcos_script(tmp_path_factory, ranked, form):
    """The first relevant document in the top 10, over all queries of the qrels; ties are ordered by rank."""
    path = tmp_path_factory.getbasetemp() / f"mrr.{form}"
    write_run(path, {query_id: [(document, 1.0) for document in ids] for query_id, ids in ranked.items()}, form=form)
    qrels = {query_id: {"3": 1, "7": 1, "1": 0} for query_id in "abcd"}
    evaluation = command(run=[path], qrels=qrels, metrics="RR@10", ties="run")[
        "mrr" if form == "trec" else "mrr.msmarco"
    ]
    firsts = [next((1 / rank for rank, one in enumerate(ids[:10], 1) if one in "37"), 0) for ids in ranked.values()]
    assert evaluation["RR@10"] == pytest.approx(sum(firsts) / 4)


def test_metric_names_are_split_outside_parentheses_and_computed_once():
    values = per_query(RUN, QRELS, "MRR@10 RR@10,AP(rel=2)")
    assert values["MRR@10"] == values["RR@10"] == {"q1": 0.5, "q2": 0.0, "q3": 0.0, "q4": 0.0}
    assert list(values) == ["MRR@10", "RR@10", "AP(rel=2)"]
    text = "nDCG(dcg='log2', judged_only=True)@10, RR@10 RR@10"
    assert metric_names(text) == ["nDCG(dcg='log2', judged_only=True)@10", "RR@10"]
    assert mean("NumRel", {"q1": 2.0, "q2": 1.0}) == 3.0


OWN = {f"d{n}": [(f"d{n}", 2.0), ("r", 1.0)] for n in range(3)} | {"d9": [("r", 1.0)]}


@pytest.mark.parametrize(
    ("run", "qrels", "metrics", "notes"),
    [
        (
            RUN | {"q9": [("d1", 1.0)]},
            QRELS | {"q5": {"d1": 0}},
            "RR@10",
            [
                "1 of 4 queries of the run are not in the qrels and are left out: 'q9'.",
                "2 of 5 queries of the qrels are not in the run and count 0: 'q4', 'q5'.",
                "1 of 5 queries of the qrels have no relevant document and count 0: 'q5'.",
            ],
        ),
        ({"q1": [("doc-1", 2.0)]}, {"q1": {"1": 1}}, "RR@10", ["no document of the run is judged: for query 'q1'"]),
        (
            OWN,
            {query: {"r": 1} for query in OWN},
            "RR@10",
            ["the first document of 3 of 4 queries has the query's own id."],
        ),
        ({query: OWN[query] for query in ("d1", "d9")}, {"d1": {"r": 1}, "d9": {"r": 1}}, "RR@10", []),
        ({"a": [("b", 1.0), ("a", 2.0)]}, {"a": {"b": 1}}, "RR@10", ["the first document of 1 of 1 queries"]),
        (GRADED_RUN, GRADED, "nDCG@4 AP(rel=2)", []),
        (GRADED_RUN, GRADED, "RR@4 nDCG@4", ["the judgements have grades up to 3, and RR@4 counts grades of 1"]),
        (GRADED_RUN, GRADED, "nDCG@10", ["the run has at most 4 documents per query, so nDCG@10 looks no further."]),
    ],
)
def test_notes_report_possible_mistakes(run, qrels, metrics, notes):
    actual = evaluate(run, qrels=qrels, metrics=metrics).notes
    assert len(actual) == len(notes)
    assert all(note.startswith(start) for note, start in zip(actual, notes, strict=True))


@pytest.mark.parametrize(
    ("error", "message", "metric"),
    [
        (UnknownNameError, r"unknown metric 'ndcg@10'.* Write 'nDCG@10'", "ndcg@10"),
        (UnknownNameError, r"did you mean|Write 'Success@5'", "Sucess@5"),
        (UnknownNameError, r"unknown metric 'qqq'.* Write metrics as in", "qqq"),
        (UnknownNameError, r"unknown metric '@10'", "@10"),
        (OptionError, "needs cutoff", "P"),
        (OptionError, "needs cutoff and max_rel", "BPM"),
        (InputError, r"cannot compute alpha_nDCG@10.*pyndeval", "alpha_nDCG@10"),
        (InputError, "cannot compute Accuracy: float division by zero", "Accuracy"),
        (InputError, r"grade 5.*ERR@10.*up to 4", "ERR@10"),
        # Including metrics on which trec_eval would end the process.
        *((InputError, "metric", name) for name in ("P@-1", "P@1.5", "RR@x", "RR(foo=1)", "nDCG(", "AP(rel=0)")),
        *(
            (InputError, "metric", name)
            for name in ("nDCG@True", "Judged@0", "RR@10@5", "nDCG@9999999999", "nDCG(gains={1:9999999})")
        ),
    ],
)
def test_metrics_that_cannot_be_computed_are_refused(error, message, metric):
    with pytest.raises(error, match=message):
        value(metric, {"q": [("a", 1.0)]}, {"q": {"a": 5 if metric == "ERR@10" else 1}})


# Hits by rank: q1 0010, q2 1001, q3 0000; the title of d1 does not count.
PASSAGES = [Passage("yes", "", "It is Paris."), *(Passage(f"d{n}", "Paris", "It is not.") for n in range(1, 5))]
PASSAGES += [Passage("again", "", "Paris, once more.")]
ANSWER_RUN = {
    "q1": [("d1", 4.0), ("d2", 3.0), ("yes", 2.0), ("d3", 1.0)],
    "q2": [("yes", 4.0), ("d1", 3.0), ("d2", 2.0), ("again", 1.0)],
    "q3": [("d1", 4.0), ("d2", 3.0), ("d3", 2.0), ("d4", 1.0)],
}
QUESTIONS = [Query(query_id, "where?", ("Paris", "Lutetia")) for query_id in ("q1", "q2", "q3")]
BARE = [Query(query_id, "where?") for query_id in ANSWER_RUN]


def accuracy(questions, passages=PASSAGES, **options):
    return evaluate(ANSWER_RUN, answers=questions, corpus=passages, **options)


def test_top_k_accuracy_is_the_share_of_questions_with_a_hit():
    evaluation = accuracy(QUESTIONS, top=[1, 2, 3, 4])
    assert dict(evaluation) == pytest.approx({"top1": 1 / 3, "top2": 1 / 3, "top3": 2 / 3, "top4": 2 / 3})
    patterns = [Query("q1", "where?", (r"^it is p\w+",))]
    assert dict(accuracy(patterns, top="2 3", answer_mode="regex")) == {"top2": 0.0, "top3": 1.0}
    evaluation = accuracy([*QUESTIONS, Query("q4", "who?", ("Paris",)), Query("q5", "why?")], top="4,20")
    assert evaluation["top4"] == evaluation["top20"] == pytest.approx(2 / 5)
    assert evaluation.notes == [
        "2 of 5 queries are not in the run and count 0: 'q4', 'q5'.",
        "1 of 5 queries have no answers and count 0: 'q5'.",
        "the run has at most 4 documents per query, so top20 looks no further.",
    ]


def test_without_answers_judgements_alone_count():
    """The same recipe works for collections with and without answers."""
    evaluation = accuracy(BARE, qrels={query: {hits[0][0]: 1} for query, hits in ANSWER_RUN.items()}, metrics="RR")
    assert dict(evaluation) == {"RR": 1.0}
    assert evaluation.notes == ["no query has answers, so there is no top-k accuracy."]


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (InputError, "no query has answers", lambda: accuracy(BARE)),
        (InputError, "no query of the run is among", lambda: accuracy([Query("z", "where?", ("a",))])),
        (OptionError, "'0 5' is not a list of cutoffs", lambda: accuracy(QUESTIONS, top=[0, 5])),
        (DataError, "d3", lambda: accuracy(QUESTIONS, PASSAGES[:3])),
        (InputError, "qrels", lambda: evaluate(RUN)),
        (InputError, "corpus", lambda: evaluate(RUN, answers=QUESTIONS)),
        (InputError, "the run has 'q1', 'q2', 'q3', the qrels '1'", lambda: evaluate(RUN, qrels={"1": {"d1": 1}})),
        (InputError, "twice for query 'q'", lambda: per_query({"q": [("d", 2.0), ("d", 1.0)]}, {"q": {"d": 1}}, "RR")),
        (InputError, "not a number, for query 'q'", lambda: per_query({"q": [("d", math.nan)]}, {"q": {"d": 1}}, "RR")),
    ],
)
def test_invalid_inputs_are_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The working directory, with runs, qrels, queries with answers and a corpus."""
    monkeypatch.chdir(tmp_path)
    write_run("a.trec", {"q1": [("d1", 2.0), ("d2", 1.0)], "q2": [("d3", 1.0)]})
    write_run("b.trec", {"q1": [("d2", 2.0), ("d1", 1.0)]})
    texts = {
        "qrels": "q1 0 d1 1\nq2 0 d3 1\n",
        "corpus.jsonl": "".join(
            json.dumps({"_id": name, "title": "", "text": text}) + "\n"
            for name, text in (("d1", "Rome"), ("d2", "Paris, 1900"), ("d3", "Oslo"))
        ),
        "queries.jsonl": "".join(
            json.dumps({"_id": name, "text": "?", "answers": [answer]}) + "\n"
            for name, answer in (("q1", "paris"), ("q2", "o.lo"))
        ),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)


ANSWERS = ("--answers", "queries.jsonl", "--corpus", "corpus.jsonl")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("a.trec --qrels qrels --metrics RR@10,P@2", "RR@10  1.0000\nP@2    0.5000\n"),
        (
            "a.trec b.trec --qrels qrels --metrics RR@10 --metrics P@2",
            "run   RR@10     P@2\na    1.0000  0.5000\nb    0.2500  0.2500\n"
            "Note: b: 1 of 2 queries of the qrels are not in the run and count 0: 'q2'.\n",
        ),
        (
            "b.trec --qrels qrels --metrics RR@10,P@2 --per-query",
            "run\tquery\tRR@10\tP@2\nb\tq1\t0.5000\t0.5000\nb\tq2\t0.0000\t0.0000\nb\tall\t0.2500\t0.2500\n"
            "Note: 1 of 2 queries of the qrels are not in the run and count 0: 'q2'.\n",
        ),
        (f"a.trec {' '.join(ANSWERS)} --top 1,2", "top1  0.0000\ntop2  0.5000\n"),
        (f"a.trec {' '.join(ANSWERS)} --top 1 --answer-mode regex", "top1  0.5000\n"),
    ],
)
@pytest.mark.usefixtures("files")
def test_output_of_the_command(arguments, expected):
    ran = CliRunner().invoke(main, ["evaluate", *arguments.split()])
    assert (ran.exit_code, ran.output) == (0, expected)


@pytest.mark.usefixtures("files")
def test_json_of_the_command():
    def rkit(*arguments):
        return json.loads(CliRunner().invoke(main, ["evaluate", *arguments, "--qrels", "qrels", "--json"]).stdout)

    assert rkit("a.trec", *ANSWERS, "--top", "2", "--metrics", "RR@10", "--per-query") == {
        "metrics": {"RR@10": 1.0, "top2": 0.5},
        "queries": {"RR@10": 2, "top2": 2},
        "notes": [],
        "per_query": {"RR@10": {"q1": 1.0, "q2": 1.0}, "top2": {"q1": 1.0, "q2": 0.0}},
    }
    several = rkit("a.trec", "b.trec", "--metrics", "RR@10")["runs"]["b"]
    assert (several["metrics"], "per_query" in several) == ({"RR@10": 0.25}, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("qrels --qrels qrels", "is a file of judgements (qrels), but RUN should be a run"),
        ("a.trec --qrels b.trec", "is a run, but --qrels should be"),
        ("a.trec --qrels qrel", "did you mean 'qrels'"),
        ("a.trec a.trec --qrels qrels", "a run is listed twice"),
        ("a.trec --qrels qrels --metrics RR@10,ncdg@10", "Write 'nDCG@10'"),
        ("a.trec", "Give judgements"),
        ("a.trec --answers qrels --corpus no", "qrels"),
        ("a.trec --qrels qrels --split test", "split has no effect here"),
    ],
)
@pytest.mark.usefixtures("files")
def test_bad_input_is_one_message_and_exit_code_2(arguments, message):
    ran = CliRunner().invoke(main, ["evaluate", *arguments.split()])
    assert (ran.exit_code, ran.output.count("Error:")) == (2, 1)
    assert message in ran.output
    assert "Traceback" not in ran.output
