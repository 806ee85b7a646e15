"""Running a plugin's own code while it registers: it may hang, print or exit, and harms nothing but itself."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

from retrievalkit.errors import PluginError

PATIENCE_SECONDS = 20.0
"""How long a plugin may take to be imported, and to register."""

_SHOWN = 60


class _TooLong(BaseException):
    """Not an Exception, which a plugin may catch."""


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run a plugin's code in the block.

    What it prints is caught, as it would begin the output of every command. It is stopped when it takes too long, where
    Python can: in the main thread, on systems with timers, if nothing else uses the timer. Code in C that never
    returns to Python cannot be stopped.

    Raises:
        PluginError: It took too long, printed, or ended the process.
    """
    printed = io.StringIO()
    try:
        with limited(PATIENCE_SECONDS, _TooLong()), contextlib.redirect_stdout(printed), staying():
            yield
    except _TooLong:
        msg = f"it takes longer than {PATIENCE_SECONDS:g} seconds to import and to register"
        raise PluginError(msg) from None
    if text := " ".join(printed.getvalue().split()):
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        msg = f"it prints when it is imported: '{shown}'"
        raise PluginError(msg)


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """Keep the process alive where a plugin's code ends it (`sys.exit`, `os._exit`) or raises what is no Exception.

    A crash, a signal or `os.abort` cannot be caught.

    Raises:
        PluginError: It did.
    """
    end, here = os._exit, (os.getpid(), threading.get_ident())

    def refuse(status: int) -> None:
        if (os.getpid(), threading.get_ident()) != here:
            end(status)  # a process that the plugin forked, or a thread of ours
        msg = f"os._exit({status})"
        raise SystemExit(msg)

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    except (Exception, KeyboardInterrupt, _TooLong):
        raise
    except BaseException as error:
        msg = f"it ends the process when it is imported ({type(error).__name__}: {error})"
        raise PluginError(msg) from error
    finally:
        os._exit = end


@contextlib.contextmanager
def limited(seconds: float | None, error: BaseException) -> Iterator[None]:
    """Raise `error` where the block is after some seconds; None = never.

    In the main thread alone, on systems with timers, if nothing else uses the timer.
    """
    in_main = threading.current_thread() is threading.main_thread()
    possible = in_main and hasattr(signal, "setitimer") and not any(signal.getitimer(signal.ITIMER_REAL))
    if seconds is None or not possible:
        yield
        return

    def stop(*_: object) -> NoReturn:
        raise error

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
