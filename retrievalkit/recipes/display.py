"""Progress of a recipe run on standard error: a line for the start of each step, and a line for its outcome."""

from __future__ import annotations

from collections.abc import Sequence

import click

from retrievalkit.errors import shortlist
from retrievalkit.recipes.job import Job
from retrievalkit.recipes.log import StepLog
from retrievalkit.reporting.terminal import printable

_INDENT = " " * 6
_WIDEST = 160  # characters of a step's last line


class Display:
    """Terminal output for the steps of a run; with `parallel` steps, each line names its step."""

    def __init__(self, jobs: Sequence[Job], folder: str, *, parallel: bool = False) -> None:
        self.places = {job.step.name: place for place, job in enumerate(jobs, 1)}
        self.folder = folder
        self.parallel = parallel
        self.unchanged: list[str] = []
        self.done: list[str] = []

    def skip(self, job: Job) -> None:
        """Record a skipped step; consecutive skipped steps are shown in a single line."""
        self.unchanged.append(job.step.name)
        self.done.append(job.step.name)

    def start(self, job: Job, *, resumed: bool, seconds: float) -> None:
        """Show that a step starts, or continues after `seconds` of an earlier run."""
        self.show_skipped()
        _print(f"{self._place(job)} {job.step.heading}")
        if resumed:
            word = "Resumes; it was interrupted" if job.resumes else "Starts again; it was interrupted"
            _print(f"{_INDENT}{word} after {_seconds(seconds)}.")

    def finish(self, job: Job, log: StepLog, seconds: float) -> None:
        """Show that a step succeeded: its time and the last line of its output."""
        self.done.append(job.step.name)
        start = f"{self._place(job)} done: " if self.parallel else _INDENT
        _print(start + " · ".join(filter(None, (_seconds(seconds), log.result[:_WIDEST]))))

    def interrupt(self, jobs: Sequence[Job], error: BaseException) -> None:
        """Add a note to the error on parallel steps that were interrupted, and on the outputs that are kept."""
        steps = ", ".join(f"'{job.step.name}'" for job in jobs) or "none"
        states = ", and the last saved states of steps that save them"
        error.add_note(f"Interrupted; running steps: {steps}. {self._kept(states)}")

    def fail(self, job: Job, log: StepLog, error: BaseException, *, others: int = 0) -> None:
        """Show that a step failed or was interrupted: the end of its log, and the steps that are kept or continue."""
        name, interrupted = job.step.name, isinstance(error, KeyboardInterrupt)
        position = f"in step {self.places[name]} of {len(self.places)}, '{name}'."
        if interrupted:
            state = f", and the last saved state of '{name}'" if job.resumes else ""
            error.add_note(f"Interrupted {position} {self._kept(state)}")
            return
        if self.parallel:
            _print(f"{self._place(job)} failed")
        for line in log.tail():
            _print(f"{_INDENT}| {line}")
        _print(f"{_INDENT}Full log: {log.path}")
        _print(f"{_INDENT}Independent steps continue: {others}." if others else f"Stopped {position} {self._kept()}")

    def show_skipped(self) -> None:
        """Show the steps skipped since the last step that ran."""
        if self.unchanged:
            first, last = self.places[self.unchanged[0]], self.places[self.unchanged[-1]]
            span = str(last) if first == last else f"{first}-{last}"
            _print(f"[{span}/{len(self.places)}] Unchanged since an earlier run: {shortlist(self.unchanged, 6)}")
        self.unchanged = []

    def _place(self, job: Job) -> str:
        return f"[{self.places[job.step.name]}/{len(self.places)}]"

    def _kept(self, states: str = "") -> str:
        outputs = f"the output of {shortlist(self.done, 6)}" if self.done else "nothing yet"
        return f"Kept in '{self.folder}': {outputs}{states}. Run the same command again to continue."


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _print(text: str) -> None:
    click.echo(printable(text), err=True)
