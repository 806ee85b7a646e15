"""Interactive search at a prompt: `rkit search INDEX... --interactive`.

Each line is a query; lines that start with a colon are commands. If standard input is not a terminal, its lines
are answered without a prompt.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator

from retrievalkit.errors import RetrievalkitError
from retrievalkit.reporting.terminal import say

PROMPT = "query> "

HELP = """\
Type a query, or
  :k N     show N hits
  :help    show this
  :q       quit (also Ctrl-D)"""


def converse(answer: Callable[[str, int], object], k: int) -> None:
    """Answer each line of standard input, until its end or `:q`.

    An error in a query is reported on standard error and does not end the session.
    """
    for line in _lines():
        name, _, value = line.partition(" ")
        if name == ":q":
            return
        try:
            if name == ":k" and value.strip().isdigit() and int(value) > 0:
                k = int(value)
            elif name == ":k":
                _say(f"Error: ':k {value}' should be a number of hits, such as :k 20.")
            elif name == ":help":
                _say(HELP)
            elif name.startswith(":"):
                _say(f"Error: unknown command '{name}'. {HELP}")
            elif line:
                answer(line, k)
        except RetrievalkitError as error:
            _say(f"Error: {error}")
        except KeyboardInterrupt:
            _say("Interrupted.")


def _say(text: str) -> None:
    sys.stdout.flush()
    say(text, err=True)
    sys.stderr.flush()


def _lines() -> Iterator[str]:
    """Yield the lines of standard input, stripped; on a terminal, with a prompt and a history."""
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            # An invalid byte should spoil a character, not end the session.
            sys.stdin.reconfigure(errors="replace")
        yield from map(str.strip, sys.stdin)
        return
    with contextlib.suppress(ImportError):
        # Imported for its effect on input(): a history and line editing.
        import readline  # noqa: F401
    while True:
        try:
            if not sys.stdout.isatty():  # answers go to a file or a pipe
                sys.stderr.write(PROMPT)
                sys.stderr.flush()
            yield input(PROMPT if sys.stdout.isatty() else "").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            # As in a shell: the line is discarded.
            sys.stdout.write("\n")
