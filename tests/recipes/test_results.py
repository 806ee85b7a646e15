"""The table of a recipe: figures and references, seeds, and the direction of differences."""

import json
import re
from dataclasses import replace

import pytest

from retrievalkit import storage
from retrievalkit.recipes.outcome import read_figures, read_per_query
from retrievalkit.recipes.recipe import Recipe, Row
from retrievalkit.recipes.results import tabulate
from retrievalkit.recipes.step import Step

STEPS = ("index", "a/1", "a/2", "b/1", "b/2", "c")


@pytest.fixture
def table():
    """Three rows with two seeds; the last row does not depend on the seed."""
    steps = tuple(Step(name, "evaluate", {"run": "" if name == "index" else "${steps.index}"}) for name in STEPS)
    rows = (
        Row("a", "The first", {1: {"f": "a/1"}, 2: {"f": "a/2"}}, {("f", "RR"): 0.5, ("f", "R"): 0.9}, "Paper"),
        Row("b", "The | other", {1: {"f": "b/1"}, 2: {"f": "b/2"}}, {("f", "RR"): 0.4}, "Paper"),
        Row("c", "c", {1: {"f": "c"}, 2: {"f": "c"}}),
    )
    recipe = Recipe("demo", "", {}, steps, "", ("f",), rows, "a")
    figures = {"a/1": 0.2, "a/2": 0.4, "b/1": 0.1, "b/2": 0.1, "c": 0.35}
    return tabulate(recipe, {name: {"RR": value} for name, value in figures.items()}, dict.fromkeys(STEPS, 10.0))


def test_a_row_has_ours_the_reference_and_the_difference(table):
    lines = [re.split(" {2,}", line) for line in table.text().splitlines()]
    assert lines[:4] == [
        ["variant", "RR", "seconds"],
        ["The first", "0.3000 ± 0.1414 (0.5000, -0.2000)", "30"],
        ["The | other", "0.1000 ± 0.0000 (0.4000, -0.3000)", "30"],
        ["c", "0.3500", "20"],
    ]
    assert "Ours (reference, difference). Reference: Paper." in table.text()
    assert "over the seeds 1, 2." in table.text()
    assert "Not measured: R." in table.text()


def test_other_rows_are_compared_with_the_baseline(table):
    text = table.text().partition("Difference to 'The first'")[2]
    lines = [re.split(" {2,}", line) for line in text.splitlines()[2:]]
    assert lines == [["variant", "RR"], ["The | other", "-0.2000 ± 0.1414 (-0.1000, same)"], ["c", "+0.0500 ± 0.1414"]]


def test_results_are_written_as_json_and_markdown(table, tmp_path):
    table.write(tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    first, other, last = found["rows"]
    assert (found["recipe"], found["baseline"], found["not_measured"]) == ("demo", "a", ["R"])
    assert first["figures"]["RR"] == {
        "ours": pytest.approx(0.3),
        "deviation": pytest.approx(0.1414, abs=1e-4),
        "seeds": {"1": 0.2, "2": 0.4},
        "reference": 0.5,
        "difference": pytest.approx(-0.2),
    }
    assert (first["seconds"], last["seconds"]) == (30.0, 20.0)
    assert other["against_baseline"]["RR"]["direction"] == "same"
    assert "against_baseline" not in first
    assert last["figures"]["RR"] == {"ours": 0.35}
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert lines[:4] == ["# demo", "", "| variant | RR | seconds |", "| --- | ---: | ---: |"]
    assert lines[5] == r"| The \| other | 0.1000 ± 0.0000 (0.4000, -0.3000) | 30 |"


def test_incomplete_rows_are_left_out():
    steps = tuple(Step(name, "evaluate", {}) for name in ("a", "b", "dl"))
    cells = [{None: {"f": "a", "dl": "dl"}}, {None: {"f": "b", "dl": "dl"}}]
    rows = tuple(Row(name, name, cell, {}, f"Paper {name}") for name, cell in zip("ab", cells, strict=True))
    recipe = Recipe("demo", "", {}, steps, "", ("f", "dl"), rows, "a")
    figures = {"a": {"RR": 0.1}, "dl": {"nDCG": 0.2}}
    seconds = dict.fromkeys(("a", "b", "dl"), 1.0)
    assert [row.name for row in tabulate(recipe, figures, seconds).rows] == ["a"]
    heading = ["variant", "f", "RR", "dl", "nDCG", "seconds"]
    assert tabulate(recipe, figures, seconds).text().splitlines()[0].split() == heading
    both = tabulate(recipe, {**figures, "b": {"R": 0.3}}, seconds)
    assert both.text().splitlines()[2].split() == ["b", "0.2000", "0.3000", "2", "Paper", "b"]
    assert tabulate(recipe, {}, {}).rows == []


def two_rows(ours, queries):
    steps = tuple(Step(name, "evaluate", {}) for names in ours.values() for name in names)
    rows = tuple(
        Row(row, row, {seed: {"f": name} for seed, name in enumerate(names, 1)}, {("f", "RR"): reference})
        for (row, names), reference in zip(ours.items(), (0.5, 0.6), strict=True)
    )
    recipe = Recipe("demo", "", {}, steps, "", ("f",), rows, "base")
    figures = {name: {"RR": value} for names in ours.values() for name, value in names.items()}
    per_query = {name: {"RR": dict(enumerate(values))} for name, values in queries.items()}
    return tabulate(recipe, figures, dict.fromkeys(figures, 1.0), per_query).tested()


ONE = {"base": {"a": 0.3}, "new": {"b": 0.4}}
TWO = {"base": {"a": 0.3, "b": 0.4}, "new": {"c": 0.41, "d": 0.32}}
THREE = {"base": {"a": 0.3, "b": 0.31, "c": 0.32}, "new": {"d": 0.4, "e": 0.42, "f": 0.44}}
SEEDS, QUERIES = "p: paired t-test over seeds, corrected by Holm over the rows.", "randomisation test over queries"


@pytest.mark.parametrize(
    ("ours", "queries", "shown", "cell", "note"),
    [
        # Differences 0.1, 0.11, 0.12: t = 19.05, p = 0.0027.
        (THREE, {}, True, "+0.1100 ± 0.0100 (+0.1000, same, p 0.0027)", SEEDS),
        (TWO, {}, False, "(+0.1000, no difference shown, p ", SEEDS),
        # Ten queries with differences of the same sign: p = 2 / 2**10.
        (ONE, {"a": [0.3] * 10, "b": [0.4] * 10}, True, "(+0.1000, same, p 0.0020)", QUERIES),
        (ONE, {"a": [0.3, 0.5] * 5, "b": [0.5, 0.3] * 5}, False, "no difference shown, p 1.0000", QUERIES),
        (ONE, {}, None, "(+0.1000, same)", "Not tested for significance. Set several seeds"),
    ],
)
def test_a_difference_is_tested_over_seeds_or_queries(ours, queries, shown, cell, note):
    table = two_rows(ours, queries)
    assert cell in table.text()
    assert note in table.text()
    assert table.to_json()["rows"][1]["against_baseline"]["RR"]["shown"] is shown


def test_a_difference_has_to_pass_both_tests():
    same = {"a": [0.3] * 10, "b": [0.3] * 10, "c": [0.4] * 10, "d": [0.4] * 10}
    verdict = two_rows(TWO, same).to_json()["rows"][1]["against_baseline"]["RR"]
    assert verdict["p_queries"] < 0.05 < verdict["p_seeds"]
    assert verdict["shown"] is False


def rows_of_sets():
    """Two variants on two sets with 2 and 4 questions, and their means."""
    steps = tuple(Step(name, "evaluate", {}) for name in ("a-x", "a-y", "b-x", "b-y"))
    rows = [
        Row(name, name, {1: {"f": name}}, baseline=f"a-{name[-1]}") if name[-1] != "m" else
        Row(name, name, {}, {("f", "RR"): 0.5}, of=(f"{name[0]}-x", f"{name[0]}-y"), baseline="a-m")
        for name in ("a-x", "a-y", "a-m", "b-x", "b-y", "b-m")
    ]  # fmt: skip
    queries = {"a-x": [0, 1], "a-y": [0, 0, 0, 0], "b-x": [1, 1], "b-y": [0, 0, 0, 1]}
    per_query = {
        name: {"RR": {str(place): float(figure) for place, figure in enumerate(of)}} for name, of in queries.items()
    }
    figures = {name: {"RR": sum(of) / len(of)} for name, of in queries.items()}
    recipe = Recipe("demo", "", {}, steps, "", ("f",), tuple(rows), "a")
    return recipe, figures, dict.fromkeys(figures, 10.0), per_query


def test_a_mean_weights_its_rows_equally():
    table = tabulate(*rows_of_sets()).tested()
    mean = {row["variant"]: row for row in table.to_json()["rows"]}["b-m"]
    assert mean["figures"]["RR"] == {"ours": 0.625, "reference": 0.5, "difference": 0.125}
    assert mean["seconds"] == 20.0
    against = mean["against_baseline"]["RR"]
    assert against["ours"] == pytest.approx(0.625 - 0.25)
    assert against["p_queries"] == 0.5  # two questions differ, with the same sign: 2 / 2**2
    assert "Difference to the row of 'a' of the same set" in table.text()


def test_a_mean_needs_all_of_its_rows():
    recipe, figures, seconds, per_query = rows_of_sets()
    figures.pop("b-y")
    assert [row.name for row in tabulate(recipe, figures, seconds, per_query).rows] == ["a-x", "a-y", "a-m", "b-x"]


def test_a_mean_of_means_is_the_mean_of_their_figures():
    recipe, figures, seconds, per_query = rows_of_sets()
    rows = (*recipe.rows, Row("all", "all", {}, of=("a-m", "b-x")))
    found = tabulate(replace(recipe, rows=rows), figures, seconds, per_query).rows[-1].cells["RR"]
    assert found.mean == pytest.approx((0.25 + 1) / 2)
    assert sum(found.queries.values()) / len(found.queries) == pytest.approx(found.mean)


def test_the_figures_of_an_analysis_exclude_counts(tmp_path):
    for kind in ("analysis", "vectors"):
        with storage.write_folder(tmp_path / kind) as staging:
            content = {"local_variation": 0.2, "perplexity": 3.0, "pairs": 7, "options": {"temperature": 1.0}}
            storage.write_json(staging / "analysis.json", content)
            lines = [("q1", 0.5, 0), ("q2", 0.2, 1), ("q2", 0.6, 1), ("q3", None, 0)]
            shown = [{"query_id": query, "view": view, "local_variation": value} for query, value, view in lines]
            (staging / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in shown))
            storage.write_manifest(staging, kind, command="x", options={}, inputs={}, counts={})
    assert read_per_query(tmp_path / "analysis") == {"local_variation": {"q1": 0.5, "q2": 0.4}}
    assert read_per_query(tmp_path / "vectors") == {}
    assert read_figures(tmp_path / "analysis") == {"local_variation": 0.2, "perplexity": 3.0}
    assert read_figures(tmp_path / "vectors") == {}
