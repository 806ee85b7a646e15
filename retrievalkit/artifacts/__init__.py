"""The folders and files that commands write: a manifest in each folder, and atomic writes.

A folder appears whole or not at all: it is written beside its final place and renamed at the end. `manifest.json` says
what made it: the command's options, the fingerprints of its inputs, counts and versions.
"""

from __future__ import annotations

from retrievalkit.artifacts.documents import loads_json
from retrievalkit.artifacts.failures import full_disk_named, was_written
from retrievalkit.artifacts.fingerprints import fingerprint_file, fingerprint_folder, fingerprint_value
from retrievalkit.artifacts.locks import held
from retrievalkit.artifacts.manifest import (
    FORMAT,
    add_to_manifest,
    describe_input,
    kind_of,
    read_manifest,
    recorded_fingerprint,
    versions,
    write_manifest,
)
from retrievalkit.artifacts.outputs import (
    MANIFEST,
    check_output,
    check_output_file,
    partial_folder,
    replaced_folder,
    restore,
    work_folder,
    write_file,
    write_folder,
    write_json,
)
from retrievalkit.artifacts.places import is_stream, place_of

__all__ = [
    "CURVES",
    "FORMAT",
    "MANIFEST",
    "NEGATIVES",
    "NOT_WEIGHTS",
    "add_to_manifest",
    "check_output",
    "check_output_file",
    "describe_input",
    "fingerprint_file",
    "fingerprint_folder",
    "fingerprint_value",
    "full_disk_named",
    "held",
    "is_stream",
    "kind_of",
    "loads_json",
    "partial_folder",
    "place_of",
    "read_manifest",
    "recorded_fingerprint",
    "replaced_folder",
    "restore",
    "versions",
    "was_written",
    "work_folder",
    "write_file",
    "write_folder",
    "write_json",
    "write_manifest",
]

NEGATIVES = "negatives"
CURVES = "training.html"
NOT_WEIGHTS = (MANIFEST, "README.md", "training.jsonl", CURVES, "selection.json", "logs", NEGATIVES)
"""Files and folders of a checkpoint that describe its training and are left out of its fingerprint."""
