"""What the quickstart recommends, and the question that it shows."""

import pytest

from retrievalkit.data.queries import Query
from retrievalkit.recipes.quickstart import question, recommend


@pytest.mark.parametrize(
    ("bm25", "dense", "p_bm25", "p_dense", "p_between", "expected"),
    [
        (0.5, 0.6, 0.01, 0.04, 0.9, ("hybrid", "hybrid", None)),
        (0.5, 0.69, 0.01, 0.3, 0.9, ("dense", "hybrid", 0.3)),
        (0.5, 0.69, 0.5, 0.3, 0.9, ("bm25", "hybrid", 0.5)),
        # A system that another one beats is not recommended, even if no difference to the best is shown.
        (0.66, 0.68, 0.1, 0.3, 0.002, ("dense", "hybrid", 0.3)),
        (0.5, 0.984, 0.0, 0.9, 0.0, ("dense", "dense", None)),
    ],
)
def test_the_simplest_system_that_none_is_shown_to_beat_is_recommended(
    bm25, dense, p_bm25, p_dense, p_between, expected
):
    means = {"bm25": bm25, "dense": dense, "hybrid": 0.7}
    pairs = [("dense", "bm25", p_between), ("hybrid", "bm25", p_bm25), ("dense", "hybrid", p_dense)]
    differences = [{"run": run, "against": against, "p_corrected": p} for run, against, p in pairs]
    assert recommend(["bm25", "dense", "hybrid"], means, differences) == expected


def test_the_question_is_one_that_the_system_answers():
    queries = [
        Query("1", "one that nobody answers at all"),
        Query("2", "one that both of them answer"),
        Query("3", "short"),
        Query("4", "one that only the system answers"),
    ]
    qrels = {query.id: {"good": 1, "bad": 0} for query in queries}
    good, bad = [("good", 1.0), ("bad", 0.5)], [("bad", 1.0)]
    run = {"1": bad, "2": good, "3": good, "4": good}
    baseline = {"1": bad, "2": good, "3": bad}
    assert question(queries, qrels, run, baseline) == "one that only the system answers"
    assert question(queries[:2], qrels, run, baseline) == "one that both of them answer"
    assert question(queries[:1], qrels, run, baseline) is None
