"""Ends a process that torchrun started when torchrun is gone.

torchrun that is ended by SIGKILL cannot end its processes, which would go on, or wait for each other for a day.

A process whose parent has ended gets another parent. Its parent's number alone does not say whether that is torchrun,
which may have ended while Python started. But torchrun's store is opened before any process is started, and answers as
long as torchrun lives: if it answers after the number was read, the number is torchrun's.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from contextlib import suppress

_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
STORE_OF_TORCHRUN = "TORCHELASTIC_USE_AGENT_STORE"
"""Set to "True" where torchrun's store is at MASTER_ADDR and MASTER_PORT, not one that the first process is to open."""

_SECONDS = 0.5
_TO_ANSWER = 60.0
_CODE = 143

_parent = os.getppid()
"""As early as this module is imported, which is before torch is."""


@functools.cache
def watch() -> None:
    """From now on, end this process without any clean-up when torchrun ends, if that started it."""
    if _STARTED_BY_TORCHRUN in os.environ:
        threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    # What a process writes is whole or hidden at any moment, so that it may end at any moment.
    if not _store_is_gone():
        while os.getppid() == _parent:
            time.sleep(_SECONDS)
    if os.environ.get("RANK", "0") == "0":
        # Standard error may have been a pipe to torchrun.
        with suppress(OSError):
            os.write(2, b"Terminated: torchrun, which started this process, has ended.\n")
    os._exit(_CODE)


def _store_is_gone() -> bool:
    """Whether nobody listens where torchrun has its store; False also where it has none, or nothing answers in time."""
    if os.environ.get(STORE_OF_TORCHRUN) != "True":
        return False
    try:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        socket.create_connection(place, timeout=_TO_ANSWER).close()
    except ConnectionRefusedError:
        return True
    except (KeyError, ValueError, OSError):
        return False
    return False
