"""`rkit evaluate`: metrics of runs, from judgements or answers.

    rkit evaluate RUN [RUN...] --qrels QRELS [--metrics "nDCG@10 RR@10"]
    rkit evaluate RUN --answers QUERIES --corpus CORPUS [--top "5 20 100"]

Metrics have their ir-measures names: "nDCG@10 RR@10 R@1000", "AP(rel=2)", "Success@1000" (the share of queries with at
least one relevant hit, which MS MARCO papers report as recall). Top-k accuracy is the share of questions with an
answer in the text of the first k documents; see `answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from retrievalkit.contracts.declarations import Argument, CommandOptions, Flag, Reads, command
from retrievalkit.data import inputs
from retrievalkit.data.runs import Ties, run_names
from retrievalkit.errors import InputError, OptionError
from retrievalkit.reporting import notices

if TYPE_CHECKING:
    from retrievalkit.evaluation.results import Evaluations

METRICS = "nDCG@10 RR@10 R@1000"
Metrics = Annotated[str | Sequence[str], Flag(metavar="NAMES")]
Over = Literal["qrels", "run"]


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """Metric conventions in which evaluation programs differ.

    Args:
        ties: Order of documents with equal scores: by descending "document_id", as in trec_eval; or by rank in the
            "run" file, as in MS MARCO's script.
        over: Queries that count: all in the "qrels" (a query missing from the run scores 0), or only the run's ("run").
        exclude_self: Leave out hits with the query's own id, as BEIR does (ArguAna, Quora).
    """

    heading: ClassVar = "Conventions"

    ties: Ties = "document_id"
    over: Over = "qrels"
    exclude_self: bool = False


@dataclass(frozen=True)
class EvaluationOptions(Conventions, CommandOptions):
    """Evaluation by judgements, answers, or both.

    Args:
        qrels: Judgements: TREC, BEIR, MS MARCO, a BEIR folder, pydoc:PACKAGES; in Python also a dict query -> document
            -> grade, or a table.
        metrics: Metrics by their ir-measures names, separated by spaces; the option may be repeated.
        answers: Queries with answers, for top-k accuracy.
        split: Only the queries judged in this split, if the answers are in a folder.
        corpus: The passages that were searched, for top-k accuracy.
        top: Values of k for top-k accuracy.
        answer_mode: Answers are texts ("string") or regular expressions ("regex").
    """

    qrels: Annotated[Any, Reads(inputs.judgements)] = None
    metrics: Metrics = METRICS
    _: KW_ONLY
    answers: Annotated[Any, Reads(inputs.queries)] = None
    split: str | None = None
    corpus: Annotated[Any, Reads(inputs.passages)] = None
    top: Annotated[str | Sequence[int | str], Flag(metavar="K")] = "5 20 100"
    answer_mode: Literal["string", "regex"] = "string"


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
    """Evaluate runs against judgements, or by the answers in their passages.

    Means are over all queries of the qrels, with 0 for queries missing from a run; nDCG's gain is the grade itself, as
    in trec_eval -c. For MS MARCO's values: --metrics RR@10 --ties run; for BEIR's: --exclude-self.
    """
    from retrievalkit.data.corpus import open_corpus
    from retrievalkit.data.qrels import read_qrels
    from retrievalkit.data.queries import read_queries
    from retrievalkit.data.runs import check_run, open_run
    from retrievalkit.evaluation.metric_names import check_metrics
    from retrievalkit.evaluation.metrics import WithoutSameId
    from retrievalkit.evaluation.results import Evaluation, Evaluations

    if options.split is not None and (options.answers is None or Path(options.answers).is_file()):
        msg = "split has no effect here: it selects among answers in a folder. "
        msg += f"The judgements of a split are a file: qrels FOLDER/qrels/{options.split}.tsv"
        raise OptionError(msg)
    if options.qrels is None and options.answers is None:
        msg = "there is nothing to evaluate with. Give judgements (qrels), or answers and their corpus."
        raise InputError(msg)
    if options.answers is not None and options.corpus is None:
        msg = "top-k accuracy looks for answers in the passages' texts. Give the corpus that was searched."
        raise InputError(msg)
    names, ks = run_names(options.run), _cutoffs(options.top)
    qrels = None if options.qrels is None else read_qrels(options.qrels)
    if qrels is not None:
        check_metrics(options.metrics, qrels)
    queries = None if options.answers is None else read_queries(options.answers, options.split)
    corpus = None if options.corpus is None else open_corpus(options.corpus)
    evaluations = Evaluations(per_query=options.per_query)
    for name, place in zip(names, options.run, strict=True):
        whole = open_run(place, options.ties)
        run = WithoutSameId(whole) if options.exclude_self else whole
        evaluations[name] = evaluation = Evaluation()
        if qrels is not None:
            evaluation.add_judged(run, qrels, options.metrics, options)
        if queries is not None and corpus is not None:
            if qrels is not None and not any(query.answers for query in queries):
                evaluation.notes.append("no query has answers, so there is no top-k accuracy.")
            else:
                evaluation.add_accuracy(run, queries, corpus, ks, options.answer_mode)
        check_run(whole)
    notices.check(*evaluations.notes)
    return evaluations


def _cutoffs(values: str | Sequence[int | str]) -> list[int]:
    """Parse positive integers, in a list or separated by spaces or commas."""
    text = values if isinstance(values, str) else " ".join(map(str, values))
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        msg = f"'{text}' is not a list of cutoffs for top-k accuracy. Write positive whole numbers, such as '5 20 100'."
        raise OptionError(msg)
    return list(map(int, words))
