"""JSON files that a stranger may have written: read and parsed within bounds, and checked against a form.

A form is a type: a pydantic model, a dataclass, `list[str]` ... Entries that a form does not name are allowed, since a
later version may have added them. Values are not converted: "3" is no number.
"""

from __future__ import annotations

import functools
import json
import re
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar, cast

from retrievalkit.errors import ArtifactError

MOST_BYTES = 1 << 26
"""Of a document: a manifest that lists 100,000 files has a quarter of it."""

_SHOWN = 60

Form = TypeVar("Form")


def loads_json(text: str | bytes, *, nan: bool = False) -> Any:
    """The value of a JSON text; NaN and infinities are refused, unless `nan` allows them, as in our own logs.

    Raises:
        ValueError: It is not JSON, not UTF-8, nested too deeply, or holds a number or a text that Python cannot.
    """
    import pydantic_core

    value = pydantic_core.from_json(text, allow_inf_nan=nan)
    if not nan:
        json.dumps(value, allow_nan=False)  # the parser reads 1e400 as an infinity
    return value


def json_problem(error: Exception) -> str:
    """What is wrong with a text that Python's JSON parser refused, as a phrase."""
    if isinstance(error, RecursionError):
        return "its values are nested too deeply"
    if "set_int_max_str_digits" in str(error):
        return "a whole number in it has thousands of digits"
    return str(error)


def read_document(path: str | Path, form: type[Form], *, do: str, most: int = MOST_BYTES, nan: bool = False) -> Form:
    """The content of a JSON file of at most `most` bytes, as an object of the form.

    `do` is a sentence on what the user can do about a damaged file; for `nan` see `loads_json`.
    """
    return check_document(read_json(path, do=do, most=most, nan=nan), form, file=path, do=do)


def read_json(path: str | Path, form: Any = None, *, do: str, most: int = MOST_BYTES, nan: bool = False) -> Any:
    """The content of a JSON file as it is; see `read_document`."""
    value, problem, place = None, "", Path(path)
    try:
        if stat.S_ISREG(place.stat().st_mode):
            with place.open("rb") as stream:
                content = stream.read(most + 1)
            if len(content) > most:
                problem = f"cannot be read (it has more than {most:,} bytes)"
            else:
                value = loads_json(content, nan=nan)
        else:
            problem = "cannot be read (it is no regular file)"
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
    """A value that was read from a file, in the form that it should have."""
    import pydantic

    try:
        # As JSON: in strict mode pydantic takes lists for tuples, and objects for dataclasses, from JSON alone.
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
    """The place of an error, the value there, and what was expected."""
    place, value, expected = list(error["loc"]), error["input"], error["msg"]
    if error["type"] == "missing":
        return f"{_place(place)} is missing"
    if place[-1:] == ["[key]"]:
        subject = f"the name {_shown(value)}" + (f" in {_place(place[:-2])}" if place[:-2] else "")
    else:
        subject = f"{_place(place)} is {_shown(value)}, and" if place else f"it is {_shown(value)}, and"
    expected = re.sub(r"^(Value error, |\w+ (?=should ))", "", expected)
    return f"{subject} {expected[:1].lower()}{expected[1:]}".rstrip(".")


def _place(keys: list[str | int]) -> str:
    # repr writes characters that would change a terminal as escapes: a stranger's keys may hold any.
    return ".".join(repr(str(key))[1:-1][:_SHOWN] for key in keys)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
