"""A worker: reads documents in a process of its own, with limits: `python -m retrievalkit_documents.worker PARENT`.

It answers each line on standard input, [path, ending, seconds], with a line: the document, or the reason why it cannot
be read. A hostile document can keep any parser busy for days, exhaust the memory or crash it; then only this process
ends. It also ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from retrievalkit_documents.readers import CODE, READERS, ending_of
from retrievalkit_documents.text import DAMAGED_PARTS, Document, UnreadableError

MEMORY = 3 << 28
"""Bytes of address space of a worker."""
_STACK = 64 << 20  # parsers in C recurse too
_RECURSION = 20_000
LAST = b" \n"
"""The end of the last answer of a process."""
DAMAGED, TOO_LARGE = "damaged", "that needs more than"
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_TIRED = 1 << 28
"""Bytes of memory after which a worker is replaced: parsers do not return all of it."""


def main() -> None:
    """Answer requests until standard input ends."""
    _die_with(int(sys.argv[1]))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):  # a lower limit, or none on this system
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
    sys.setrecursionlimit(_RECURSION)
    threading.stack_size(_STACK)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    serving = threading.Thread(target=_serve, args=(answers,))
    serving.start()
    serving.join()


def _die_with(parent: int) -> None:
    """End this process when its parent is killed, even in the middle of a C function."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        while os.getppid() == parent:
            threading.Event().wait(1)
        os._exit(1)

    if sys.platform != "linux":
        threading.Thread(target=watch, daemon=True).start()


def _serve(answers: Any) -> None:
    for line in sys.stdin.buffer:
        path, ending, seconds = json.loads(line)
        _limit_seconds(seconds)
        answer, behaves = _answer(path, ending)
        answers.write(answer + (b"\n" if behaves else LAST))
        answers.flush()
        if not behaves:
            os._exit(0)


def _answer(path: str, ending: str) -> tuple[bytes, bool]:
    """Return the answer, and False if another process should read the next document."""
    try:
        answer = json.dumps(asdict(read(path, ending))).encode("ascii")
    except UnreadableError as error:
        return json.dumps({"problem": str(error)}).encode(), True
    except MemoryError:
        return json.dumps({"problem": f"{TOO_LARGE} {MEMORY >> 20:,} MiB of memory"}).encode(), False
    except OSError as error:
        is_damaged = error.errno in (None, errno.EINVAL)  # offsets in the document
        return json.dumps({"problem": DAMAGED if is_damaged else error.strerror}).encode(), False
    except Exception as error:  # noqa: BLE001 - parsers document no exceptions
        return json.dumps({"problem": DAMAGED, "cause": f"{type(error).__name__}: {error}"[:300]}).encode(), False
    return answer, _memory() < _TIRED


def _memory() -> int:
    """Return the resident memory in bytes; the system's peak includes that of the parent."""
    with suppress(OSError), open("/proc/self/statm", "rb") as status:
        return int(status.read().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read(path: str, ending: str) -> Document:
    """Read a document by its content, and otherwise by its file extension."""
    with open(path, "rb") as stream:
        module, _, name = READERS[ending_of(stream, ending)].partition(":")
        reader = getattr(importlib.import_module(f"retrievalkit_documents.readers.{module}"), name)
        document: Document = reader(stream)
    if ending in CODE:
        document.blocks = [(0, len(document.text), 0)]
    if not document.text.strip():
        if DAMAGED_PARTS in document.left:
            raise UnreadableError(DAMAGED)
        scanned = next((kind for kind in document.left if "without text" in kind or kind == "images"), "")
        msg = "without text, but with images" if scanned else "without text"
        raise UnreadableError(msg)
    return document


def _limit_seconds(seconds: int) -> None:
    """Limit the time of the processor for the next document; the system kills the process after it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


if __name__ == "__main__":
    main()
