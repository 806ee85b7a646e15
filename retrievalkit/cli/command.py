"""Runs a command by its name, with options as keyword arguments."""

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
        RetrievalkitError: The command does not exist, or it failed.
    """
    resolved: click.Command | None = main
    for word in name.split():
        resolved = resolved.get_command(click.Context(resolved), word) if isinstance(resolved, click.Group) else None
    if not isinstance(resolved, DerivedCommand):
        raise UnknownNameError("command", name, command_names())
    return resolved.declared(**options)


def command_names(group: click.Group | None = None) -> list[str]:
    """Return the names of all commands, including commands of plugins."""
    group = group or main.with_all_commands()
    names: list[str] = []
    for name in group.list_commands(click.Context(group)):
        inner = group.commands.get(name)
        names += [f"{name} {word}" for word in command_names(inner)] if isinstance(inner, click.Group) else [name]
    return names
