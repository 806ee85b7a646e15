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


def test_reciprocal_ranks_count_from_one():
    fused = fuse([ranking("abc"), ranking("bda")], method="rrf", k=60)
    expected = [("b", 0.032522474881), ("a", 0.032266458496), ("d", 0.016129032258), ("c", 0.015873015873)]
    close(fused["q"], expected)
    assert fused == fuse([ranking("abc"), ranking("bda")])


def test_k_and_weights_of_reciprocal_ranks():
    close(fuse([ranking("ab"), ranking("b")], k=1)["q"], [("b", 1 / 3 + 1 / 2), ("a", 1 / 2)])
    close(fuse([ranking("ab"), ranking("b")], k=1, weights=[3, 0.5])["q"], [("a", 1.5), ("b", 1.25)])


def test_equal_scores_stand_by_id():
    assert [one for one, _ in fuse([ranking("ba"), ranking("ab")])["q"]] == ["a", "b"]


def test_sums_give_a_missing_document_the_lowest_score_of_that_run():
    runs = [{"q": [("a", 10.0), ("b", 4.0)]}, {"q": [("c", 3.0), ("a", 1.0)]}]
    close(fuse(runs, method="sum")["q"], [("a", 11.0), ("c", 7.0), ("b", 5.0)])
    close(fuse(runs, method="sum", missing="zero")["q"], [("a", 11.0), ("b", 4.0), ("c", 3.0)])


def test_weighted_scores_without_normalisation():
    runs = [{"q": [("a", 10.0), ("b", 4.0)]}, {"q": [("c", 3.0), ("a", 1.0)]}]
    close(fuse(runs, method="linear", weights=[0.1, 2])["q"], [("c", 6.4), ("a", 3.0), ("b", 2.4)])


def test_min_max_and_z_score():
    runs = [{"q": [("a", 10.0), ("b", 6.0), ("c", 2.0)]}, {"q": [("c", 3.0), ("d", 1.0)]}]
    close(
        fuse(runs, method="linear", normalization="min_max", weights=[1, 0.25])["q"],
        [("a", 1.0), ("b", 0.5), ("c", 0.25), ("d", 0.0)],
    )
    top = math.sqrt(1.5)  # (10 - 6) / sqrt(32 / 3)
    close(
        fuse(runs, method="linear", normalization="z_score")["q"],
        [("a", top - 1), ("c", 1 - top), ("b", -1.0), ("d", -top - 1)],
    )


def test_scores_that_are_all_equal_normalise_to_one_or_zero():
    runs = [{"q": [("a", 7.0)]}, {"q": [("b", 2.0), ("c", 1.0)]}]
    close(fuse(runs, method="linear", normalization="min_max")["q"], [("a", 1.0), ("b", 1.0), ("c", 0.0)])
    close(fuse(runs, method="linear", normalization="z_score")["q"], [("b", 1.0), ("a", -1.0), ("c", -1.0)])


def test_a_run_without_hits_for_a_query_adds_nothing_to_it():
    runs = [{"q1": [("a", 2.0)], "q2": []}, {"q2": [("b", 5.0)], "q3": [("c", 1.0)]}]
    assert fuse(runs, method="sum") == {"q1": [("a", 2.0)], "q2": [("b", 5.0)], "q3": [("c", 1.0)]}


def test_depth_cuts_after_fusing():
    runs = [ranking("abc"), ranking("cde")]
    assert fuse(runs, depth=2)["q"] == fuse(runs)["q"][:2]


@given(st.lists(a_run, min_size=1, max_size=4), options, st.randoms())
def test_the_order_of_the_runs_changes_nothing(runs, chosen, random):
    shuffled = random.sample(runs, len(runs))
    fused, again = fuse(runs, **chosen), fuse(shuffled, **chosen)
    assert fused == again


@given(a_run, options)
def test_one_run_keeps_its_order(run, chosen):
    fused = fuse([run], **chosen)
    assert {query: [one for one, _ in found] for query, found in fused.items()} == {
        query: [one for one, _ in found] for query, found in run.items()
    }


@given(st.lists(a_run, min_size=1, max_size=3), options)
def test_every_document_comes_once_best_first(runs, chosen):
    for query, found in fuse(runs, **chosen).items():
        assert {one for one, _ in found} == {one for run in runs for one, _ in run.get(query, [])}
        assert found == sorted(found, key=lambda hit: (-hit[1], hit[0]))
        assert len({one for one, _ in found}) == len(found)


@given(a_run)
def test_a_run_of_weight_zero_changes_no_score(run):
    other = {"q1": [("a", 5.0), ("z", 1.0)]}
    kept = dict(fuse([run, other], method="linear", weights=[1, 0], missing="zero").get("q1", []))
    assert all(kept[one] == pytest.approx(score) for one, score in run.get("q1", []))


def test_the_wrong_number_of_weights_is_refused():
    with pytest.raises(OptionError, match="3 weights for 2 runs"):
        fuse([ranking("a"), ranking("b")], weights=[1, 2, 3])


def test_weights_that_are_no_numbers_are_refused():
    with pytest.raises(OptionError, match="finite"):
        fuse([ranking("a")], weights=[math.nan])


def test_unknown_names_offer_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        fuse([ranking("a")], method="linaer")
    with pytest.raises(OptionError, match="'min_max'"):
        fuse([ranking("a")], method="linear", normalization="minmax")


@pytest.mark.parametrize(
    "chosen",
    [
        {"method": "rrf", "normalization": "min_max"},
        {"method": "rrf", "missing": "zero"},
        {"method": "sum", "weights": [1]},
        {"method": "sum", "normalization": "z_score"},
        {"method": "linear", "k": 60},
        {"k": -1},
    ],
)
def test_options_without_effect_or_out_of_range_are_refused(chosen):
    with pytest.raises(OptionError):
        fuse([ranking("a")], **chosen)


def test_no_run_a_repeated_document_and_an_infinite_score_are_refused():
    with pytest.raises(InputError, match="no run"):
        fuse([])
    with pytest.raises(InputError, match="run 2 has document 'a' twice for query 'q'"):
        fuse([ranking("ab"), {"q": [("a", 1.0), ("a", 1.0)]}])
    with pytest.raises(InputError, match="run 1 has the score -inf for query 'q' and document 'b'"):
        fuse([{"q": [("a", 1.0), ("b", -math.inf)]}], method="sum")


def two_runs():
    """What two indexes found, and what each of them says of what only the other found."""
    found = gather([(["a", "b"], [10.0, 4.0]), (["c", "a"], [3.0, 1.0])], "q")
    assert (found.missing(0), found.missing(1)) == (["c"], ["b"])
    found.fill(0, np.float32([2.0]))
    found.fill(1, np.float32([0.5]))
    return found


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [
        (Fusion("sum", missing="computed"), [("a", 11.0), ("c", 5.0), ("b", 4.5)]),
        # run 1 says a 10, b 4, c 2: (1, 0.25, 0); run 2 says a 1, b 0.5, c 3: (0.2, 0, 1)
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
def test_computed_scores_are_scores_like_others(fusion, expected):
    """They are normalised with those that were found; ranks do not change."""
    close(as_hits(*fusion(two_runs(), 10)), expected)


def test_a_score_that_cannot_be_computed_is_the_lowest():
    """Of an index that has not got the document."""
    found = gather([(["a", "b"], [10.0, 4.0]), (["c"], [3.0])], "q")
    found.fill(0, np.float32([np.nan]))
    found.fill(1, np.float32([1.0, 5.0]))
    close(as_hits(*Fusion("sum", missing="computed")(found, 10)), [("a", 11.0), ("b", 9.0), ("c", 7.0)])


def test_ties_are_those_of_32_bit_numbers_and_stand_by_id():
    """Also where they are cut: what a file holds is in the order of the rule."""
    run = {"q": [("c", 1.0 + 1e-9), ("b", 1.0), ("d", 1.0), ("a", 1.0), ("e", 0.5)]}
    fused = fuse([run], method="sum")["q"]
    assert fused == [("a", 1.0), ("b", 1.0), ("c", 1.0), ("d", 1.0), ("e", 0.5)]
    for depth in range(1, 6):
        assert fuse([run], method="sum", depth=depth)["q"] == fused[:depth]


@given(
    st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from([0.0, 1.0, 2.0])), max_size=10),
    st.integers(1, 12),
)
def test_the_best_are_those_of_a_plain_sort(found, depth):
    """By score descending and id ascending."""
    scores = dict(found)
    names, numbers = best(list(scores), np.array(list(scores.values())), depth)
    expected = sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:depth]
    assert list(zip(names, numbers.tolist(), strict=True)) == expected
