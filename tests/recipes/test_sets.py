"""Recipes with sets of data and means over them are run; the figures of an analysis are read from its folder."""

import json

from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.recipes.outcome import read_figures, read_per_query
from retrievalkit.recipes.recipe import load_recipe
from retrievalkit.recipes.run import run

RECIPE = """\
name: demo
values: {data: null, run: null}
steps:
  - name: figures
    command: evaluate
    with: {run: "${run}", qrels: "${data}/qrels.tsv", metrics: RR@10, per-query: true, json: true}
    output: figures.json
table: [figures]
sets:
  one: {title: One}
  two: {title: Two}
means:
  both: {title: Both, of: ["*"], expected: {source: Table 1, RR@10: 0.9}}
variants:
  first: {values: {run: "${data}/first.trec"}}
  second: {values: {run: "${data}/second.trec"}}
baseline: first
"""


def collection(folder, ranks):
    """Judgements of some questions, and the runs of two systems that find the answer at these ranks."""
    folder.mkdir()
    lines = [f"q{number}\td\t1" for number, _ in enumerate(ranks)]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    for place, name in enumerate(("first", "second")):
        found = [
            f"q{number} Q0 {'d' if rank == of[place] else f'o{rank}'} {rank} {10 - rank} x"
            for number, of in enumerate(ranks)
            for rank in (1, 2)
        ]
        (folder / f"{name}.trec").write_text("\n".join(found) + "\n")
    return str(folder)


def test_a_recipe_is_run_with_each_set_and_averaged(tmp_path):
    one = collection(tmp_path / "data1", [(2, 1)])
    two = collection(tmp_path / "data2", [(1, 1), (2, 2), (2, 1)])
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    overrides = {"one": {"data": one}, "two": {"data": two}}
    outcome = run(load_recipe(tmp_path / "recipe.yaml", overrides), tmp_path / "out", cli=main.with_all_commands())
    rows = {row["variant"]: row for row in json.loads((tmp_path / "out/results.json").read_text())["rows"]}
    assert list(rows) == ["first-one", "first-two", "first-both", "second-one", "second-two", "second-both"]
    assert rows["first-both"]["figures"]["RR@10"]["ours"] == (0.5 + 2 / 3) / 2
    assert rows["second-both"]["against_baseline"]["RR@10"]["p_queries"] is not None
    assert (tmp_path / "out/second-two/figures.json").is_file()
    assert "second · Both" in outcome.summary


def test_the_figures_of_an_analysis_are_those_that_are_no_counts(tmp_path):
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
