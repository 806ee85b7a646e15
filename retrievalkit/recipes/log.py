"""The log of a step: all that its command prints goes to DIR/logs/STEP.log, and only its last line to the terminal.

Standard error stays on a terminal, where it shows the progress of the command; elsewhere it goes to the log too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from retrievalkit.recipes.files import LOGS


class StepLog:
    """The log file of one step.

    Attributes:
        path: The file.
        result: The last line of standard output, with which commands say what they did.
    """

    def __init__(self, folder: Path, step: str) -> None:
        self.path = folder / LOGS / f"{step}.log"
        self.result = ""

    @contextlib.contextmanager
    def collecting(self, command_line: str, *, resume: bool, stdout: TextIO | None = None) -> Iterator[None]:
        """Send what is printed to the log, which begins with the command line, or standard output elsewhere."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a" if resume else "w", encoding="utf-8", buffering=1) as log:
            log.write(f"$ {command_line}\n")
            with _OUT.going_to(stdout or log), _ERR.going_to(sys.stderr if sys.stderr.isatty() else log):
                yield
        if stdout is None:
            self.result = _OUT.last

    def tail(self, lines: int = 15) -> list[str]:
        """The last lines that the command printed, blank ones left out."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("$ ")][-lines:]


class _StandIn:
    """Takes the place of sys.stdout or sys.stderr.

    There is one for each, for as long as the process lives: logging handlers keep the stream that they find when a
    library is imported, and must not be left with a closed log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._target: TextIO | None = None
        self.last = ""

    @contextlib.contextmanager
    def going_to(self, target: TextIO) -> Iterator[None]:
        """Be the standard stream, and pass everything on to a target."""
        before, self._target, self.last = getattr(sys, self._name), target, ""
        setattr(sys, self._name, self)
        try:
            yield
        finally:
            setattr(sys, self._name, before)
            self._target = None

    def write(self, text: str) -> int:
        self.last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), self.last)
        written: int = self.__getattr__("write")(text)
        return written

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._target or getattr(sys, self._name), attribute)


_OUT, _ERR = _StandIn("stdout"), _StandIn("stderr")
