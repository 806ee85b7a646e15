"""The group of commands: offers the nearest name, and prints a user's mistake without a traceback."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

from retrievalkit.errors import RetrievalkitError, nearest

_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"


_SEVERAL_PROCESSES = ("train",)


class SingleOption(click.Option):
    """An option that takes one value: given twice, it is refused, where click would forget the first."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser collect all values."""
        del ctx
        parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Any) -> Any:
        """Take the only value."""
        values = opts.get(self.name)
        if isinstance(values, list):
            if len(values) > 1:
                given = " and ".join(f"'{value}'" for value in values)
                msg = f"{self.opts[0]} takes one value, and {given} are given. Give it once."
                raise click.UsageError(msg, ctx)
            opts = {**opts, self.name: values[0]}
        return super().consume_value(ctx, opts)


def refuse_repeated_options(command: click.Command) -> None:
    """Make the options of a command, and of those below it, refuse to be given twice."""
    for parameter in command.params:
        # Only plain options: a flag may be repeated, and other classes have rules of their own.
        if type(parameter) is click.Option and not (parameter.is_flag or parameter.multiple or parameter.count):
            parameter.__class__ = SingleOption
    for below in getattr(command, "commands", {}).values():
        refuse_repeated_options(below)


class RkitGroup(click.Group):
    """Offers the nearest command for an unknown one, and prints a user's mistake without a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the nearest name."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and (close := nearest(args[0], known)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{close}'?")
        if _STARTED_BY_TORCHRUN in os.environ and args and args[0] not in _SEVERAL_PROCESSES:
            ctx.fail(f"rkit {args[0]} runs in one process. Start it without torchrun, which is for rkit train alone.")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            refuse_repeated_options(command)
        return name, command, rest

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run, and turn the errors that a user can meet into a message and an exit code."""
        try:
            return super().main(*args, standalone_mode=standalone_mode, **extra)  # type: ignore[call-overload]
        except (RetrievalkitError, OSError, KeyboardInterrupt) as error:
            if not standalone_mode:
                raise
            sys.exit(report(error))


def report(error: BaseException) -> int:
    """Say what went wrong on standard error; returns the exit code."""
    if isinstance(error, RetrievalkitError):
        click.echo(f"Error: {error}", err=True)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return 130
    assert isinstance(error, OSError)
    if isinstance(error, BrokenPipeError):
        return 1
    if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
        raise error
    place = f" ({error.filename})" if error.filename else ""
    click.echo(f"Error: cannot write: {error.strerror}{place}. Free some space or choose another --output.", err=True)
    return 1
