"""Reading many files in threads: how far it has come is shown once it has taken some seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from retrievalkit.report.progress import ProgressBar

Result = TypeVar("Result")

_THREADS = 8
_SILENT_SECONDS = 2.0
_BETWEEN_SECONDS = 0.2
_MEGABYTE = 1 << 20


class Reading:
    """Work on files that reads all of their bytes.

    Args:
        label: What is done, as progress names it.
        total: Bytes to read.

    Attributes:
        stopped: Whether the work was interrupted or failed: what reads a file should stop.
    """

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.stopped = label, total, False
        self._read = 0
        self._lock = threading.Lock()

    def count(self, read: int) -> None:
        """Count bytes that were read, or need not be."""
        with self._lock:
            self._read += read

    def each(self, work: Callable[[str], Result], names: Sequence[str]) -> list[Result]:
        """The results of work on each file, in several threads; an interruption does not wait for a large file."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            running = [pool.submit(work, name) for name in names]
            try:
                self._show(running)
                return [one.result() for one in running]
            except BaseException:
                self.stopped = True
                pool.shutdown(cancel_futures=True)
                raise

    def _show(self, running: Sequence[Future[Result]]) -> None:
        """Show how far it has come until all is done or something failed."""
        from concurrent.futures import FIRST_EXCEPTION, wait

        begun, bar = time.monotonic(), None
        # Of several processes that torchrun started, one tells.
        tells = os.environ.get("RANK", "0") == "0"
        try:
            while wait(running, _BETWEEN_SECONDS, FIRST_EXCEPTION).not_done:
                if any(one.done() and one.exception() for one in running):
                    return
                if bar is None and tells and time.monotonic() - begun >= _SILENT_SECONDS:
                    bar = self._bar()
                if bar is not None:
                    bar.update(self._read // _MEGABYTE)
        finally:
            if bar is not None:
                bar.stop()

    def _bar(self) -> ProgressBar:
        from retrievalkit.report.progress import ProgressBar

        total = -(-self.total // _MEGABYTE)
        return ProgressBar(self.label, total, unit="MB", done=self._read // _MEGABYTE).start()
