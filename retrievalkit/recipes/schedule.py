"""Execution of a recipe's steps: sequential, or parallel, each as soon as the steps that it depends on are done.

The outcome is the same. In parallel, each step has a separate process. If a step fails, the steps that depend on it are
not run; the others continue, and the run fails at its end.

The process reads the step from its standard input, which stays open as long as the step should run: when it is closed,
because the run is interrupted or killed, the step ends as on SIGTERM. The output of the step goes to its log; the last
line of the process's standard output reports the outcome.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import click

from retrievalkit.errors import shortlist
from retrievalkit.recipes.display import Display
from retrievalkit.recipes.job import Job, StepError
from retrievalkit.recipes.log import StepLog
from retrievalkit.recipes.state import State
from retrievalkit.reporting import notices

PROGRAM = "retrievalkit.cli.step"
"""Module that runs a step read from standard input."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_PATIENCE = 60.0
"""Seconds that a step may take to end after it was cancelled."""


class Ended(NamedTuple):
    """End of a step: its seconds, and the last line that it printed or the problem."""

    seconds: float = 0.0
    result: str = ""
    problem: str = ""
    code: int = 0


def run_steps(
    jobs: Sequence[Job],
    state: State,
    display: Display,
    *,
    cli: click.Group,
    parallel: int | None,
    force: bool,
    done: Callable[[Job, bool], None],
) -> None:
    """Run the steps of a recipe: in order in this process, or `parallel` steps at a time, which share the CPU threads.

    Raises:
        StepError: Some steps failed; in parallel, all steps that do not depend on them are done.
    """
    # Dependencies of a step: the steps that it uses, and earlier steps that write to the same folder.
    needs: dict[str, set[str]] = {}
    for place, job in enumerate(jobs):
        needs[job.step.name] = set(job.step.uses)
        for earlier in jobs[:place]:
            if job.output is None or earlier.output is None:
                continue
            if job.output.is_relative_to(earlier.output) or earlier.output.is_relative_to(job.output):
                needs[job.step.name].add(earlier.step.name)
    threads = max(1, (os.cpu_count() or 1) // (parallel or 1))
    active = threading.Event()
    active.set()
    waiting, completed = list(jobs), set[str]()
    failed: dict[str, StepError] = {}
    running: dict[Future[Ended], tuple[Job, float, float]] = {}
    pool = ThreadPoolExecutor(parallel or 1)

    def finished(job: Job, log: StepLog, seconds: float) -> None:
        state.finish(job, seconds)
        display.finish(job, log, seconds)
        completed.add(job.step.name)
        done(job, False)

    def start() -> bool:
        """Start or skip the first step whose dependencies are done; return True if there was one."""
        job = next((job for job in waiting if needs[job.step.name] <= completed), None)
        if job is None or len(running) == parallel:
            return False
        waiting.remove(job)
        key = state.key(job)
        if not force and state.is_done(job, key):
            display.skip(job)
            completed.add(job.step.name)
            done(job, True)
            return True
        resumed, before = state.begin(job, key)
        display.start(job, resumed=resumed, seconds=before)
        started = time.perf_counter()
        if parallel is not None:
            run = partial(_run_process, job, str(state.folder), resume=resumed, threads=threads, active=active.is_set)
            running[pool.submit(run)] = job, started, before
            return True
        log = StepLog(state.folder, job.step.name)
        try:
            job.run(cli, log, resume=resumed)
        except BaseException as error:
            state.interrupt(job, before + time.perf_counter() - started)
            display.fail(job, log, error)
            raise
        finished(job, log, before + time.perf_counter() - started)
        return True

    try:
        while start() or running:
            while start():
                pass
            for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                (job, started, before), end = running.pop(future), future.result()
                log = StepLog(state.folder, job.step.name)
                seconds = before + (end.seconds or time.perf_counter() - started)
                if not end.problem:
                    log.result = end.result
                    finished(job, log, seconds)
                    continue
                failed[job.step.name] = failure = StepError(job.step, end.problem, end.code)
                state.interrupt(job, seconds)
                blocked = set(failed)
                for later in waiting:
                    blocked |= {later.step.name} if needs[later.step.name] & blocked else set()
                others = len(running) + sum(later.step.name not in blocked for later in waiting)
                display.fail(job, log, failure, others=others)
    except BaseException as error:
        active.clear()
        pool.shutdown(cancel_futures=True)
        for job, started, before in running.values():
            state.interrupt(job, before + time.perf_counter() - started)
        if parallel is not None:
            display.interrupt([job for job, _, _ in running.values()], error)
        raise
    pool.shutdown()
    display.show_skipped()
    if failed:
        first, *rest = failed.values()
        more = [f"Also failed: {shortlist(list(failed)[1:], 6)}."] if rest else []
        if waiting:
            more.append(f"Not run, because they depend on these: {shortlist([job.step.name for job in waiting], 6)}.")
        first.args = (" ".join([*first.args, *more]),)
        raise first


def _run_process(job: Job, folder: str, *, resume: bool, threads: int, active: Callable[[], bool]) -> Ended:
    """Run a step in a separate process, as long as `active` returns True, and wait for its end."""
    output = None if job.output is None else str(job.output)
    task: dict[str, Any] = {"name": job.step.name, "command": job.step.command, "words": job.words, "output": output}
    task |= {"folder": folder, "resume": resume, "strict": notices.strict()}
    # -P: do not import a user's folder with the name of one of our modules.
    command = [sys.executable, "-P", "-m", PROGRAM]
    environment = os.environ | dict.fromkeys(_THREADS, str(threads))
    with tempfile.TemporaryFile("w+") as output_file:
        # A new session: Ctrl-C reaches only the run, which then ends its steps.
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=output_file, start_new_session=True
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        while active() and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.2)
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
        code = process.wait()
        output_file.seek(0)
        try:
            return Ended(**json.loads(output_file.readlines()[-1]))
        except (IndexError, TypeError, ValueError):
            end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return Ended(problem=f"its process {end}.{' Is there enough memory?' if code == -9 else ''}", code=1)
