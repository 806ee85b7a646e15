"""Ends a process that torchrun started when torchrun is gone.

torchrun that is ended by SIGKILL cannot end its processes, which would go on, or wait for each other for a day.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from contextlib import suppress

_STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_SECONDS = 0.5
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
    while os.getppid() == _parent:
        time.sleep(_SECONDS)
    if os.environ.get("RANK", "0") == "0":
        # Standard error may have been a pipe to torchrun.
        with suppress(OSError):
            os.write(2, b"Terminated: torchrun, which started this process, has ended.\n")
    os._exit(_CODE)
