"""Words of messages, and safe printing of untrusted text: no title or file name can move the cursor."""

from __future__ import annotations

import re
import sys

# C0 except tab and newline, DEL, C1; line and paragraph separators; bidirectional controls; lone surrogates.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINE = re.compile(f"[\n{_CONTROLS}]")
_IN_LINES = re.compile(f"[{_CONTROLS}]")
_CREDENTIALS = re.compile(r"://[^/\s@'\"]+@")


def printable(text: str, *, lines: bool = False) -> str:
    r"""Escape control characters in a text, such as "\x1b" or "\u202e"; other characters are unchanged.

    Args:
        text: Any text, also untrusted.
        lines: Allow several lines; otherwise newlines are escaped too.
    """
    return (_IN_LINES if lines else _IN_LINE).sub(_escaped, text)


def say(text: str, *, err: bool = False) -> None:
    """Print lines that may contain untrusted names and texts."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{printable(text, lines=True)}\n")
    stream.flush()


def printable_json(text: str) -> str:
    """Replace control characters in JSON by JSON escapes, which mean the same."""
    return _IN_LINES.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def holds_credentials(text: str) -> bool:
    """True if an address in a text contains a user name or a password."""
    return _CREDENTIALS.search(text) is not None


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def counted(number: int, plural: str) -> str:
    """Format a number with its noun: "1 query", "2 queries"."""
    singular = re.sub(r"(?<=ss|.x)es$|s$", "", re.sub(r"ies$", "ys", plural))
    return f"{number:,} {singular if number == 1 else plural}"
