"""Batches of concurrent requests: a batch of queries costs little more than a single query.

An idle service answers immediately. While it is busy, queries wait until the batch is full or the first of them has
waited for some milliseconds. Answers do not depend on the other queries of the batch.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from retrievalkit_serve.failures import RefusedError
from retrievalkit_serve.metrics import Metrics
from retrievalkit_serve.serve import ServeOptions

_LONGEST_RETRY = 60
_SMOOTHING = 0.2
"""Weight of the last batch in the moving average of the time per request."""


class Task(Hashable, Protocol):
    """The operation that requests want: requests with equal tasks can share a batch."""

    @property
    def kind(self) -> str:
        """A short name for the metrics."""

    def size(self, item: Any) -> int:
        """Return the share of a batch that a request takes."""

    def run(self, items: Sequence[Any]) -> Sequence[Any]:
        """Answer the requests of a batch; called in a separate thread."""


@dataclass(eq=False)
class _Job:
    task: Task
    item: Any
    answer: asyncio.Future[Any]
    since: float


class Batcher:
    """Collects requests in the event loop's thread, and answers batches of them in other threads."""

    def __init__(self, options: ServeOptions, metrics: Metrics) -> None:
        self._options = options
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="serve")
        self._waiting: dict[Task, deque[_Job]] = {}
        self._admitted = self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._seconds_each = 0.0

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request as admitted inside the block.

        Raises:
            RefusedError: The queue is full.
        """
        if self._admitted >= self._options.queue:
            self._metrics.refused.inc()
            seconds = min(_LONGEST_RETRY, max(1, math.ceil(self._admitted * self._seconds_each)))
            msg = f"the service is busy. Retry in {seconds} s."
            raise RefusedError(429, msg, {"Retry-After": str(seconds)})
        self._admitted += 1
        self._metrics.queue.set(self._admitted)
        try:
            yield
        finally:
            self._admitted -= 1
            self._metrics.queue.set(self._admitted)

    async def do(self, task: Task, item: Any) -> Any:
        """Answer a request; skips it if its client leaves before it starts."""
        loop = asyncio.get_running_loop()
        job = _Job(task, item, loop.create_future(), loop.time())
        self._waiting.setdefault(task, deque()).append(job)
        self._start()
        return await job.answer

    def close(self) -> None:
        """Wait for the running batch."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self) -> None:
        """Start all batches that can start now."""
        while self._running < self._options.threads and (jobs := self._next()):
            self._running += 1
            items = [job.item for job in jobs]
            answers = partial(copy_context().run, _answers, jobs[0].task, items)
            begun = asyncio.get_running_loop().run_in_executor(self._pool, answers)
            begun.add_done_callback(lambda done, jobs=jobs: self._end(jobs, *done.result()))  # type: ignore[misc]

    def _next(self) -> list[_Job]:
        """Take the batch whose first request has waited longest, if it has waited long enough."""
        for task in list(self._waiting):
            queue = self._waiting[task]
            while queue and queue[0].answer.done():  # abandoned
                queue.popleft()
            if not queue:
                del self._waiting[task]
        longest_first = sorted(self._waiting, key=lambda task: self._waiting[task][0].since)
        now = asyncio.get_running_loop().time()
        for task in longest_first:
            queue = self._waiting[task]
            due = queue[0].since + self._options.wait / 1000
            if self._running and now < due and sum(task.size(job.item) for job in queue) < self._options.batch:
                continue
            jobs, room = list[_Job](), self._options.batch
            while queue and (not jobs or task.size(queue[0].item) <= room):
                job = queue.popleft()
                if not job.answer.done():
                    room -= task.size(job.item)
                    jobs.append(job)
            return jobs
        if longest_first:
            if self._timer is not None:
                self._timer.cancel()
            due = self._waiting[longest_first[0]][0].since + self._options.wait / 1000
            self._timer = asyncio.get_running_loop().call_at(due, self._start)
        return []

    def _end(self, jobs: Sequence[_Job], answers: Sequence[Any], seconds: float) -> None:
        self._running -= 1
        self._metrics.batch(jobs[0].task.kind, len(jobs), seconds)
        each = seconds / len(jobs) / self._options.threads
        self._seconds_each += _SMOOTHING * (each - self._seconds_each)
        for job, answer in zip(jobs, answers, strict=True):
            if job.answer.done():
                continue
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)
        self._start()


def _answers(task: Task, items: Sequence[Any]) -> tuple[list[Any], float]:
    """Return the answer or error of each request, and the seconds; a failing request does not affect the others."""
    start = time.perf_counter()
    try:
        answers = list(task.run(items))
    except BaseException as error:  # noqa: BLE001 - a panic of tokenizers is not an Exception, but belongs to a request
        if len(items) == 1:
            answers = [error if isinstance(error, Exception) else RuntimeError(repr(error))]
        else:
            answers = [_answers(task, [item])[0][0] for item in items]
    return answers, time.perf_counter() - start
