"""The group of commands: offers the nearest name, and prints a user's mistake without a traceback."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

from retrievalkit.errors import RetrievalkitError, nearest

_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"


_SEVERAL_PROCESSES = ("train", "pretrain", "rerank train")


class RkitGroup(click.Group):
    """Offers the nearest command for an unknown one, and prints a user's mistake without a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the nearest name."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-") and (close := nearest(args[0], known)):
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{close}'?")
        if _STARTED_BY_TORCHRUN in os.environ and args:
            _check_several_processes(ctx, args[0])
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run, and turn the errors that a user can meet into a message and an exit code."""
        try:
            return super().main(*args, standalone_mode=standalone_mode, **extra)  # type: ignore[call-overload]
        except (RetrievalkitError, OSError, KeyboardInterrupt) as error:
            if not standalone_mode:
                raise
            sys.exit(report(error))


def _check_several_processes(ctx: click.Context, name: str) -> None:
    """Refuse a command that torchrun started and that knows nothing of several processes."""
    above: list[str] = []
    context: click.Context | None = ctx
    while context is not None and context.parent is not None:
        above.insert(0, str(context.info_name))
        context = context.parent
    command = " ".join([*above, name])
    if not any(f"{one} ".startswith(f"{command} ") for one in _SEVERAL_PROCESSES):
        known = ", ".join(f"rkit {one}" for one in _SEVERAL_PROCESSES)
        ctx.fail(f"rkit {command} runs in one process. Start it without torchrun, which is for {known}.")


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
