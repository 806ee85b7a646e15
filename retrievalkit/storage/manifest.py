"""manifest.json, the record of a folder's origin, without a time stamp: the same inputs give the same bytes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrievalkit.errors import ArtifactError
from retrievalkit.reporting.notices import note
from retrievalkit.storage.json_files import check_document, read_json
from retrievalkit.storage.outputs import MANIFEST, write_json
from retrievalkit.storage.places import absolute

FORMAT = 1

_KIND = re.compile(r"[A-Za-z][\w-]{0,63}")
_VERSIONED = ("retrievalkit", "torch", "transformers")
_DO = "Copy the folder again, or write it again."


def write_manifest(
    folder: str | Path,
    kind: str,
    *,
    command: str,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    counts: Mapping[str, float] | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Write `manifest.json` into a folder and return its content.

    The kind is "checkpoint", "model" (pretrained), "vectors", "index" ...; each input is {"path": ..., "fingerprint":
    ...}; `extra` are further entries of this kind of folder.
    """
    versions = {}
    for name in _VERSIONED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "command": command,
        "options": dict(options),
        "inputs": dict(inputs or {}),
        "counts": dict(counts or {}),
        "versions": versions,
        **extra,
    }
    write_json(Path(folder) / MANIFEST, manifest)
    return manifest


def add_to_manifest(folder: str | Path, **entries: Any) -> None:
    """Add or replace entries in the manifest of an existing folder."""
    write_json(Path(folder) / MANIFEST, {**read_manifest(folder), **entries})


def read_manifest(folder: str | Path, kind: str | None = None) -> dict[str, Any]:
    """Read a folder's manifest, checked against the form of its kind (see `storage.schemas`)."""
    folder = Path(folder)
    expected = "an rkit folder" if kind is None else f"{_article(kind)} folder"
    if not folder.exists():
        msg = f"'{folder}' does not exist, but should be {expected}."
        raise ArtifactError(msg)
    try:
        manifest = _opened(folder)
    except ArtifactError as error:
        msg = f"'{folder}' is not {expected}: it has no readable {MANIFEST}. {error}"
        raise ArtifactError(msg) from None
    actual = manifest["kind"]
    if kind is not None and actual != kind:
        msg = f"'{folder}' is {_article(actual)} folder, but should be {_article(kind)} folder."
        raise ArtifactError(msg)
    form = manifest.get("format", 0)
    if isinstance(form, int) and form > FORMAT:
        msg = f"'{folder}' was written by a newer retrievalkit (format {form}). Upgrade retrievalkit."
        raise ArtifactError(msg)
    from retrievalkit.storage import schemas

    check_document(manifest, schemas.KINDS.get(actual, schemas.Manifest), file=folder / MANIFEST, do=_DO)
    return manifest


def kind_of(folder: str | Path) -> str | None:
    """Return the kind of a folder that rkit wrote ("checkpoint", "model", "vectors", "index" ...), else None."""
    try:
        return str(_opened(Path(folder))["kind"])
    except ArtifactError:
        return None


def _opened(folder: Path) -> dict[str, Any]:
    """Read a manifest, whose kind alone is checked."""
    manifest = read_json(folder / MANIFEST, do=_DO)
    kind = manifest.get("kind") if isinstance(manifest, dict) else None
    if isinstance(manifest, dict) and isinstance(kind, str) and _KIND.fullmatch(kind):
        return manifest
    msg = f"'{folder / MANIFEST}' names no kind of folder. {_DO}"
    raise ArtifactError(msg)


def indexes_of(places: Any) -> tuple[Any, ...]:
    """Return places of indexes: a collection (`rkit sync`) is replaced by its indexes."""
    indexes: list[Any] = []
    for place in [places] if isinstance(places, str | os.PathLike) else places:
        names = None
        if isinstance(place, str | os.PathLike) and kind_of(folder := Path(place)) == "collection":
            manifest = read_manifest(folder, "collection")
            names = manifest.get("indexes")
            note(*manifest.get("notes", ()))
        if names == []:
            msg = f"'{place}' has no index yet: its first sync did not finish. Run it again: rkit sync FOLDER {place}"
            raise ArtifactError(msg)
        indexes += [place] if names is None else [os.path.join(place, name) for name in names]
    return tuple(indexes)


def describe_input(path: str | Path, fingerprint: str) -> dict[str, str]:
    """Return an entry of a manifest's `inputs`: the path and fingerprint of an input."""
    return {"path": str(absolute(path)), "fingerprint": fingerprint}


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


class Folder(os.PathLike[str]):
    """A folder that a command wrote; accepted wherever a path is.

    Attributes:
        path: Its path.
        manifest: The content of its `manifest.json`: options, inputs, counts, versions.
        summary: The result as text.
        notes: Messages for the user.
    """

    def __init__(
        self, path: str | os.PathLike[str], manifest: dict[str, Any] | None = None, summary: str | None = None
    ) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path) if manifest is None else manifest
        self.summary = str(path) if summary is None else summary
        self.notes: list[str] = self.manifest.get("notes", [])

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        return self.manifest

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r}, kind={self.manifest.get('kind')!r})"
