"""Search filters on fields: `year >= 2020 and (source = faq or not tags in (draft, "to do"))`.

A comparison is FIELD, one of = != < <= > >= and VALUE, or FIELD [not] in (VALUE, ...); and, or, not and parentheses
combine comparisons as in Python. A text without the field fails every comparison; a list passes if any of its
elements passes. Strings are compared with a number numerically if all strings of the field are numbers, otherwise
by their characters, which also orders ISO dates.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from retrievalkit.contracts import Allowed
from retrievalkit.data.fields import FieldTable
from retrievalkit.errors import OptionError, nearest, shortlist

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s()=!<>,'"]+)"""
_COMPARISON = re.compile(
    rf"({_VALUE})\s*(?:(==?|!=|<=?|>=?)\s*({_VALUE})|\s(not\s+)?in\s*\(\s*({_VALUE}(?:\s*,\s*{_VALUE})*)\s*\))",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_EXAMPLE = "Write it as in: year >= 2020 and (source = faq or not tags in (draft, 'to do'))."


@lru_cache(maxsize=8)
def allowed_texts(table: FieldTable, filter: str) -> Allowed:
    """Return the texts that pass a filter."""
    masks: list[np.ndarray] = []

    def compare(match: re.Match[str]) -> str:
        field, sign, value, negated, values = match.groups()
        name = _plain(field)
        if name not in table.names:
            close = nearest(name, table.names)
            hint = f"; did you mean '{close}'?" if close else "."
            msg = f"filter '{filter}': there is no field '{name}'{hint} Fields: {shortlist(table.names)}."
            raise OptionError(msg)
        alternatives = [value] if sign else re.findall(_VALUE, values)
        passed = np.any([_compared(table, name, sign or "=", other) for other in alternatives], axis=0)
        masks.append(~passed if negated else passed)
        return f" m{len(masks) - 1} "

    words = re.findall(r"[^\s()]+", _COMPARISON.sub(" ", filter))
    if others := [word for word in words if word.lower() not in ("and", "or", "not")]:
        msg = f"filter '{filter}': '{others[0]}' is not part of a comparison. {_EXAMPLE}"
        raise OptionError(msg)
    try:
        # The rest is a Python expression: m0 and (m1 or not m2).
        tree = ast.parse(_COMPARISON.sub(compare, filter).strip().lower(), mode="eval").body
        rows = np.flatnonzero(_evaluated(tree, masks))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        msg = f"filter '{filter:.200}': its comparisons are not joined by and, or, not and parentheses. {_EXAMPLE}"
        raise OptionError(msg) from None
    return Allowed([table.ids[row] for row in rows.tolist()], len(table))


def _evaluated(tree: ast.expr, masks: list[np.ndarray]) -> np.ndarray:
    match tree:
        case ast.Name(id=name):
            return masks[int(name[1:])]
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return ~_evaluated(part, masks)
        case ast.BoolOp(op=ast.And() | ast.Or() as word, values=parts):
            combine = np.logical_and if isinstance(word, ast.And) else np.logical_or
            combined: np.ndarray = combine.reduce([_evaluated(part, masks) for part in parts])
            return combined
    raise ValueError(tree)


def _compared(table: FieldTable, name: str, sign: str, value: str) -> np.ndarray:
    """Return a mask, (texts,) bool: True where the field passes the comparison."""
    texts, column = table.values(name)
    values, kind, plain = column.to_numpy(zero_copy_only=False), str(column.type), _plain(value)
    number = float(plain) if _NUMBER.fullmatch(plain) else None
    if kind == "bool" and plain.lower() in ("true", "false"):
        passed = _SIGNS[sign](values, plain.lower() == "true")
    elif kind in ("int64", "double") and number is not None:
        passed = _SIGNS[sign](values, int(plain) if plain.lstrip("+-").isdigit() else number)
    elif kind != "string":
        holds = "true and false" if kind == "bool" else "numbers"
        msg = f"the filter compares the field '{name}', which holds {holds}, with '{plain}'. {_EXAMPLE}"
        raise OptionError(msg)
    elif number is not None and value == plain and all(map(_NUMBER.fullmatch, values.tolist())):
        passed = _SIGNS[sign](values.astype(float), number)
    else:
        passed = _SIGNS[sign](values, plain)
    mask = np.zeros(len(table), dtype=bool)
    mask[texts[np.asarray(passed, dtype=bool)]] = True
    return mask


def _plain(value: str) -> str:
    """Return a value without its quotation marks."""
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "'\"" else value
