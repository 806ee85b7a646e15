"""Fingerprints of values and files: 32 hexadecimal digits of BLAKE2b."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from retrievalkit.storage.json_files import open_regular

Counter = Callable[[int], None]

VERIFY = "RKIT_VERIFY"
"""Environment variable: 1 verifies all bytes of every opened file."""
_VERIFYING = ContextVar("verifying", default=False)


def verifies() -> bool:
    """True if all bytes of opened files are verified: for this command, or by the environment variable."""
    return _VERIFYING.get() or os.environ.get(VERIFY) == "1"


@contextmanager
def verifying() -> Iterator[None]:
    """Verify all bytes in this block."""
    before = _VERIFYING.get()
    _VERIFYING.set(True)
    try:
        yield
    finally:
        _VERIFYING.set(before)


def fingerprint_value(value: Any) -> str:
    """Return the fingerprint of a JSON-able value; the order of keys is ignored."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def fingerprint_file(path: str | Path, count: Counter = lambda _: None) -> str:
    """Return the fingerprint of a file's bytes; `count` is called with the number of bytes of each chunk."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open_regular(path) as stream:
            # Kernel files, and logs that grow, may have no end.
            left = os.fstat(stream.fileno()).st_size
            while chunk := stream.read(min(1 << 20, left)):
                left -= len(chunk)
                digest.update(chunk)
                count(len(chunk))
            return digest.hexdigest()
    except OSError as error:
        # Python sets the file name if opening fails, but not if reading fails.
        error.filename = error.filename or str(path)
        raise


def describe_file(path: str | Path) -> dict[str, Any]:
    """Return the size and fingerprint of a file, as an entry of a manifest's `files`."""
    return {"bytes": Path(path).stat().st_size, "blake2b": fingerprint_file(path)}
