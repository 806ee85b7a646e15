"""`--help-all` of the training commands: flags, and all options of `--set` with type, default and description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


def help_all_option(training: str) -> Callable[[Function], Function]:
    """`--help-all`: print the help of the command and all options of the training.

    Args:
        training: Name of the options, as in `rkit plugins show`.
    """

    def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted and not context.resilient_parsing:
            from retrievalkit.train.options import list_options

            click.echo(f"{context.get_help()}\n\n{list_options(training)}")
            context.exit()

    shown = "Show this message and every option of --set, with type and default."
    return click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=show, help=shown)
