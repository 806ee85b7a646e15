"""How a command ends by Ctrl-C or by a signal: once through all its clean-up, or at once if that is asked for again.

Python acts on a signal when the library that runs (torch, faiss, Java) returns. A thread therefore watches for a second
Ctrl-C meanwhile, and for a library that takes too long after SIGTERM.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_PATIENCE = 10.0
"""Seconds that a library may take to return after SIGTERM, and to fail because of an interruption."""

_SOON = 0.05
"""Seconds until an interruption that was dropped, or would not be borne, is raised again."""

STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which ends a command as Ctrl-C does, but for the exit code."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def handled() -> Iterator[None]:
    """End the block by KeyboardInterrupt on Ctrl-C, and by `Terminated` on SIGTERM and SIGHUP.

    Signals that are ignored, as by nohup, stay ignored. torchrun ends its processes itself, and waits for them; they
    end too where it is gone.
    """
    if STARTED_BY_TORCHRUN in os.environ and sys.platform == "linux":
        import ctypes

        # torchrun that is killed cannot end its processes, which would wait for each other for a day.
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(_ENDING, signal.SIG_DFL)}
    wanted = [number for number in usual if signal.getsignal(number) == usual[number]]
    if threading.current_thread() is not threading.main_thread() or STARTED_BY_TORCHRUN in os.environ or not wanted:
        yield
        return
    watcher = _Watcher()
    for number in wanted:
        signal.signal(number, watcher.act)
    hook, sys.unraisablehook = sys.unraisablehook, watcher.unraisable
    try:
        yield
    except Exception as error:
        if (replaced := watcher.replaced_by(error)) is None:
            raise
        raise replaced from error
    finally:
        watcher.stop()
        sys.unraisablehook = hook
        for number in wanted:
            signal.signal(number, usual[number])
        # Once all is written, a late signal would only print a traceback of a library that tidies up.
        atexit.unregister(_ignore_late)
        atexit.register(_ignore_late)


def _ignore_late() -> None:
    for number in (signal.SIGINT, *_ENDING):
        signal.signal(number, signal.SIG_IGN)


class _Watcher:
    """Sees signals as they arrive, and ends the process if Python does not act on them."""

    def __init__(self) -> None:
        self._arrived: Counter[int] = Counter()
        self._acted: Counter[int] = Counter()
        self._last: tuple[int, float] | None = None
        self._ended = False
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_child)
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def act(self, number: int, _: Any) -> None:
        """What Python does on a signal, in the main thread."""
        # Of signals that arrive together, Python acts on the first alone; the watcher may not have seen this one yet.
        self._acted[number] = max(self._acted[number] + 1, self._arrived[number])
        if _torch_begins():
            self._raise_soon(signal.Signals(number))
            return
        self._last = number, time.monotonic()
        raise _interruption(number)

    def replaced_by(self, error: Exception) -> KeyboardInterrupt | None:
        """The interruption of which a library, as numpy in `tofile`, made an error of its own; None = there is none."""
        told = isinstance(error.__cause__, KeyboardInterrupt)
        if told or self._last is None or time.monotonic() - self._last[1] > _PATIENCE:
            return None
        interruption = _interruption(self._last[0])
        for note in getattr(error, "__notes__", [])[-1:]:
            interruption.add_note(f"Interrupted; {note[0].lower()}{note[1:]}")
        return interruption

    def unraisable(self, event: Any) -> None:
        """Where Python drops a KeyboardInterrupt, as in `__del__` or a callback of an import, raise it again soon."""
        if not isinstance(event.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(event)
            return
        number = signal.Signals(event.exc_value.number if isinstance(event.exc_value, Terminated) else signal.SIGINT)
        self._raise_soon(number)

    def _raise_soon(self, number: signal.Signals) -> None:
        timer = threading.Timer(_SOON, self._again, (number,))
        timer.daemon = True
        timer.start()

    def _again(self, number: signal.Signals) -> None:
        if self._ended:
            return
        if hasattr(signal, "pthread_kill"):
            # To the main thread, which may sleep.
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:
            _thread.interrupt_main(number)

    def stop(self) -> None:
        """Stop watching."""
        self._ended = True
        signal.set_wakeup_fd(self._before)
        self._write.close()

    def _watch(self) -> None:
        while data := self._read.recv(16):
            for number in data:
                self._arrived[number] += 1
                if self._waiting(number) > 1:
                    _end(number)
                if number in _ENDING:
                    timer = threading.Timer(_PATIENCE, self._end_if_waiting, (number,))
                    timer.daemon = True
                    timer.start()
        self._read.close()

    def _waiting(self, number: int) -> int:
        return self._arrived[number] - self._acted[number]

    def _end_if_waiting(self, number: int) -> None:
        if self._waiting(number) > 0:
            _end(number)

    def _leave_child(self) -> None:
        """A process forked from this one ends by signals as any other, silently."""
        if self._ended:
            return
        self._ended = True
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, *_ENDING):
            if signal.getsignal(number) == self.act:
                signal.signal(number, signal.SIG_DFL)


def _torch_begins() -> bool:
    """Whether torch is being imported: its C++ calls Python, and aborts the process where that raises anything."""
    return getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False)


def _interruption(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def _end(number: int) -> None:
    """End this process and those that it started, without any clean-up."""
    if "multiprocessing" in sys.modules:
        with suppress(Exception):
            for child in sys.modules["multiprocessing"].active_children():
                child.kill()
    os._exit(128 + number)
