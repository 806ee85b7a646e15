"""Texts of strangers on a terminal: titles, ids and names of files cannot move the cursor or turn a line around."""

from __future__ import annotations

import re
import sys

# C0 but for tab and newline, DEL, C1; separators of lines and paragraphs; marks that reorder text; lone surrogates.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINE = re.compile(f"[\n{_CONTROLS}]")
_IN_LINES = re.compile(f"[{_CONTROLS}]")
_CREDENTIALS = re.compile(r"://[^/\s@'\"]+@")


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with its control characters escaped, such as "\x1b" or "\u202e"; all other text is left as it is.

    Args:
        text: May come from anyone.
        lines: Whether it may have several lines; if not, their ends are escaped too.
    """
    return (_IN_LINES if lines else _IN_LINE).sub(_escaped, text)


def say(text: str, *, err: bool = False) -> None:
    """Print lines that may quote names and texts of strangers."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{printable(text, lines=True)}\n")
    stream.flush()


def printable_json(text: str) -> str:
    """JSON with its control characters escaped as JSON does, so that it means the same."""
    return _IN_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def holds_credentials(text: str) -> bool:
    """Whether an address in a text holds a user or a password."""
    return _CREDENTIALS.search(text) is not None


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
