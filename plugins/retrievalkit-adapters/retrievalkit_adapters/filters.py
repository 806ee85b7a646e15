"""Translation of the toolkits' filters to filters of `index.search`.

A text without a field passes `!=` and `not in`, as in the toolkits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, time
from typing import Any

from retrievalkit.errors import InputError

_SIGNS = {
    "==": "=", "eq": "=", "contains": "=", "!=": "!=", "ne": "!=", ">": ">", "gt": ">", ">=": ">=", "gte": ">=",
    "<": "<", "lt": "<", "<=": "<=", "lte": "<=", "in": "in", "any": "in", "not in": "not in", "nin": "not in",
    "all": "all",
}  # fmt: skip


def comparison(field: str, operator: str, value: Any) -> str:
    """Translate a comparison of a field with a value, or with a list of values.

    Raises:
        InputError: `index.search` does not support the operator, or the value does not fit it.
    """
    sign = _SIGNS.get(operator)
    several = sign in ("in", "not in", "all")
    if sign is None or not field or several != isinstance(value, list | tuple | set) or (several and not value):
        raise _untranslatable(field, operator, value)
    name, values = _quoted(field), [_literal(field, item) for item in (value if several else [value])]
    if sign == "all":
        return combined("and", (f"{name} = {literal}" for literal in values))
    if several:
        return f"{'not ' if sign == 'not in' else ''}{name} in ({', '.join(values)})"
    return f"not {name} = {values[0]}" if sign == "!=" else f"{name} {sign} {values[0]}"


def combined(word: str, parts: Iterable[str]) -> str:
    """Join filters: "and", "or", "nand" (not all of them) or "nor" (none of them).

    Raises:
        InputError: The list is empty, or `index.search` does not support the operator.
    """
    joined = list(parts)
    if word not in ("and", "or", "nand", "nor") or not joined:
        raise _untranslatable(word, *joined)
    text = "(" + f" {word.removeprefix('n')} ".join(joined) + ")"
    return f"not {text}" if word.startswith("n") else text


def _literal(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and value - value == 0:  # finite
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, str):
        return _quoted(value)
    raise _untranslatable(field, value)


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _untranslatable(*parts: Any) -> InputError:
    shown = " ".join(f"{part!r:.80}" for part in parts)
    msg = (
        f"a search cannot filter by {shown}. Filters compare fields with strings, numbers, booleans, dates, times by "
        "==, !=, <, <=, >, >=, in and not in, and are joined by and, or and not."
    )
    return InputError(msg)
