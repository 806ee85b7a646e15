"""Data sources: files, folders, rows in memory, and addresses with a prefix such as `hf:` and `irds:`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from retrievalkit import registry
from retrievalkit.data.sources.local import Local
from retrievalkit.data.sources.source import PARTS, InMemory, Memory, Part, Row, Source
from retrievalkit.errors import InputError, MissingDependencyError, OptionError, nearest, shortlist
from retrievalkit.registry import trust

__all__ = [
    "open_source", "Source", "Part", "PARTS", "Row", "InMemory", "fingerprint", "is_folder", "split_prefix",
    "as_documents",
]  # fmt: skip

# At least two letters: a single letter is a drive.
_PREFIXED = re.compile(r"([a-z][a-z0-9_]+):(.*)", re.DOTALL)
_DOCUMENTS = (".docx", ".html", ".md", ".pdf")
_DATA = (".jsonl", ".json", ".tsv", ".csv", ".parquet", ".gz", ".zst")


def open_source(address: str | Path) -> Source:
    """Open a source without reading it yet.

    Args:
        address: `PREFIX:NAME` with a registered prefix, a file or a folder; or rows in memory.

    Raises:
        DataError: The file or folder does not exist.
        InputError: The prefix is unknown (the message names the nearest and all known prefixes), or only a file names
            the source, which has no content hash.
    """
    if isinstance(address, InMemory):
        return Memory(address)
    prefix, name = split_prefix(address)
    known = registry.names("source")
    if not prefix and (ending := Path(name).suffix[1:]) in known and os.path.isfile(name):
        prefix = ending if getattr(registry.get("source", ending), "reads_files", False) else ""
    if not prefix:
        match = _PREFIXED.fullmatch(name)
        if match is not None and not os.path.exists(name):
            if distribution := registry.DISTRIBUTIONS.get(f"{match[1]}:"):
                raise MissingDependencyError(distribution, f"reading '{name}'")
            close = nearest(match[1], known)
            offer = f"; did you mean '{close}:{match[2]}'?" if close else "."
            msg = (
                f"'{name}' is not a file, and '{match[1]}:' is not a known source prefix{offer} Known: "
                f"{shortlist(f'{source}:' for source in known)}. rkit plugins list shows which plugins provide sources."
            )
            raise InputError(msg)
        return Local(name)
    if trust.is_anonymous() and not getattr(registry.get("source", prefix), "content_hashed", False):
        msg = f"'{address}' comes from a file, not from you, and has no content hash. Name it yourself to open it."
        raise InputError(msg)
    source = registry.create("source", prefix, name)
    if not isinstance(source, Source):
        msg = f"the source '{prefix}' is not a Source. Its class must subclass retrievalkit.data.sources.Source."
        raise registry.PluginError(msg)
    source.address, source.anonymous = str(address), trust.is_anonymous()
    return source


def split_prefix(address: str | Path) -> tuple[str, str]:
    """Split an address into its registered prefix and the name: ("irds", "vaswani"), or ("", the path)."""
    match = _PREFIXED.fullmatch(str(address))
    if match and match[1] in registry.names("source"):
        return match[1], match[2]
    return "", str(address)


def as_documents(source: str | Path, root: str | Path | None = None) -> str | Path:
    """Return the address of a document or of a folder of documents, if the source `documents` reads it; else `source`.

    Args:
        source: A file, a folder or an address.
        root: The base folder of the document ids; None = the folder itself.
    """
    if split_prefix(source)[0]:
        address = None
    elif "documents" in registry.names("source"):
        documents: type[Source] = registry.get("source", "documents")
        address = documents.address_of(source, root)
    elif root is not None or _may_be_documents(source):
        raise MissingDependencyError("retrievalkit-documents", f"reading '{source}'", "'retrievalkit[documents]'")
    else:
        address = None
    if address is None and root is not None:
        msg = f"root sets the base folder of document ids, but '{source}' has ids of its own. Leave it out."
        raise OptionError(msg)
    return source if address is None else str(address)


def _may_be_documents(path: str | Path) -> bool:
    if not os.path.isdir(path):
        return str(path).lower().endswith(_DOCUMENTS)
    names = [name.lower() for name in os.listdir(path)]
    return not any(name.endswith(_DATA) for name in names) and any(
        name.lower().endswith((*_DOCUMENTS, ".txt")) for *_, inside in os.walk(path) for name in inside
    )


def is_folder(address: str | Path) -> bool:
    """True if an address is a local folder."""
    return not split_prefix(address)[0] and os.path.isdir(address)


def fingerprint(address: str | Path) -> str:
    """Return a fingerprint of the content of a source.

    Raises:
        DataError: The file or folder does not exist, or a remote source cannot be fetched.
    """
    return open_source(address).fingerprint()
