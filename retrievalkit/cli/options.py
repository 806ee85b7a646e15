"""Options that several commands share, and how `--set` and flags become options of components."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from retrievalkit import oddities
from retrievalkit.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")
Settings = dict[str, Any]

_NO_PLACES = ("output", "settings", "query", "delete", "ray", "directory")
_SENDS = "sends_to_stores"
CALLED = "retrievalkit.called"
"""Key of a context's meta: a Python program called the command."""


class Registered(click.ParamType):  # type: ignore[type-arg]
    """The name of a registered component, with options as in "NAME(option=value)"."""

    name = "name"

    def __init__(self, kind: str, shown: str) -> None:
        self.kind = kind
        self.shown = shown

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """The names to show in the help, which asks no plugin."""
        del param, ctx
        return self.shown

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, if the name is registered."""
        from retrievalkit import registry

        try:
            registry.component(self.kind, registry.read_call(str(value))[0])
        except InputError as error:
            self.fail(str(error), param, ctx)
        return str(value)


FUSION = Registered("fusion", "[rrf|sum|linear|...]")
"""What `--fusion` takes."""


def set_option(function: Function) -> Function:
    """`--set KEY=VALUE`, repeatable: any option by its key."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any option by its key, such as pooler.layers=4,6.",
    )(function)


def overwrite_option(function: Function) -> Function:
    """`--overwrite`: replace an output folder."""
    return click.option("--overwrite", is_flag=True, help="Replace an existing output folder.")(function)


def output_option(function: Function) -> Function:
    """`--output`, required, which no other process may write meanwhile."""
    return click.option("--output", "-o", required=True, type=click.Path(), help="Where to write.")(reserved(function))


def reserved(function: Function) -> Function:
    """Keep other processes from writing the output of a command from its start to its end.

    What the command says of an output to /dev/stdout goes to standard error. An output in a store is sent at the end.
    """

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        from retrievalkit import artifacts
        from retrievalkit.artifacts.places import descriptor

        output = options.get("output")
        if output is None:
            return function(*args, **options)
        with contextlib.ExitStack() as stack:
            if artifacts.is_address(output):
                overwrite = bool(options.get("overwrite"))
                options["output"] = output = str(stack.enter_context(artifacts.sent(output, overwrite=overwrite)))
            stack.enter_context(artifacts.held(output))
            if descriptor(output) == 1:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            else:
                artifacts.restore(output)
            return function(*args, **options)

    return sends_to_stores(cast("Function", run))


def sends_to_stores(function: Function) -> Function:
    """Mark the function of a command that sends an output in a store there."""
    function.__dict__[_SENDS] = True
    return function


def check_sent(values: Settings, callback: object = None) -> None:
    """Refuse an output in a store of what does not send it there.

    Args:
        values: The arguments and options of a command.
        callback: What writes the output; None = a program of ours.

    Raises:
        ArtifactError: It would become a folder of that name.
    """
    output = values.get("output")
    if isinstance(output, str) and "://" in output and not getattr(callback, _SENDS, False):
        from retrievalkit.artifacts import place_of

        place_of(output)


def json_option(function: Function) -> Function:
    """`--json`: a machine-readable result on standard output."""
    return click.option("--json", "as_json", is_flag=True, help="Print a machine-readable result.")(function)


def verify_option(function: Function) -> Function:
    """`--verify`: read all bytes of the folders that the command opens."""
    text = "Compare all files of the folders that are opened with their checksums, not only those modified since."

    def apply(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        from retrievalkit.artifacts import verifying

        del parameter
        if value:
            context.with_resource(verifying())

    return click.option("--verify", is_flag=True, expose_value=False, callback=apply, help=text)(function)


def strict_option(function: Function) -> Function:
    """`--strict`: notes become errors. A command with it shows its notes at its end."""

    @functools.wraps(function)
    def collecting(*arguments: Any, strict: bool, **options: Any) -> Any:
        with oddities.collected(strict=strict):
            return function(*arguments, **options)

    text = "Take what a note would tell (cut texts, queries without judgements ...) for an error."
    return click.option("--strict", is_flag=True, help=text)(collecting)  # type: ignore[return-value]


class _Formats(click.Choice[str]):
    """Number formats; int8, which only the encoding of texts knows, is refused with the reason if it is not one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "int8" and value not in self.choices:
            self.fail(f"int8 is for the encoding of texts alone. Use one of {', '.join(self.choices)}.", param, ctx)
        return super().convert(value, param, ctx)


def precision_option(
    purpose: str, default: str, *, unset: bool = False, encodes: bool = True
) -> Callable[[Function], Function]:
    """`--precision`, for every command that encodes.

    Args:
        purpose: What is done in that number format, for the help.
        default: The precision that the command takes.
        unset: The value is None where the option is not given, for commands that have to know; the program then
            takes the default.
        encodes: Whether texts are encoded in it, so that it may be int8.
    """
    formats = ["auto", "fp32", "bf16", "fp16", *(["int8"] if encodes else [])]
    told = f"Number format that {purpose}; auto is bf16 if the hardware multiplies in it, else fp32."
    told += " int8 is for processors without bf16: faster than fp32, and less exact." if encodes else ""
    return click.option(
        "--precision",
        type=_Formats(formats),
        default=None if unset else default,
        show_default=default if unset else True,
        help=told,
    )


def parse(settings: tuple[str, ...]) -> Settings:
    """The values of `--set`, nested by their dots."""
    from retrievalkit.recipe.settings import parse_set

    return parse_set(settings)


def section(settings: Settings, name: str) -> Settings:
    """Remove one section ("pooler") from the values of `--set`, and return it."""
    section = settings.pop(name, {})
    if not isinstance(section, dict):
        msg = f"--set {name}={section} sets no option. Name the {name} by --{name}, an option by {name}.OPTION=VALUE."
        raise InputError(msg)
    return section


def given_flags(flags: Settings) -> Settings:
    """The flags that the user set."""
    return {name: value for name, value in flags.items() if value is not None}


def refuse(settings: Settings, command: str, sections: str) -> None:
    """Refuse the remaining values of `--set`, which the command does not use."""
    if settings:
        msg = f"rkit {command} has no option '{next(iter(settings))}'. --set takes {sections} here."
        raise InputError(msg)


def echo(as_json: bool, result: Result, line: str) -> Result:
    """Print a result, as JSON or as one line, and return it; a Python program that calls the command only gets it."""
    if not is_called():
        from retrievalkit.artifacts import named
        from retrievalkit.report.terminal import say

        say(named(json.dumps(result, indent=2, default=str) if as_json else line))
    return result


def fetched(values: Settings) -> Settings:
    """The arguments and options of a command with copies of what is in a store; its output stays an address.

    Raises:
        InputError: A store, or what is there, cannot be read.
    """

    def copied(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(copied(name, one) for one in value)
        if name in _NO_PLACES or not isinstance(value, str) or "://" not in value:
            return value
        from retrievalkit import artifacts

        return str(artifacts.local(value)) if artifacts.is_address(value) else value

    return {name: copied(name, value) for name, value in values.items()}


def is_called() -> bool:
    """Whether the command was called by a Python program (`retrievalkit.api`), which wants its result, not prints."""
    context = click.get_current_context(silent=True)
    return context is not None and CALLED in context.meta
