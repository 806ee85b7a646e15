"""The progress of a long step, on standard error: a bar on a terminal, a line now and then anywhere else.

In a notebook it is one line, which is written over and goes away at the end.

    with ProgressBar("encode documents", total=50_000, unit="texts") as progress:
        for batch in batches:
            ...
            progress.advance(len(batch))

In a log file this reads `encode documents 12,000/50,000 texts (24 %), 3 min left`. The lines come at growing intervals,
so that a log of a day is no longer than one of an hour. `start` and `stop` are there for callbacks, which cannot hold a
`with` block open.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from retrievalkit.reporting.terminal import printable

if TYPE_CHECKING:
    from rich.progress import Progress

_FIRST_LINE = 10.0
"""Seconds before the first line of a log: a shorter step needs none."""

_SHARE_BETWEEN = 0.05
"""The least time between two lines, as a share of the time since the start."""

_BETWEEN_IN_NOTEBOOK = 0.5


class ProgressBar:
    """How far a step has come.

    Args:
        label: What is done, such as "encode documents".
        total: How many units there are; None if that is unknown.
        unit: What is counted, such as "texts"; "" leaves it out.
        done: How many units an earlier, interrupted command has done.
    """

    def __init__(self, label: str, total: int | None = None, *, unit: str = "", done: int = 0) -> None:
        self.label, self.total, self.unit, self.done = printable(label), total, unit, done
        self._before = done
        self._started = self._last_line = time.monotonic()
        self._lines = 0
        self._bar: Progress | None = None
        self._width = 0

    def start(self) -> ProgressBar:
        """Show it."""
        self._started = self._last_line = time.monotonic()
        if sys.stderr.isatty():
            self._bar = _bar(self)
            self._bar.start()
        return self

    def stop(self) -> None:
        """Take the bar away; a log that has had lines gets a last one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self._width:
            self._rewrite("")
        elif self._lines:
            self._write(f"{self._counted()}, took {duration(time.monotonic() - self._started)}")

    def advance(self, units: int = 1) -> None:
        """Count units that were done since the last call."""
        self.update(self.done + units)

    def update(self, done: int | None = None, *, label: str | None = None) -> None:
        """Set how many units are done, or what is being done now."""
        self.done = self.done if done is None else done
        self.label = self.label if label is None else printable(label)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done, description=self.label, detail=self._counts())
            return
        now = time.monotonic()
        if type(sys.stderr).__module__.startswith("ipykernel."):  # of a notebook
            if now - self._last_line >= _BETWEEN_IN_NOTEBOOK:
                self._rewrite(self._with_time_left(now))
                self._last_line = now
        elif now - self._last_line >= max(_FIRST_LINE, _SHARE_BETWEEN * (now - self._started)):
            self._write(self._with_time_left(now))
            self._last_line = now

    def _with_time_left(self, now: float) -> str:
        """The counts, and the time to go at the speed of this command alone."""
        fresh = self.done - self._before
        if not self.total or fresh <= 0:
            return self._counted()
        left = (now - self._started) / fresh * max(0, self.total - self.done)
        return f"{self._counted()}, {duration(left)} left"

    def _counted(self) -> str:
        return " ".join(filter(None, [self.label, self._counts()]))

    def _counts(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.total is None:
            return f"{self.done:,}{unit}" if self.done else ""
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        return f"{self.done:,}/{self.total:,}{unit}{share}"

    def _rewrite(self, line: str) -> None:
        """Write over the last line."""
        sys.stderr.write(f"\r{line:<{self._width}}" + ("" if line else "\r"))
        sys.stderr.flush()
        self._width = len(line)

    def _write(self, line: str) -> None:
        self._lines += 1
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def __enter__(self) -> ProgressBar:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _bar(progress: ProgressBar) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    known = progress.total is not None
    bar = Progress(
        *([] if known else [SpinnerColumn()]),
        TextColumn("{task.description}", markup=False),
        *([BarColumn()] if known else []),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeRemainingColumn() if known else TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task(progress.label, total=progress.total, completed=progress.done, detail=progress._counts())
    return bar


def duration(seconds: float) -> str:
    """Seconds as people say them: "40 s", "3 min", "2 h 5 min"."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
