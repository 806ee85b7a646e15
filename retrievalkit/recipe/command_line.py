"""The command line of a recipe's step: its options as words, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from retrievalkit.errors import nearest
from retrievalkit.recipe.settings import flatten
from retrievalkit.recipe.step import Step


def command_line(
    step: Step, command: click.Command, options: Mapping[str, Any], output: Path | None = None
) -> tuple[str, ...]:
    """The words that set a command's options, and its output if it has a parameter for it.

    Raises:
        DataError: The command lacks such an option, a required one is missing, or a value has the wrong type.
    """
    context = click.Context(command, info_name=f"rkit {step.command}")
    known = _parameters(command)
    arguments: dict[str, list[str]] = {}
    words: list[str] = []
    given = set()
    for name, value in options.items():
        if name not in known or known[name].name in ("output", "overwrite", "resume"):
            raise _unknown_option(step, name, sorted(known))
        if value is None:
            continue
        parameter = known[name]
        given.add(parameter.name)
        if isinstance(parameter, click.Argument):
            arguments[str(parameter.name)] = _values(parameter, value)
            _check_no_option(step, name, arguments[str(parameter.name)])
        else:
            assert isinstance(parameter, click.Option)
            words += _option_words(step, name, parameter, value)
        _check_type(step, name, parameter, value, context)
    for parameter in command.params:
        if parameter.name == "output" and output is not None:
            if isinstance(parameter, click.Argument):
                arguments["output"] = [str(output)]
            else:
                words += ["--output", str(output)]
        elif parameter.required and parameter.name not in given:
            where = "next to" if parameter.name == "output" else "under"
            msg = f"rkit {step.command} needs '{_shown(parameter)}'. Add it {where} 'with'."
            raise step.error(msg)
    in_order = [word for parameter in command.params for word in arguments.get(str(parameter.name), [])]
    return (*step.command.split(), *in_order, *words)


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    """A command's parameters by their names in recipes: long options and arguments, with underscores."""
    parameters: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            parameters[str(parameter.name)] = parameter
        for word in (*parameter.opts, *parameter.secondary_opts):
            if word.startswith("--"):
                parameters[word.removeprefix("--").replace("-", "_")] = parameter
    return parameters


def has(command: click.Command, name: str) -> bool:
    """Whether a command has a parameter of that name."""
    return any(parameter.name == name for parameter in command.params)


def _option_words(step: Step, name: str, option: click.Option, value: Any) -> list[str]:
    word = next(word for word in (*option.opts, *option.secondary_opts) if _plain(word) == name)
    if name == "set":
        if not isinstance(value, Mapping):
            msg = f"'set' is {value!r}, and should be a mapping, such as {{pooler.layers: [4, 6]}}."
            raise step.error(msg, name)
        return [part for key, inner in flatten(value).items() for part in (word, f"{key}={_setting(inner)}")]
    if option.is_flag:
        if not isinstance(value, bool):
            msg = f"'{name}' is {value!r}, and should be true or false."
            raise step.error(msg, name)
        if value:
            return [word]
        opposite = option.secondary_opts if word in option.opts else option.opts
        return [opposite[0]] if opposite and option.secondary_opts else []
    return [part for text in _values(option, value) for part in (word, text)]


def _values(parameter: click.Parameter, value: Any) -> list[str]:
    several = parameter.nargs == -1 or getattr(parameter, "multiple", False)
    if isinstance(value, list) and several:
        return [_setting(element) for element in value]
    return [_setting(value)]


def _setting(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, list | tuple):
        return ",".join(map(_setting, value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _check_no_option(step: Step, name: str, values: Sequence[str]) -> None:
    """Refuse an argument that would be read as an option, such as an --output outside of the run's folder."""
    for value in values:
        if value.startswith("-"):
            msg = f"'{name}' is '{value}', which the command would read as an option. Put ./ in front of a file's name."
            raise step.error(msg, name)


def _check_type(step: Step, name: str, parameter: click.Parameter, value: Any, context: click.Context) -> None:
    # A path may be the output of an earlier step, which is not there yet.
    if name == "set" or isinstance(parameter.type, click.Path | click.File):
        return
    try:
        for word in [value] if isinstance(value, bool) else _values(parameter, value):
            parameter.type.convert(word, parameter, context)
    except click.BadParameter as error:
        msg = f"'{name}': {error.message}"
        raise step.error(msg, name) from None


def _unknown_option(step: Step, name: str, known: Sequence[str]) -> Exception:
    if name == "output":
        return step.error("'output' belongs next to 'with', not under it.", name)
    close = nearest(name, known)
    offer = f"did you mean '{close}'?" if close else f"it has {', '.join(known)}."
    return step.error(f"rkit {step.command} has no option '{name}' in a recipe; {offer}", name)


def _shown(parameter: click.Parameter) -> str:
    return str(parameter.name) if isinstance(parameter, click.Argument) else _plain(parameter.opts[0])


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_")
