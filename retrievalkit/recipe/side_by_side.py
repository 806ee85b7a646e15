"""Steps of a recipe side by side: each as soon as those that it needs are done; the outcome is that of one by one.

A step that fails takes those with it that need it; the others go on, and the run fails at its end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import PurePath

from retrievalkit import oddities
from retrievalkit.errors import shortlist
from retrievalkit.recipe import apart
from retrievalkit.recipe.apart import Ended, Runner, Task
from retrievalkit.recipe.display import Display
from retrievalkit.recipe.job import Job, StepError
from retrievalkit.recipe.log import StepLog
from retrievalkit.recipe.state import State

_TRIES = 3
"""How often a step is run that is lost with its machine."""


@dataclass
class _Running:
    """A step under way: since when, for how long in earlier runs, and which try it is."""

    job: Job
    started: float
    before: float
    tries: int = 1


class SideBySide:
    """Runs the steps of a recipe.

    Args:
        jobs: All steps, in the order of the recipe.
        state: What is known of earlier runs.
        runner: Where they run; made when the first step has to.
        display: Shows them.
        force: Whether to run steps that are done.
        done: Called with each step that is, and whether it was skipped.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        state: State,
        runner: Callable[[], Runner],
        display: Display,
        *,
        force: bool,
        done: Callable[[Job, bool], None],
    ) -> None:
        self._waiting = list(jobs)
        self._needs = needs(jobs)
        self._state = state
        self._make = runner
        self._runner: Runner | None = None
        self._display = display
        self._force = force
        self._done = done
        self._ended: set[str] = set()
        self._running: dict[Future[Ended], _Running] = {}
        self._failed: dict[str, StepError] = {}

    def run(self) -> None:
        """Run them all.

        Raises:
            StepError: Some failed; the others that could are done.
        """
        try:
            while self._start_ready() or self._running:
                if self._running:
                    for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                        self._take(future)
        except BaseException as error:
            self._interrupt(error)
            raise
        if self._runner is not None:
            self._runner.stop()
        self._display.show_kept()
        if self._failed:
            raise self._failure()

    def _start_ready(self) -> bool:
        """Start or skip the steps that nothing holds up; whether any was skipped, which may have held up others."""
        skipped = False
        for job in [job for job in self._waiting if self._needs[job.step.name] <= self._ended]:
            if self._runner is not None and len(self._running) >= self._runner.slots:
                break
            key = self._state.key(job)
            if not self._force and self._state.is_done(job, key):
                self._display.keep(job)
                self._waiting.remove(job)
                self._finish(job, skipped=True)
                skipped = True
                continue
            if self._runner is None:
                self._runner = self._make()
            self._waiting.remove(job)
            resumed, before = self._state.begin(job, key)
            self._display.start(job, resumed=resumed, seconds=before)
            self._submit(_Running(job, time.perf_counter(), before), resume=resumed)
        return skipped

    def _submit(self, running: _Running, *, resume: bool) -> None:
        job = running.job
        task = Task(
            job.step.name,
            job.step.command,
            job.words,
            None if job.output is None else str(job.output),
            str(self._state.folder),
            resume,
            oddities.strict(),
            os.getcwd(),
            apart.PROGRAM,
        )
        assert self._runner is not None
        self._running[self._runner.submit(task)] = running

    def _take(self, future: Future[Ended]) -> None:
        """Note how a step ended."""
        assert self._runner is not None
        running = self._running.pop(future)
        job, log = running.job, StepLog(self._state.folder, running.job.step.name)
        try:
            ended = future.result()
        except self._runner.lost as error:
            if running.tries < _TRIES:
                self._display.lost(job)
                running.tries += 1
                self._submit(running, resume=True)
                return
            ended = Ended(problem=f"its machine was lost {_TRIES} times: {str(error).splitlines()[0]}", code=1)
        seconds = running.before + (ended.seconds or time.perf_counter() - running.started)
        if ended.problem:
            failure = StepError(job.step, ended.problem, ended.code)
            self._failed[job.step.name] = failure
            self._state.interrupt(job, seconds)
            self._display.fail(job, log, failure, others=len(self._running) + len(self._left()))
            return
        log.result = ended.result
        self._state.finish(job, seconds)
        self._display.finish(job, log, seconds)
        self._finish(job, skipped=False)

    def _finish(self, job: Job, *, skipped: bool) -> None:
        self._ended.add(job.step.name)
        self._done(job, skipped)

    def _left(self) -> list[Job]:
        """The steps that wait, and that no failed one holds up."""
        lost = set(self._failed)
        left = []
        for job in self._waiting:
            if self._needs[job.step.name] & lost:
                lost.add(job.step.name)
            else:
                left.append(job)
        return left

    def _interrupt(self, error: BaseException) -> None:
        """End what runs, and note how long each step did."""
        if self._runner is not None:
            self._runner.stop()
        for one in self._running.values():
            self._state.interrupt(one.job, one.before + time.perf_counter() - one.started)
        self._display.interrupt([one.job for one in self._running.values()], error)

    def _failure(self) -> StepError:
        """The first failure, and what else was not done."""
        first, *others = self._failed.values()
        if others:
            first.add(f"Failed too: {shortlist(list(self._failed)[1:], 6)}.")
        if self._waiting:
            first.add(f"Not run, since they need those: {shortlist([job.step.name for job in self._waiting], 6)}.")
        return first


def needs(jobs: Sequence[Job]) -> dict[str, set[str]]:
    """Step -> the steps that come before it: those that it uses, and earlier ones that write into the same folder."""
    found: dict[str, set[str]] = {}
    for place, job in enumerate(jobs):
        found[job.step.name] = set(job.step.uses)
        for earlier in jobs[:place]:
            if job.output is not None and earlier.output is not None and _nested(job.output, earlier.output):
                found[job.step.name].add(earlier.step.name)
    return found


def _nested(one: PurePath, other: PurePath) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
