"""The options of `rkit convert` for files of one's own: documents in passages, and the fields of tables."""

from __future__ import annotations

import functools
from typing import Any

import click

from retrievalkit.cli.options import Function
from retrievalkit.errors import OptionError


def own_file_options(function: Function) -> Function:
    """`--passages`, `--stride`, `--by` and `--text-field` ..., as the argument `reading` for `contents_of`."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        fields = {name: options.pop(f"{name}_field") for name in ("text", "title", "id")}
        size, stride, by = (options.pop(name) for name in ("passages", "stride", "by"))
        options["reading"] = {}
        if any(fields.values()):
            from retrievalkit.data.columns import Columns

            options["reading"]["columns"] = Columns(**{name: field or "" for name, field in fields.items()})
        if size is not None:
            from retrievalkit.passage_parts import Windows

            options["reading"]["windows"] = Windows(size, stride, by or "words")
        elif stride is not None or by is not None:
            option = "--by" if stride is None else "--stride"
            msg = f"{option} is about --passages N, which is not given. Give both, or leave it out."
            raise OptionError(msg)
        return function(*arguments, **options)

    for option in reversed(
        (
            click.option("--passages", type=click.IntRange(min=1), metavar="N", help="Cut into passages of N words."),
            click.option(
                "--stride",
                type=click.IntRange(min=1),
                metavar="N",
                help="With --passages: a passage begins N words after the one before; by default they do not overlap.",
            ),
            click.option(
                "--by",
                type=click.Choice(["words", "sentences"]),
                help="With --passages: what is counted; by default words.",
            ),
            click.option("--text-field", metavar="NAME", help="The field (column) of a table with the texts."),
            click.option("--title-field", metavar="NAME", help="That with the titles."),
            click.option("--id-field", metavar="NAME", help="That with the ids; by default made from title and text."),
        )
    ):
        run = option(run)
    return run  # type: ignore[return-value]
