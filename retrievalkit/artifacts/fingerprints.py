"""Fingerprints of values, files and folders: 32 hexadecimal digits of BLAKE2b."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from retrievalkit.artifacts.outputs import MANIFEST


def fingerprint_value(value: Any) -> str:
    """A fingerprint (32 hexadecimal digits) of a JSON-able value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fingerprint_file(path: str | Path) -> str:
    """A fingerprint of a file's bytes."""
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        # Python names a file that cannot be opened, and none that cannot be read.
        error.filename = error.filename or str(path)
        raise


def describe_file(path: str | Path) -> dict[str, Any]:
    """The size and fingerprint of a file, as the lists of files in manifests have them."""
    return {"bytes": Path(path).stat().st_size, "blake2b": fingerprint_file(path)}


def fingerprint_folder(folder: str | Path, *, skip: tuple[str, ...] = (MANIFEST, "README.md")) -> str:
    """A fingerprint of every file in a folder, by relative path, without hidden files and those in `skip`.

    Args:
        folder: The folder.
        skip: Names of files and folders to leave out.
    """
    folder = Path(folder)
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    counted = [name for name in names if not any(part in skip or part.startswith(".") for part in name.parts)]
    return fingerprint_value({name.as_posix(): fingerprint_file(folder / name) for name in counted})
