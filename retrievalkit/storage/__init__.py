"""The folders and files that commands write: a manifest in each folder, and atomic writes.

A folder is written next to its final place and renamed at the end, so that it appears whole or not at all.
`manifest.json` records the command's options, the fingerprints of its inputs, counts and versions.
"""

from __future__ import annotations

from retrievalkit.storage.cache import Entry, cache_folder, private_folder, read_entry, write_entry
from retrievalkit.storage.fingerprints import (
    VERIFY,
    describe_file,
    fingerprint_file,
    fingerprint_value,
    verifies,
    verifying,
)
from retrievalkit.storage.integrity import (
    check_files,
    check_own_files,
    check_unlisted,
    checked_fingerprint,
    describe_files,
    fingerprint_files,
    fingerprint_folder,
    inside,
)
from retrievalkit.storage.json_files import (
    check_document,
    holds,
    json_problem,
    loads_json,
    open_regular,
    read_document,
    read_json,
)
from retrievalkit.storage.locks import held
from retrievalkit.storage.manifest import (
    FORMAT,
    Folder,
    add_to_manifest,
    describe_input,
    indexes_of,
    kind_of,
    read_manifest,
    write_manifest,
)
from retrievalkit.storage.object_cache import PARTIAL, VECTORS, local, sent, store_of
from retrievalkit.storage.opened import HeldFile, MappedFile
from retrievalkit.storage.outputs import (
    MANIFEST,
    check_output,
    discard,
    full_disk_named,
    partial_folder,
    replaced_folder,
    restore,
    scratch,
    was_written,
    work_folder,
    write_file,
    write_folder,
    write_json,
)
from retrievalkit.storage.places import (
    absolute,
    check_output_file,
    is_address,
    is_stream,
    named,
    place_of,
)
from retrievalkit.storage.stores import Store

__all__ = [
    "CURVES", "Entry", "FORMAT", "Folder", "HeldFile", "MANIFEST", "MappedFile", "NEGATIVES", "NOT_WEIGHTS",
    "PARTIAL", "Store", "VECTORS", "VERIFY", "absolute", "add_to_manifest", "cache_folder", "check_document",
    "check_files", "check_output", "check_output_file", "check_own_files", "check_unlisted", "checked_fingerprint",
    "describe_file", "describe_files", "describe_input", "discard", "fingerprint_file", "fingerprint_files",
    "fingerprint_folder", "fingerprint_value", "full_disk_named", "held", "holds", "indexes_of", "inside",
    "is_address", "is_stream", "json_problem", "kind_of", "loads_json", "local", "named", "open_regular",
    "partial_folder", "place_of", "private_folder", "read_document", "read_entry", "read_json", "read_manifest",
    "replaced_folder", "restore", "scratch", "sent", "store_of", "verifies", "verifying", "was_written", "work_folder",
    "write_entry", "write_file", "write_folder", "write_json", "write_manifest",
]  # fmt: skip

NEGATIVES = "negatives"
CURVES = "training.html"
NOT_WEIGHTS = (MANIFEST, "README.md", "training.jsonl", CURVES, "selection.json", "logs", NEGATIVES)
"""Files and folders of a checkpoint that describe its training and are excluded from its fingerprint."""
