"""The options of `rkit convert` for sentence-transformers' file of hard negatives."""

from __future__ import annotations

import functools
from typing import Any

import click

from retrievalkit.cli.options import Function

_NAMES = ("queries", "systems", "per_system", "scores", "margin")


def hard_negative_options(function: Function) -> Function:
    """`--queries`, `--systems`, `--per-system`, `--scores` and `--margin`, as the argument `hard_negatives`."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        given = {name: value for name in _NAMES if (value := options.pop(name)) is not None}
        if given:
            from retrievalkit.data.hard_negatives import HardNegatives

            if "systems" in given:
                given["systems"] = [name.strip() for name in given["systems"].split(",")]
            options["hard_negatives"] = HardNegatives(**given)
        return function(*arguments, **options)

    for option in reversed(
        (
            click.option("--queries", help="Of hard negatives by system: the texts of their queries."),
            click.option("--systems", help="Of hard negatives by system: those of these systems, between commas."),
            click.option("--per-system", type=click.IntRange(min=1), help="Most hard negatives of a system."),
            click.option("--scores", help="A re-ranker's scores (qid, pid, score), which become a teacher's."),
            click.option(
                "--margin", type=float, help="Keep hard negatives that score this much below each positive, or lower."
            ),
        )
    ):
        run = option(run)
    return run  # type: ignore[return-value]
