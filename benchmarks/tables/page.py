"""The page of the papers' tables as Markdown, and a figure for each table: ours with its interval, and the paper's."""

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

A direction is a pair of rows of which the first is better in the paper. Ours is the difference in {ours}, with its 95 %
interval by bootstrap over questions; a question's difference is averaged over the seeds in which both rows ran.
p is that of the paired randomisation test, corrected by Holm over the directions of a table. The paper's
differences are of the metric and data named there, and of models ten times as large: only the sign can be compared.

Every row starts from the encoder of `encoders/minilm_mlm` (six layers of 384), is trained on 4,000 questions of the
Wikipedia part of squad-open with passages of 64 tokens, and asked 4,000 of the test questions over 7,731 passages,
unless its table says otherwise. The settings were chosen for the plain dual encoder, on the dev split; a row changes
what it names and nothing else. Run again:

    benchmarks/tables/data.sh COLLECTIONS data
    rkit run encoders/minilm_mlm --set documents=data/mlm/train.jsonl --set dev=data/mlm/dev.jsonl --output encoder
    python benchmarks/tables/run.py --data data --collections COLLECTIONS --encoder encoder/encoder --output runs
    python benchmarks/tables/results.py --data data --collections COLLECTIONS --encoder encoder/encoder --runs runs

The command beside each table runs its rows alone, once `runs/shared` is there (`--only shared`), with the recipe's
three seeds; `--set seeds=45` runs them with another.
"""


def page(found: Mapping[str, Any]) -> str:
    """All tables."""
    parts = [_OPENING.format(summary=summary(found), overview=_overview(found), ours=found["ours"])]
    if found["tuning"]:
        lines = [
            ("row of `cpu/tuning`", found["ours"]),
            *((name, f"{one:.4f}") for name, one in found["tuning"].items()),
        ]
        parts += [
            "### The plain dual encoder's settings, on the dev questions\n",
            markdown_table(lines, right=[1]) + "\n",
        ]
    for table in found["tables"]:
        parts += [f"### {table['name']}\n", *_table(table, found["ours"])]
    return "\n".join(parts)


def summary(found: Mapping[str, Any]) -> str:
    """How many directions agree."""
    directions = [one for table in found["tables"] for one in table["directions"]]
    said = _outcomes(directions)
    if said["not run"] == said.total():
        return f"**None of the {said.total()} directions was run yet.**"
    agree = sum(one["verdict"].startswith("agrees") for one in directions)
    text = (
        f"Of {said.total() - said['not run']} directions, {agree} agree, {said['agrees, significantly']} of them "
        f"significantly; {said['opposite, significantly']} are significantly opposite, and {said['within chance']} are "
        f"within chance" + (f"; {said['untested']} lack a test" if said["untested"] else "") + "."
    )
    return f"**{text}**" + (f" {said['not run']} more were not run." if said["not run"] else "")


def _overview(found: Mapping[str, Any]) -> str:
    """How many directions of each table agree."""
    outcomes = ("agrees, significantly", "within chance", "opposite, significantly", "untested", "not run")
    said = {table["name"]: _outcomes(table["directions"]) for table in found["tables"]}
    shown = [outcome for outcome in outcomes if any(count[outcome] for count in said.values())]
    lines = [("table", "directions", *shown)]
    lines += [
        (name, str(count.total()), *(str(count[outcome] or "") for outcome in shown)) for name, count in said.items()
    ]
    return markdown_table(lines, right=range(1, len(lines[0])))


def _outcomes(directions: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many directions are significant, and how many of the others could have been."""

    def outcome(one: Mapping[str, Any]) -> str:
        if one["ours"] is None or one["verdict"].endswith("significantly"):
            return str(one["verdict"])
        return "within chance" if "p" in one["ours"] else "untested"

    return Counter(map(outcome, directions))


def _table(table: Mapping[str, Any], ours: str) -> Iterator[str]:
    paper = f"The paper: {table['metric']} on {table['on']}." if table["on"] else "None of the papers has these rows."
    yield f"{table['about']} {paper}\n"
    ran = [one for one in table["directions"] if one["ours"] is not None]
    if ran:
        yield f"![{table['name']}](../../docs/assets/tables/{table['slug']}.svg)\n"
    head = ("better row", "than", "paper", "ours", "interval", "p", "seeds", f"ours, {table['metric']}", "direction")
    lines = [head, *(_line(one, table) for one in table["directions"])]
    yield markdown_table(lines, right=range(2, 8)) + "\n"
    for one in table["directions"]:
        if one["why"]:
            yield f"- {_name(table, one['row'])}, {_name(table, one['over'])}: {one['why']}\n"
    yield from _levels(table, ours)
    if ran:
        commits = ", ".join(filter(None, table["commits"])) or "unknown"
        yield f"Run in {table['hours']:.1f} h, at commit {commits}, by\n"
        yield f"    {table['command']}\n"


def _line(one: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[str, ...]:
    names = (_name(table, one["row"]), _name(table, one["over"]))
    paper = "better" if one["paper"] is None else f"{one['paper']:+.4f}"
    ours = one["ours"]
    if ours is None:
        return (*names, paper, "not run", "", "", "", "", "not run")
    interval = f"[{ours['low']:+.4f}, {ours['high']:+.4f}]" if "low" in ours else ""
    p = "" if "p_corrected" not in ours else f"{ours['p_corrected']:.4f}"
    seeds = " ".join(f"{value:+.4f}" for value in ours["seeds"].values())
    same = "" if one["same_metric"] is None else f"{one['same_metric']['mean']:+.4f}"
    return (*names, paper, f"{ours['mean']:+.4f}", interval, p, seeds, same, one["verdict"])


def _levels(table: Mapping[str, Any], ours: str) -> Iterator[str]:
    columns = list(dict.fromkeys((ours, table["metric"])))
    lines = [("row", *columns, "seeds", "minutes a seed, with shared steps", "terms of the loss")]
    for name, level in table["levels"].items():
        some = next((one for one in level["figures"].values() if one), None)
        if some is not None:
            figures = (_figure(level["figures"][column]) for column in columns)
            minutes = " ".join(f"{one:.0f}" for one in level["minutes"])
            terms = ", ".join(f"{term} {a:.3g} to {b:.3g}" for term, (a, b) in table["terms"][name].items())
            lines.append((_name(table, name), *figures, str(len(some["seeds"])), minutes, terms))
    if len(lines) > 1:
        yield markdown_table(lines, right=range(1, len(lines[0]) - 1)) + "\n"


def _figure(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    return f"{one['mean']:.4f}" + ("" if one["deviation"] is None else f" ± {one['deviation']:.4f}")


def _name(table: Mapping[str, Any], row: str) -> str:
    return str(table["titles"][row])


def draw(table: Mapping[str, Any], path: Path) -> None:
    """Each direction that was run: ours as a point with its interval, the paper's difference as a ring."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    ran = [one for one in table["directions"] if one["ours"] is not None]
    if not ran:
        path.unlink(missing_ok=True)
        return
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(ran)), layout="constrained")
    panel = figure.subplots()
    places = range(len(ran))
    for place, one in zip(places, ran, strict=True):
        ours = one["ours"]
        panel.plot([ours.get("low", ours["mean"]), ours.get("high", ours["mean"])], [place, place], color="tab:blue")
        panel.plot(list(ours["seeds"].values()), [place] * len(ours["seeds"]), "|", color="tab:blue")
    panel.plot([one["ours"]["mean"] for one in ran], places, "o", color="tab:blue", label="ours, with its seeds")
    given = [(one["paper"], place) for place, one in zip(places, ran, strict=True) if one["paper"] is not None]
    if given:
        panel.plot(
            *zip(*given, strict=True), "o", mfc="none", color="tab:orange", label=f"the paper, {table['metric']}"
        )
    panel.axvline(0, color="grey", linewidth=0.8)
    panel.set_yticks(places, [f"{_name(table, one['row'])}\n- {_name(table, one['over'])}" for one in ran], fontsize=8)
    panel.margins(y=0.5 / len(ran))
    panel.invert_yaxis()
    panel.set(title=table["name"], xlabel="difference")
    panel.legend(fontsize=8)
    # Equal results give equal files, whose text can be searched.
    with rc_context({"svg.hashsalt": "tables", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
