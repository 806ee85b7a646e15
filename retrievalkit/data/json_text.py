"""Untrusted JSON: a single text, or a file's array or object parsed element by element.

Elements are streamed, with only a few in memory. Input that Python's parser accepts silently, or for which it raises
other exceptions, is refused: duplicate keys, values nested too deeply, integers with thousands of digits.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from retrievalkit.data import files
from retrievalkit.errors import DataError, shortlist
from retrievalkit.storage import json_problem

_SHOWN = 60
_SPACES = " \t\r\n"
_SPACE = re.compile(f"[{_SPACES}]*")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for place, key in enumerate(keys) if key in keys[:place])
        msg = f"the key {shown(key)} occurs twice in the same object. Keep one"
        raise ValueError(msg)
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)


def parsed(text: str) -> Any:
    """Parse a JSON text."""
    start = 0 if text.startswith("{") else len(text) - len(text.lstrip(_SPACES))
    try:
        value, end = _DECODER.raw_decode(text, start)  # much faster than `decode`
        return value if end == len(text) else _DECODER.decode(text)
    except json.JSONDecodeError as error:
        msg = f"broken JSON: {error.msg} at column {error.colno}."
    except (ValueError, RecursionError) as error:
        msg = f"{json_problem(error)}."
    raise ValueError(msg)


def shown(value: object) -> str:
    """Format a value for an error message, shortened."""
    if isinstance(value, str):
        text = repr(value[: _SHOWN + 1])
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (RecursionError, ValueError):  # nested too deeply, or an integer with thousands of digits
            text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def field_names(names: Iterable[str]) -> str:
    """Format field names for an error message."""
    return shortlist(name if name.isprintable() and len(name) <= _SHOWN else shown(name) for name in names) or "none"


def members(path: Path) -> Iterator[tuple[int, int | str, Any]]:
    """Yield line, number (from 1) or key, and value of each member of the JSON array or object in a file.

    Duplicate keys and values larger than `files.LONGEST_LINE` are refused.
    """
    seen: set[str] = set()
    with files.open_bytes(path) as stream:
        window = _Window(path, stream)
        closing = "]" if window.peek() == "[" else "}"
        window.skip()
        number = 0
        while window.peek() != closing:
            line, number = window.line, number + 1
            key: int | str = number
            name = f"element {number}"
            if closing == "}":
                key = window.take("the next key")
                name = f"the key {shown(key)}"
                if not isinstance(key, str) or window.peek() != ":":
                    msg = f"{name} is not a text followed by ':'"
                    raise window.error(msg, line)
                if key in seen:
                    msg = f"{name} occurs twice. Keep one"
                    raise window.error(msg, line)
                seen.add(key)
                window.skip()
                window.peek()
            yield line, key, window.take(name)
            if window.peek() == ",":
                window.skip()
            elif window.peek() != closing:
                msg = f"{name}: broken JSON: neither ',' nor '{closing}' follows"
                raise window.error(msg, line)
        window.skip()
        if window.peek():
            msg = f"broken JSON: {shown(window.text[window.at : window.at + _SHOWN])} follows after the end"
            raise window.error(msg, window.line)


class _Window:
    """Sliding window over a text file: it grows if an element needs more text, and drops parsed text."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = False

    def error(self, problem: str, line: int) -> DataError:
        return DataError(f"{problem}. Is the file complete?", file=self.path, line=line)

    def grow(self, size: int = files.CHUNK) -> None:
        raw = self.stream.read(size)
        self.ended = not raw
        try:
            more = self.decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            before = self.text.count("\n", self.at) + error.object.count(b"\n", 0, error.start)
            raise files.not_utf8(self.path, self.line + before, error) from None
        self.text, self.at = self.text[self.at :] + more, 0

    def peek(self) -> str:
        """Return the next character that is not white space; "" at the end."""
        while True:
            space = _SPACE.match(self.text, self.at)
            assert space is not None
            self.move(space.end())
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self.grow()

    def skip(self) -> None:
        """Skip the next character that is not white space."""
        if self.peek():
            self.move(self.at + 1)

    def move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def take(self, name: str) -> Any:
        """Parse the value at the current position."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                size = len(self.text) - self.at
                # The value may continue beyond the window.
                unterminated = error.msg.startswith(("Unterminated string", "Invalid \\u"))
                if not self.ended and (unterminated or error.pos > len(self.text) - 16):
                    if size > files.LONGEST_LINE:
                        msg = f"{name} is larger than {files.LONGEST_LINE >> 20} MiB"
                        raise self.error(msg, self.line) from None
                    self.grow(max(files.CHUNK, size))
                    continue
                msg = f"{name}: broken JSON: {error.msg}"
                raise self.error(msg, self.line + self.text.count("\n", self.at, error.pos)) from None
            except (ValueError, RecursionError) as error:
                msg = f"{name}: {json_problem(error)}."
                raise DataError(msg, file=self.path, line=self.line) from None
            self.move(end)
            return value
