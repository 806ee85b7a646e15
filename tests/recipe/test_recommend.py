"""What the quickstart recommends, and the question that it shows."""

from retrievalkit.data.queries import Query
from retrievalkit.recipe.quickstart import question, recommend

SYSTEMS = ["bm25", "dense", "hybrid"]


def pairs(bm25, dense, between=0.9):
    """Corrected p-values of the differences to the hybrid, and of the difference between the other two."""
    return [
        {"run": "dense", "against": "bm25", "p_corrected": between},
        {"run": "hybrid", "against": "bm25", "p_corrected": bm25},
        {"run": "dense", "against": "hybrid", "p_corrected": dense},
    ]


def test_the_best_system_is_recommended_if_it_is_shown_to_be_better():
    means = {"bm25": 0.5, "dense": 0.6, "hybrid": 0.7}
    assert recommend(SYSTEMS, means, pairs(0.01, 0.04)) == ("hybrid", "hybrid", None)


def test_the_simplest_of_those_without_a_shown_difference_is_recommended():
    means = {"bm25": 0.5, "dense": 0.69, "hybrid": 0.7}
    assert recommend(SYSTEMS, means, pairs(0.01, 0.3)) == ("dense", "hybrid", 0.3)
    assert recommend(SYSTEMS, means, pairs(0.5, 0.3)) == ("bm25", "hybrid", 0.5)


def test_a_system_that_another_one_beats_is_not_recommended():
    means = {"bm25": 0.66, "dense": 0.68, "hybrid": 0.69}
    assert recommend(SYSTEMS, means, pairs(0.1, 0.3, between=0.002)) == ("dense", "hybrid", 0.3)


def test_a_less_simple_system_is_not_recommended_over_the_best():
    means = {"bm25": 0.5, "dense": 0.984, "hybrid": 0.893}
    differences = [{"run": "dense", "against": "bm25", "p_corrected": 0.0}]
    assert recommend(SYSTEMS, means, differences) == ("dense", "dense", None)


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
