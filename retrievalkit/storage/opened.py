"""Files that stay readable after they are replaced or removed, because they are opened once."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import sys
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import numpy as np


class MappedFile:
    """A file of rkit, mapped into memory. rkit never modifies its files in place, so they do not shrink while mapped.

    It holds no file descriptor: a process may have only 1,024 of them, and an index thousands of files. Python's own
    mmap keeps a descriptor before Python 3.13. Writes to the buffer do not reach the file.

    Attributes:
        buffer: Its bytes.
    """

    buffer: Any

    def __init__(self, stream: IO[bytes]) -> None:
        size, descriptor = os.fstat(stream.fileno()).st_size, stream.fileno()
        if not size:
            self.buffer = b""
            return
        if sys.platform == "win32":  # which has no such limit
            self.buffer = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
            return
        address = _libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, descriptor, 0)
        if address in (None, ctypes.c_void_p(-1).value):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), stream.name)
        self.buffer = (ctypes.c_ubyte * size).from_address(address)
        # Not at exit, when threads may still read.
        weakref.finalize(self.buffer, _libc().munmap, address, size).atexit = False

    @classmethod
    def of(cls, path: Path) -> MappedFile:
        """Map the file at a path."""
        with path.open("rb") as stream:
            return cls(stream)

    def lent(self, array: np.ndarray) -> np.ndarray:
        """Return a view of an array in this file; its pages leave the memory of this process with the view."""
        view = array[...]
        if sys.platform != "win32" and array.nbytes:
            # The arguments keep the file mapped until then.
            weakref.finalize(view, _drop, self, array.ctypes.data, array.nbytes).atexit = False
        return view


def _drop(file: MappedFile, address: int, size: int) -> None:
    del file
    first = address - address % mmap.PAGESIZE
    _libc().madvise(first, address + size - first, mmap.MADV_DONTNEED)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_ssize_t]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


class HeldFile(type(Path())):  # type: ignore[misc]
    """A path to data of the user, which stays open: `open` and `stat` refer to the file that was there at first.

    It is not mapped, because its owner may shorten it. Without a free descriptor, each read opens the path again.
    """

    _descriptor: int | None = None

    @classmethod
    def of(cls, path: Path) -> HeldFile:
        """Open a file."""
        held = cls(path)
        if hasattr(os, "pread") and path.is_file():  # on Windows, an open file could not be replaced
            with suppress(OSError):
                held._descriptor = os.open(path, os.O_RDONLY)
                weakref.finalize(held, os.close, held._descriptor)
        return held

    @property
    def is_held(self) -> bool:
        """True if the file is open, and a regular file."""
        return self._descriptor is not None

    def open(self, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """Return a new stream with its own position."""
        if self._descriptor is None or mode != "rb":
            return super().open(mode, buffering, *args, **kwargs)
        raw = _Reader(self, self._descriptor)
        return io.BufferedReader(raw) if buffering else raw

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status of the open file."""
        if self._descriptor is None:
            return cast("os.stat_result", super().stat(follow_symlinks=follow_symlinks))
        return os.fstat(self._descriptor)


class _Reader(io.RawIOBase):
    """A stream on a descriptor that other streams read, too."""

    def __init__(self, file: HeldFile, descriptor: int) -> None:
        self.name, self._file, self._descriptor, self._place = str(file), file, descriptor, 0

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        ends = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: os.fstat(self._descriptor).st_size}
        self._place = ends[whence] + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._descriptor, len(buffer), self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
