"""Options that several commands share, and how `--set` and flags become options of components."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from retrievalkit.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])


Settings = dict[str, Any]


def set_option(function: Function) -> Function:
    """`--set KEY=VALUE`, as often as wanted: any option by its key."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any option by its key, such as pooler.layers=4,6.",
    )(function)


def overwrite_option(function: Function) -> Function:
    """`--overwrite`: replace an output folder."""
    return click.option("--overwrite", is_flag=True, help="Replace an output folder that is there already.")(function)


def output_option(function: Function) -> Function:
    """`--output`, required."""
    return click.option("--output", "-o", required=True, type=click.Path(), help="Where to write.")(function)


def json_option(function: Function) -> Function:
    """`--json`: a machine-readable result on standard output."""
    return click.option("--json", "as_json", is_flag=True, help="Print a machine-readable result.")(function)


def ties_option(function: Function) -> Function:
    """`--ties`: the order of documents of equal score."""
    told = "How documents of equal score stand: by id, descending, as in trec_eval; or by the ranks in the run's file."
    choice = click.Choice(["document_id", "run"])
    return click.option("--ties", type=choice, default="document_id", show_default=True, help=told)(function)


def over_option(function: Function) -> Function:
    """`--over`: the queries that count."""
    told = "Which queries count: all of the qrels, those a run lacks with 0; or those in the run."
    choice = click.Choice(["qrels", "run"])
    return click.option("--over", type=choice, default="qrels", show_default=True, help=told)(function)


def exclude_self_option(function: Function) -> Function:
    """`--exclude-self`: leave out hits with the query's own id."""
    told = "Leave out hits with the query's own id, as BEIR does (ArguAna, Quora)."
    return click.option("--exclude-self", "--ignore-same-id", "ignore_same_id", is_flag=True, help=told)(function)


PRECISION = click.Choice(["auto", "fp32", "bf16", "fp16"])


def parse(settings: tuple[str, ...]) -> Settings:
    """The values of `--set`, nested by their dots."""
    from retrievalkit.recipe.recipe import parse_set

    return parse_set(settings)


def section(settings: Settings, name: str) -> Settings:
    """Take one section ("pooler") out of the values of `--set`."""
    section = settings.pop(name, {})
    if not isinstance(section, dict):
        msg = f"--set {name}={section} sets no option. Name the {name} by --{name}, an option by {name}.OPTION=VALUE."
        raise InputError(msg)
    return section


def given_flags(flags: Settings) -> Settings:
    """The flags that the user gave."""
    return {name: value for name, value in flags.items() if value is not None}


def refuse(settings: Settings, command: str, sections: str) -> None:
    """Refuse what is left of `--set`, which the command has no use for."""
    if settings:
        msg = f"rkit {command} has no option '{next(iter(settings))}'. --set takes {sections} here."
        raise InputError(msg)


def echo(as_json: bool, result: Any, line: str) -> None:
    """Print a result: as JSON, or as one line."""
    click.echo(json.dumps(result, indent=2, default=str) if as_json else line)


def root_group() -> click.Group:
    """The command `rkit`, for programs that run other commands."""
    group = click.get_current_context().find_root().command
    assert isinstance(group, click.Group)
    return group
