"""Search filters on fields: `year >= 2020 and (source = faq or not tags in (draft, "to do"))`.

A comparison is FIELD, one of = != < <= > >= and VALUE, FIELD [not] in (VALUE, ...), or has FIELD; and, or, not and
parentheses combine comparisons as in Python. A text without the field fails every comparison; a list passes if any of
its elements passes, and `not in` if none of them is in.

A value in quotes is a text. Another value is a text too, and may also be a number (02134, with a zero in front, is
none), `true` or `false`, a date or a time. `=` compares texts by their characters, numbers, dates and times by value; a
day equals all times of that day. `<` and `>` compare numbers, also in texts, with a number, texts that are dates or
times with these, and all texts, by their characters, with other values. The rest fails and is counted.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, datetime, time
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from retrievalkit.contracts import Allowed
from retrievalkit.data.fields import OF_TEXTS, Column, FieldTable
from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.errors import OptionError, nearest, shortlist
from retrievalkit.reporting.terminal import counted

_VALUE = r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s()=!<>,'"]+)"""
_PIECE = re.compile(
    rf"""\s*(?:({_VALUE})\s*(?:(==?|!=|<=?|>=?)\s*({_VALUE})|\s(not\s+)?in\s*\(\s*({_VALUE}(?:\s*,\s*{_VALUE})*)\s*\))"""
    rf"""|has(?=[\s'"])\s*({_VALUE})|((?:and|or|not)(?=[\s()'"])|[()]))""",
    re.IGNORECASE | re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NUMBER_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,400}")
_TIME = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
_CLOCK = re.compile(_TIME)
_ZONE = r"(?:Z|[+-][0-9]{2}:?[0-9]{2}(?::[0-9]{2})?)?"
_MOMENT = re.compile(rf"[0-9]{{4}}-[0-9]{{2}}(?:-[0-9]{{2}}(?:[T ]{_TIME}{_ZONE})?)?")
_PARTIAL = re.compile("[0-9]{4}(?:-[0-9]{2})?")
_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_EXAMPLE = "Write it as in: year >= 2020 and (source = faq or not tags in (draft, 'to do'))."
_NEAREST_AMONG = 5_000


class Passing(NamedTuple):
    """The texts that pass a filter, and notes about values that it cannot compare."""

    texts: Allowed
    notes: tuple[str, ...]


@lru_cache(maxsize=8)
def passing_texts(table: FieldTable, filter: str) -> Passing:
    """Return the texts that pass a filter."""
    text, place, notes = HALF_CHARACTER.sub("\ufffd", filter).strip(), 0, dict[str, None]()
    masks: list[np.ndarray] = []
    pieces: list[str] = []
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None:
            msg = f"filter '{text:.200}': '{text[place:].split()[0]:.60}' is not part of a comparison. {_EXAMPLE}"
            raise OptionError(msg)
        name, sign, value, negated, values, existing, word = piece.groups()
        place = piece.end()
        if word:
            pieces.append(word.lower())
            continue
        name = table.form(_plain(name or existing))
        own, known = name in table.names, list(dict.fromkeys((*table.names, *OF_TEXTS)))
        if not own and name.removeprefix("_") not in OF_TEXTS:
            close = nearest(name, known) if len(known) <= _NEAREST_AMONG else None
            hint = f"; did you mean '{close}'?" if close else "."
            msg = f"filter '{text:.200}': there is no field '{name:.200}'{hint} Fields: {shortlist(known)}."
            raise OptionError(msg)
        if own and name in OF_TEXTS:
            notes[f"filter '{text:.200}': '{name}' is a field of the texts here. Write _{name} for their own."] = None
        column = table.column(name)
        held = _mask(table, [rows for rows, _ in column.parts.values()])
        if not existing:
            parts = [value] if sign else re.findall(_VALUE, values, re.DOTALL)
            literals = [_Literal(part, table.form) for part in parts]
            sign = sign.replace("==", "=") if sign else "in"
            if sign == "!=" and not own:
                sign, negated = "=", True  # a text has two ids, its own and its document's
            passed, comparable = _compared(table, column, sign, literals)
            if negated:
                passed, comparable = held & ~passed, held
            left, every = int(held.sum() - comparable.sum()), int(held.sum())
            if left and (left == every or sign not in ("=", "in")):
                kinds = " or ".join(dict.fromkeys(literal.kind for literal in literals))
                quoted = " A value in quotes is a text." if any(literal.quoted for literal in literals) else ""
                shown = shortlist((literal.text[:60] for literal in literals), 3)
                among = f"{left:,} of {counted(every, 'passages')} with '{name:.60}'"
                problem = f"{among} hold no {kinds} to compare with {shown}: left out.{quoted}"
                notes[f"filter '{text:.200}': {problem}"] = None
        masks.append(held if existing else passed)
        pieces.append(f"m{len(masks) - 1}")
    try:
        # The pieces are a Python expression: m0 and (m1 or not m2).
        rows = np.flatnonzero(_evaluated(ast.parse(" ".join(pieces), mode="eval").body, masks))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        msg = f"filter '{text:.200}': its comparisons are not joined by and, or, not and parentheses. {_EXAMPLE}"
        raise OptionError(msg) from None
    return Passing(Allowed([table.ids[row] for row in rows.tolist()], len(table)), tuple(notes))


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


def _compared(table: FieldTable, column: Column, sign: str, literals: list[_Literal]) -> tuple[np.ndarray, np.ndarray]:
    """Return two masks, (texts,) bool: the texts that pass a comparison, and those with a value that fits it."""
    passed, comparable = [], []
    for kind, (rows, _) in column.parts.items():
        if sign[0] in "<>":
            passes, fits = literals[0].ordered(column, kind, sign)
        else:
            every = zip(*(literal.equal(column, kind) for literal in literals), strict=True)
            passes, fits = map(np.logical_or.reduce, every)
            if sign == "!=":
                passes, fits = ~passes, True
        passed.append(rows[passes])
        comparable.append(rows[np.broadcast_to(fits, rows.shape)])
    return _mask(table, passed), _mask(table, comparable)


def _mask(table: FieldTable, rows: list[np.ndarray]) -> np.ndarray:
    mask = np.zeros(len(table), dtype=bool)
    for some in rows:
        mask[some] = True
    return mask


def _plain(value: str) -> str:
    """Return a value without its quotation marks."""
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL) if value[0] in "'\"" else value


class _Literal:
    """A value in a filter, as what it may be compared with: a text, a number, a boolean, a period of dates or times."""

    def __init__(self, written: str, form: Callable[[str], str]) -> None:
        self.text, self.quoted = form(_plain(written)), written[0] in "'\""
        self.number: int | float | None = None
        self.boolean: bool | None = None
        # The function that parses such texts, and the first and the last moment.
        self.period: tuple[Callable[[str], datetime | None], np.datetime64, np.datetime64] | None = None
        self.kind = "text"
        if self.quoted:
            return
        if _NUMBER.fullmatch(self.text):
            self.number = int(self.text) if _WHOLE.fullmatch(self.text) else float(self.text)
        elif self.text.lower() in ("true", "false"):
            self.boolean = self.text.lower() == "true"
        full = (
            self.text + "-01-01"[len(self.text) - len("2024-01-01") :] if _PARTIAL.fullmatch(self.text) else self.text
        )
        for kind, parse in (("date", _moment), ("time", _clock)):
            if (first := parse(full)) is not None:
                last = first
                if len(full) == len("2024-01-01"):
                    month = first.month if len(self.text) > len("2024") else 12
                    day = first.day if full == self.text else monthrange(first.year, month)[1]
                    last = datetime.combine(first.replace(month=month, day=day), time.max)
                self.period, self.kind = (parse, np.datetime64(first), np.datetime64(last)), kind
        if self.number is not None or self.boolean is not None:
            self.kind = "number" if self.boolean is None else "boolean or text"

    def equal(self, column: Column, kind: type) -> tuple[np.ndarray, bool]:
        """Return (values,) bool, True where it equals the values of a type, and whether they can be equal."""
        values = column.parts[kind][1]
        if kind is str:
            import pyarrow.compute as pc

            same: np.ndarray = pc.equal(values, self.text).to_numpy()
            if self.period is not None and not _PARTIAL.fullmatch(self.text):
                parse, first, last = self.period
                moments = column.parsed(parse, "datetime64[us]")
                same = same | ((moments >= first) & (moments <= last))
            return same, True
        if kind is bool:
            return values == self.boolean, self.boolean is not None
        if self.number is not None:
            return _numeric(values, "=", self.number), True
        return np.zeros(len(values), dtype=bool), False

    def ordered(self, column: Column, kind: type, sign: str) -> tuple[np.ndarray, np.ndarray | bool]:
        """Return (values,) bool, True where the comparison passes, and where values of a type can be compared."""
        values = column.parts[kind][1]
        if kind in (int, float) and self.number is not None:
            return _numeric(values, sign, self.number), True
        passed, fits = np.zeros(len(values), dtype=bool), np.zeros(len(values), dtype=bool)
        if kind is not str:
            return passed, fits
        if self.number is None and self.period is None:
            import pyarrow.compute as pc

            compare = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}[sign]
            return compare(values, self.text).to_numpy(), True
        if self.number is not None:
            numbers = column.parsed(_number, "float64")
            passed, fits = _numeric(numbers, sign, self.number), ~np.isnan(numbers)
        if self.period is not None:
            parse, first, last = self.period
            moments = column.parsed(parse, "datetime64[us]")
            passed = passed | _SIGNS[sign](moments, last if sign in ("<=", ">") else first)
            fits = fits | ~np.isnat(moments)
        return passed, fits


def _numeric(values: np.ndarray, sign: str, number: float) -> np.ndarray:
    """Compare numbers exactly, as Python does: neither the values nor the number are rounded."""
    if values.dtype == object:
        return np.asarray(_SIGNS[sign](values, number), dtype=bool)
    if values.dtype.kind == "i":
        near: float = number if abs(number) == math.inf else math.floor(number)
        near = max(-(1 << 63), min((1 << 63) - 1, near))
    else:
        try:
            near = float(number)
        except OverflowError:
            near = math.inf if number > 0 else -math.inf
    if near != number:
        if sign == "=":
            return np.zeros(len(values), dtype=bool)
        # No value is between the number and the nearest value of the type.
        below = near < number
        sign = ("<=" if below else "<") if sign[0] == "<" else (">" if below else ">=")
    return np.asarray(_SIGNS[sign](values, near), dtype=bool)


def _number(text: str) -> float:
    return float(text) if _NUMBER_TEXT.fullmatch(text) else math.nan


def _moment(text: str) -> datetime | None:
    """Parse a month, a day, or a time of a day, in ISO format; without a zone, it is in UTC."""
    if not _MOMENT.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(f"{text}-01" if _PARTIAL.fullmatch(text) else text)
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _clock(text: str) -> datetime | None:
    try:
        return datetime.combine(datetime.min, time.fromisoformat(text)) if _CLOCK.fullmatch(text) else None
    except ValueError:
        return None
