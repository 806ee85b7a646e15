"""Where data comes from: a file, a folder, `hf:NAME`, `irds:NAME` or `pydoc:PACKAGE,...`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrievalkit.artifacts import fingerprint_file, fingerprint_folder
from retrievalkit.data.files import existing, open_text
from retrievalkit.data.records import json_lines
from retrievalkit.data.sources import remote

__all__ = ["PREFIXES", "fingerprint", "is_folder", "open_text", "read_jsonl", "split_prefix"]

PREFIXES = ("hf", "irds", "pydoc")


def split_prefix(source: str | Path) -> tuple[str, str]:
    """Take a source apart: ("hf" | "irds" | "pydoc", the rest), or ("", the path)."""
    prefix, colon, rest = str(source).partition(":")
    return (prefix, rest) if colon and prefix in PREFIXES else ("", str(source))


def is_folder(source: str | Path) -> bool:
    """Whether a source is a folder on this machine."""
    return not split_prefix(source)[0] and Path(source).is_dir()


def fingerprint(source: str | Path) -> str:
    """A fingerprint of what a source holds.

    Raises:
        DataError: There is no such file or folder, or a remote source cannot be fetched.
    """
    prefix, rest = split_prefix(source)
    if prefix == "pydoc":
        from retrievalkit.data.sources import pydoc

        return pydoc.fingerprint(rest)
    if prefix:
        return remote.fingerprint(prefix, rest)
    path = existing(rest)
    return fingerprint_folder(path) if path.is_dir() else fingerprint_file(path)


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON lines file with their line numbers; empty lines are skipped."""
    for record in json_lines(Path(path)):
        yield record.line, record.fields
