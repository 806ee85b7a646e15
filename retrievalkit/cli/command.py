"""Any command by its name, with keyword arguments as its options."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.kinds import explained
from retrievalkit.cli.main import main
from retrievalkit.data.sources import InMemory
from retrievalkit.errors import OptionError, UnknownNameError, nearest, shortlist
from retrievalkit.recipes.settings import flatten

_FOR_TERMINALS = ("as_json", "interactive", "help_all", "help")


def command(name: str, /, **options: Any) -> Any:
    """Run any command of `rkit`, also one that a plugin brings.

    Args:
        name: Its words, such as "analyse-views" or "rerank train".
        **options: Its arguments and options, with underscores.

    Returns:
        The result of its function; of a click command what that returns.

    Raises:
        OptionError: There is no such command, or an option does not fit.
        RetrievalkitError: It failed.
    """
    found = command_named(name)
    if isinstance(found, DerivedCommand):
        return found.declared(**options)
    known = parameters_of(found)
    for keyword in options:
        if keyword not in known:
            close = nearest(keyword, known)
            offer = f"; did you mean '{close}'?" if close else "."
            msg = f"{name} has no option '{keyword}'{offer} Its options: {shortlist(list(known), 30)}."
            raise OptionError(msg)
    values = {known[keyword].name: value for keyword, value in options.items() if value is not None}
    if options.get("set"):
        values["settings"] = [f"{key}={json.dumps(one, default=str)}" for key, one in flatten(options["set"]).items()]
    values = {name: os.fspath(one) if isinstance(one, os.PathLike) else one for name, one in values.items()}
    parent = click.Context(main, info_name="rkit")
    try:
        context = found.make_context(name, [], parent=parent, default_map=values)
        # click makes plain text of the addresses of data in memory.
        context.params |= {name: one for name, one in values.items() if isinstance(one, InMemory)}
        # Its resources, such as --verify, are given back at the end.
        with context, explained(context, context.params):
            return found.invoke(context)
    except click.Abort as error:
        raise error.__cause__ or KeyboardInterrupt from error
    except click.MissingParameter as error:
        missing = [keyword for keyword, one in known.items() if one is error.param] or [str(error.param_hint)]
        msg = f"{name} needs '{missing[0]}', and it was not given."
        raise OptionError(msg) from None
    except click.ClickException as error:
        raise OptionError(error.format_message()) from None


def command_named(name: str) -> click.Command:
    """A command by its words, such as "rerank train".

    Raises:
        UnknownNameError: There is none.
    """
    command: click.Command = main
    for word in name.split():
        below = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if below is None:
            raise UnknownNameError("command", name, command_names())
        command = below
    return command


def command_names(group: click.Group | None = None) -> list[str]:
    """The words of all commands, those of plugins included."""
    group = group or main.with_all_commands()
    names: list[str] = []
    for name in group.list_commands(click.Context(group)):
        below = group.commands.get(name)
        names += [f"{name} {one}" for one in command_names(below)] if isinstance(below, click.Group) else [name]
    return names


def parameters_of(command: click.Command) -> dict[str, click.Parameter]:
    """The parameters of a command by the names of their keyword arguments: those of the flags, with underscores."""
    found: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if parameter.name in _FOR_TERMINALS:
            continue
        words = [word for word in parameter.opts if word.startswith("--")] or [str(parameter.name)]
        found |= {word.removeprefix("--").replace("-", "_"): parameter for word in words}
    return found
