"""The page of the papers' tables as Markdown, and a figure per table: our differences and the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retrievalkit.reporting.table import markdown_table

_OPENING = """# The papers' tables

Written by results.py from the runs of run.py.

## The papers' tables at the size of two processor cores

{summary}

{overview}

A direction is a pair of rows whose first row is better in the paper, or should be, in tables that no paper has. "Ours"
is the difference in {ours}, with a 95 % bootstrap interval over questions; a question's difference is averaged over the
seeds in which both rows ran. p is from the paired randomisation test, with Holm's correction over the directions of a
table. The paper's differences are in the metric and on the data of its table, with models ten times as large: only the
sign is comparable.

Unless stated otherwise, every row starts from the encoder of `encoders/minilm_mlm` (six layers of 384), is trained on
4,000 questions of the Wikipedia part of squad-open with passages of 64 tokens, and tested on 4,000 test questions over
7,731 passages. The settings were tuned for the plain dual encoder on the dev split; a row changes only the settings in
its name. To reproduce:

    benchmarks/tables/data.sh COLLECTIONS data
    rkit run encoders/minilm_mlm --set documents=data/mlm/train.jsonl --set dev=data/mlm/dev.jsonl --output encoder
    python benchmarks/tables/run.py --data data --collections COLLECTIONS --encoder encoder/encoder --output runs
    python benchmarks/tables/results.py --data data --collections COLLECTIONS --encoder encoder/encoder --runs runs

The command below each table runs only its rows, with the recipe's three seeds, after `--only shared` has created
`runs/shared`; `--set seeds=45` selects another seed.
"""


def page(results: Mapping[str, Any]) -> str:
    """Return the whole page."""
    parts = [_OPENING.format(summary=summary(results), overview=_overview(results), ours=results["ours"])]
    if results["tuning"]:
        lines = [
            ("row of `cpu/tuning`", results["ours"]),
            *((name, f"{value:.4f}") for name, value in results["tuning"].items()),
        ]
        parts += [
            "### The plain dual encoder's settings, on the dev questions\n",
            markdown_table(lines, right=[1]) + "\n",
        ]
    for table in results["tables"]:
        parts += [f"### {table['name']}\n", *_table(table, results["ours"])]
    return "\n".join(parts)


def summary(results: Mapping[str, Any]) -> str:
    """Count the directions that agree, those of the papers first, and name the significantly opposite ones."""
    papers = [table for table in results["tables"] if table["on"]]
    others = [table for table in results["tables"] if not table["on"]]
    counted = f"**The papers' own {_counted(papers)}.** Tables that no paper has: {_counted(others)}."
    opposite = [
        f"{_name(table, direction['row'])}, over {_name(table, direction['over'])}: {direction['ours']['mean']:+.4f} "
        f"({table['name']})"
        for table in (*papers, *others)
        for direction in table["directions"]
        if direction["verdict"] == "opposite, significantly"
    ]
    return "\n- ".join([f"{counted} Significantly opposite:\n", *opposite]) if opposite else counted


def _counted(tables: Iterable[Mapping[str, Any]]) -> str:
    verdicts = Counter(direction["verdict"] for table in tables for direction in table["directions"])
    counts = []
    for verdict, shown in (("agrees", "agree"), ("opposite", "opposite")):
        significant = verdicts[f"{verdict}, significantly"]
        counts.append(f"{verdicts[verdict] + significant} {shown} ({significant} significantly)")
    counts += [f"{verdicts[verdict]} {verdict}" for verdict in ("no difference", "not run") if verdicts[verdict]]
    return f"{verdicts.total()} directions: {', '.join(counts)}"


def _overview(results: Mapping[str, Any]) -> str:
    """Return the outcomes of each table's directions, as a table."""
    outcomes = ("agrees, significantly", "within chance", "opposite, significantly", "untested", "not run")
    counts = {table["name"]: _outcomes(table["directions"]) for table in results["tables"]}
    shown = [outcome for outcome in outcomes if any(count[outcome] for count in counts.values())]
    lines = [("table", "in a paper", "directions", *shown)]
    lines += [
        (table["name"], "yes" if table["on"] else "no", str(count.total()), *(str(count[way] or "") for way in shown))
        for table, count in zip(results["tables"], counts.values(), strict=True)
    ]
    return markdown_table(lines, right=range(2, len(lines[0])))


def _outcomes(directions: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Count the directions by outcome: significant, within chance, or without a test."""

    def outcome(direction: Mapping[str, Any]) -> str:
        if direction["ours"] is None or direction["verdict"].endswith("significantly"):
            return str(direction["verdict"])
        return "within chance" if "p" in direction["ours"] else "untested"

    return Counter(map(outcome, directions))


def _table(table: Mapping[str, Any], ours: str) -> Iterator[str]:
    paper = f"The paper: {table['metric']} on {table['on']}." if table["on"] else "None of the papers has these rows."
    yield f"{table['about']} {paper}\n"
    ran = [direction for direction in table["directions"] if direction["ours"] is not None]
    if ran:
        yield f"![{table['name']}](../../docs/assets/tables/{table['slug']}.svg)\n"
    head = ("better row", "than", "paper", "ours", "interval", "p", "seeds", f"ours, {table['metric']}", "direction")
    lines = [head, *(_line(direction, table) for direction in table["directions"])]
    yield markdown_table(lines, right=range(2, 8)) + "\n"
    for direction in table["directions"]:
        if direction["why"]:
            yield f"- {_name(table, direction['row'])} over {_name(table, direction['over'])}: {direction['why']}\n"
    yield from _levels(table, ours)
    if ran:
        commits = ", ".join(filter(None, table["commits"])) or "unknown"
        yield f"Run in {table['hours']:.1f} h, at commit {commits}, by\n"
        yield f"    {table['command']}\n"


def _line(direction: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[str, ...]:
    names = (_name(table, direction["row"]), _name(table, direction["over"]))
    paper = "better" if direction["paper"] is None else f"{direction['paper']:+.4f}"
    ours = direction["ours"]
    if ours is None:
        return (*names, paper, "not run", "", "", "", "", "not run")
    interval = f"[{ours['low']:+.4f}, {ours['high']:+.4f}]" if "low" in ours else ""
    p = "" if "p_corrected" not in ours else f"{ours['p_corrected']:.4f}"
    seeds = " ".join(f"{value:+.4f}" for value in ours["seeds"].values())
    same = "" if direction["same_metric"] is None else f"{direction['same_metric']['mean']:+.4f}"
    return (*names, paper, f"{ours['mean']:+.4f}", interval, p, seeds, same, direction["verdict"])


def _levels(table: Mapping[str, Any], ours: str) -> Iterator[str]:
    columns = list(dict.fromkeys((ours, table["metric"])))
    lines = [("row", *columns, "seeds", "minutes per seed, with shared steps", "terms of the loss")]
    for name, level in table["levels"].items():
        some = next(filter(None, level["figures"].values()), None)
        if some is not None:
            figures = (_figure(level["figures"][column]) for column in columns)
            minutes = " ".join(f"{value:.0f}" for value in level["minutes"])
            terms = ", ".join(f"{term} {a:.3g} to {b:.3g}" for term, (a, b) in table["terms"][name].items())
            lines.append((_name(table, name), *figures, str(len(some["seeds"])), minutes, terms))
    if len(lines) > 1:
        yield markdown_table(lines, right=range(1, len(lines[0]) - 1)) + "\n"


def _figure(level: Mapping[str, Any] | None) -> str:
    if level is None:
        return ""
    return f"{level['mean']:.4f}" + ("" if level["deviation"] is None else f" ± {level['deviation']:.4f}")


def _name(table: Mapping[str, Any], row: str) -> str:
    return str(table["titles"][row])


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Draw each direction that was run: our difference as a point with its interval, the paper's as a ring."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    ran = [direction for direction in table["directions"] if direction["ours"] is not None]
    if not ran:
        path.unlink(missing_ok=True)
        return
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(ran)), layout="constrained")
    panel = figure.subplots()
    places = range(len(ran))
    for place, direction in zip(places, ran, strict=True):
        ours = direction["ours"]
        panel.plot([ours.get("low", ours["mean"]), ours.get("high", ours["mean"])], [place, place], color="tab:blue")
        panel.plot(list(ours["seeds"].values()), [place] * len(ours["seeds"]), "|", color="tab:blue")
    means = [direction["ours"]["mean"] for direction in ran]
    panel.plot(means, places, "o", color="tab:blue", label="ours, with its seeds")
    papers = [(direction["paper"], place) for place, direction in enumerate(ran) if direction["paper"] is not None]
    if papers:
        panel.plot(
            *zip(*papers, strict=True), "o", mfc="none", color="tab:orange", label=f"the paper, {table['metric']}"
        )
    panel.axvline(0, color="grey", linewidth=0.8)
    names = [f"{_name(table, direction['row'])}\n- {_name(table, direction['over'])}" for direction in ran]
    panel.set_yticks(places, names, fontsize=8)
    panel.margins(y=0.5 / len(ran))
    panel.invert_yaxis()
    panel.set(title=table["name"], xlabel="difference")
    panel.legend(fontsize=8)
    # Equal results give equal files, with searchable text.
    with rc_context({"svg.hashsalt": "tables", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
