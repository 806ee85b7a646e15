"""`rkit evaluate`: options and hand-off."""

from __future__ import annotations

import json
from typing import Any

import click

from retrievalkit import oddities
from retrievalkit.cli.options import (
    exclude_self_option,
    is_called,
    json_option,
    metrics_option,
    over_option,
    strict_option,
    ties_option,
)


@click.command()
@click.argument("run", nargs=-1, required=True, metavar="RUN [RUN...]")
@click.option("--qrels", help="Judgements: TREC, BEIR, MS MARCO, a BEIR folder, pydoc:PACKAGES.")
@metrics_option("nDCG@10 RR@10 R@1000")
@click.option("--answers", "queries", help="Queries with answers, for top-k accuracy.")
@click.option("--split", help="Only the queries of this split's judgements, if --answers is a folder.")
@click.option("--corpus", help="The passages that were searched, for top-k accuracy.")
@click.option("--top", "ks", default="5 20 100", show_default=True, help="Each k of top-k accuracy.")
@click.option(
    "--answer-mode",
    "mode",
    type=click.Choice(["string", "regex"]),
    default="string",
    show_default=True,
    help="Whether answers are texts or patterns.",
)
@click.option(
    "--processes", type=click.IntRange(min=1), help="Processes that look for answers [default: by the size of the run]."
)
@ties_option
@over_option
@exclude_self_option
@click.option("--per-query", is_flag=True, help="Print the values of each query too.")
@strict_option
@json_option
def evaluate(
    run: tuple[str, ...],
    queries: str | None,
    split: str | None,
    ks: str,
    per_query: bool,
    as_json: bool,
    **flags: Any,
) -> dict[str, Any]:
    """Evaluate RUNs by judgements, or by the answers that their passages contain.

    Means are over all queries of the qrels, those that a run lacks count 0, and a grade is its own gain in nDCG, as in
    trec_eval -c. For the values of MS MARCO's script: --metrics RR@10 --ties run; of BEIR: --exclude-self.
    """
    from pathlib import Path

    from retrievalkit.data.queries import read_queries
    from retrievalkit.errors import OptionError
    from retrievalkit.evaluate.options import Conventions
    from retrievalkit.evaluate.program import AnswerOptions, as_text, cutoffs, evaluate_runs

    if split is not None and (queries is None or Path(queries).is_file()):
        msg = "--split has no effect here: it goes with --answers FOLDER. "
        msg += f"The judgements of a split are a file: --qrels FOLDER/qrels/{split}.tsv"
        raise OptionError(msg)
    found = evaluate_runs(
        run,
        queries=read_queries(queries, split) if queries is not None else None,
        answers=AnswerOptions(cutoffs(ks), flags.pop("mode"), flags.pop("processes")),
        conventions=Conventions(
            ties=flags.pop("ties"), over=flags.pop("over"), exclude_self=flags.pop("ignore_same_id")
        ),
        **flags,
    )
    oddities.check(*(note for one in found.values() for note in one.notes))
    if is_called():
        return found
    if as_json:
        values = {name: one.to_json(per_query=per_query) for name, one in found.items()}
        click.echo(json.dumps({"runs": values} if len(values) > 1 else next(iter(values.values())), indent=2))
        return found
    click.echo(as_text(found, per_query=per_query))
    for name, one in found.items():
        oddities.note(*(f"{name}: {note}" if len(found) > 1 else note for note in one.notes))
    return found
