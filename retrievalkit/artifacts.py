"""The folders and files that commands write: a manifest in each folder, and atomic writes.

A folder appears whole or not at all: it is written beside its final place and renamed at the end. `manifest.json` says
what made it: the command's options, the fingerprints of its inputs, counts and versions. It holds no time stamp, so
that the same inputs give the same bytes.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrievalkit.errors import ArtifactError, InputError

MANIFEST = "manifest.json"
FORMAT = 1
NEGATIVES = "negatives"
CURVES = "training.html"
NOT_WEIGHTS = (MANIFEST, "README.md", "training.jsonl", CURVES, "selection.json", "logs", NEGATIVES)
"""Files and folders of a checkpoint that describe its training and are left out of its fingerprint."""

_NEXT_TO_NOTHING = 1 << 16
_VERSIONED = ("retrievalkit", "torch", "transformers")


@contextmanager
def write_folder(path: str | Path, *, overwrite: bool = False, keep_partial: bool = False) -> Iterator[Path]:
    """Yield a staging folder that becomes `path` when the block ends, and is removed when the block fails.

    Args:
        path: The folder to make. Parents are created.
        overwrite: Replace an existing folder, if rkit wrote it.
        keep_partial: Keep the staging folder after a failure and start from an earlier one: for commands that resume.
            After wrong input nothing is kept, since the same command would fail again.

    Raises:
        ArtifactError: `path` exists and may not be replaced.
    """
    path = Path(path).absolute()
    check_output(path, overwrite=overwrite)
    staging = partial_folder(path)
    if staging.exists() and not keep_partial:
        shutil.rmtree(staging)
    staging.mkdir(parents=True, exist_ok=True)
    try:
        with full_disk_named(staging):
            yield staging
    except BaseException as error:
        if not keep_partial or isinstance(error, InputError):
            shutil.rmtree(staging, ignore_errors=True)
        raise
    _replace_folder(path, staging)


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Raise OSError for a full disk even where the library that writes weights raises something else."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        full = shutil.disk_usage(folder).free < _NEXT_TO_NOTHING if folder.exists() else False
        if full or os.strerror(errno.ENOSPC) in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise


def partial_folder(path: str | Path) -> Path:
    """Where a folder is written before it is renamed to `path`."""
    path = Path(path).absolute()
    return path.with_name(f".{path.name}.partial")


def _replace_folder(path: Path, new: Path) -> None:
    """Rename `new` to `path`; the existing folder is renamed first, so that one of the two is always whole."""
    if not path.exists():
        new.rename(path)
        return
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    new.rename(path)
    shutil.rmtree(old)


def check_output(path: str | Path, *, overwrite: bool = False) -> None:
    """Refuse an existing output folder, unless it is empty or may be overwritten.

    Raises:
        ArtifactError: The folder's contents would be lost.
    """
    path = Path(path).absolute()
    _check_parents(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir():
        msg = f"output '{path}' is a file, but a folder is to be written there. Choose another --output."
        raise ArtifactError(msg)
    if not overwrite:
        msg = f"output folder '{path}' exists already. Choose another --output, or replace it with --overwrite."
        raise ArtifactError(msg)
    if not (path / MANIFEST).exists():
        msg = f"'{path}' was not written by rkit (it has no {MANIFEST}), so --overwrite leaves it alone. Remove it."
        raise ArtifactError(msg)


def check_output_file(path: str | Path) -> None:
    """Refuse an output file whose place a folder takes.

    Raises:
        ArtifactError: Names it.
    """
    if Path(path).is_dir():
        msg = f"output '{path}' is a folder, and a file is to be written there. Choose another --output."
        raise ArtifactError(msg)


def _check_parents(path: Path) -> None:
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            msg = f"output '{path}' cannot be written: '{parent}' is a file, not a folder. Choose another --output."
            raise ArtifactError(msg)


@contextmanager
def write_file(path: str | Path) -> Iterator[Path]:
    """Yield a staging file that becomes `path` when the block ends, and is removed when the block fails."""
    check_output_file(path)
    path = Path(path).absolute()
    _check_parents(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keeps the suffix, by which writers choose a compression.
    staging = path.with_name(f".partial.{path.name}")
    try:
        yield staging
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    os.replace(staging, path)


def write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file; values that JSON lacks are written as text. It appears whole or not at all.

    Args:
        path: The file.
        value: Its content.
        indent: Spaces for each level; None = one line, for files that people do not read.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    with write_file(path) as staging:
        staging.write_text(text + "\n", encoding="utf-8")


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
    """Write `manifest.json` into a folder and return what it holds.

    Args:
        folder: The folder it describes.
        kind: "checkpoint", "model" (a pretrained one), "vectors" or "index".
        command: The command that made the folder, such as "encode".
        options: The command's options, JSON-able.
        inputs: A name -> {"path": ..., "fingerprint": ...} for each input.
        counts: How many texts, vectors, examples ... the folder holds.
        **extra: More entries of this kind of folder.
    """
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "command": command,
        "options": dict(options),
        "inputs": dict(inputs or {}),
        "counts": dict(counts or {}),
        "versions": versions(),
        **extra,
    }
    write_json(Path(folder) / MANIFEST, manifest)
    return manifest


def add_to_manifest(folder: str | Path, **entries: Any) -> None:
    """Add entries to the manifest of an existing folder, or replace them.

    Raises:
        ArtifactError: The folder does not exist, or lacks a manifest.
    """
    write_json(Path(folder) / MANIFEST, {**read_manifest(folder), **entries})


def read_manifest(folder: str | Path, kind: str | None = None) -> dict[str, Any]:
    """The manifest of a folder.

    Raises:
        ArtifactError: The folder does not exist, lacks a manifest, or is of another kind.
    """
    folder = Path(folder)
    wanted = "an rkit folder" if kind is None else f"{_article(kind)} folder"
    if not folder.exists():
        msg = f"'{folder}' does not exist; {wanted} was expected."
        raise ArtifactError(msg)
    found = kind_of(folder)
    if found is None:
        msg = f"'{folder}' is not {wanted}: it has no readable {MANIFEST}."
        raise ArtifactError(msg)
    if kind is not None and found != kind:
        msg = f"'{folder}' is {_article(found)} folder, and {_article(kind)} folder was expected."
        raise ArtifactError(msg)
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if manifest.get("format", 0) > FORMAT:
        msg = f"'{folder}' was written by a newer retrievalkit (format {manifest['format']}). Upgrade retrievalkit."
        raise ArtifactError(msg)
    return manifest


def kind_of(folder: str | Path) -> str | None:
    """The kind of a folder that rkit wrote ("checkpoint", "model", "vectors", "index"), else None."""
    try:
        manifest = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    kind = manifest.get("kind") if isinstance(manifest, dict) else None
    return kind if isinstance(kind, str) else None


def recorded_fingerprint(folder: str | Path, kind: str) -> str | None:
    """The fingerprint in the manifest of a folder of this kind; None if it is of another kind, or has none."""
    recorded = read_manifest(folder).get("fingerprint") if kind_of(folder) == kind else None
    return recorded if isinstance(recorded, str) else None


def fingerprint_value(value: Any) -> str:
    """A fingerprint (32 hexadecimal digits) of a JSON-able value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fingerprint_file(path: str | Path) -> str:
    """A fingerprint of a file's bytes."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


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


def describe_input(path: str | Path, fingerprint: str) -> dict[str, str]:
    """An entry for a manifest's `inputs`: where the input was, and what it was."""
    absolute = Path(path).absolute() if Path(path).exists() else path
    return {"path": str(absolute), "fingerprint": fingerprint}


def versions() -> dict[str, str]:
    """The versions of the installed packages on which the bytes of a folder depend."""
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
