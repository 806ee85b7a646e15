"""Fusion of runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fused_runs import fuse
from retrievalkit.errors import InputError, OptionError, UnknownNameError
from retrievalkit.search.fusion import Fusion, as_hits, best, gather


def ranking(ids):
    return {"q": [(one, float(len(ids) - rank)) for rank, one in enumerate(ids)]}


def close(hits, expected):
    assert [one for one, _ in hits] == [one for one, _ in expected]
    assert [score for _, score in hits] == pytest.approx([score for _, score in expected], rel=1e-6, abs=1e-6)


scores = st.floats(-100, 100).map(lambda score: round(score, 3))
hits = st.dictionaries(st.sampled_from("abcdefgh"), scores, max_size=8).map(
    lambda found: sorted(found.items(), key=lambda hit: (-hit[1], hit[0]))
)
a_run = st.dictionaries(st.sampled_from(["q1", "q2"]), hits)
options = st.sampled_from(
    [
        {"method": "rrf"},
        {"method": "rrf", "k": 0},
        {"method": "sum"},
        {"method": "sum", "missing": "zero"},
        {"method": "linear", "normalization": "min_max"},
        {"method": "linear", "normalization": "z_score", "missing": "zero"},
    ]
)
TEN = [{"q": [("a", 10.0), ("b", 4.0)]}, {"q": [("c", 3.0), ("a", 1.0)]}]
SIX = [{"q": [("a", 10.0), ("b", 6.0), ("c", 2.0)]}, {"q": [("c", 3.0), ("d", 1.0)]}]
EQUAL = [{"q": [("a", 7.0)]}, {"q": [("b", 2.0), ("c", 1.0)]}]
TOP = math.sqrt(1.5)  # (10 - 6) / sqrt(32 / 3)


@pytest.mark.parametrize(
    ("runs", "chosen", "expected"),
    [
        ([ranking("abc"), ranking("bda")], {}, {"b": 0.0325224749, "a": 0.0322664585, "d": 1 / 62, "c": 1 / 63}),
        ([ranking("abc"), ranking("bda")], {"depth": 2}, {"b": 0.0325224749, "a": 0.0322664585}),
        ([ranking("ab"), ranking("b")], {"k": 1}, {"b": 1 / 3 + 1 / 2, "a": 1 / 2}),
        ([ranking("ab"), ranking("b")], {"k": 1, "weights": [3, 0.5]}, {"a": 1.5, "b": 1.25}),
        ([ranking("ba"), ranking("ab")], {}, {"a": 1 / 61 + 1 / 62, "b": 1 / 61 + 1 / 62}),
        (TEN, {"method": "sum"}, {"a": 11.0, "c": 7.0, "b": 5.0}),
        (TEN, {"method": "sum", "missing": "zero"}, {"a": 11.0, "b": 4.0, "c": 3.0}),
        (TEN, {"method": "linear", "weights": [0.1, 2]}, {"c": 6.4, "a": 3.0, "b": 2.4}),
        (
            SIX,
            {"method": "linear", "normalization": "min_max", "weights": [1, 0.25]},
            {"a": 1.0, "b": 0.5, "c": 0.25, "d": 0.0},
        ),
        (SIX, {"method": "linear", "normalization": "z_score"}, {"a": TOP - 1, "c": 1 - TOP, "b": -1.0, "d": -TOP - 1}),
        (EQUAL, {"method": "linear", "normalization": "min_max"}, {"a": 1.0, "b": 1.0, "c": 0.0}),
        (EQUAL, {"method": "linear", "normalization": "z_score"}, {"b": 1.0, "a": -1.0, "c": -1.0}),
        ([{"q": []}, {"q": [("b", 5.0)]}], {"method": "sum"}, {"b": 5.0}),
    ],
)
def test_fused_scores_worked_out_by_hand(runs, chosen, expected):
    close(fuse(runs, **chosen)["q"], list(expected.items()))


@given(st.lists(a_run, min_size=1, max_size=4), options, st.randoms())
def test_every_document_is_ranked_once_whatever_the_order_of_the_runs(runs, chosen, random):
    fused = fuse(runs, **chosen)
    assert fused == fuse(random.sample(runs, len(runs)), **chosen)
    for query, found in fused.items():
        assert {one for one, _ in found} == {one for run in runs for one, _ in run.get(query, [])}
        assert found == sorted(found, key=lambda hit: (-hit[1], hit[0]))
        assert len({one for one, _ in found}) == len(found)
    alone = fuse(runs[:1], **chosen)
    assert {query: [one for one, _ in found] for query, found in alone.items()} == {
        query: [one for one, _ in found] for query, found in runs[0].items()
    }


@given(a_run)
def test_a_run_of_weight_zero_changes_no_score(run):
    other = {"q1": [("a", 5.0), ("z", 1.0)]}
    kept = dict(fuse([run, other], method="linear", weights=[1, 0], missing="zero").get("q1", []))
    assert all(kept[one] == pytest.approx(score) for one, score in run.get("q1", []))


@pytest.mark.parametrize(
    ("error", "message", "runs", "chosen"),
    [
        (OptionError, "3 weights for 2 runs", "a b", {"weights": [1, 2, 3]}),
        (OptionError, "finite", "a", {"weights": [math.nan]}),
        (OptionError, "are all 0", "a", {"weights": [0]}),
        (UnknownNameError, "did you mean 'linear'", "a", {"method": "linaer"}),
        (OptionError, "'min_max'", "a", {"method": "linear", "normalization": "minmax"}),
        (OptionError, "no effect", "a", {"method": "rrf", "normalization": "min_max"}),
        (OptionError, "no effect", "a", {"method": "rrf", "missing": "zero"}),
        (OptionError, "no effect", "a", {"method": "sum", "weights": [1]}),
        (OptionError, "no effect", "a", {"method": "sum", "normalization": "z_score"}),
        (OptionError, "no effect", "a", {"method": "linear", "k": 60}),
        (OptionError, "rrf_k", "a", {"k": -1}),
        (OptionError, "Set it with --", "a", {"method": "rrf(rrf_k=3)"}),
        (InputError, "no run", "", {}),
        (InputError, "run 2 has document 'a' twice for query 'q'", "ab aa", {}),
    ],
)
def test_invalid_runs_and_options_are_refused(error, message, runs, chosen):
    with pytest.raises(error, match=message):
        fuse(list(map(ranking, runs.split())), **chosen)
    with pytest.raises(InputError, match="run 1 has the score -inf for query 'q' and document 'b'"):
        fuse([{"q": [("a", 1.0), ("b", -math.inf)]}], method="sum")


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [
        (Fusion("sum", missing="computed"), [("a", 11.0), ("c", 5.0), ("b", 4.5)]),
        # run 1 scores a 10, b 4, c 2: (1, 0.25, 0); run 2 scores a 1, b 0.5, c 3: (0.2, 0, 1)
        (Fusion("linear", (0.5, 0.5), "min_max"), [("a", 0.6), ("c", 0.5), ("b", 0.125)]),
        # means 16/3 and 1.5, deviations sqrt(104)/3 and sqrt(7/6)
        (
            Fusion("linear", (1.0, 2.0), "z_score"),
            [
                ("c", (2 - 16 / 3) * 3 / math.sqrt(104) + 2 * 1.5 / math.sqrt(7 / 6)),
                ("a", (10 - 16 / 3) * 3 / math.sqrt(104) + 2 * -0.5 / math.sqrt(7 / 6)),
                ("b", (4 - 16 / 3) * 3 / math.sqrt(104) + 2 * -1.0 / math.sqrt(7 / 6)),
            ],
        ),
        (Fusion("rrf", rrf_k=1), [("a", 1 / 2 + 1 / 3), ("c", 1 / 2), ("b", 1 / 3)]),
    ],
)
def test_computed_scores_count_like_scores_of_hits(fusion, expected):
    """They are normalised together with the hits' scores; a score that cannot be computed is the lowest score."""
    found = gather([(["a", "b"], [10.0, 4.0]), (["c", "a"], [3.0, 1.0])], "q")
    assert (found.missing(0), found.missing(1)) == (["c"], ["b"])
    found.fill(0, np.float32([2.0]))
    found.fill(1, np.float32([0.5]))
    close(as_hits(*fusion(found, 10)), expected)
    found = gather([(["a", "b"], [10.0, 4.0]), (["c"], [3.0])], "q")
    found.fill(0, np.float32([np.nan]))
    found.fill(1, np.float32([1.0, 5.0]))
    close(as_hits(*Fusion("sum", missing="computed")(found, 10)), [("a", 11.0), ("b", 9.0), ("c", 7.0)])


@given(
    st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from([0.0, 1.0, 1.0 + 1e-9, 2.0])), max_size=10),
    st.integers(1, 12),
)
def test_the_best_documents_equal_those_of_a_plain_sort(found, depth):
    """By score (as a 32-bit number) descending and id ascending."""
    scores = dict(found)
    names, numbers = best(list(scores), np.array(list(scores.values())), depth)
    rounded = {name: float(np.float32(score)) for name, score in scores.items()}
    expected = sorted(rounded.items(), key=lambda hit: (-hit[1], hit[0]))[:depth]
    assert list(zip(names, numbers.tolist(), strict=True)) == expected
