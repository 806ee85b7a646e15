"""A step of a recipe in a process of its own: on this machine beside others, or on a machine of a Ray cluster.

The process gets the step on its standard input, which stays open as long as the step is wanted: when it is closed,
because the run is interrupted or killed, or its machine is gone, the step ends as by SIGTERM. What the step prints is
in its log, as ever; its last word, on standard output, is how it ended.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retrievalkit.recipe.state import STATE

if TYPE_CHECKING:
    from retrievalkit.cluster import ClusterOptions

PROGRAM = "retrievalkit.cli.step"
"""The module that runs a step that it gets on its standard input."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_PATIENCE = 60.0
"""Seconds that a step may take to end once it is not wanted any more."""


@dataclass(frozen=True)
class Task:
    """A step for another process.

    Attributes:
        name: The step's name.
        command: The name of its command.
        words: The command line, without "rkit".
        output: What it writes, if anything.
        folder: The run's folder.
        resume: Whether to go on with a command that was cut off.
        strict: Whether oddities are errors.
        here: The working folder, to which the paths above are relative.
        program: The module that runs it.
        threads: How many threads it computes with.
    """

    name: str
    command: str
    words: tuple[str, ...]
    output: str | None
    folder: str
    resume: bool
    strict: bool
    here: str
    program: str
    threads: int = 1


@dataclass(frozen=True)
class Ended:
    """How a step ended.

    Attributes:
        seconds: How long it ran.
        result: The last line of what it printed.
        problem: Why it failed; "" = it did not.
        code: Its exit code.
    """

    seconds: float = 0.0
    result: str = ""
    problem: str = ""
    code: int = 0


class Runner(Protocol):
    """Runs steps side by side.

    Attributes:
        slots: How many steps it takes at a time.
        lost: The errors by which a step is lost with its machine, and may be run again.
    """

    slots: int
    lost: tuple[type[BaseException], ...]

    def submit(self, task: Task) -> Future[Ended]:
        """Run a step as soon as there is room."""

    def stop(self) -> None:
        """End all steps, and wait until they have ended."""


class Local:
    """Runs steps on this machine, each with its share of the processors.

    Args:
        jobs: How many at a time.
    """

    lost: tuple[type[BaseException], ...] = ()

    def __init__(self, jobs: int) -> None:
        self.slots = jobs
        self._threads = max(1, (os.cpu_count() or 1) // jobs)
        self._pool = ThreadPoolExecutor(jobs)
        self._wanted = threading.Event()
        self._wanted.set()
        self._futures: list[Future[Ended]] = []

    def submit(self, task: Task) -> Future[Ended]:
        """Run a step as soon as one of the others has ended."""
        task = replace(task, threads=self._threads)
        self._futures.append(self._pool.submit(run_apart, task, self._wanted.is_set))
        return self._futures[-1]

    def stop(self) -> None:
        """End all steps, and wait until they have ended."""
        self._wanted.clear()
        self._pool.shutdown(cancel_futures=True)


class OnCluster:
    """Runs steps on a cluster, each as a task with processors of its own.

    Args:
        options: The cluster, and what a step gets of it.
    """

    def __init__(self, options: ClusterOptions) -> None:
        from retrievalkit.cluster import workers

        self._tasks = workers(options).tasks(_with_threads)
        self.slots, self.lost = self._tasks.slots, self._tasks.lost

    def submit(self, task: Task) -> Future[Ended]:
        """Run a step as soon as a machine has room."""
        return self._tasks.submit(task)

    def stop(self) -> None:
        """End all steps, and wait until they have ended."""
        self._tasks.stop(_PATIENCE)


def _with_threads(task: Task, threads: int) -> Ended:
    return run_apart(replace(task, threads=threads))


def run_apart(task: Task, wanted: Callable[[], bool] = lambda: True) -> Ended:
    """Run a step in a process of its own, and wait for its end.

    Args:
        task: The step.
        wanted: Asked now and then whether the step is still wanted.
    """
    here = Path(task.here)
    if not (here / task.folder / STATE).is_file():
        msg = (
            f"on {socket.gethostname()}, there is no '{here / task.folder}'. Steps of a recipe run where its folder "
            f"is: put it on a disk that all machines of the cluster share, at the same place."
        )
        return Ended(problem=msg, code=2)
    # -P: a folder of the user's that is called as a module of ours is not run.
    command = [sys.executable, "-P", "-m", task.program]
    environment = os.environ | dict.fromkeys(_THREADS, str(task.threads))
    with tempfile.TemporaryFile("w+") as printed:
        # A session of its own: Ctrl-C reaches the run, which ends its steps once.
        process = subprocess.Popen(
            command, cwd=here, env=environment, stdin=subprocess.PIPE, stdout=printed, start_new_session=True
        )
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
                process.stdin.flush()
            while wanted():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.2)
                    break
        finally:
            _end(process)
        printed.seek(0)
        return _ended(printed.read(), process.returncode)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        process.stdin.close()  # type: ignore[union-attr]
    try:
        process.wait(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ended(printed: str, code: int) -> Ended:
    lines = printed.splitlines()
    try:
        return Ended(**json.loads(lines[-1]))
    except (IndexError, TypeError, ValueError):
        how = f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"
        return Ended(problem=f"{how}. Is there enough memory?" if code == -9 else f"{how}.", code=1)
