"""One writer at a time per output: a lock file next to it, released when the process that holds it ends.

Threads of a process exclude each other too, unless they run in copies of the writer's context
(`contextvars.copy_context`). `.NAME.lock` contains the id and the machine of the process. The lock belongs to the
operating system, not to the file: the file of a killed process blocks nobody, and the next writer removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import click
from filelock import FileLock, Timeout

from retrievalkit.errors import ArtifactError
from retrievalkit.storage.places import check_parents, is_stream, place_of

_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without locks, such as some on clusters."""

# The lock files that this context holds.
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())


@contextmanager
def held(output: str | Path, *, lock: Path | None = None, wait: bool = False) -> Iterator[None]:
    """Lock an output against writes by other processes and threads until the block ends or fails.

    A writer may lock an output that it already holds. With torchrun, only the first process locks.

    Args:
        output: The file or folder; parents are created, and removed again if nothing is written there.
        lock: The lock file; None = next to the output.
        wait: Wait for another writer instead of failing.
    """
    if os.environ.get("RANK", "0") != "0" or is_stream(output):
        yield
        return
    place = place_of(output)
    lock = lock or place.with_name(f".{place.name}.lock")
    if lock in _HELD.get() or is_internal(place):
        yield
        return
    check_parents(lock.parent, output)
    created = [folder for folder in (lock.parent, *lock.parent.parents) if not folder.exists()]
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _locked(lock, output, wait=wait):
            yield
    finally:
        for folder in created:
            # Only if nothing was written.
            with contextlib.suppress(OSError):
                folder.rmdir()


def is_internal(place: Path) -> bool:
    """True if a place is in a hidden folder next to an output that this writer holds."""
    return any(
        parent.parent == lock.parent and parent.name.startswith(lock.name.removesuffix("lock"))
        for lock in _HELD.get()
        for parent in place.parents
    )


@contextmanager
def _locked(path: Path, output: str | Path, *, wait: bool) -> Iterator[None]:
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        writer = "another process"
        with contextlib.suppress(OSError, ValueError):
            number, host = path.read_text(encoding="utf-8").split()
            here = host == socket.gethostname()
            own = here and number == str(os.getpid())
            writer = "another thread" if own else f"{writer} ({number}{'' if here else f' on {host}'})"
        msg = f"{writer} is writing to '{output}'. Wait until it ends, or choose another --output."
        raise ArtifactError(msg) from None
    except OSError as error:
        if os.path.islink(path) or path.is_dir():
            msg = f"'{path}' is needed as the lock file of '{output}', but it is a link or a folder. Remove it."
            raise ArtifactError(msg) from error
        if error.errno not in _NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
        click.echo(
            f"Note: the file system of '{output}' has no locks. Make sure that no other command writes there.", err=True
        )
        yield
        return
    _HELD.set(_HELD.get() | {path})
    try:
        with contextlib.suppress(OSError):  # on a full disk, the message to the next writer lacks the id
            path.write_text(f"{os.getpid()} {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        _HELD.set(_HELD.get() - {path})
        # Removed while locked: a process that has opened the file notices, and creates a new file.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()
