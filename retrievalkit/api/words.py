"""Messages in the words of Python: programs speak of `--overwrite`, and a function takes `overwrite=True`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import click

from retrievalkit.cli.main import main
from retrievalkit.errors import RetrievalkitError

_OPTION = re.compile(
    # A command to type stays as it is, to the end of its sentence.
    r"(?P<typed>\brkit [a-z].*?(?:\. |$))"
    r"|--set (?P<key>[\w.]+)=(?P<value>[^\s,;)']*[^\s,;)'.])"
    r"|(?P<quote>['\"]?)--(?P<name>[a-z][a-z-]*)(?: (?P<placeholder>[A-Z]+)\b)?",
    re.DOTALL,
)


@contextmanager
def in_python() -> Iterator[None]:
    """Let errors of the block name options as Python does."""
    try:
        yield
    except RetrievalkitError as error:
        error.args = (reworded(str(error)),)
        raise


def reworded(message: str) -> str:
    """A message with `--name` as `name=...`, `name=True` for flags, and `--set a.b=1` as `set={"a.b": 1}`."""
    # At the end of a sentence three dots are enough.
    return _OPTION.sub(_reworded, message).replace("=....", "=...")


def _reworded(match: re.Match[str]) -> str:
    if match["typed"]:
        return match[0]
    if match["key"]:
        return f'set={{"{match["key"]}": {match["value"]}}}'
    name = match["name"].replace("-", "_")
    if name not in _flags():
        return match[0]
    if match["quote"]:
        return f"{match['quote']}{name}"
    return f"{name}=True" if _flags()[name] else f"{name}={match['placeholder'] or '...'}"


@cache
def _flags() -> dict[str, bool]:
    """The options of all commands -> whether they are flags."""
    return {
        word.removeprefix("--").replace("-", "_"): bool(getattr(option, "is_flag", False))
        for command in _commands(main)
        for option in command.params
        for word in option.opts
        if word.startswith("--")
    }


def _commands(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        if isinstance(command, click.Group):
            yield from _commands(command)
        else:
            yield command
