"""Runs a command by its name, with keyword arguments as options."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.main import main
from retrievalkit.errors import UnknownNameError


def command(name: str, /, **options: Any) -> Any:
    """Run any command of `rkit`, including commands of plugins.

    Args:
        name: Name of the command, such as "analyse-views" or "rerank train".
        **options: Arguments and options of the command, with underscores.

    Returns:
        The result of the command's function.

    Raises:
        OptionError: An option is invalid.
        RetrievalkitError: There is no such command, or it failed.
    """
    found: click.Command | None = main
    for word in name.split():
        found = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
    if not isinstance(found, DerivedCommand):
        raise UnknownNameError("command", name, command_names())
    return found.declared(**options)


def command_names(group: click.Group | None = None) -> list[str]:
    """Return the names of all commands, including commands of plugins."""
    group = group or main.with_all_commands()
    names: list[str] = []
    for name in group.list_commands(click.Context(group)):
        below = group.commands.get(name)
        names += [f"{name} {one}" for one in command_names(below)] if isinstance(below, click.Group) else [name]
    return names
