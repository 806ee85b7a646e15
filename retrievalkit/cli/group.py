"""Command groups: suggestions for unknown commands, complete sentences in the help, user errors without a traceback.

`RootGroup` is `rkit` itself: its commands in sections, and the commands of plugins, imported lazily.
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
from pathlib import Path
from typing import Any

import click

from retrievalkit import registry
from retrievalkit.cli import signals
from retrievalkit.errors import InputError, RetrievalkitError, nearest
from retrievalkit.hookspecs import COMMAND_GROUPS
from retrievalkit.registry.modules import module_spec
from retrievalkit.reporting.terminal import printable

_WITHOUT_FILE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE)
"""Errors of the machine, even if they name no file."""

_OF_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR)
"""Errors of a path that the user named."""

_SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)(?<!vs)(?<!et al)[.!?])(?=\s|$)")


class RkitGroup(click.Group):
    """A command group that suggests the nearest command for an unknown name, and prints user errors briefly."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; an unknown command is reported with the nearest name, or the distribution that has it."""
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
        """List the commands, each with its complete first sentence."""
        _write(formatter, "Commands", [(name, summary(command)) for name, command in sorted(self.commands.items())])

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command, turning Ctrl-C into `click.Abort` here, since click would print an empty line first."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, EOFError) as error:
            raise click.Abort from error

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run the command, and turn user errors into a message and an exit code."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)  # type: ignore[call-overload]
        # At exit, Python collects garbage in all modules, which takes half a second if torch is loaded.
        atexit.unregister(gc.freeze)
        atexit.register(gc.freeze)
        try:
            with signals.handled():
                # Not standalone, because click would report Ctrl-C as "Aborted!" with exit code 1.
                code = super().main(*args, standalone_mode=False, **extra)  # type: ignore[call-overload]
                # Python does not report a failure during its exit.
                sys.stdout.flush()
        except click.Abort as error:
            sys.exit(report(error.__cause__ or error))
        except click.ClickException as error:
            # click's message quotes the user's input.
            message = io.StringIO()
            error.show(message)
            click.echo(_shown(message.getvalue()), nl=False, err=True)
            sys.exit(error.exit_code)
        except (KeyboardInterrupt, RetrievalkitError, OSError) as error:
            sys.exit(report(error))
        sys.exit(code if isinstance(code, int) else 0)


class RootGroup(RkitGroup):
    """The command `rkit`: built-in commands by section, and commands of plugins."""

    built_in: Mapping[str, tuple[str, str]] = {}
    """Name -> section of the help, and import path of the command ("module:name")."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """Return built-in commands, then commands of plugins."""
        return [*dict.fromkeys((*self.built_in, *self.commands, *registry.names("command")))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; `rkit --help` and other commands start without importing it."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name in self.built_in:
            module, _, attribute = self.built_in[cmd_name][1].partition(":")
            command = self.commands[cmd_name] = _derived(getattr(importlib.import_module(module), attribute))
            return command
        return _derived(registry.component("command", cmd_name).load()) if cmd_name in self.list_commands(ctx) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List all commands by section; plugin commands with the help text of their registration."""
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in COMMAND_GROUPS}
        for name, (section, target) in self.built_in.items():
            rows[section].append((name, _summary_in_source(target)))
        problem = ""
        try:
            for name in registry.names("command"):
                candidates = registry.default_registry().candidates("command", name)
                owners = " and ".join(owner.distribution for owner in candidates)
                text = candidates[0].help if len(candidates) == 1 else f"Unusable: registered by both {owners}."
                rows[candidates[0].group].append((name, text))
        except RetrievalkitError as error:
            # The help must work even if plugins cannot be listed.
            problem = str(error)
        for section, heading in COMMAND_GROUPS.items():
            _write(formatter, heading, rows[section])
        if problem:
            _write(formatter, "Plugins cannot be listed", [("", problem)])

    def with_all_commands(self) -> RootGroup:
        """Return the same group with all commands imported, without broken commands of plugins."""
        whole = RootGroup(self.name, callback=self.callback, params=self.params, context_settings=self.context_settings)
        whole.built_in, whole.commands = self.built_in, dict(self.commands)
        for name in self.list_commands(context := click.Context(self)):
            with contextlib.suppress(RetrievalkitError):
                if command := self.get_command(context, name):
                    whole.add_command(command, name)
        return whole


def _derived(command: Any) -> click.Command:
    """Return the click command of a declared command; a click command is returned unchanged."""
    if isinstance(command, click.Command):
        return command
    from retrievalkit.cli.derived import DerivedCommand

    return DerivedCommand(command)


def summary(command: click.Command) -> str:
    """Return the complete first sentence of a command's help."""
    return first_sentence(command.help or "")


def _summary_in_source(target: str) -> str:
    """Return the first sentence of a built-in command's docstring, without importing the command."""
    module, _, name = target.partition(":")
    spec = module_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    docstring = re.search(rf'^def {name}\(.*?"""(.*?)"""', source, re.DOTALL | re.MULTILINE)
    return first_sentence(docstring[1]) if docstring else ""


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    return match[1] if match else paragraph


def _write(formatter: click.HelpFormatter, heading: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows)


def _shown(message: str) -> str:
    """Return an error message safe to print: it may quote untrusted names and texts."""
    from retrievalkit.storage import named

    return printable(str(InputError(named(message))), lines=True)


def report(error: BaseException) -> int:
    """Print an error to standard error, and return the exit code."""
    if isinstance(error, RetrievalkitError):
        click.echo(f"Error: {_shown(str(error))}", err=True)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | EOFError | click.Abort):
        number = error.number if isinstance(error, signals.Terminated) else signal.SIGINT
        how = "Interrupted" if number == signal.SIGINT else "Terminated"
        notes = getattr(error, "__notes__", None) or ["Interrupted."]
        # A terminal interrupts all processes of a training; only the main process reports it.
        if os.environ.get("RANK", "0") == "0":
            # A terminal shows "^C" at the cursor.
            start = "\n" if sys.stderr.isatty() else ""
            click.echo(start + _shown(notes[-1].replace("Interrupted", how, 1)), err=True)
        return 128 + number
    assert isinstance(error, OSError)
    if isinstance(error, BrokenPipeError):
        # Python would write the rest to the closed pipe at exit.
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
    """Describe a failed file operation: the failure, the kept outputs, and the remedy."""
    from retrievalkit.storage import was_written

    place = f"'{error.filename}'" if error.filename else "standard output"
    note = "".join(f" {text}" for text in getattr(error, "__notes__", [])[-1:])
    if not was_written(error):
        doing = "read" if error.filename and os.path.exists(str(error.filename)) else "open"
        return f"cannot {doing} {place}: {error.strerror}.{note} Check that it exists and is readable."
    if error.errno == errno.EFBIG:
        limited = "it has reached the limit of a file's size"
        return f"cannot write {place}: {limited}.{note} Raise the limit (ulimit -f) and run the same command again."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = "the disk is full" if error.errno == errno.ENOSPC else "your share of the disk is used up"
        return f"cannot write {place}: {full}.{note} Free some space and run the same command again."
    return f"cannot write {place}: {error.strerror}.{note} Make it writable, or choose another --output."
