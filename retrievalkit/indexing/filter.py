"""Filters of searches by fields: `year >= 2020 and (source = faq or not tags in (draft, "to do"))`.

    filter      = and_part {"or" and_part}          and_part   = not_part {"and" not_part}
    not_part    = ["not"] not_part | "(" filter ")" | comparison
    comparison  = FIELD (= | != | < | <= | > | >=) VALUE | FIELD ["not"] "in" "(" VALUE {"," VALUE} ")"

A text without the field fails every comparison, and a list passes if any of its elements does. A text is compared with
a number as a number if all texts of the field are numbers, and otherwise by its characters, as ISO dates are.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from retrievalkit.contracts import Allowed
from retrievalkit.data.fields import FieldTable
from retrievalkit.errors import OptionError, nearest, shortlist

_TOKEN = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([!<>=]=|[=<>])|([(),])|([^\s()=!<>,'"]+))""")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXAMPLE = "Write it as in: year >= 2020 and (source = faq or not tags in (draft, 'to do'))"
_DEEPEST = 50


class _Token(NamedTuple):
    text: str
    kind: str  # "quoted", "comparison", "sign", "word", or "end"
    start: int

    def is_(self, word: str) -> bool:
        return self.kind in ("word", "sign") and self.text.lower() == word


def allowed_texts(table: FieldTable, filter: str) -> Allowed:
    """The texts that pass a filter.

    Raises:
        OptionError: The filter cannot be read, a field is unknown, or a value does not fit its field.
    """
    rows = np.flatnonzero(_Reader(table, filter).mask())
    return Allowed([table.ids[row] for row in rows.tolist()], len(table))


class _Reader:
    """Reads a filter from left to right, and evaluates it on the columns on the way: masks of all texts."""

    def __init__(self, table: FieldTable, text: str) -> None:
        self._table, self._text, self._place, self._depth = table, text, 0, 0
        self._tokens: list[_Token] = []
        end = len(text.rstrip())
        start = 0
        while start < end:
            match = _TOKEN.match(text, start)
            if match is None:
                raise self._error(start, "this cannot be read")
            kind = ("quoted", "comparison", "sign", "word")[match.lastindex - 1]  # type: ignore[operator]
            value = match[match.lastindex]  # type: ignore[index]
            if kind == "quoted":
                value = re.sub(r"\\(.)", r"\1", value[1:-1])
            self._tokens.append(_Token(value, kind, match.start(match.lastindex)))  # type: ignore[arg-type]
            start = match.end()
        self._tokens.append(_Token("", "end", end))

    def mask(self) -> np.ndarray:
        found = self._either()
        if self._next.kind != "end":
            raise self._error(self._next.start, "expected 'and', 'or' or the end")
        return found

    def _either(self) -> np.ndarray:
        found = self._both()
        while self._took("or"):
            found = found | self._both()
        return found

    def _both(self) -> np.ndarray:
        found = self._not()
        while self._took("and"):
            found = found & self._not()
        return found

    def _not(self) -> np.ndarray:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(self._next.start, f"this is more than {_DEEPEST} levels deep")
        if self._took("not"):
            found = ~self._not()
        elif self._took("("):
            found = self._either()
            self._expect(")")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> np.ndarray:
        name = self._take("a field", "word", "quoted").text
        if name not in self._table.names:
            close = nearest(name, self._table.names)
            hint = f"; did you mean '{close}'?" if close else "."
            msg = f"filter '{self._text}': there is no field '{name}'{hint} Fields: {shortlist(self._table.names)}."
            raise OptionError(msg)
        negated = self._took("not")
        if negated or self._next.is_("in"):
            self._expect("in")
            self._expect("(")
            found = self._compared(name, "=")
            while self._took(","):
                found = found | self._compared(name, "=")
            self._expect(")")
            return ~found if negated else found
        sign = self._take("a comparison (= != < <= > >= in)", "comparison").text
        return self._compared(name, sign)

    def _compared(self, name: str, sign: str) -> np.ndarray:
        """The comparison of a field with the value that comes next."""
        token, column = self._take("a value", "word", "quoted"), self._table.column(name)
        kind = str(column.type)
        texts_of_values = None
        if kind.startswith("list"):
            import pyarrow.compute as pc

            texts_of_values, column = pc.list_parent_indices(column).to_numpy(), column.flatten()
        there = np.asarray(column.is_valid())
        values, wanted = self._comparable(name, column.filter(column.is_valid()), kind, token)
        passed = np.zeros(len(column), dtype=bool)
        passed[there] = _COMPARISONS[sign](values, wanted)
        if texts_of_values is None:
            return passed
        found = np.zeros(len(self._table), dtype=bool)
        found[texts_of_values[passed]] = True
        return found

    def _comparable(self, name: str, column: Any, kind: str, token: _Token) -> tuple[np.ndarray, Any]:
        """The values of a column without nulls, and the value to compare them with, of one type."""
        number = _number(token.text)
        if kind == "bool":
            if token.text.lower() not in ("true", "false"):
                raise self._error(
                    token.start, f"the field '{name}' holds true and false, and '{token.text}' is neither"
                )
            return column.to_numpy(zero_copy_only=False), token.text.lower() == "true"
        if kind in ("int64", "double"):
            if number is None:
                raise self._error(token.start, f"the field '{name}' holds numbers, and not '{token.text}'")
            return column.to_numpy(zero_copy_only=False), number
        texts = column.to_numpy(zero_copy_only=False)
        if number is not None and token.kind == "word":
            numbers = [_number(text) for text in texts.tolist()]
            if None not in numbers:
                return np.array(numbers, dtype=object), number
        return texts, token.text

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _took(self, word: str) -> bool:
        taken = self._next.is_(word)
        self._place += taken
        return taken

    def _expect(self, word: str) -> None:
        if not self._took(word):
            raise self._error(self._next.start, f"expected '{word}'")

    def _take(self, what: str, *kinds: str) -> _Token:
        token = self._next
        if token.kind not in kinds:
            raise self._error(token.start, f"expected {what}")
        self._place += 1
        return token

    def _error(self, start: int, problem: str) -> OptionError:
        rest = self._text[start:].strip()
        place = f"at '{rest:.20}'" if rest else "at the end"
        return OptionError(f"filter '{self._text}', {place}: {problem}. {_EXAMPLE}.")


def _number(text: str) -> int | float | None:
    try:
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else float(text) if _FLOAT.fullmatch(text) else None
    except ValueError:
        return None


_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
