"""Workers that read documents in parallel, each in a process with limits of time and memory (`worker`).

A worker is used again while it behaves. When it exceeds a limit or crashes, the document is skipped with the reason,
and another worker takes its place.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from retrievalkit_documents.readers import PLAIN, TEXTUAL
from retrievalkit_documents.text import Document, UnreadableError
from retrievalkit_documents.worker import DAMAGED, LAST, MEMORY, TOO_LARGE

SECONDS = 10
"""Limit of the processor's time for a document, in seconds, with `_MORE` for each MiB of it."""
_MORE, _MOST = 2, 60
TOO_SLOW = "that takes longer than"
_WAIT = 8  # limit of elapsed time, as a multiple: other processes may use the processors
_AHEAD = 4
Item = TypeVar("Item")


class _LimitError(UnreadableError):
    """A document that exceeded the memory, or stopped the process."""


class Worker:
    """A process that reads one document at a time; it is started at the first."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def read(self, path: Path, ending: str) -> Document:
        """Read a document; if a process that has read others fails, a new one tries again.

        Raises:
            UnreadableError: It cannot be read.
        """
        is_new = self._process is None
        try:
            return self._read(path, ending)
        except _LimitError:
            if is_new or self._is_closed:
                raise
        return self._read(path, ending)

    def _read(self, path: Path, ending: str) -> Document:
        seconds = min(SECONDS + _MORE * (path.stat().st_size >> 20), _MOST)
        process = self._process = self._process or _started()
        assert process.stdin is not None
        request = json.dumps([os.fspath(path), ending, seconds]).encode("ascii") + b"\n"
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = self._line(process, time.monotonic() + _WAIT * seconds)
        except BrokenPipeError:
            line = b""
        except TimeoutError:
            self.stop()
            msg = f"{TOO_SLOW} {_WAIT * seconds} s"
            raise UnreadableError(msg) from None
        if not line.endswith(b"\n"):
            raise self._end(seconds)
        if line.endswith(LAST):
            self.stop()
        answer: dict[str, Any] = json.loads(line)
        if "problem" not in answer:
            return Document(**answer)
        raise (_LimitError if answer["problem"].startswith(TOO_LARGE) else UnreadableError)(answer["problem"])

    def _line(self, process: subprocess.Popen[bytes], end: float) -> bytes:
        """Return the answer; incomplete if the process ended."""
        assert process.stdout is not None
        parts: list[bytes] = []
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN | select.POLLHUP)
        while not (parts and parts[-1].endswith(b"\n")):
            if not poll.poll(max(0, end - time.monotonic()) * 1000):
                raise TimeoutError
            parts.append(os.read(process.stdout.fileno(), 1 << 20))
            if not parts[-1]:
                break
        return b"".join(parts)

    def _end(self, seconds: int) -> UnreadableError:
        """Stop a process that did not answer, and return the reason."""
        assert self._process is not None
        code = self._process.wait()
        self.stop()
        if code == -signal.SIGXCPU:
            return UnreadableError(f"{TOO_SLOW} {seconds} s")
        return _LimitError(f"that stops the reader: damaged, or larger than {MEMORY >> 20:,} MiB of memory")

    def close(self) -> None:
        """End the process, and start no other in its place."""
        self._is_closed = True
        self.stop()

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with suppress(BrokenPipeError):
                    stream.close()


def _started() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "retrievalkit_documents.worker", str(os.getpid())]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


def read_documents(
    items: Iterable[Item], path_of: Callable[[Item], Path | None]
) -> Iterator[tuple[Item, Document | UnreadableError | None]]:
    """Yield each item with its document, or the reason why it cannot be read; several workers read ahead.

    Args:
        items: The items, taken a few at a time.
        path_of: Returns the file of an item; None = the item has no document.
    """
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local, workers = threading.local(), list[Worker]()

    def read(path: Path | None) -> Document | UnreadableError | None:
        if path is None:
            return None
        if not hasattr(local, "worker"):
            local.worker = Worker()
            workers.append(local.worker)
        return _read(local.worker, path)

    waiting: deque[tuple[Item, Future[Document | UnreadableError | None]]] = deque()
    # Linux kills a worker when the thread that started it ends, so the threads live as long as the pool.
    pool = ThreadPoolExecutor(processors)
    try:
        for item in items:
            waiting.append((item, pool.submit(read, path_of(item))))
            if len(waiting) > _AHEAD * processors:
                first, document = waiting.popleft()
                yield first, document.result()
        for first, document in waiting:
            yield first, document.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()
        pool.shutdown()
        for worker in workers:
            worker.stop()  # a process that was started meanwhile


def _read(worker: Worker, path: Path) -> Document | UnreadableError:
    ending = path.suffix.lower()
    try:
        return worker.read(path, ending)
    except (UnreadableError, OSError) as error:
        problem = error if isinstance(error, UnreadableError) else UnreadableError(error.strerror or str(error))
    if ending in TEXTUAL and str(problem).startswith(("that ", DAMAGED)):
        try:  # its text, with the marks of its format, is better than nothing
            document = worker.read(path, PLAIN)
        except (UnreadableError, OSError):
            return problem
        document.left["formats that could not be parsed, read as plain text"] = 1
        return document
    return problem
