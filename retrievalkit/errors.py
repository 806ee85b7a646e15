"""Errors that a user can cause. The command line prints them without a traceback; every other exception is a bug.

A message has three parts: the problem (with the value, and for data the file and line), the known alternatives (names,
nearest match), and the remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable


class RetrievalkitError(Exception):
    """A failure that a user can understand. Exit code 1."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the message without passwords in addresses, and with long values shortened."""
        message = re.sub(r"(://)[^/\s@'\"]+@", r"\1***@", super().__str__())
        # A quotation mark after a letter is an apostrophe, or ends a value.
        values = r"""(?<!\w)'[^']*'|(?<!\w)"[^"]*"|[^\s'"]+"""
        message = re.sub(values, lambda value: _shortened(value[0], 300), message)
        return _shortened(message, 2_000)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most * 2 // 3]} ... {text[-most // 3 :]}"


class InputError(RetrievalkitError):
    """Wrong usage or bad input; nothing was done. Exit code 2."""

    exit_code = 2


class DataError(InputError):
    """A data file with invalid contents; names the file and the line (counted from 1)."""

    def __init__(self, problem: str, *, file: object = None, line: int | None = None) -> None:
        unit = getattr(file, "_unit", None)  # for data in memory
        numbered = f"{unit} {line} of {file}" if unit else f"{file}:{line}"
        place = "" if file is None else f"{file}: " if line is None else f"{numbered}: "
        super().__init__(place + problem)
        self.file = file
        self.line = line


class UnknownNameError(InputError):
    """A name that is not registered or not in the data; suggests the nearest known name."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        known = sorted(known)
        close = nearest(name, known)
        message = f"unknown {kind} '{name}'" + (f"; did you mean '{close}'?" if close else ".")
        if known:
            message += f" Known: {shortlist(known)}."
        super().__init__(f"{message} {hint}".rstrip())
        self.kind = kind
        self.name = name


class OptionError(InputError):
    """An option that a component lacks, or a value of the wrong type."""


class ArtifactError(InputError):
    """A folder that is missing, of the wrong kind, damaged, or does not match another folder."""


class PluginError(InputError):
    """A plugin that breaks the contract; names the plugin and the problem."""


class UnsupportedError(InputError):
    """Incompatible parts, such as a pooler that needs a layer which the encoder lacks."""


class LengthError(UnsupportedError):
    """A length that a model does not support; programs can substitute their own name of the option."""

    def __init__(self, option: str, length: int, model: str, least: int, most: int) -> None:
        do = f"Use --set {option}=N" if "." in option else f"Set --{option.replace('_', '-')}"
        super().__init__(f"{option} is {length}, and '{model}' takes {least} to {most} tokens. {do}.")
        self.option = option
        self.values = (length, model, least, most)

    def of_option(self, option: str) -> LengthError:
        """Return the same error with another name of the option."""
        return LengthError(option, *self.values)


class MissingDependencyError(InputError):
    """A required package that is not installed."""

    def __init__(self, package: str, needed_for: str, install: str | None = None) -> None:
        super().__init__(f"{needed_for} needs the package '{package}'. Install it: pip install {install or package}")
        self.package = package


def check_choice(kind: str, name: str, known: Collection[str]) -> None:
    """Refuse an unknown name.

    Raises:
        UnknownNameError: The name is unknown; lists the known names.
    """
    if name not in known:
        raise UnknownNameError(kind, name, known)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, or None."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def shortlist(names: Iterable[str], limit: int = 12) -> str:
    """Return the names on a single line, cut after `limit` with a count of the rest."""
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
