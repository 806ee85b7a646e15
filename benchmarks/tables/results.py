"""Writes the results page of the papers' tables from the output of run.py: results.json, RESULTS.md and figures.

    python benchmarks/tables/results.py --data DATA --collections COLLECTIONS --encoder MODEL --runs RUNS
    python benchmarks/tables/results.py                    # rewrite the page from the stored rows

The figures of each question are stored in rows/, so runs can be deleted; a row that is run again
replaces the stored row. Only tables.yaml is written by hand: the compared rows, the papers' figures, the reasons.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from measured import Kept, Rows, difference, keep, kept, level, rows_of, seconds_of, terms_of, titles_of
from page import draw, page
from plan import Item, Run, content, runs

from retrievalkit.evaluation.significance import holm

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "docs" / "assets" / "tables"  # for the site
SHOWN = {"data": "data", "collections": "COLLECTIONS", "encoder": "encoder/encoder", "runs": "runs"}
"""The folders in the page's commands, as in its instructions."""
LEVEL = 0.05


def main() -> None:
    """Store the rows of runs, if there are any, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for place in ("data", "collections", "encoder", "runs"):
        parser.add_argument(f"--{place}", type=Path)
    options = parser.parse_args()
    plan = content()
    if options.runs is not None:
        places = {name: getattr(options, name) for name in ("data", "collections", "encoder", "runs")}
        missing = [name for name, place in places.items() if place is None]
        if missing:
            parser.error(f"--runs also needs --{missing[0]}: pass the folders of run.py.")
        if not options.runs.is_dir():
            parser.error(f"--runs: '{options.runs}' is not a folder.")
        keep_runs(plan, {name: place.resolve() for name, place in places.items()}, HERE / "rows")
    results = collect(plan, HERE / "rows")
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    for table in results["tables"]:
        draw(table, FIGURES / f"{table['slug']}.svg")
    (HERE / "RESULTS.md").write_text(page(results), encoding="utf-8")


def keep_runs(plan: Mapping[str, Any], places: Mapping[str, Path], rows: Path) -> None:
    """Store all rows of the runs."""
    for name, run in runs(plan, places).items():
        columns = {plan["ours"], *(table["metric"] for table in plan["tables"] if table["run"] == name)}
        took = seconds_of(places["runs"] / name)
        for seed, own in rows_of(run, places["runs"] / name, plan["seeds"]).items():
            terms, commits = terms_of(run, places["runs"] / name, seed, own), _commits(places["runs"], name, seed)
            for row in own.values():
                commit = commits.get(row.name.partition("-")[0], commits.get("", ""))  # without the set
                steps = {step: seconds for step, seconds in took.items() if step in row.steps}
                if missing := sorted(row.steps - set(steps)):
                    print(f"{name}, {row.name}: step '{missing[0]}' never ran. Use the recipe of the run.")
                keep(row, rows / name, seed, columns, steps=steps, terms=terms[row.name], commit=commit)


def collect(plan: Mapping[str, Any], rows: Path) -> dict[str, Any]:
    """Collect every table with its directions and levels, as far as its rows are stored."""
    known = runs(plan, SHOWN)
    stored = {name: kept(rows / name, plan["seeds"]) for name in known}
    tables = [_table(table, stored[table["run"]].rows, plan["ours"]) for table in plan["tables"]]
    for table in tables:
        titles, run = titles_of(known[table["run"]]), stored[table["run"]]
        table["titles"] = {name: titles[name] for name in table["levels"]}
        table["terms"] = {name: run.terms.get(name, {}) for name in table["levels"]}
        steps = {step: took for row in table["levels"] for step, took in run.steps.get(row, {}).items()}
        table["hours"] = sum(steps.values()) / 3600  # a step that rows share counts once
        table["command"] = _command(known[table["run"]], table["levels"])
        table["commits"] = run.commits
    return {"ours": plan["ours"], "tuning": _tuning(plan, known, stored), "tables": tables}


def _tuning(plan: Mapping[str, Any], known: Mapping[str, Run], stored: Mapping[str, Kept]) -> dict[str, float]:
    """The figure of each row of the tuning, by title, in the order of its recipe."""
    name = "tuning"
    if name not in known:
        return {}
    rows, titles = stored[name].rows[plan["seeds"][0]], titles_of(known[name])
    return {title: rows[row].cells[plan["ours"]].mean for row, title in titles.items() if row in rows}


def _table(table: Mapping[str, Any], rows: Rows, ours: str) -> dict[str, Any]:
    directions = [_direction(pair, table, rows, ours) for pair in table["directions"]]
    tested = [direction for direction in directions if direction["ours"] and "p" in direction["ours"]]
    for direction, p in zip(tested, holm([direction["ours"]["p"] for direction in tested]), strict=True):
        direction["ours"]["p_corrected"] = p
    for direction in directions:
        direction["verdict"] = verdict(direction)
    named = dict.fromkeys(name for direction in directions for name in (direction["row"], direction["over"]))
    levels = {name: _level(rows, name, table, ours) for name in named}
    slug = "-".join("".join(c if c.isalnum() else " " for c in table["name"].lower()).split())
    about = {key: table[key] for key in ("name", "about", "run", "metric", "on")}
    return {**about, "slug": slug, "directions": directions, "levels": levels}


def _direction(pair: Mapping[str, Any], table: Mapping[str, Any], rows: Rows, ours: str) -> dict[str, Any]:
    row, over, (better, worse) = pair["row"], pair["over"], pair["paper"]
    column = pair.get("ours", ours)
    return {
        "row": row,
        "over": over,
        "column": column,
        "paper": None if better is None else better - worse,
        "ours": difference(rows, row, over, column),
        "same_metric": difference(rows, row, over, table["metric"]),
        "why": pair.get("why"),
    }


def verdict(direction: Mapping[str, Any]) -> str:
    """Compare our direction with the paper's, in which the first row is better.

    Returns:
        "not run", "no difference", "agrees" or "opposite"; the last two with ", significantly" if the corrected
        p-value is below 0.05.
    """
    ours = direction["ours"]
    if ours is None:
        return "not run"
    if not ours["mean"]:
        return "no difference"
    return ("agrees" if ours["mean"] > 0 else "opposite") + (
        ", significantly" if ours.get("p_corrected", 1) < LEVEL else ""
    )


def _level(rows: Rows, name: str, table: Mapping[str, Any], ours: str) -> dict[str, Any]:
    return {
        "figures": {column: level(rows, name, column) for column in dict.fromkeys((ours, table["metric"]))},
        "minutes": [round(own[name].seconds / 60, 1) for own in rows.values() if name in own],
    }


def _command(run: Run, rows: Iterable[str]) -> str:
    """The command that runs these rows with all seeds of the recipe."""
    variants = tuple(dict.fromkeys(name.partition("-")[0] for name in rows))  # without the set
    return shlex.join(["rkit", *Item(run, variants).words(Path(SHOWN["runs"]))])


def _commits(folder: Path, run: str, seed: int) -> dict[str, str]:
    """The last commit of each row with a seed; "" stands for all rows of a part without row names."""
    path = folder / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    ran = [line for line in lines if line["run"] == run and line["seed"] in (None, seed)]
    return {row: line["commit"] for line in ran for row in line["rows"] or [""]}


if __name__ == "__main__":
    main()
