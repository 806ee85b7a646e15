"""Questions and answers at a prompt: `rkit search INDEX... --interactive`.

A line is a query. Lines that start with a colon are commands. Where standard input is no terminal, there is no prompt,
and each line of it is answered.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator

from retrievalkit.errors import RetrievalkitError

PROMPT = "query> "
HELP = """\
Type a query, or
  :k N     show so many hits
  :help    show this
  :q       end (Ctrl-D too)"""


def converse(answer: Callable[[str, int], None], k: int) -> None:
    """Answer each line of standard input, until it or `:q` ends it.

    What goes wrong with one query is said on standard error, and does not end it.

    Args:
        answer: Called with a query and how many hits to show.
        k: How many hits to show at first.
    """
    for line in _lines():
        if line in (":q", ":quit", ":exit"):
            return
        try:
            if line.startswith(":"):
                k = _command(line, k)
            elif line:
                answer(line, k)
        except RetrievalkitError as error:
            _say(f"Error: {error}")
        except KeyboardInterrupt:
            _say("Interrupted.")


def _lines() -> Iterator[str]:
    """The lines of standard input, without the space around them; at a terminal with a prompt and a history."""
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            # A byte that is no text costs a letter, and not the conversation.
            sys.stdin.reconfigure(errors="replace")
        for line in sys.stdin:
            yield line.strip()
        return
    with contextlib.suppress(ImportError):
        # input() keeps a history of the lines, and lets them be edited, once this is loaded.
        import readline  # noqa: F401
    while True:
        try:
            yield input(_prompt()).strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            # As in a shell: the line is given up.
            sys.stdout.write("\n")


def _prompt() -> str:
    """What input() shows; on standard error, where standard output is a file or a pipe."""
    if sys.stdout.isatty():
        return PROMPT
    sys.stderr.write(PROMPT)
    sys.stderr.flush()
    return ""


def _command(line: str, k: int) -> int:
    """Do what a line with a colon says; returns how many hits to show from now on."""
    name, _, value = line.partition(" ")
    if name == ":k":
        if value.strip().isdigit() and int(value) > 0:
            return int(value)
        _say(f"Error: ':k {value}' should be a number of hits, such as :k 20.")
    elif name in (":help", ":h", ":?"):
        _say(HELP)
    else:
        _say(f"Error: there is no command '{name}'. {HELP}")
    return k


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
