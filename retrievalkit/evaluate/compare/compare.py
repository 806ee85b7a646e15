"""`rkit compare`: runs and judgements in, significance tests out: on the terminal, as a page or as a table.

rkit compare RUN RUN... --qrels QRELS [--output PAGE.html|FIGURES.json|...]
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Lt

from retrievalkit.data import inputs
from retrievalkit.declarations import Argument, CommandOptions, Flag, Place, Reads, command
from retrievalkit.evaluate.options import Conventions, Metrics

if TYPE_CHECKING:
    from retrievalkit.evaluate.compare.result import Comparison


@dataclass(frozen=True)
class CompareOptions(Conventions, CommandOptions):
    """Options of `compare`.

    Args:
        runs: Two or more runs; in Python a list of runs and files, or a dict by name.
        qrels: Judgements: TREC, BEIR, MS MARCO, a BEIR folder, pydoc:PACKAGES; in Python also a dict query -> document
            -> grade, or a table.
        metrics: Metrics by their names in ir-measures, between spaces; given several times, they add up.
        baseline: The run that the others are compared with, or "all" for each with each; by default the first.
        queries: Texts of the queries, to show those that differ most.
        corpus: Texts of the passages, to show what each run ranks first for these queries.
        output: A page (.html), a table (.csv, .md, .tex), all figures (.json), or else a folder with page and figures.
        plot: Draw plots for the page, which needs matplotlib.
        examples: Wins and losses to list.
        confidence: Confidence of the intervals.
        seed: Seed of tests and intervals.
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
    """Compare runs: paired significance tests, wins and losses; with an output also as a page or a table.

    Notebooks show the comparison as a table with plots.
    """
    from pathlib import Path

    from retrievalkit.evaluate.compare.output import Output
    from retrievalkit.evaluate.compare.program import Sampling
    from retrievalkit.evaluate.compare.program import compare as program

    output = None if options.output is None else Output(Path(options.output), options.plot, options.overwrite)
    comparison = program(
        options.runs,
        qrels=options.qrels,
        metrics=options.metrics,
        baseline=options.baseline,
        queries=options.queries,
        corpus=options.corpus,
        examples=options.examples,
        conventions=options,
        sampling=Sampling(confidence=options.confidence, seed=options.seed),
        output=output,
    )
    return replace(comparison, output=output)
