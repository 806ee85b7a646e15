"""Groups of commands: the nearest name for an unknown command, whole sentences in the help, errors without a traceback.

`RootGroup` is `rkit` itself: its commands in sections, and the commands of plugins, which are imported when used.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any

import click

from retrievalkit import registry
from retrievalkit.cli import signals
from retrievalkit.errors import InputError, RetrievalkitError, nearest
from retrievalkit.hookspecs import COMMAND_GROUPS
from retrievalkit.reporting.terminal import printable

_WITHOUT_FILE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE)
"""Errors of the machine, even where they name no file."""

_OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
"""Errors of what the user named."""


class RkitGroup(click.Group):
    """Offers the nearest command for an unknown one, and prints a user's mistake without a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown command is reported with the nearest one, or the distribution that brings it."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            if (path := f"{ctx.command_path} {name}".partition(" ")[2]) in registry.DISTRIBUTIONS:
                registry.component("command", path)
            close = nearest(name, self.list_commands(ctx))
            advice = f"Did you mean '{close}'?" if close else ""
            sentences = (f"No such command '{name}'.", advice, registry.default_registry().broken_plugins())
            ctx.fail(" ".join(filter(None, sentences)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands, each with its first sentence in full."""
        _write(formatter, "Commands", [(name, summary(one)) for name, one in sorted(self.commands.items())])

    def invoke(self, ctx: click.Context) -> Any:
        """As click does, but Ctrl-C goes to `main` as what click makes of it: it would print an empty line before."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError) as error:
            raise click.Abort from error

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run, and turn the errors that a user can cause into a message and an exit code."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)  # type: ignore[call-overload]
        # At the end of a process Python looks for garbage among all modules; after torch it takes half a second.
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)
        try:
            with signals.handled():
                # Not standalone, because click itself would report Ctrl-C as "Aborted!" with exit code 1.
                code = super().main(*args, standalone_mode=False, **extra)  # type: ignore[call-overload]
                # Here, because a failure that Python meets while it ends is not reported.
                sys.stdout.flush()
        except click.Abort as error:
            sys.exit(report(error.__cause__ or error))
        except click.ClickException as error:
            # click's own message, which quotes what the user typed.
            message = io.StringIO()
            error.show(message)
            click.echo(_shown(message.getvalue()), nl=False, err=True)
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, RetrievalkitError, OSError) as error:
            sys.exit(report(error))
        sys.exit(code if isinstance(code, int) else 0)


class RootGroup(RkitGroup):
    """The command `rkit`: its own commands by section, and those of plugins."""

    built_in: Mapping[str, tuple[str, str, str]] = {}
    """Name -> section of the help, where the command is ("module:name"), and one sentence about it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Built-in commands, then those of plugins."""
        return [*dict.fromkeys((*self.built_in, *self.commands, *registry.names("command")))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, which is imported here: `rkit --help` and other commands start without it."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name in self.built_in:
            module, _, attribute = self.built_in[cmd_name][1].partition(":")
            command = self.commands[cmd_name] = _derived(getattr(importlib.import_module(module), attribute))
            return command
        return _derived(registry.component("command", cmd_name).load()) if cmd_name in self.list_commands(ctx) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List all commands by section; those of plugins by the help text that they were registered with."""
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in COMMAND_GROUPS}
        for name, (section, _, text) in self.built_in.items():
            rows[section].append((name, text))
        problem = ""
        try:
            for name in registry.names("command"):
                found = registry.default_registry().candidates("command", name)
                owners = " and ".join(one.distribution for one in found)
                text = found[0].help if len(found) == 1 else f"Unusable: registered by both {owners}."
                rows[found[0].group].append((name, text))
        except RetrievalkitError as error:
            # Help must work, whatever the environment says about plugins.
            problem = str(error)
        for section, heading in COMMAND_GROUPS.items():
            _write(formatter, heading, rows[section])
        if problem:
            _write(formatter, "Plugins cannot be listed", [("", problem)])

    def with_all_commands(self) -> RootGroup:
        """The same group with all commands imported; without those of plugins that cannot be."""
        whole = RootGroup(self.name, callback=self.callback, params=self.params, context_settings=self.context_settings)
        whole.built_in, whole.commands = self.built_in, dict(self.commands)
        for name in self.list_commands(context := click.Context(self)):
            with contextlib.suppress(RetrievalkitError):
                if command := self.get_command(context, name):
                    whole.add_command(command, name)
        return whole


def _derived(command: Any) -> click.Command:
    """The click command of a declared one; one of click as it is."""
    if isinstance(command, click.Command):
        return command
    from retrievalkit.cli.derived import DerivedCommand

    return command if isinstance(command, click.Command) else DerivedCommand(command)


def summary(command: click.Command) -> str:
    """The first sentence of a command's help, in full."""
    paragraph = " ".join((command.help or "").partition("\n\n")[0].split())
    match = re.match(r"(.+?[.!?])(?= [A-Z]|$)", paragraph)
    return match[1] if match else paragraph


def _write(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)


def _shown(message: str) -> str:
    """A message as it is printed: an error's words, whoever raised it, which may quote names and texts of strangers."""
    from retrievalkit.storage import named

    return printable(str(InputError(named(message))), lines=True)


def report(error: BaseException) -> int:
    """Print an error to standard error; returns the exit code."""
    if isinstance(error, RetrievalkitError):
        click.echo(f"Error: {_shown(str(error))}", err=True)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | EOFError | click.Abort):
        number = error.number if isinstance(error, signals.Terminated) else signal.SIGINT
        how = "Interrupted" if number == signal.SIGINT else "Terminated"
        notes = getattr(error, "__notes__", None) or ["Interrupted."]
        # Of several processes, all of which a terminal interrupts, the main one says so.
        if os.environ.get("RANK", "0") == "0":
            # A terminal shows "^C" where the cursor is.
            start = "\n" if sys.stderr.isatty() else ""
            click.echo(start + _shown(notes[-1].replace("Interrupted", how, 1)), err=True)
        return 128 + number
    assert isinstance(error, OSError)
    if isinstance(error, BrokenPipeError):
        # Python would write the rest to the closed pipe when it ends.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if error.errno is None or (error.filename is None and error.errno not in _WITHOUT_FILE):
        raise error
    click.echo(f"Error: {_shown(_failure(error))}", err=True)
    from retrievalkit.storage import was_written

    of_input = error.errno in _OF_NAMES or (error.errno == errno.EIO and error.filename and not was_written(error))
    return InputError.exit_code if of_input else 1


def _failure(error: OSError) -> str:
    """What happened to a file, what is kept, and what to do."""
    from retrievalkit.storage import was_written

    place = f"'{error.filename}'" if error.filename else "standard output"
    kept = "".join(f" {note}" for note in getattr(error, "__notes__", [])[-1:])
    if not was_written(error):
        doing = "read" if error.filename and os.path.exists(str(error.filename)) else "open"
        return f"cannot {doing} {place}: {error.strerror}.{kept} Check that it is there and may be read."
    if error.errno == errno.EFBIG:
        limited = "it has reached the limit of a file's size"
        return f"cannot write {place}: {limited}.{kept} Raise the limit (ulimit -f) and run the same command again."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = "the disk is full" if error.errno == errno.ENOSPC else "your share of the disk is used up"
        return f"cannot write {place}: {full}.{kept} Free some space and run the same command again."
    return f"cannot write {place}: {error.strerror}.{kept} Make it writable, or choose another --output."
