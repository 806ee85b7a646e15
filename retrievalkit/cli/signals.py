"""Termination of a command by Ctrl-C or a signal: with all clean-up, or immediately on a second Ctrl-C.

Python handles a signal only when the running library (torch, faiss, Java) returns. A thread therefore watches for a
second Ctrl-C, and for a library that takes too long after SIGTERM.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 10.0
"""Seconds that a library may take to return after SIGTERM."""

_SOON = 0.05
"""Seconds until an interruption that was dropped, or could not be raised safely, is raised."""

STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: ends a command like Ctrl-C, except for the exit code."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def handled() -> Iterator[None]:
    """End the block by KeyboardInterrupt on Ctrl-C, and by `Terminated` on SIGTERM and SIGHUP.

    Signals that are ignored, as under nohup, stay ignored. torchrun ends its own processes and waits for them; they are
    killed if torchrun dies.
    """
    if STARTED_BY_TORCHRUN in os.environ and sys.platform == "linux":
        import ctypes

        # A torchrun that is killed cannot end its processes, which would continue without it.
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    defaults: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(_ENDING, signal.SIG_DFL)}
    numbers = [number for number in defaults if signal.getsignal(number) == defaults[number]]
    if threading.current_thread() is not threading.main_thread() or STARTED_BY_TORCHRUN in os.environ or not numbers:
        yield
        return
    watcher = _Watcher()
    for number in numbers:
        signal.signal(number, watcher.act)
    hook, sys.unraisablehook = sys.unraisablehook, watcher.unraisable
    try:
        yield
    finally:
        watcher.stop()
        sys.unraisablehook = hook
        for number in numbers:
            signal.signal(number, defaults[number])
        # Everything is written: a late signal would only print a traceback of a library's clean-up.
        atexit.unregister(_ignore_late)
        atexit.register(_ignore_late)


def _ignore_late() -> None:
    for number in (signal.SIGINT, *_ENDING):
        signal.signal(number, signal.SIG_IGN)


class _Watcher:
    """Watches signals as they arrive, and ends the process if Python does not handle them."""

    def __init__(self) -> None:
        self._arrived: Counter[int] = Counter()
        self._acted: Counter[int] = Counter()
        self._ended = False
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._leave_child)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def act(self, number: int, _: Any) -> None:
        """Handle a signal in the main thread: Python's signal handler."""
        # Python handles simultaneous signals once; the watcher may not have seen this signal yet.
        self._acted[number] = max(self._acted[number] + 1, self._arrived[number])
        # While torch is being imported, its C++ calls Python, and an exception there aborts the process.
        if getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False):
            self._raise_soon(signal.Signals(number))
            return
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    def unraisable(self, event: Any) -> None:
        """Raise a KeyboardInterrupt again that Python dropped, as in `__del__` or an import callback."""
        if not isinstance(event.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(event)
            return
        number = signal.Signals(event.exc_value.number if isinstance(event.exc_value, Terminated) else signal.SIGINT)
        self._raise_soon(number)

    def _raise_soon(self, number: signal.Signals) -> None:
        def again() -> None:
            if not self._ended:
                # Sent to the main thread, which may be asleep.
                signal.pthread_kill(threading.main_thread().ident or 0, number)

        _later(_SOON, again)

    def stop(self) -> None:
        """Stop watching."""
        self._ended = True
        signal.set_wakeup_fd(self._before)
        self._write.close()

    def _watch(self) -> None:
        def end_if_waiting(number: int, most: int = 0) -> None:
            if self._arrived[number] - self._acted[number] > most:
                _end(number)

        while data := self._read.recv(16):
            for number in data:
                self._arrived[number] += 1
                end_if_waiting(number, most=1)
                if number in _ENDING:
                    _later(_PATIENCE, partial(end_if_waiting, number))
        self._read.close()

    def _leave_child(self) -> None:
        """Restore default signal handling in a forked process, so that it ends silently."""
        if self._ended:
            return
        self._ended = True
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, *_ENDING):
            if signal.getsignal(number) == self.act:
                signal.signal(number, signal.SIG_DFL)


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


def _end(number: int) -> None:
    """End this process and its multiprocessing children, without any clean-up."""
    if "multiprocessing" in sys.modules:
        with suppress(Exception):
            for child in sys.modules["multiprocessing"].active_children():
                child.kill()
    os._exit(128 + number)
