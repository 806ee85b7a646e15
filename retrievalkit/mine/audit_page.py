"""The audit of a mining as a page: a funnel, what the filters dropped, ranks and scores, questions to check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from retrievalkit.mine.audit import describe_source
from retrievalkit.report.page import Block, Cell, Mark, Page, Text

_OPENED = 3
_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 200, 46, 34
_COLOURS = {"positives": "#2f9e6e", "negatives": "#c9543f"}


def audit_page(audit: Mapping[str, Any], *, title: str) -> Page:
    """The page of an audit.

    Args:
        audit: The audit that `rkit mine-negatives` writes.
        title: The name of the mined file.
    """
    counts, spread, source = audit["counts"], audit["negatives"], audit["source"]
    page = Page(f"Mined negatives: {title}", f"from {describe_source(source)}")
    asked = counts["questions"]
    page.figures(
        [
            ("questions", f"{asked:,}"),
            ("hits", f"{audit['hits']:,}"),
            ("left by the filters", f"{audit['left']:,}"),
            ("negatives an example", f"{spread['mean']:.1f}"),
            ("examples without", f"{spread['examples_without']:,}"),
            ("positive among the hits", _share(audit["questions_whose_positive_was_found"], asked)),
        ]
    )
    for warning in audit["warnings"]:
        page.text(Mark("Warning: ", "bad"), warning)
    page.heading("What the filters dropped")
    _funnel(page, audit)
    page.heading("Ranks of the negatives")
    _ranks(page, audit)
    page.heading("Scores")
    _scores(page, audit)
    page.heading("Questions to check")
    page.text(f"{len(audit['sample'])} questions, drawn with the seed, each with its positive and its first negatives.")
    for number, row in enumerate(audit["sample"]):
        _question(page, row, opened=number < _OPENED)
    page.heading("Options")
    page.table(["option", "value"], [[name, str(value)] for name, value in audit["options"].items()])
    return page


def _funnel(page: Page, audit: Mapping[str, Any]) -> None:
    page.figure(_funnel_picture(audit), "Hits, and how many each filter leaves of them, in their order.")
    for one in audit["filters"]:
        summary = (
            Mark(one["name"], "strong"),
            f" dropped {one['dropped']:,} hits ",
            _of(one["dropped"], audit["hits"]),
        )
        if not one["examples"]:
            page.text(*summary)
            continue
        block = page.details(*summary)
        rows = [_dropped(shown) for shown in one["examples"]]
        block.table(["question", "positive", "dropped passage", "rank", "score"], rows, numeric=("rank", "score"))


def _dropped(shown: Mapping[str, Any]) -> list[Cell]:
    reason = [Mark(f" — {shown['reason']}", "muted")] if shown["reason"] else []
    return [shown["query"], _passage(shown["positive"]), [*_passage(shown), *reason], shown["rank"], shown["score"]]


def _passage(passage: Mapping[str, Any] | None) -> list[Text]:
    if passage is None:
        return [Mark("none", "muted")]
    name = passage["title"] or passage["document_id"]
    return [Mark(name, "strong", title=passage["document_id"]), f" {passage['text']}"]


def _ranks(page: Page, audit: Mapping[str, Any]) -> None:
    negatives, positives = audit["ranks_of_negatives"], audit["ranks_of_positives"]
    total = sum(one["count"] for one in negatives)
    asked = audit["counts"]["questions"]
    at = {one["from"]: one["count"] for one in positives}
    ends = {one["from"]: one["to"] for one in [*positives, *negatives]}
    have = {one["from"]: one["count"] for one in negatives}
    rows: list[Sequence[Cell]] = [
        [
            Mark(str(low) if low == end else f"{low} to {end}", sort=low),
            have.get(low, 0),
            Mark(_share(have.get(low, 0), total), sort=have.get(low, 0)),
            at.get(low, 0),
            Mark(_share(at.get(low, 0), asked), sort=at.get(low, 0)),
        ]
        for low, end in sorted(ends.items())
    ]
    columns = ["rank", "negatives", "share of them", "best positives", "share of questions"]
    page.table(columns, rows, numeric=columns)
    not_found = asked - audit["questions_whose_positive_was_found"]
    page.text(f"{not_found:,} questions ({_share(not_found, asked)}) have no positive among their hits.", tone="muted")


def _scores(page: Page, audit: Mapping[str, Any]) -> None:
    scores = audit["scores"]
    if not scores:
        page.text("There is no score to show.")
        return
    above = audit["negatives_that_score_above_the_positive"]
    compared = audit["negatives_with_a_positive_to_compare"]
    page.figure(
        _score_picture(scores),
        f"Scores of the positives that were found (green) and of the negatives (red), each as a share of its own, of "
        f"{scores['questions']:,} questions.",
    )
    page.text(
        f"{above:,} negatives score above the best positive of their question: {_share(above, compared)} of those of "
        "questions that found one."
    )


def _question(page: Page, row: Mapping[str, Any], *, opened: bool) -> None:
    block: Block = page.details(Mark(row["query"], "strong"), Mark(f"  {row['query_id']}", "muted"), opened=opened)
    if row["answers"]:
        block.text(Mark("answers: ", "muted"), ", ".join(row["answers"]))
    rows: list[Sequence[Cell]] = []
    if row["positive"] is not None:
        rank = row["positive"]["rank"] or Mark("not found", "muted", sort=1 << 30)
        rows.append([Mark("positive", "good"), _passage(row["positive"]), rank, row["positive"]["score"]])
    rows += [[Mark("negative", "bad"), _passage(one), one["rank"], one["score"]] for one in row["first_negatives"]]
    block.table(["", "passage", "rank", "score"], rows, numeric=("rank", "score"))
    more = row["negatives"] - len(row["first_negatives"])
    if more > 0:
        block.text(f"and {more:,} more negatives", tone="muted")


def _funnel_picture(audit: Mapping[str, Any]) -> str:
    """One bar below the other, as long as the number of hits left."""
    left = audit["hits"]
    bars = [("hits", left, 0)]
    for one in audit["filters"]:
        left -= one["dropped"]
        bars.append((one["name"], left, one["dropped"]))
    kept = sum(one["count"] for one in audit["ranks_of_negatives"])
    bars.append(("kept as negatives", kept, left - kept))
    most, start, step = max(1, audit["hits"]), 270, 26
    lines = []
    for number, (name, value, gone) in enumerate(bars):
        top, length = number * step, (_WIDTH - start - 90) * value / most
        lost = (_WIDTH - start - 90) * gone / most
        lines += [
            f'<text x="{start - 8}" y="{top + 16}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{start}" y="{top + 3}" width="{max(1.0, length):.1f}" height="18" fill="#4a7fb5"/>',
            f'<rect x="{start + length:.1f}" y="{top + 3}" width="{lost:.1f}" height="18" fill="#4a7fb5" '
            'opacity="0.25"/>',
            f'<text x="{start + length + lost + 6:.1f}" y="{top + 16}">{value:,}</text>',
        ]
    return _svg(lines, len(bars) * step + 4)


def _score_picture(scores: Mapping[str, Any]) -> str:
    """Two histograms on top of each other, both normalised."""
    low, width = scores["from"], scores["bin"]
    shares = {
        name: [value / max(1, scores[name]["count"]) for value in scores[name]["bins"]]
        for name in ("positives", "negatives")
    }
    most = max((value for row in shares.values() for value in row), default=1.0) or 1.0
    step = (_WIDTH - _LEFT) / len(shares["positives"])
    base = _HEIGHT - _BELOW
    lines = [
        f'<rect x="{_LEFT + number * step:.1f}" y="{base - base * value / most:.1f}" width="{step - 1:.1f}" '
        f'height="{base * value / most:.1f}" fill="{_COLOURS[name]}" opacity="0.6"/>'
        for name, row in shares.items()
        for number, value in enumerate(row)
        if value
    ]
    lines.append(f'<line x1="{_LEFT}" y1="{base}" x2="{_WIDTH}" y2="{base}" stroke="currentColor"/>')
    lines += list(_axis(low, width * len(shares["positives"]), base))
    lines.append(f'<text x="{_LEFT - 6}" y="12" text-anchor="end">{most:.0%}</text>')
    return _svg(lines, _HEIGHT)


def _axis(low: float, spread: float, base: float) -> Iterator[str]:
    for number in range(5):
        place, anchor = _LEFT + (_WIDTH - _LEFT) * number / 4, ("start", "middle", "middle", "middle", "end")[number]
        yield f'<text x="{place:.0f}" y="{base + 18:.0f}" text-anchor="{anchor}">{low + spread * number / 4:.4g}</text>'


def _svg(lines: Sequence[str], height: int) -> str:
    inner = "".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'style="max-width:100%;height:auto;fill:currentColor;font:13px sans-serif">{inner}</svg>'
    )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _of(part: int, whole: int) -> Mark:
    return Mark(f"({_share(part, whole)} of all)", "muted")
