"""`rkit compare`: significance tests between runs, on the terminal, as a page or as a table.

    rkit compare RUN RUN... --qrels QRELS [--output PAGE.html|FIGURES.json|...]

For each metric: the mean of each run with its bootstrap interval; for each pair the difference with its interval, the
paired randomisation test and t-test, both Holm-corrected over the pairs of the metric, the queries won, tied and lost,
and the queries that differ most, with the top hits of both runs. Equal inputs and seed give equal numbers.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Lt

from retrievalkit.contracts.declarations import Argument, CommandOptions, Flag, Place, Reads, command
from retrievalkit.data import inputs
from retrievalkit.data.runs import run_names
from retrievalkit.errors import InputError, UnknownNameError, shortlist
from retrievalkit.evaluation.evaluate import Conventions, Metrics
from retrievalkit.reporting import notices

if TYPE_CHECKING:
    from retrievalkit.evaluation.compare.comparison import Comparison

ALL_PAIRS = "all"
PERMUTATIONS = RESAMPLES = 10_000


@dataclass(frozen=True)
class CompareOptions(Conventions, CommandOptions):
    """Options of `compare`.

    Args:
        runs: Two or more runs; in Python a list of runs and files, or a dict by name.
        qrels: Judgements: TREC, BEIR, MS MARCO, a BEIR folder, pydoc:PACKAGES; in Python also a dict query -> document
            -> grade, or a table.
        metrics: Metrics by their ir-measures names, separated by spaces; the option may be repeated.
        baseline: The run that the others are compared with, or "all" for all pairs; by default the first run.
        queries: Query texts, to show the queries that differ most.
        corpus: Passage texts, to show each run's first hits for these queries.
        output: A page (.html), a table (.csv, .md, .tex), all figures (.json), or else a folder with page and figures.
        plot: Draw plots for the page; this needs matplotlib.
        examples: Number of wins and losses to list.
        confidence: Confidence level of the intervals.
        seed: Seed of the significance tests and intervals.
        overwrite: Replace an existing output folder.
    """

    runs: Annotated[Any, Argument(several=True), Reads(inputs.runs)]
    qrels: Annotated[Any, Reads(inputs.judgements)]
    metrics: Metrics = "nDCG@10"
    _: KW_ONLY
    baseline: str | None = None
    queries: Annotated[Any, Reads(inputs.queries)] = None
    corpus: Annotated[Any, Reads(inputs.passages)] = None
    output: Annotated[Place | None, Flag(("--output", "-o"))] = None
    plot: bool = True
    examples: Annotated[int, Ge(0)] = 5
    confidence: Annotated[float, Gt(0), Lt(1)] = 0.95
    seed: Annotated[int, Ge(0)] = 0
    overwrite: bool = False


@command("compare", CompareOptions)
def compare(options: CompareOptions) -> Comparison:
    """Compare runs: paired significance tests, wins and losses; printed, or as a page or a table.

    Notebooks show the comparison as a table with plots.
    """
    from retrievalkit.data.qrels import read_qrels
    from retrievalkit.data.queries import read_queries
    from retrievalkit.evaluation.compare.comparison import Comparison, compare_metric
    from retrievalkit.evaluation.compare.contender import add_rankings, measure
    from retrievalkit.evaluation.compare.page import check_output, write
    from retrievalkit.evaluation.metric_names import check_metrics
    from retrievalkit.evaluation.metrics import PerQuery, first_ids

    if len(options.runs) < 2:
        msg = f"a comparison needs at least two runs, not {len(options.runs)}. Give more runs."
        raise InputError(msg)
    output = None if options.output is None else Path(options.output)
    if output is not None:
        check_output(output, plot=options.plot, overwrite=options.overwrite)
    places = dict(zip(run_names(options.runs), options.runs, strict=True))
    names = list(places)
    if options.baseline == ALL_PAIRS:
        pairs = [(later, earlier) for earlier, later in combinations(names, 2)]
    else:
        by_place = {str(place): name for name, place in places.items()}
        against = names[0] if options.baseline is None else by_place.get(options.baseline, options.baseline)
        if against not in names:
            raise UnknownNameError("baseline", against, names, hint=f"Give one of the runs, or '{ALL_PAIRS}'.")
        pairs = [(name, against) for name in names if name != against]
    qrels = read_qrels(options.qrels)
    check_metrics(options.metrics, qrels)
    queries = [] if options.queries is None else read_queries(options.queries)
    texts = {query.id: query.text for query in queries if query.id in qrels}
    if queries and not texts:
        known = first_ids(query.id for query in queries)
        msg = f"none of the queries is in the qrels: the queries have {known}, the qrels {first_ids(qrels)}. "
        msg += "Give the queries of these qrels."
        raise InputError(msg)
    contenders = {name: measure(name, place, qrels, options.metrics, options) for name, place in places.items()}
    means, differences, values = [], [], dict[str, PerQuery]()
    for metric in next(iter(contenders.values())).values:
        of_run = {name: contender.values[metric] for name, contender in contenders.items()}
        shared = [query_id for query_id in qrels if all(query_id in known for known in of_run.values())]
        if not shared:
            msg = f"no query has a value of {metric} in all runs. Compare runs of the same queries."
            raise InputError(msg)
        values[metric] = by_run = {name: {query: known[query] for query in shared} for name, known in of_run.items()}
        of_runs, of_pairs = compare_metric(
            metric, by_run, pairs, texts, confidence=options.confidence, seed=options.seed, examples=options.examples
        )
        means += of_runs
        differences += of_pairs
    # A problem that several runs share is reported once.
    issues: dict[tuple[str, str], list[str]] = {}
    for name, contender in contenders.items():
        for problem in contender.problems:
            issues.setdefault(problem, []).append(f"'{name}'")
    notes = [f"{start}{'s' * (len(names) > 1)} {shortlist(names, 3)}{end}" for (start, end), names in issues.items()]
    if texts and (missing := [query_id for query_id in qrels if query_id not in texts]):
        caveat = f"{len(missing)} of {len(qrels)} queries of the qrels have no text in the queries"
        notes.append(f"{caveat}: {first_ids(missing)}.")
    add_rankings(differences, contenders, texts, options.corpus)
    settings: dict[str, Any] = {"permutations": PERMUTATIONS, "resamples": RESAMPLES, "confidence": options.confidence}
    settings |= {"seed": options.seed, "ties": options.ties, "over": options.over}
    comparison = Comparison(
        means,
        differences,
        ALL_PAIRS if options.baseline == ALL_PAIRS else pairs[0][1],
        values,
        settings | {"ignore_same_id": options.exclude_self},
        notes,
        texts,
        output,
    )
    notices.check(*comparison.notes)
    if output is not None:
        read = {f"run {name}": place for name, place in places.items()}
        read |= {"qrels": options.qrels, "queries": options.queries}
        write(comparison, output, plot=options.plot, overwrite=options.overwrite, inputs=read)
    return comparison
