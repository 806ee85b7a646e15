"""Keyword arguments as options of a command, checked by the declarations of the command line, and commands called."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from retrievalkit import oddities
from retrievalkit.api.words import in_python
from retrievalkit.cli.kinds import explained
from retrievalkit.cli.main import main
from retrievalkit.cli.options import CALLED, check_sent, fetched
from retrievalkit.data.sources import InMemory
from retrievalkit.errors import OptionError, UnknownNameError, nearest, shortlist
from retrievalkit.recipe.settings import flatten

Function = TypeVar("Function", bound=Callable[..., Any])

_FOR_TERMINALS = ("as_json", "interactive", "help_all", "help")


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


def command_names(group: click.Group = main) -> list[str]:
    """The words of all commands, those of plugins included."""
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


def call(name: str, given: Mapping[str, Any]) -> Any:
    """Run a command, and return its result in place of printing it.

    Args:
        name: The command's words, such as "rerank train".
        given: Its arguments and options by their names; None = not given.

    Raises:
        OptionError: An option is unknown, is missing, or has a value of another type.
        RetrievalkitError: The command failed.
    """
    with _context(name, given) as context:
        return context.command.invoke(context)


@contextmanager
def settled(name: str, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The values of a command's options by the names that its program uses, defaults included; see `call`.

    `verify` and `strict` hold for the block.
    """
    with _context(name, given) as context:
        values = dict(context.params)
        check_sent(values)
        with oddities.collected(strict=bool(values.pop("strict", False))):
            yield values


@contextmanager
def _context(name: str, given: Mapping[str, Any]) -> Iterator[click.Context]:
    command = command_named(name)
    parent = click.Context(main, info_name="rkit")
    parent.meta[CALLED] = True
    with in_python(), _click_errors(name, command):
        words = _words_of(name, command, given)
        context = command.make_context(name, list(words), parent=parent)
        _restore(context, words)
        context.params = fetched(context.params)
        # Its resources, such as --verify, are given back at the end.
        with context, explained(context, context.params):
            yield context


@contextmanager
def _click_errors(name: str, command: click.Command) -> Iterator[None]:
    """Turn exceptions of click into ours."""
    try:
        yield
    except click.Abort as error:
        raise error.__cause__ or KeyboardInterrupt from error
    except click.MissingParameter as error:
        keywords = [keyword for keyword, one in parameters_of(command).items() if one is error.param]
        missing = " or ".join(keywords) or str(error.param_hint)
        msg = f"{name} needs '{missing}', and it was not given."
        raise OptionError(msg) from None
    except click.ClickException as error:
        raise OptionError(error.format_message()) from None


def _restore(context: click.Context, words: Sequence[str]) -> None:
    """Put addresses in memory back, of which click makes plain text."""
    held: dict[str, str] = {word: word for word in words if isinstance(word, InMemory)}
    for name, value in context.params.items():
        if isinstance(value, str):
            context.params[name] = held.get(value, value)
        elif isinstance(value, tuple):
            context.params[name] = tuple(held.get(one, one) for one in value)


def _words_of(name: str, command: click.Command, given: Mapping[str, Any]) -> list[str]:
    """The command line of some options."""
    known = parameters_of(command)
    options: list[str] = []
    arguments: dict[str, list[str]] = {}
    for keyword, value in given.items():
        if keyword not in known:
            raise _unknown(name, keyword, list(known))
        if value is None:
            continue
        parameter = known[keyword]
        if isinstance(parameter, click.Argument):
            arguments[str(parameter.name)] = _values(parameter, value)
        else:
            assert isinstance(parameter, click.Option)
            options += _option(keyword, parameter, value)
    in_order = [word for parameter in command.params for word in arguments.get(str(parameter.name), [])]
    return [*options, "--", *in_order]


def _unknown(name: str, keyword: str, known: Sequence[str]) -> OptionError:
    close = nearest(keyword, known)
    offer = f"; did you mean '{close}'?" if close else "."
    more = " Options of its parts go into set={'pooler.layers': [4, 6]}." if "set" in known else ""
    msg = f"{name} has no option '{keyword}'{offer} Its options: {shortlist(known, 30)}.{more}"
    return OptionError(msg)


def _option(keyword: str, option: click.Option, value: Any) -> list[str]:
    flag = next(word for word in option.opts if word.startswith("--"))
    if keyword == "set":
        return [word for setting in _settings(value) for word in (flag, setting)]
    if not option.is_flag:
        return [word for one in _values(option, value) for word in (flag, one)]
    if not isinstance(value, bool):
        msg = f"'{keyword}' is {value!r}, and should be True or False."
        raise OptionError(msg)
    return [flag] if value else list(option.secondary_opts[:1])


def _values(parameter: click.Parameter, value: Any) -> list[str]:
    """A value as words: one for each element where a parameter takes several, else one with commas between them."""
    if not isinstance(value, list | tuple):
        return [_word(value)]
    words = [_word(one) for one in value]
    return words if parameter.nargs == -1 or getattr(parameter, "multiple", False) else [",".join(words)]


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _settings(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        msg = f"'set' is {value!r}, and should be a dict, such as {{'pooler.layers': [4, 6]}}."
        raise OptionError(msg)
    return [f"{key}={json.dumps(one, default=str)}" for key, one in flatten(value).items()]


def options_of(name: str, *, without: Sequence[str] = ()) -> Callable[[Function], Function]:
    """Give a function with `**options` the signature and the documentation of a command's options.

    Args:
        name: The command.
        without: Options that are arguments of the function, or have no meaning for it.
    """

    def document(function: Function) -> Function:
        command = command_named(name)
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        named = {one.name for one in own} | set(without)
        shown = {key: one for key, one in parameters_of(command).items() if key not in named}
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
