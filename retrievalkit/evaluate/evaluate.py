"""`rkit evaluate`: runs and judgements, or answers, in; metrics out.

rkit evaluate RUN [RUN...] --qrels QRELS [--metrics "nDCG@10 RR@10"]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from retrievalkit import oddities
from retrievalkit.data import inputs
from retrievalkit.declarations import Argument, CommandOptions, Flag, Reads, command
from retrievalkit.errors import OptionError
from retrievalkit.evaluate.options import METRICS, Conventions, Metrics

if TYPE_CHECKING:
    from retrievalkit.evaluate.program import Evaluations


@dataclass(frozen=True)
class EvaluationOptions(Conventions, CommandOptions):
    """How runs are evaluated.

    Args:
        qrels: Judgements: TREC, BEIR, MS MARCO, a BEIR folder, pydoc:PACKAGES; in Python also a dict query -> document
            -> grade, or a table.
        metrics: Metrics by their names in ir-measures, between spaces; given several times, they add up.
        answers: Queries with answers, for top-k accuracy.
        split: Only the queries of this split's judgements, if the answers are in a folder.
        corpus: The passages that were searched, for top-k accuracy.
        top: Each k of top-k accuracy.
        answer_mode: Whether answers are texts or patterns.
        processes: Processes that look for answers; by default by the size of the run.
    """

    qrels: Annotated[Any, Reads(inputs.judgements)] = None
    metrics: Metrics = METRICS
    _: KW_ONLY
    answers: Annotated[Any, Reads(inputs.queries)] = None
    split: str | None = None
    corpus: Annotated[Any, Reads(inputs.passages)] = None
    top: Annotated[str | Sequence[int | str], Flag(metavar="K")] = "5 20 100"
    answer_mode: Literal["string", "regex"] = "string"
    processes: Annotated[int, Ge(1)] | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationOptions):
    """Options of `evaluate`.

    Args:
        run: Runs; in Python a list of runs and files, or a dict by name.
        per_query: Print the values of each query too.
    """

    run: Annotated[Any, Argument(several=True), Reads(inputs.runs)]
    per_query: bool = False


@command("evaluate", EvaluateOptions)
def evaluate(options: EvaluateOptions) -> Evaluations:
    """Evaluate runs by judgements, or by the answers that their passages contain.

    Means are over all queries of the qrels, those that a run lacks count 0, and a grade is its own gain in nDCG, as in
    trec_eval -c. For the values of MS MARCO's script: --metrics RR@10 --ties run; of BEIR: --exclude-self.
    """
    from retrievalkit.data.corpus import open_corpus
    from retrievalkit.data.qrels import read_qrels
    from retrievalkit.data.queries import read_queries
    from retrievalkit.data.runs import run_names
    from retrievalkit.evaluate.program import AnswerOptions, Evaluations, cutoffs
    from retrievalkit.evaluate.program import evaluate as program

    if options.split is not None and (options.answers is None or Path(options.answers).is_file()):
        msg = "split has no effect here: it is for answers in a folder. "
        msg += f"The judgements of a split are a file: qrels FOLDER/qrels/{options.split}.tsv"
        raise OptionError(msg)
    names = run_names(options.run)
    qrels = None if options.qrels is None else read_qrels(options.qrels)
    queries = None if options.answers is None else read_queries(options.answers, options.split)
    corpus = None if options.corpus is None else open_corpus(options.corpus)
    answers = AnswerOptions(cutoffs(options.top), options.answer_mode, options.processes)
    evaluations = {
        name: program(
            run,
            qrels=qrels,
            metrics=options.metrics,
            queries=queries,
            corpus=corpus,
            answers=answers,
            conventions=options,
        )
        for name, run in zip(names, options.run, strict=True)
    }
    oddities.check(*(note for one in evaluations.values() for note in one.notes))
    return Evaluations(evaluations, per_query=options.per_query)
