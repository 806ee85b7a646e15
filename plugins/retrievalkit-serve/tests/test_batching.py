"""Batches of requests: when they start, failures, timeouts, the queue."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

import pytest
from retrievalkit_serve.batching import Batcher
from retrievalkit_serve.failures import RefusedError
from retrievalkit_serve.metrics import Metrics
from retrievalkit_serve.serve import ServeOptions

from retrievalkit.errors import InputError


class Panic(BaseException):
    """An error like those of Rust extensions such as tokenizers."""


@dataclass(eq=False)
class RecordedTask:
    """A task that answers n with n + 1, fails for "bad" and "panic", and waits for the event `free`."""

    kind: str = "recorded"
    batches: list = field(default_factory=list)
    free: threading.Event = field(default_factory=threading.Event)

    def size(self, item):
        return 1

    def run(self, items):
        self.batches.append(list(items))
        assert self.free.wait(10)
        if "bad" in items:
            raise InputError("bad is bad.")
        if "panic" in items:
            raise Panic
        return [item + 1 for item in items]


def run(scenario, **limits):
    """Run a scenario with a batcher and a task."""

    async def main():
        batcher, task = Batcher(ServeOptions("index", **limits), Metrics()), RecordedTask()
        try:
            await scenario(batcher, task)
        finally:
            task.free.set()
            batcher.close()

    asyncio.run(main())


async def wait_for_batches(task, count):
    while len(task.batches) < count:
        await asyncio.sleep(0.001)


def test_an_idle_service_answers_immediately_and_a_busy_service_collects_requests():
    async def scenario(batcher, task):
        first = asyncio.create_task(batcher.do(task, 0))
        await wait_for_batches(task, 1)
        others = [asyncio.create_task(batcher.do(task, n)) for n in range(1, 6)]
        await asyncio.sleep(0.05)
        assert task.batches == [[0]]
        task.free.set()
        assert await first == 1
        assert await asyncio.gather(*others) == [2, 3, 4, 5, 6]
        assert task.batches == [[0], [1, 2, 3], [4, 5]]

    run(scenario, batch=3, threads=1)


def test_a_query_waits_for_others_for_a_limited_time():
    """If a thread is free, a batch that is not full starts when its first query has waited long enough."""

    async def scenario(batcher, task):
        first = asyncio.create_task(batcher.do(task, 0))
        await wait_for_batches(task, 1)
        second = asyncio.create_task(batcher.do(task, 1))
        await asyncio.sleep(0.02)
        third = asyncio.create_task(batcher.do(task, 2))
        assert len(task.batches) == 1
        await wait_for_batches(task, 2)
        assert task.batches[1] == [1, 2]
        task.free.set()
        assert await asyncio.gather(first, second, third) == [1, 2, 3]

    run(scenario, wait=200, threads=2)


def test_a_failing_request_affects_no_other_request_and_blocks_no_thread():
    async def scenario(batcher, task):
        task.free.set()
        for _ in range(2):
            requests = [asyncio.create_task(batcher.do(task, item)) for item in (0, "panic", "bad", 3)]
            answers = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), 5)
            assert [answers[0], answers[3]] == [1, 4]
            assert [type(answer) for answer in answers[1:3]] == [RuntimeError, InputError]

    run(scenario, threads=1)


def test_an_abandoned_request_is_not_started():
    async def scenario(batcher, task):
        first = asyncio.create_task(batcher.do(task, 0))
        await wait_for_batches(task, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await batcher.do(task, 1)
        last = asyncio.create_task(batcher.do(task, 2))
        await asyncio.sleep(0)
        task.free.set()
        assert await asyncio.gather(first, last) == [1, 3]
        assert task.batches == [[0], [2]]

    run(scenario, threads=1)


def test_a_full_queue_refuses_requests_with_retry_after():
    """It admits requests again after others were answered."""

    async def scenario(batcher, task):
        with batcher.admitted(), batcher.admitted():
            with pytest.raises(RefusedError, match="Retry in 1 s") as raised, batcher.admitted():
                pass
            assert (raised.value.status, raised.value.headers) == (429, {"Retry-After": "1"})
        with batcher.admitted():
            task.free.set()
            assert await batcher.do(task, 1) == 2

    run(scenario, queue=2)
