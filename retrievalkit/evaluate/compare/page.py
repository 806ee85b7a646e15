"""A comparison as one page to read in a browser: what came out, the figures behind it, and the queries themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retrievalkit.evaluate.compare.result import (
    ALL_PAIRS,
    HEADER,
    Comparison,
    Difference,
    Mean,
    QueryDifference,
    Ranking,
    judgement,
)
from retrievalkit.report.page import Block, Cell, Mark, Page, Text, Tone

MOST_ROWS = 1_000
_MOST_RANKS = 12
_LONG_NAME = 24
_MOST_VERDICTS = 12
_UP, _DOWN = "▲", "▼"


@dataclass(frozen=True)
class Picture:
    """A PNG, and the one that takes its place on a dark screen."""

    light: bytes
    dark: bytes


def comparison_page(
    comparison: Comparison,
    *,
    means: Picture | None = None,
    differences: Mapping[str, Picture] | None = None,
    alone: bool = False,
) -> Page:
    """The page of a comparison.

    Args:
        comparison: What was found.
        means: The picture of the means.
        differences: For each metric the picture of the differences.
        alone: Whether the page stands alone, without the other files of a folder.
    """
    queries = max(mean.queries for mean in comparison.means)
    names = comparison.runs
    title = " and ".join(names) if len(names) == 2 else f"{len(names)} runs"
    page = Page(f"Comparison of {title}", f"{', '.join(comparison.metrics)} over {queries:,} queries")
    told = comparison.differences
    if len(told) > _MOST_VERDICTS:
        told = [one for one in told if one.metric == comparison.metrics[0]]
    page.bullets(_verdict(one, comparison) for one in told)
    _summary(page, comparison)
    if means is not None:
        page.figure(means.light, f"Means with intervals of {_confidence(comparison)}.", dark=means.dark)
    page.bullets([Mark(f"Note: {note}", "muted") for note in comparison.notes])
    for metric in comparison.metrics:
        page.heading(metric)
        _metric(page, comparison, metric)
        if differences and metric in differences:
            picture = differences[metric]
            page.figure(picture.light, _CAPTION.format(_confidence(comparison)), dark=picture.dark)
    first = comparison.metrics[0]
    for one in comparison.differences:
        if one.metric == first and one.largest:
            page.heading(f"Where {one.run} and {one.against} differ most, by {first}")
            for query in one.largest:
                _query(page, one, query)
    page.heading(f"All queries, by {first}")
    _queries(page, comparison, first, alone=alone)
    page.heading("How it was computed")
    page.bullets(_explanation(comparison, alone=alone))
    return page


_CAPTION = (
    "A bar a query: above the line the first run is better, below it the second. "
    "The broken line is the mean difference, the band its interval of {}."
)


def _verdict(one: Difference, comparison: Comparison) -> list[Text]:
    """A difference in words."""
    figures = f" ({one.difference:+.4f} [{one.low:+.4f}, {one.high:+.4f}], p = {_p(one.p_corrected)})."
    start = Mark(f"{one.metric}: ", "muted")
    if not _is_shown(one, comparison):
        return [start, f"no difference between {one.run} and {one.against} is shown{figures}"]
    better = Mark("better", "good") if one.difference > 0 else Mark("worse", "bad")
    return [start, f"{one.run} is ", better, f" than {one.against}{figures}"]


def _is_shown(one: Difference, comparison: Comparison) -> bool:
    return bool(one.p_corrected <= 1 - comparison.options["confidence"] + 1e-12)


def _summary(page: Block, comparison: Comparison) -> None:
    """A row a run, a column a metric."""
    cells = {(mean.run, mean.metric): mean for mean in comparison.means}
    best = {metric: max(cells[run, metric].mean for run in comparison.runs) for metric in comparison.metrics}
    rows = []
    for run in comparison.runs:
        row: list[Cell] = [_run_name(run, comparison)]
        row += [_mean(cells[run, metric], best[metric], comparison) for metric in comparison.metrics]
        rows.append(row)
    base = (
        "" if comparison.baseline == ALL_PAIRS else f" {_UP} {_DOWN}: better or worse than {comparison.baseline}, p ≤ "
    )
    told = f"{base}{1 - comparison.options['confidence']:.2g} by the randomisation test, corrected." if base else ""
    page.table(
        ["run", *comparison.metrics], rows, numeric=comparison.metrics, caption=f"Means; the best are bold.{told}"
    )


def _run_name(run: str, comparison: Comparison) -> Cell:
    name = Mark(run, "name" if len(run) <= _LONG_NAME else None)
    return [name, Mark(" (baseline)", "muted")] if run == comparison.baseline else name


def _mean(mean: Mean, best: float, comparison: Comparison) -> Mark:
    mine = [one for one in comparison.differences if (one.metric, one.run) == (mean.metric, mean.run)]
    sign, tone = "", "strong" if mean.mean == best else None
    if comparison.baseline != ALL_PAIRS and mine and _is_shown(mine[0], comparison):
        sign = f"{_UP} " if mine[0].difference > 0 else f"{_DOWN} "
    text = f"{sign}{mean.mean:.4f}"
    return Mark(text, tone, sort=mean.mean)  # type: ignore[arg-type]


def _metric(page: Block, comparison: Comparison, metric: str) -> None:
    """A row a run, or a pair where a run is compared with several."""
    against = ["against"] if comparison.baseline == ALL_PAIRS else []
    columns = ["run", "mean", *against, "difference", "p", "p, Holm", "p of t-test", "p of t-test, Holm", HEADER[-1]]
    rows: list[list[Cell]] = []
    for mean in (one for one in comparison.means if one.metric == metric):
        start: list[Cell] = [_run_name(mean.run, comparison), _with_interval(f"{mean.mean:.4f}", mean)]
        pairs = [one for one in comparison.differences if (one.metric, one.run) == (metric, mean.run)]
        rows += [[*start, *([one.against] if against else []), *_difference(one)] for one in pairs]
        rows += [] if pairs else [[*start, *[None] * (len(columns) - 2)]]
    numeric = [name for name in columns if name not in ("run", "against")]
    page.table(columns, rows, numeric=numeric)


def _difference(one: Difference) -> list[Cell]:
    tone: Tone | None = "good" if one.difference > 0 else "bad" if one.difference < 0 else None
    p_values = (one.p_value, one.p_corrected, one.t_test, one.t_test_corrected)
    return [
        _with_interval(f"{one.difference:+.4f}", one, tone),
        *(Mark(_p(value), sort=value) for value in p_values),
        Mark(f"{one.wins}/{one.ties}/{one.losses}", sort=one.wins - one.losses),
    ]


def _with_interval(value: str, one: Mean | Difference, tone: Tone | None = None) -> list[Text]:
    return [Mark(value, tone), Mark(f" [{one.low:.4f}, {one.high:.4f}]", "muted")]


def _query(page: Block, one: Difference, query: QueryDifference) -> None:
    tone: Tone = "good" if query.difference > 0 else "bad"
    summary: list[Text] = [Mark(f"{query.difference:+.4f}", tone), "  ", Mark(query.query_id, "code")]
    block = page.details(*summary, f"  {query.text}" if query.text else "")
    for part, (run, value) in zip(block.beside(2), ((one.run, query.value), (one.against, query.against)), strict=True):
        part.text(Mark(run, "strong"), f"  {value:.4f}")
        if run in query.rankings:
            _ranking(part, query.rankings[run])


def _ranking(part: Block, ranking: Ranking) -> None:
    if not ranking.first:
        part.text("It found nothing.", tone="muted")
        return
    rows: list[list[Cell]] = []
    for hit in ranking.first:
        told: list[Text] = [Mark(hit.title or hit.document_id, "strong"), "  ", _judgement(hit.grade)]
        if hit.snippet:
            told += ["\n", *_marked(hit.snippet, hit.matches)]
        rows.append([hit.rank, told])
    part.table(["", "document"], rows, numeric=[""])
    part.text(_relevant(ranking), tone="muted")


def _judgement(grade: int | None) -> Mark:
    return Mark(judgement(grade), "muted" if grade is None else "good" if grade > 0 else "bad")


def _marked(text: str, matches: Sequence[tuple[int, int]]) -> list[Text]:
    """A text with its matches in bold."""
    pieces: list[Text] = []
    last = 0
    for start, end in matches:
        pieces += [text[last:start], Mark(text[start:end], "strong")]
        last = end
    return [*pieces, text[last:]]


def _relevant(ranking: Ranking) -> str:
    missing = ranking.relevant - len(ranking.relevant_at)
    lost = f"{missing} of {ranking.relevant} not found" if missing else ""
    if not ranking.relevant_at:
        return f"Relevant documents: {lost or 'none'}."
    shown = ", ".join(map(str, ranking.relevant_at[:_MOST_RANKS]))
    more = f" and {len(ranking.relevant_at) - _MOST_RANKS} more" if len(ranking.relevant_at) > _MOST_RANKS else ""
    return f"Relevant documents at {shown}{more}{'; ' + lost if lost else ''}."


def _queries(page: Block, comparison: Comparison, metric: str, *, alone: bool) -> None:
    by_run = comparison.per_query[metric]
    runs = comparison.runs
    spread = {one: _spread([by_run[run][one] for run in runs]) for one in by_run[runs[0]]}
    shown = sorted(spread, key=lambda one: (-spread[one], one))[:MOST_ROWS]
    pair = len(runs) == 2
    gap = f"{runs[1]} less {runs[0]}"
    columns = ["query", *(["text"] if comparison.texts else []), *runs, *([gap] if pair else [])]
    rows = []
    for one in shown:
        values = [by_run[run][one] for run in runs]
        row: list[Cell] = [Mark(one, "code"), *([comparison.texts.get(one, "")] if comparison.texts else []), *values]
        rows.append([*row, _gap(values[1] - values[0])] if pair else row)
    rest = len(spread) - len(shown)
    where = "not shown" if alone else "in per_query.tsv"
    told = f"The {len(shown):,} that differ most; {rest:,} more are {where}." if rest else ""
    page.table(columns, rows, numeric=[*runs, gap], caption=told, find=True)


def _gap(difference: float) -> Mark:
    tone: Tone = "good" if difference > 0 else "bad" if difference < 0 else "muted"
    return Mark(f"{difference:+.4f}", tone, sort=difference)


def _spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _explanation(comparison: Comparison, *, alone: bool) -> list[str]:
    options = comparison.options
    rest = "" if alone else " The values of every query are in per_query.tsv, all figures in comparison.json."
    return [
        "A query of the judgements that a run lacks counts 0 for it."
        if options.get("over", "qrels") == "qrels"
        else "Only queries that all runs have count.",
        f"Intervals of {_confidence(comparison)} are percentiles of the means of {options['resamples']:,} resampled "
        "sets of queries (bootstrap); all runs share the resampled sets.",
        f"p is of the paired randomisation test: exact where at most 20 queries differ, else "
        f"{options['permutations']:,} exchanges "
        "are drawn. Beside it stands the paired t-test. Both are two-sided.",
        "“Holm” is corrected by Holm's step-down rule over the pairs of a metric, not over metrics.",
        f"Seed {options['seed']}.{rest}",
    ]


def _confidence(comparison: Comparison) -> str:
    return f"{100 * comparison.options['confidence']:g} %"


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"
