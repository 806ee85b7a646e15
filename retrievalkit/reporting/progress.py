"""Progress of a long step on standard error: a bar on a terminal, occasional lines elsewhere.

In a notebook, a single line is overwritten, and removed at the end.

    with ProgressBar("encode documents", total=50_000, unit="texts") as progress:
        for batch in batches:
            ...
            progress.advance(len(batch))

A line in a log file is `encode documents 12,000/50,000 texts (24 %), 3 min left`. Lines are written at growing
intervals, so the log of a day is no longer than the log of an hour. `start` and `stop` are for callbacks, which cannot
use a `with` block.
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
"""Seconds before the first line in a log; shorter steps print none."""

_SHARE_BETWEEN = 0.05
"""Minimum time between two lines, as a share of the time since the start."""

_BETWEEN_IN_NOTEBOOK = 0.5


class ProgressBar:
    """Progress display of a step.

    Args:
        label: Description of the step, such as "encode documents".
        total: Number of units; None if unknown.
        unit: Noun of the units, such as "texts"; "" = none.
        done: Number of units done by an earlier, interrupted command.
    """

    def __init__(self, label: str, total: int | None = None, *, unit: str = "", done: int = 0) -> None:
        self.label, self.total, self.unit, self.done = printable(label), total, unit, done
        self._before = done
        self._started = self._last_line = time.monotonic()
        self._lines = 0
        self._bar: Progress | None = None
        self._width = 0

    def start(self) -> ProgressBar:
        """Show the bar."""
        self._started = self._last_line = time.monotonic()
        if sys.stderr.isatty():
            self._bar = _bar(self)
            self._bar.start()
        return self

    def stop(self) -> None:
        """Remove the bar; in a log with lines, write a last line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif self._width:
            self._rewrite("")
        elif self._lines:
            self._write(f"{self._counted()}, took {duration(time.monotonic() - self._started)}")

    def advance(self, units: int = 1) -> None:
        """Add units done since the last call."""
        self.update(self.done + units)

    def update(self, done: int | None = None, *, label: str | None = None) -> None:
        """Set the number of units done, or the label."""
        self.done = self.done if done is None else done
        self.label = self.label if label is None else printable(label)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self.done, description=self.label, detail=self._counts())
            return
        now = time.monotonic()
        if type(sys.stderr).__module__.startswith("ipykernel."):  # in a notebook
            if now - self._last_line >= _BETWEEN_IN_NOTEBOOK:
                self._rewrite(self._with_time_left(now))
                self._last_line = now
        elif now - self._last_line >= max(_FIRST_LINE, _SHARE_BETWEEN * (now - self._started)):
            self._write(self._with_time_left(now))
            self._last_line = now

    def _with_time_left(self, now: float) -> str:
        """Return the counts, and the remaining time at the speed of this command, not of earlier commands."""
        current = self.done - self._before
        if not self.total or current <= 0:
            return self._counted()
        remaining = (now - self._started) / current * max(0, self.total - self.done)
        return f"{self._counted()}, {duration(remaining)} left"

    def _counted(self) -> str:
        return " ".join(filter(None, [self.label, self._counts()]))

    def _counts(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.total is None:
            return f"{self.done:,}{unit}" if self.done else ""
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        return f"{self.done:,}/{self.total:,}{unit}{share}"

    def _rewrite(self, line: str) -> None:
        """Overwrite the last line."""
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
    """Format seconds for people: "40 s", "3 min", "2 h 5 min"."""
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
