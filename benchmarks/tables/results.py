"""The results page of the papers' tables, from what run.py left: results.json, RESULTS.md, a figure a table.

    python benchmarks/tables/results.py --data DATA --collections COLLECTIONS --encoder MODEL --runs RUNS
    python benchmarks/tables/results.py                    # the page anew, from the rows that are kept

Each question's figures of a row that was run are kept in rows/, so that the page grows although runs are deleted; a
row that is run again replaces the kept one. Nothing on the page is written by hand but tables.yaml: which rows are
compared, the papers' figures, the reasons found.
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
"""The folders in the page's commands, named as where it says how the encoder is made."""
LEVEL = 0.05


def main() -> None:
    """Collect, if there are runs to collect from, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for place in ("data", "collections", "encoder", "runs"):
        parser.add_argument(f"--{place}", type=Path)
    given = parser.parse_args()
    plan = content()
    if given.runs is not None:
        places = {name: getattr(given, name) for name in ("data", "collections", "encoder", "runs")}
        lacking = [name for name, place in places.items() if place is None]
        if lacking:
            parser.error(f"--runs needs --{lacking[0]} too: the folders that run.py was given.")
        if not given.runs.is_dir():
            parser.error(f"--runs: no folder '{given.runs}'.")
        keep_runs(plan, {name: place.resolve() for name, place in places.items()}, HERE / "rows")
    found = collect(plan, HERE / "rows")
    (HERE / "results.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    for table in found["tables"]:
        draw(table, FIGURES / f"{table['slug']}.svg")
    (HERE / "RESULTS.md").write_text(page(found), encoding="utf-8")


def keep_runs(plan: Mapping[str, Any], places: Mapping[str, Path], rows: Path) -> None:
    """Keep all rows that were run."""
    for name, run in runs(plan, places).items():
        columns = {plan["ours"], *(table["metric"] for table in plan["tables"] if table["run"] == name)}
        took = seconds_of(places["runs"] / name)
        for seed, own in rows_of(run, places["runs"] / name, plan["seeds"]).items():
            terms, commits = terms_of(run, places["runs"] / name, seed, own), _commits(places["runs"], name, seed)
            for row in own.values():
                commit = commits.get(row.name.partition("-")[0], commits.get("", ""))  # without the set
                steps = {step: seconds for step, seconds in took.items() if step in row.steps}
                if lacking := sorted(row.steps - set(steps)):
                    print(f"{name}, {row.name}: step '{lacking[0]}' never ran. Collect with the recipe that was run.")
                keep(row, rows / name, seed, columns, steps=steps, terms=terms[row.name], commit=commit)


def collect(plan: Mapping[str, Any], rows: Path) -> dict[str, Any]:
    """Every table with its directions and levels, as far as its rows are kept."""
    known = runs(plan, SHOWN)
    found = {name: kept(rows / name, plan["seeds"]) for name in known}
    tables = [_table(table, found[table["run"]].rows, plan["ours"]) for table in plan["tables"]]
    for table in tables:
        titles, terms = titles_of(known[table["run"]]), found[table["run"]].terms
        table["titles"] = {name: titles[name] for name in table["levels"]}
        table["terms"] = {name: terms.get(name, {}) for name in table["levels"]}
        steps = {step: took for row in table["levels"] for step, took in found[table["run"]].steps.get(row, {}).items()}
        table["hours"] = sum(steps.values()) / 3600  # a step that rows share counts once
        table["command"] = _command(known[table["run"]], table["levels"])
        table["commits"] = found[table["run"]].commits
    return {"ours": plan["ours"], "tuning": _tuning(plan, known, found), "tables": tables}


def _tuning(plan: Mapping[str, Any], known: Mapping[str, Run], found: Mapping[str, Kept]) -> dict[str, float]:
    """The figure of each row of the search for settings, by title, in the order of its recipe."""
    name = "tuning"
    if name not in known:
        return {}
    rows, titles = found[name].rows[plan["seeds"][0]], titles_of(known[name])
    return {title: rows[row].cells[plan["ours"]].mean for row, title in titles.items() if row in rows}


def _table(table: Mapping[str, Any], rows: Rows, ours: str) -> dict[str, Any]:
    directions = [_direction(one, table, rows, ours) for one in table["directions"]]
    tested = [one for one in directions if one["ours"] and "p" in one["ours"]]
    for one, p in zip(tested, holm([one["ours"]["p"] for one in tested]), strict=True):
        one["ours"]["p_corrected"] = p
    for one in directions:
        one["verdict"] = verdict(one)
    named = dict.fromkeys(name for one in directions for name in (one["row"], one["over"]))
    levels = {name: _level(rows, name, table, ours) for name in named}
    slug = "-".join("".join(c if c.isalnum() else " " for c in table["name"].lower()).split())
    about = {key: table[key] for key in ("name", "about", "run", "metric", "on")}
    return {**about, "slug": slug, "directions": directions, "levels": levels}


def _direction(one: Mapping[str, Any], table: Mapping[str, Any], rows: Rows, ours: str) -> dict[str, Any]:
    mine, theirs = one["paper"]
    column = one.get("ours", ours)
    return {
        "row": one["row"],
        "over": one["over"],
        "column": column,
        "paper": None if mine is None else mine - theirs,
        "ours": difference(rows, one["row"], one["over"], column),
        "same_metric": difference(rows, one["row"], one["over"], table["metric"]),
        "why": one.get("why"),
    }


def verdict(one: Mapping[str, Any]) -> str:
    """Whether ours has the paper's direction, which is that the first row is better, and by more than chance.

    Returns:
        "not run", "no difference", "agrees" or "opposite"; the last two with ", significantly" where the corrected
        p-value is below 0.05.
    """
    if one["ours"] is None:
        return "not run"
    if not one["ours"]["mean"]:
        return "no difference"
    said = "agrees" if one["ours"]["mean"] > 0 else "opposite"
    return said + (", significantly" if one["ours"].get("p_corrected", 1) < LEVEL else "")


def _level(rows: Rows, name: str, table: Mapping[str, Any], ours: str) -> dict[str, Any]:
    columns = dict.fromkeys((ours, table["metric"]))
    found = {column: level(rows, name, column) for column in columns}
    return {
        "figures": found,
        "minutes": [round(own[name].seconds / 60, 1) for own in rows.values() if name in own],
    }


def _command(run: Run, rows: Iterable[str]) -> str:
    """What runs these rows, with all of the recipe's seeds."""
    variants = tuple(dict.fromkeys(name.partition("-")[0] for name in rows))  # without the set
    return shlex.join(["rkit", *Item(run, variants).words(Path(SHOWN["runs"]))])


def _commits(folder: Path, run: str, seed: int) -> dict[str, str]:
    """Row -> the last commit at which it ran with a seed; "" stands for all rows, where a part did not name its own."""
    path = folder / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    ran = [line for line in lines if line["run"] == run and line["seed"] in (None, seed)]
    return {row: line["commit"] for line in ran for row in line["rows"] or [""]}


if __name__ == "__main__":
    main()
