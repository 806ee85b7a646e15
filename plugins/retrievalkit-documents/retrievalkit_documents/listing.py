"""The files of a folder of documents that may be read; the others are listed by reason."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from retrievalkit.contracts.commands import kind_of
from retrievalkit.data.files import LONGEST_LINE
from retrievalkit.data.records import Record
from retrievalkit.data.same_text import plain_form
from retrievalkit.errors import DataError

_HIDDEN = (".", "~$")  # ~$ begins the locks of Word
_KERNEL = ("/proc/", "/sys/")


def identifier_of(path: PurePosixPath | Path) -> str:
    """Return the id of a document at a path: some systems store names in decomposed letters."""
    return plain_form(path.as_posix()).strip()


def documents_below(
    folder: Path, limits: Mapping[str, float], left_out: dict[str, list[str]]
) -> list[tuple[str, Path]]:
    """Return the id and the path of each file to read in a folder, by id; files with the same id are left out.

    Files and folders with a hidden name are ignored. A link is read only if it leads to a hidden file of the folder.

    Args:
        folder: The folder.
        limits: Extensions of the files to read -> maximum size in bytes.
        left_out: Receives the relative paths of all other files, by reason.

    Raises:
        DataError: The folder, or one inside it, cannot be listed.
    """
    root = os.path.join(os.path.realpath(folder), "")
    listed: dict[str, tuple[str, Path]] = {}

    def problem_of(name: str, path: Path, target: str) -> str:
        most = limits.get(path.suffix.lower())
        if most is None:
            return path.suffix.lower() or "no extension"
        if not _is_id(name):
            return "with a name that cannot be an id"
        if not target.startswith(root):
            return "links out of the folder, to be replaced by the files"
        if target in listed:
            return "links to other files of the folder"
        try:
            status = os.stat(target)
        except OSError as error:
            return error.strerror or str(error)
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size > most:
            return f"larger than {int(most) >> 20} MiB"
        return "sparse files" if status.st_size > LONGEST_LINE and _has_holes(path) else ""

    links = []
    for name, path in _below(folder, left_out):
        if path.is_symlink():
            links.append((name, path, os.path.realpath(path)))
        elif problem := problem_of(name, path, root + name):
            left_out.setdefault(problem, []).append(name)
        else:
            listed[root + name] = name, path
    for name, path, target in links:
        if problem := problem_of(name, path, target):
            left_out.setdefault(problem, []).append(name)
        else:
            listed[target] = name, path
    named: dict[str, Path] = {}
    for name, path in sorted(listed.values()):
        if named.setdefault(identifier_of(Path(name)), path) is not path:
            left_out.setdefault("with the name of another file, in another form of its letters", []).append(name)
    return sorted(named.items())


def _below(folder: Path, left_out: dict[str, list[str]]) -> Iterator[tuple[str, Path]]:
    """Yield the relative path and the path of all files and links to files in a folder, except hidden ones."""

    def refuse(error: OSError) -> None:
        msg = f"cannot list the folder '{error.filename}': {error.strerror}. Nothing was changed. Make it readable."
        raise DataError(msg) from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        places = [Path(parent, name) for name in sorted(folders) if not name.startswith(_HIDDEN)]
        folders.clear()
        for path in places:
            if path.is_symlink():
                reason = "links to folders"
            elif f"{os.path.realpath(path)}/" in _KERNEL:
                reason = "kernel files"
            elif kind_of(path) is not None:
                reason = "folders that rkit wrote"
            else:
                folders.append(path.name)
                continue
            left_out.setdefault(reason, []).append(path.relative_to(folder).as_posix())
        for name in sorted(names):
            if not name.startswith(_HIDDEN):
                path = Path(parent, name)
                yield path.relative_to(folder).as_posix(), path


def _has_holes(path: Path) -> bool:
    """True if a file is sparse: it may be larger than the disk, and its text is elsewhere than in NUL bytes."""
    with suppress(OSError, AttributeError), path.open("rb") as stream:  # not on every system
        return os.lseek(stream.fileno(), 0, os.SEEK_HOLE) < os.fstat(stream.fileno()).st_size
    return False


def _is_id(name: str) -> bool:
    try:
        Record(ascii(name), 1, {"path": name}).identifier("path")
    except DataError:
        return False
    return True
