"""The results page of the papers' tables, from what run.py left: results.json, RESULTS.md, a figure a table.

    python benchmarks/tables/results.py --data DATA --collections COLLECTIONS --encoder MODEL --runs RUNS
    python benchmarks/tables/results.py                    # the page anew, from results.json

Nothing on the page is written by hand but tables.yaml: which rows are compared, the papers' figures, the reasons found.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measured import Rows, difference, level, rows_of, seconds_of, terms_of, titles_of
from page import draw, page
from plan import content, runs

from retrievalkit.evaluate.significance import holm

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "docs" / "assets" / "tables"  # for the site
LEVEL = 0.05


def main() -> None:
    """Collect, if there are runs to collect from, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for place in ("data", "collections", "encoder", "runs"):
        parser.add_argument(f"--{place}", type=Path)
    given = parser.parse_args()
    path = HERE / "results.json"
    if given.runs is not None:
        places = {name: getattr(given, name) for name in ("data", "collections", "encoder", "runs")}
        lacking = [name for name, place in places.items() if place is None]
        if lacking:
            parser.error(f"--runs needs --{lacking[0]} too: the folders that run.py was given.")
        found = collect(content(), {name: place.resolve() for name, place in places.items()})
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found = json.loads(path.read_text(encoding="utf-8"))
    FIGURES.mkdir(exist_ok=True)
    for table in found["tables"]:
        draw(table, FIGURES / f"{table['slug']}.svg")
    (HERE / "RESULTS.md").write_text(page(found), encoding="utf-8")


def collect(plan: Mapping[str, Any], places: Mapping[str, Path]) -> dict[str, Any]:
    """Every table with its directions and levels, as far as they were run."""
    known = runs(plan, places)
    folder = places["runs"]
    wanted = {table["run"] for table in plan["tables"]}
    rows = {name: rows_of(known[name], folder / name, plan["seeds"]) for name in wanted}
    tables = [_table(table, rows[table["run"]], plan["ours"]) for table in plan["tables"]]
    terms = {name: terms_of(known[name], folder / name, rows[name]) for name in wanted}
    titles = {name: titles_of(known[name]) for name in wanted}
    for table in tables:
        table["titles"] = {name: titles[table["run"]][name] for name in table["levels"]}
        table["terms"] = {name: terms[table["run"]].get(name, {}) for name in table["levels"]}
        table["recipe"] = known[table["run"]].recipe
        table["options"] = sorted(known[table["run"]].values)
    hours = {name: seconds_of(folder / name) / 3600 for name in known}
    return {"ours": plan["ours"], "tables": tables, "hours": hours, "commits": _commits(folder)}


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


def _commits(folder: Path) -> list[str]:
    """The commits at which the parts of the queue ran."""
    path = folder / "runs.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return list(dict.fromkeys(json.loads(line)["commit"] for line in lines))


if __name__ == "__main__":
    main()
