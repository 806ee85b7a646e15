"""Comparison of runs, and the statistics behind it."""

from __future__ import annotations

import itertools
import json
from io import StringIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from retrievalkit.data.queries import Query
from retrievalkit.data.runs import write_run
from retrievalkit.errors import InputError, OptionError, UnknownNameError
from retrievalkit.evaluate.compare.program import Sampling, compare
from retrievalkit.evaluate.compare.result import HEADER, render
from retrievalkit.evaluate.options import Conventions
from retrievalkit.evaluate.significance import bootstrap_intervals, counts, holm, randomisation_test, t_test

gaps = st.lists(st.integers(-4, 4).map(lambda number: number / 4), min_size=1, max_size=9)


def by_enumeration(differences):
    """The share of all sign changes whose sum is as far from 0, in whole quarters to be exact."""
    whole = [round(4 * difference) for difference in differences]
    sums = [
        abs(sum(s * w for s, w in zip(signs, whole, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(whole))
    ]
    return sum(one >= abs(sum(whole)) for one in sums) / len(sums)


def test_a_randomisation_test_by_hand():
    """Of the 8 sign changes of (3, 2, -1) the sums are 6, 4, 2, 0 and their negatives; 4 is seen, 4 are as large."""
    assert randomisation_test([3.0, 2.0, -1.0]) == 0.5
    assert randomisation_test([1.0, 1.0, 1.0, 1.0, 1.0]) == 2 / 32
    assert randomisation_test([0.3]) == 1.0


@settings(max_examples=50, deadline=None)
@given(gaps)
def test_a_small_randomisation_test_is_exact(differences):
    assert randomisation_test(differences) == by_enumeration(differences)


@settings(deadline=None)
@given(gaps)
def test_p_values_do_not_depend_on_who_is_called_first(differences):
    swapped = [-difference for difference in differences]
    assert randomisation_test(differences) == randomisation_test(swapped)
    assert t_test(differences) == pytest.approx(t_test(swapped))
    assert counts(differences) == counts(swapped)[::-1]


def test_a_drawn_randomisation_test_comes_near_the_exact_one():
    """22 queries differ, which is drawn; the exact value is that of a fair coin by the binomial sum."""
    differences = [1.0] * 16 + [-1.0] * 6 + [0.0] * 50
    exact = 2 * sum(len(list(itertools.combinations(range(22), k))) for k in range(7)) / 2**22
    drawn = randomisation_test(differences, permutations=20_000, seed=3)
    assert drawn == pytest.approx(exact, abs=0.006)
    assert drawn == randomisation_test(differences, permutations=20_000, seed=3)
    assert drawn == randomisation_test([-one for one in differences], permutations=20_000, seed=3)
    assert drawn != randomisation_test(differences, permutations=20_000, seed=4)


def test_a_drawn_p_value_is_never_zero():
    assert randomisation_test([1.0] * 100, permutations=999) == pytest.approx(1 / 1000)


def test_p_values_of_no_difference_are_uniform_enough():
    generator = np.random.default_rng(0)
    drawn = [randomisation_test(generator.normal(size=30), permutations=200, seed=n) for n in range(400)]
    assert np.mean(np.array(drawn) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.05)


def test_a_t_test_by_hand():
    """Mean 2, deviation 1, 3 queries: t = 2 sqrt(3), and with 2 degrees of freedom p = 1 - t / sqrt(2 + t^2)."""
    t = 2 * 3**0.5
    assert t_test([1.0, 2.0, 3.0]) == pytest.approx(1 - t / (2 + t * t) ** 0.5)


def test_the_t_test_is_that_of_scipy():
    from scipy import stats

    first, second = np.random.default_rng(2).random((2, 40))
    assert t_test(first - second) == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-12)


@pytest.mark.parametrize(("differences", "p"), [([0.0, 0.0], 1.0), ([0.5], 1.0), ([0.5, 0.5, 0.5], 0.0)])
def test_t_tests_without_spread(differences, p):
    assert t_test(differences) == p


def test_holm_by_hand():
    """0.005 x 4, 0.01 x 3, then 0.03 x 2, and 0.04 x 1 must not fall below that."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_keeps_the_order_and_lies_between_plain_and_bonferroni(p_values):
    corrected = holm(p_values)
    assert all(p <= c <= min(1.0, len(p_values) * p) + 1e-12 for p, c in zip(p_values, corrected, strict=True))
    ranked = [c for _, c in sorted(zip(p_values, corrected, strict=True))]
    assert ranked == sorted(ranked)


def test_bootstrap_intervals_come_near_the_normal_ones():
    values = np.random.default_rng(0).normal(5, 2, 400)
    ((low, high),) = bootstrap_intervals(values)
    error = values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.1 * error)
    ((narrow_low, narrow_high),) = bootstrap_intervals(values, confidence=0.5)
    assert low < narrow_low < values.mean() < narrow_high < high


def test_bootstrap_intervals_come_near_those_of_scipy():
    from scipy import stats

    values = np.random.default_rng(4).exponential(1.0, 60)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=9_999, rng=1).confidence_interval
    assert bootstrap_intervals(values)[0] == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_the_randomisation_test_is_that_of_scipy():
    from scipy import stats

    gaps = np.random.default_rng(6).normal(0.2, 1, 9)
    theirs = stats.permutation_test(
        (gaps, np.zeros(9)), lambda one, other, axis: np.mean(one - other, axis=axis),
        permutation_type="samples", vectorized=True, n_resamples=np.inf,
    )  # fmt: skip
    assert randomisation_test(gaps) == pytest.approx(theirs.pvalue)


def test_bootstrap_columns_share_their_resamples():
    """So that the interval of a column does not depend on what stands beside it, and seeds repeat."""
    values = np.random.default_rng(1).random((30, 3))
    intervals = bootstrap_intervals(values, resamples=500, seed=7)
    assert intervals[1] == pytest.approx(bootstrap_intervals(values[:, 1], resamples=500, seed=7)[0])
    assert intervals[1] != pytest.approx(bootstrap_intervals(values[:, 1], resamples=500, seed=8)[0])
    shifted = bootstrap_intervals(values + 1, resamples=500, seed=7)
    assert np.array(shifted) == pytest.approx(np.array(intervals) + 1)


def test_bootstrap_of_equal_values_is_a_point():
    assert bootstrap_intervals([0.25] * 4) == [(0.25, 0.25)]


def run_of(ranks):
    """A run in which the one relevant document of query i, "r", has the rank given (0: not found)."""
    return {
        f"q{number}": [("r" if place == rank else f"d{place}", 10.0 - place) for place in range(1, 5)]
        for number, rank in enumerate(ranks)
    }


QRELS = {f"q{number}": {"r": 1} for number in range(4)}
RUNS = {"first": run_of([2, 2, 0, 1]), "better": run_of([1, 1, 1, 1]), "mixed": run_of([4, 1, 0, 2])}
# RR@10: first .5 .5 0 1; better 1 1 1 1; mixed .25 1 0 .5


def test_a_comparison_by_hand():
    found = compare(RUNS, qrels=QRELS, metrics="RR@10", examples=1, queries=[Query("q2", "what is lost?")])
    assert [(mean.run, mean.mean, mean.queries) for mean in found.means] == [
        ("first", 0.5, 4),
        ("better", 1.0, 4),
        ("mixed", 0.4375, 4),
    ]
    better, mixed = found.differences
    assert (better.run, better.against, better.difference) == ("better", "first", 0.5)
    assert (better.wins, better.ties, better.losses) == (3, 1, 0)
    assert better.p_value == 0.25  # .5, .5 and 1 all of one sign: 2 of 8
    assert (mixed.wins, mixed.ties, mixed.losses) == (1, 1, 2)
    assert mixed.difference == -0.0625
    assert mixed.p_value == 1.0  # |.5 - .25 - .5| is the least that .25, .5, .5 can add up to
    assert (better.p_corrected, mixed.p_corrected) == (0.5, 1.0)
    (most,) = better.largest
    assert (most.query_id, most.text, most.value, most.against, most.difference) == ("q2", "what is lost?", 1.0, 0.0, 1)
    assert [one.query_id for one in mixed.largest] == ["q1", "q3"]
    assert found.baseline == "first"


def test_intervals_hold_the_means():
    found = compare(RUNS, qrels=QRELS, metrics="RR@10 nDCG@10", baseline="all")
    assert all(mean.low <= mean.mean <= mean.high for mean in found.means)
    assert all(one.low <= one.difference <= one.high for one in found.differences)


def test_each_run_can_be_compared_with_each_or_with_any():
    every = compare(RUNS, qrels=QRELS, baseline="all")
    assert [(one.run, one.against) for one in every.differences] == [
        ("better", "first"),
        ("mixed", "first"),
        ("mixed", "better"),
    ]
    assert every.baseline == "all"
    against = compare(RUNS, qrels=QRELS, baseline="mixed").differences
    assert [(one.run, one.against) for one in against] == [("first", "mixed"), ("better", "mixed")]


def test_holm_counts_the_pairs_of_one_metric():
    one = compare(RUNS, qrels=QRELS, metrics="RR@10").differences
    two = compare(RUNS, qrels=QRELS, metrics="RR@10 nDCG@10").differences
    assert one == two[:2]


def test_a_run_is_equal_to_itself():
    (same,) = compare({"a": RUNS["mixed"], "b": RUNS["mixed"]}, qrels=QRELS).differences
    assert (same.p_value, same.t_test, same.p_corrected, same.difference) == (1.0, 1.0, 1.0, 0.0)
    assert (same.wins, same.ties, same.losses, same.largest) == (0, 4, 0, [])


def test_equal_seeds_give_equal_numbers_and_seeds_matter():
    generator = np.random.default_rng(5)
    runs = {name: run_of(generator.integers(0, 5, 60)) for name in "ab"}
    qrels = {query_id: {"r": 1} for query_id in runs["a"]}
    first, again, other = (
        compare(runs, qrels=qrels, sampling=Sampling(seed=seed, resamples=300)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.differences[0].p_value != other.differences[0].p_value
    assert first.means[0].low != other.means[0].low


def test_queries_that_a_run_lacks_count_zero_and_are_noted():
    runs = {"all": RUNS["better"], "three": {query: hits for query, hits in RUNS["better"].items() if query != "q1"}}
    found = compare(runs, qrels=QRELS, metrics="RR@10")
    assert found.differences[0].difference == -0.25
    assert found.notes == ["1 of 4 queries of the qrels are not in run 'three' and count 0: 'q1'."]
    shared = compare(runs, qrels=QRELS, metrics="RR@10", conventions=Conventions(over="run"))
    assert (shared.differences[0].difference, shared.means[0].queries) == (0.0, 3)


def test_the_table_has_a_row_a_run_or_pair():
    rows = compare(RUNS, qrels=QRELS, metrics="RR@10").to_table()
    assert [row[:3] for row in rows] == [
        ["RR@10", "first", "0.5000"],
        ["RR@10", "better", "1.0000"],
        ["RR@10", "mixed", "0.4375"],
    ]
    assert rows[0][4:] == ["-"] * 8
    assert rows[1][4:6] == ["first", "+0.5000"]
    assert rows[1][7:9] == ["0.2500", "0.5000"]
    assert rows[2][-1] == "1/1/2"
    assert {len(row) for row in rows} == {len(HEADER)}
    assert len(compare(RUNS, qrels=QRELS, baseline="all").to_table()) == 4


def test_json_and_the_terminal():
    texts = [Query("q2", "what [is] lost?")]
    found = compare(RUNS, qrels=QRELS, metrics="RR@10", queries=texts)
    written = json.loads(json.dumps(found.as_json()))
    assert written["means"][1]["mean"] == 1.0
    assert written["differences"][0]["largest"][0]["query_id"] == "q2"
    options = {"permutations": 10_000, "resamples": 10_000, "confidence": 0.95, "seed": 0}
    assert written["options"] == options | {"ties": "document_id", "over": "qrels", "ignore_same_id": False}
    assert "per_query" not in written
    assert found.as_json(per_query=True)["per_query"]["RR@10"]["mixed"]["q0"] == 0.25
    stream = StringIO()
    two = compare({name: RUNS[name] for name in ("first", "better")}, qrels=QRELS, metrics="RR@10", queries=texts)
    render(two, Console(file=stream, width=200))
    assert "what [is] lost?" in stream.getvalue()
    assert "+0.5000" in stream.getvalue()
    assert "95%" in stream.getvalue()


@pytest.mark.parametrize(("count", "name"), [(2, "short"), (5, "a-run-with-a-long-name"), (15, "x" * 90)])
def test_a_narrow_terminal_shows_whole_names_on_one_screen(count, name):
    """The queries that differ most are on the page where there are several pairs."""
    runs = {f"{name}-{number}": RUNS["first" if number else "better"] for number in range(count)}
    stream = StringIO()
    render(compare(runs, qrels=QRELS, metrics="RR@10"), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + count]] == list(runs)
    assert max(map(len, lines)) <= 80 or len(name) > 80
    assert len(lines) <= 30


def test_runs_from_files_are_named_after_them(tmp_path):
    for folder, name in (("x", "bm25.trec.gz"), ("x", "dense.v2.run"), ("y", "bm25.trec")):
        (tmp_path / folder).mkdir(exist_ok=True)
        write_run(tmp_path / folder / name, RUNS["first" if folder == "x" else "better"])
    paths = [tmp_path / "x" / "bm25.trec.gz", tmp_path / "x" / "dense.v2.run"]
    assert [mean.run for mean in compare(paths, qrels=QRELS).means] == ["bm25", "dense.v2"]
    paths.append(tmp_path / "y" / "bm25.trec")
    found = compare(paths, qrels=QRELS, baseline=str(paths[2]))
    assert [mean.run for mean in found.means] == [str(paths[0]), "dense.v2", str(paths[2])]
    assert found.baseline == str(paths[2])
    with pytest.raises(InputError, match="given twice"):
        compare([paths[0], paths[0]], qrels=QRELS)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match="1 run given"):
        compare({"a": RUNS["first"]}, qrels=QRELS)
    with pytest.raises(InputError, match="no query of run 'b' is in the qrels"):
        compare({"a": RUNS["first"], "b": {"z": [("d", 1.0)]}}, qrels=QRELS)
    with pytest.raises(UnknownNameError, match="did you mean 'better'"):
        compare(RUNS, qrels=QRELS, baseline="beter")
    with pytest.raises(UnknownNameError, match="unknown metric"):
        compare(RUNS, qrels=QRELS, metrics="MPR@3")
    with pytest.raises(OptionError, match="confidence"):
        compare(RUNS, qrels=QRELS, sampling=Sampling(confidence=95))
    apart = {"a": {"q0": [("r", 1.0)]}, "b": {"q1": [("r", 1.0)]}}
    with pytest.raises(InputError, match="no query in common"):
        compare(apart, qrels=QRELS, conventions=Conventions(over="run"))
