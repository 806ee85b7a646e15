"""Untrusted files: regular files are read within limits; JSON is parsed within limits and validated against a form.

A form is a type: a pydantic model, a dataclass, `list[str]` ... Entries that a form lacks are allowed, because a later
version may have added them. Values are not converted: "3" is not a number.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import stat
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from retrievalkit.errors import ArtifactError
from retrievalkit.storage.opened import HeldFile

MOST_BYTES = 1 << 26
"""Size limit of a document: a manifest of 100,000 files takes a quarter of it."""

_SHOWN = 60

Form = TypeVar("Form")


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a regular file for reading; a pipe or a device, which may never end, is an OSError without waiting."""
    if isinstance(path, HeldFile) and path.is_held:
        return cast("IO[bytes]", path.open("rb"))
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def holds(path: str | Path, text: str) -> bool:
    """True if a file consists of exactly this text."""
    expected = text.encode()
    with suppress(OSError), open_regular(path) as stream:
        return stream.read(len(expected) + 1) == expected
    return False


def loads_json(text: str | bytes, *, nan: bool = False) -> Any:
    """Parse a JSON text; NaN and infinities are refused, unless `nan` allows them, as in our own logs.

    Raises:
        ValueError: The text is not JSON, not UTF-8, nested too deeply, or has a value that Python cannot hold.
    """
    import pydantic_core

    value = pydantic_core.from_json(text, allow_inf_nan=nan)
    if not nan:
        json.dumps(value, allow_nan=False)  # the parser reads 1e400 as an infinity
    return value


def json_problem(error: Exception) -> str:
    """Phrase the reason why Python's JSON parser refused a text."""
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    if "set_int_max_str_digits" in str(error):
        return "a whole number in it has thousands of digits"
    return str(error)


def read_document(path: str | Path, form: type[Form], *, do: str, most: int = MOST_BYTES, nan: bool = False) -> Form:
    """Read a JSON file of at most `most` bytes as an object of the form.

    `do` is a sentence that states the remedy for a damaged file; for `nan`, see `loads_json`.
    """
    return check_document(read_json(path, do=do, most=most, nan=nan), form, file=path, do=do)


def read_json(path: str | Path, form: Any = None, *, do: str, most: int = MOST_BYTES, nan: bool = False) -> Any:
    """Read a JSON file without conversion; see `read_document`."""
    value, problem = None, ""
    try:
        with open_regular(path) as stream:
            if os.fstat(stream.fileno()).st_size > most:
                problem = f"cannot be read (it has more than {most:,} bytes)"
            else:
                value = loads_json(stream.read(most), nan=nan)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except ValueError as error:
        problem = f"is not valid JSON ({error})"
    if problem:
        msg = f"'{path}' {problem}. {do}"
        raise ArtifactError(msg)
    if form is not None:
        check_document(value, form, file=path, do=do)
    return value


def check_document(value: Any, form: type[Form], *, file: str | Path, do: str) -> Form:
    """Validate a value read from a file against its form."""
    import pydantic

    try:
        # As JSON: only from JSON does strict pydantic accept lists for tuples and objects for dataclasses.
        checked: Form = _adapter(cast("Hashable", form)).validate_json(json.dumps(value), strict=True)
        return checked
    except pydantic.ValidationError as error:
        problem = _problem(error.errors(include_url=False)[0])
    msg = f"'{file}' is damaged: {problem}. {do}"
    raise ArtifactError(msg)


@functools.cache
def _adapter(form: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(form)


def _problem(error: Any) -> str:
    """Describe an error: its place, the value there, and the expected form."""
    place, value, expected = list(error["loc"]), error["input"], error["msg"]
    if error["type"] == "missing":
        return f"{_place(place)} is missing"
    if place[-1:] == ["[key]"]:
        subject = f"the name {_shown(value)}" + (f" in {_place(place[:-2])}" if place[:-2] else "")
    else:
        subject = f"{_place(place) if place else 'it'} is {_shown(value)}, but"
    expected = re.sub(r"^(Value error, |\w+ (?=should ))", "", expected)
    return f"{subject} {expected[:1].lower()}{expected[1:]}".rstrip(".")


def _place(keys: list[str | int]) -> str:
    # repr escapes characters that would control a terminal, as keys are untrusted.
    return ".".join(repr(str(key))[1:-1][:_SHOWN] for key in keys)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
