"""Log of a step: the command's output goes to DIR/logs/STEP.log, and only its last line to the terminal.

On a terminal, standard error is shown as the command's progress; elsewhere it goes to the log too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from retrievalkit.recipes.files import LOGS


class StepLog:
    """Log file of a step.

    Attributes:
        path: The log file.
        result: Last line of standard output: the command's summary of its result.
    """

    def __init__(self, folder: Path, step: str) -> None:
        self.path = folder / LOGS / f"{step}.log"
        self.result = ""

    @contextlib.contextmanager
    def collecting(self, command_line: str, *, resume: bool, stdout: TextIO | None = None) -> Iterator[None]:
        """Redirect output to the log, which starts with the command line; standard output to `stdout` if set."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a" if resume else "w", encoding="utf-8", buffering=1) as log:
            log.write(f"$ {command_line}\n")
            with _OUT.redirected_to(stdout or log), _ERR.redirected_to(sys.stderr if sys.stderr.isatty() else log):
                yield
        if stdout is None:
            self.result = _OUT.last

    def tail(self, lines: int = 15) -> list[str]:
        """Return the last lines that the command printed, without blank lines."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith("$ ")][-lines:]


class _StandIn:
    """Replacement for sys.stdout or sys.stderr.

    Each has a single instance for the life of the process: logging handlers keep the stream that they see when a
    library is imported, and must not end up with a closed log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._target: TextIO | None = None
        self.last = ""

    @contextlib.contextmanager
    def redirected_to(self, target: TextIO) -> Iterator[None]:
        """Replace the standard stream for the block, and forward everything to a target."""
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
