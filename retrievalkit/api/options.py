"""The options of a click command as those of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from retrievalkit.api.command import command, command_named, parameters_of

Function = TypeVar("Function", bound=Callable[..., Any])


def call(name: str, given: Mapping[str, Any]) -> Any:
    """Run a command."""
    return command(name, **given)


def options_of(name: str, *, without: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Give a function with `**options` the signature and the documentation of a command's options.

    Args:
        name: The command.
        without: Options that are arguments of the function, or have no meaning for it.
    """

    def document(function: Function) -> Function:
        shown_by = command_named(name)
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        named = {one.name for one in own} | set(without)
        shown = {key: one for key, one in parameters_of(shown_by).items() if key not in named}
        options = [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None) for key in shown]
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        lines = [_described(key, one) for key, one in shown.items()]
        function.__doc__ = "\n".join(
            [inspect.cleandoc(function.__doc__ or ""), "", f"Options of `rkit {name}`:", *lines, ""]
        )
        return function

    return document


def _described(name: str, parameter: click.Parameter) -> str:
    default = getattr(parameter, "show_default", None)
    if default is True:
        default = parameter.default
    known = f" [{', '.join(map(str, parameter.type.choices))}]" if isinstance(parameter.type, click.Choice) else ""
    text = " ".join((getattr(parameter, "help", None) or "").split())
    shown = f" (default {default})" if isinstance(default, str | int | float) and default is not True else ""
    return f"    {name}:{known} {text}{shown}".rstrip()
