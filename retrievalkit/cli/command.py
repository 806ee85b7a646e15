"""Any command by its name, with keyword arguments as its options."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.main import main
from retrievalkit.errors import UnknownNameError


def command(name: str, /, **options: Any) -> Any:
    """Run any command of `rkit`, also one that a plugin brings.

    Args:
        name: Its words, such as "analyse-views" or "rerank train".
        **options: Its arguments and options, with underscores.

    Returns:
        The result of its function.

    Raises:
        OptionError: An option does not fit.
        RetrievalkitError: There is no such command, or it failed.
    """
    found: click.Command | None = main
    for word in name.split():
        found = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
    if not isinstance(found, DerivedCommand):
        raise UnknownNameError("command", name, command_names())
    return found.declared(**options)


def command_names(group: click.Group | None = None) -> list[str]:
    """The words of all commands, those of plugins included."""
    group = group or main.with_all_commands()
    names: list[str] = []
    for name in group.list_commands(click.Context(group)):
        below = group.commands.get(name)
        names += [f"{name} {one}" for one in command_names(below)] if isinstance(below, click.Group) else [name]
    return names
