"""How a long training shows where it is: a bar on a terminal, lines now and then in a log; and how fast it goes."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch

from retrievalkit.model.allocation import held_memory
from retrievalkit.report.progress import ProgressBar
from retrievalkit.report.terminal import say

# Seconds between two lines of a log.
_INTERVAL = 10.0


class Bar:
    """Progress on standard error.

    Args:
        title: Name of what is done, such as "training".
        unit: Name of what is counted, in the plural.
        shown: Whether to show anything; of several processes one does.
    """

    def __init__(self, title: str, unit: str = "steps", *, shown: bool = True) -> None:
        self.title, self.unit, self.shown = title, unit, shown
        self.done = self._first = 0
        self.total: int | None = None
        self._status = ""
        self._started = self._printed = time.monotonic()
        self._terminal: ProgressBar | None = None

    def start(self, total: int | None = None, done: int = 0) -> None:
        """Begin, `done` of the `total` having been done before."""
        self.total, self.done, self._first = total, done, done
        self._started = self._printed = time.monotonic()
        if self.shown and sys.stderr.isatty():
            self._terminal = ProgressBar(self.title, total, unit=self.unit, done=done).start()

    def update(self, done: int, status: str | None = None) -> None:
        """Show how much is done, and what there is to say of it."""
        self.done, self._status = done, self._status if status is None else status
        if self._terminal is not None:
            self._terminal.update(done, label=", ".join(filter(None, (self.title, self._status))))
        elif time.monotonic() - self._printed >= _INTERVAL:
            self._print()

    def say(self, text: str) -> None:
        """Show a line that stays."""
        if self.shown:
            say(text, err=True)

    def stop(self) -> None:
        """End; a log gets a last line."""
        if self._terminal is not None:
            self._terminal.stop()
            self._terminal = None
        elif self.done > self._first:
            self._print()
        self._first = self.done

    def _print(self) -> None:
        self._printed = time.monotonic()
        self.say(self.line())

    def line(self) -> str:
        """Such as "training: 40 of 600 steps, loss 1.2345, 0:02:10 left"."""
        counted = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        parts = [f"{self.title}: {counted} {self.unit}", self._status]
        if self.total is not None and self._first < self.done < self.total:
            seconds = (time.monotonic() - self._started) / (self.done - self._first) * (self.total - self.done)
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        return ", ".join(part for part in parts if part)


class Pace:
    """How fast a training goes, and what it holds; measured from one line of the log to the next."""

    def __init__(self) -> None:
        self._texts = 0
        self._since: float | None = None

    def begin(self) -> None:
        """A step begins; what comes before the first is not measured."""
        if self._since is None:
            self._since = time.monotonic()

    def add(self, texts: int) -> None:
        """A step has computed so many texts."""
        self._texts += texts

    def measured(self) -> dict[str, float]:
        """Texts a second since the last time, and GiB of memory: the most on a GPU, those of the process on a CPU."""
        if self._since is None:
            return {}
        now, memory = time.monotonic(), _memory()
        found = {"texts_per_second": self._texts / max(now - self._since, 1e-9)}
        self._texts, self._since = 0, now
        return found if memory is None else {**found, "memory_gib": memory / (1 << 30)}


def _memory() -> int | None:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else held_memory()
