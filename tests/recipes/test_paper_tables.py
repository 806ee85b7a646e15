"""The page of the papers' tables: differences, directions and missing rows, from the outputs of runs."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from retrievalkit.recipes.recipe import load_recipe

FOLDER = Path(__file__).parents[2] / "benchmarks" / "tables"
RECIPE = """\
name: demo
values: {run: null, qrels: x, seed: null, metrics: RR@10}
defaults: {evaluate: {qrels: "${qrels}", json: true}}
steps:
  - {name: model, command: convert, with: {source: "${run}", form: "${seed}"}, output: model}
  - {name: figures, command: evaluate, with: {run: "${steps.model}", metrics: "${metrics}"}, output: figures.json}
table: [figures]
variants:
  plain: {title: Plain, values: {run: a}}
  better: {title: Better, values: {run: b}}
  other: {values: {run: c}}
  again: {values: {run: b, metrics: nDCG@10}}
seeds: [1, 2]
"""
PLAN = """\
runs: {demo: {recipe: RECIPE, set: {qrels: "{data}"}}}
queue: [{run: demo, seeds: false, rows: [plain]}, {run: demo, rows: [better]}]
seeds: [1, 2]
ours: nDCG@10
tables:
  - name: Table 1
    about: A test.
    run: demo
    metric: RR@10
    on: a collection
    directions:
      - {row: better, over: plain, paper: [0.5, 0.4]}
      - {row: plain, over: better, paper: [0.6, 0.4], why: Too small.}
      - {row: other, over: plain, paper: [~, ~]}
"""


@pytest.fixture
def programs(monkeypatch):
    names = ("plan", "measured", "page", "results")
    monkeypatch.syspath_prepend(str(FOLDER))
    modules = {name: importlib.import_module(name) for name in names}
    yield modules
    for name in names:
        del sys.modules[name]


def ran(folder, name, values):
    steps = {}
    for seed, figures in values.items():
        path = folder / name / f"seed-{seed}"
        path.mkdir(parents=True)
        queries = {f"q{place}": value for place, value in enumerate(figures)}
        mean = sum(figures) / len(figures)
        content = {"metrics": {"nDCG@10": mean, "RR@10": mean / 2}, "per_query": {"nDCG@10": queries}}
        (path / "figures.json").write_text(json.dumps(content))
        (path / "model").mkdir()
        log = [{"step": step, "loss": 1.0, "epoch": step, "regularizer": 1 / step} for step in (1, 2, 4)]
        (path / "model/training.jsonl").write_text("\n".join(map(json.dumps, log)))
        for step in ("model", "figures"):
            steps[f"{name}/seed-{seed}/{step}"] = {"key": "", "done": True, "seconds": 60.0}
    return steps


@pytest.fixture
def collected(programs, tmp_path):
    """Results with two of three rows, one of them with a single seed."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "plan.yaml").write_text(PLAN.replace("RECIPE", str(tmp_path / "recipe.yaml")))
    folder = tmp_path / "runs" / "demo"
    steps = ran(folder, "plain", {1: [0.1] * 40, 2: [0.9] * 40}) | ran(folder, "better", {1: [0.2] * 30 + [0.1] * 10})
    (folder / "run.json").write_text(json.dumps({"recipe": "demo", "steps": steps}))
    parts = (([], None, "abc"), (["better"], 1, "def"), (["better"], 2, "not done"))
    log = [{"run": "demo", "rows": rows, "seed": seed, "commit": commit} for rows, seed, commit in parts]
    (tmp_path / "runs" / "runs.jsonl").write_text("\n".join(map(json.dumps, log)))
    plan = programs["plan"].content(tmp_path / "plan.yaml")
    programs["results"].keep_runs(plan, {"data": tmp_path, "runs": tmp_path / "runs"}, tmp_path / "rows")
    return programs["results"].collect(plan, tmp_path / "rows")


def test_directions_are_judged_and_counted(collected, programs):
    verdicts = [direction["verdict"] for direction in collected["tables"][0]["directions"]]
    assert verdicts == ["agrees, significantly", "opposite, significantly", "not run"]
    shown = programs["page"].summary(collected)
    assert "own 3 directions: 1 agree (1 significantly), 1 opposite (1 significantly), 1 not run." in shown
    assert "no paper has: 0 directions" in shown
    assert "- Plain, over Better: -0.0750" in shown
    del collected["tables"][0]["directions"][1]["ours"]["p"]
    collected["tables"][0]["directions"][1]["verdict"] = "opposite"
    assert "1 opposite (0 significantly)" in programs["page"].summary(collected)


def test_the_page_and_its_figures_show_the_results(collected, programs, tmp_path):
    text = programs["page"].page(collected)
    for line in (
        "| Better | Plain | +0.1000 | +0.0750 |",
        f"| {collected['tables'][0]['name']} | yes | 3 | 1 | 1 | 1 |",
        "| Plain | 0.5000 ± 0.5657 |",
        "| other | Plain | better | not run |",
        "--output runs/demo --set qrels=data --variants better,plain,other\n",
        "commit def, abc, by",  # of the listed row with the completed seed, and of the other rows
    ):
        assert line in text
    assert "| Learning rate 1e-4 | 0.5000 |" in programs["page"].page(
        collected | {"tuning": {"Learning rate 1e-4": 0.5}}
    )
    programs["page"].draw(collected["tables"][0], tmp_path / "figure.svg")
    assert "<svg" in (tmp_path / "figure.svg").read_text()


def test_queued_and_compared_rows_belong_to_their_recipe(programs):
    plan = programs["plan"]
    content = plan.content()
    places = dict.fromkeys(("data", "collections", "encoder", "runs"), "x")
    runs = plan.runs(content, places)
    known = {name: {row.name for row in load_recipe(run.recipe, run.values).rows} for name, run in runs.items()}
    queued = {name: set() for name in runs}
    for item in content["queue"]:
        # A row of a variant and a set has both names.
        rows = {
            row for row in known[item["run"]] for name in item.get("rows", [row]) if f"{row}-".startswith(f"{name}-")
        }
        assert len({row.partition("-")[0] for row in rows}) == len(item.get("rows", rows))
        queued[item["run"]] |= rows
    for table in content["tables"]:
        compared = {direction[key] for direction in table["directions"] for key in ("row", "over")}
        assert compared <= queued[table["run"]], table["name"]
