"""The user's cache: values and files that commands can do without, private to the user, checked and replaced whole.

    ~/.cache/retrievalkit/KIND/ENTRY.json          a value and its checksum
    ~/.cache/retrievalkit/KIND/ENTRY/entry.json    for an entry with files: also the checksums of the other files

An entry that is damaged, has another form or was copied from elsewhere counts as missing, and a folder that another
user could have filled is not used. Results never depend on the cache: callers compute what is missing, and continue if
it cannot be written.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar, cast

from retrievalkit.errors import ArtifactError
from retrievalkit.storage.fingerprints import fingerprint_file, fingerprint_value, verifies
from retrievalkit.storage.json_files import check_document, read_json
from retrievalkit.storage.outputs import discard, full_disk_named

_RECORD = "entry.json"
_LARGE = 1 << 24
_USED, _LEFT = 600, 86_400  # s: since a process may still read an entry, and since a process left it unfinished

Form = TypeVar("Form")


@dataclass(frozen=True)
class Entry(Generic[Form]):
    """A checked entry: its value, and the folder of its files."""

    value: Form
    folder: Path


def cache_folder(kind: str) -> Path:
    """Return the path of the user's cache for one kind of content, such as "objects".

    Raises:
        ArtifactError: The user has no home folder.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):
        home = os.path.expanduser("~/.cache") if os.environ.get("HOME", "~") else ""
    if not os.path.isabs(home):
        msg = "there is no folder for a cache, as HOME is not an absolute path. Set XDG_CACHE_HOME to a folder."
        raise ArtifactError(msg)
    # Links are resolved, as in messages about files.
    return Path(os.path.realpath(home)) / "retrievalkit" / kind


def required_folder(kind: str) -> Path:
    """Return a folder of the cache, created if it does not exist, which only the user can read and write.

    Raises:
        ArtifactError: It cannot be created, belongs to another user, or others can write to it.
    """
    folder = cache_folder(kind)
    try:
        above = next(parent for parent in folder.parents if parent.exists())
        if not _is_own(above.stat()) and os.geteuid() == 0:  # root would leave folders that the user cannot write to
            _refuse(above, "it belongs to another user")
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for place in (folder.parent, folder):
            place.mkdir(mode=0o700, exist_ok=True)
            status = place.stat()
            if not _is_own(status):
                _refuse(place, "it belongs to another user")
            if status.st_mode & 0o022 and os.name == "posix":
                _refuse(place, "other users can write to it, which chmod 700 changes")
            if status.st_mode & 0o077:
                with suppress(OSError):
                    place.chmod(0o700)
    except OSError as error:
        _refuse(Path(error.filename or folder), error.strerror or str(error))
    return folder


def private_folder(kind: str) -> Path | None:
    """Return a folder of the cache as `required_folder` does; None, with a note, if there is none to use."""
    try:
        return required_folder(kind)
    except ArtifactError as error:
        _say(str(error))
        return None


def read_entry(kind: str, identity: object, form: type[Form]) -> Entry[Form] | None:
    """Return the entry of an identity, any JSON-able value; None if it is missing, damaged, or has another form."""
    home = private_folder(kind)
    if home is None:
        return None
    folder = home / fingerprint_value(identity)
    try:
        place = _record_of(folder)
        _check_own(place, stat.S_ISREG)
        record = read_json(place, dict[str, Any], do="", nan=True)
        value, files = record.get("value"), check_document(record.get("files"), _FILES, file=folder, do="")
        if record.get("blake2b") != _checksum(identity, value, files):
            _damaged(place)
        for name, (digest, *state) in files.items():
            if name != Path(name).name:
                _damaged(folder / name)
            current = _state(folder / name)
            known = current == state and current[0] >= _LARGE and not verifies()
            if not known and fingerprint_file(folder / name) != digest:
                _damaged(folder / name)
        entry = Entry(check_document(value, form, file=folder, do=""), folder)
    except FileNotFoundError:
        return None
    except (OSError, ArtifactError) as error:
        _say(f"an entry of the cache is not used and computed again: {error}")
        return None
    with suppress(OSError):
        os.utime(folder if place.parent == folder else place)
    return entry


def write_entry(
    kind: str, identity: object, value: Form, write: Callable[[Path], None] | None = None, *, most: int = 1_000
) -> Entry[Form] | None:
    """Write an entry, which replaces an earlier entry of its identity; None, with a note, if it cannot be written.

    Args:
        kind: Kind of content.
        identity: Any JSON-able value: everything that the entry depends on.
        value: A JSON-able value.
        write: Writes files, with plain names, to a folder; its exceptions other than OSError are raised.
        most: Number of entries of the kind to keep, the most recently used.
    """
    home = private_folder(kind)
    if home is None:
        return None
    staging = None
    try:
        _evict(home, most - 1)
        staging = Path(tempfile.mkdtemp(prefix=".", dir=home))
        with full_disk_named(staging):
            if write is not None:
                write(staging)
            files = {path.name: [fingerprint_file(path), *_state(path)] for path in sorted(staging.iterdir())}
            record = {"value": value, "files": files, "blake2b": _checksum(identity, value, files)}
            (staging / _RECORD).write_text(json.dumps(record, ensure_ascii=False, default=str), encoding="utf-8")
        folder = home / fingerprint_value(identity)
        if write is None:
            discard(folder)
            (staging / _RECORD).replace(_record_of(folder))
            return Entry(value, folder)
        # Another process may have written the same entry, and read its files.
        existing = read_entry(kind, identity, cast("type[Form]", Any)) if folder.is_dir() else None
        if existing is None or existing.value != value:
            _replace(staging, folder)
    except OSError as error:
        _say(f"the cache '{home}' cannot be written: {error.strerror or error}")
        return None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return Entry(value, folder)


_FILES: Any = dict[str, list[Any]]


def _record_of(folder: Path) -> Path:
    """Return the file with the value of an entry; an entry without files has no folder."""
    if not os.path.lexists(folder):
        return folder.with_name(f"{folder.name}.json")
    _check_own(folder, stat.S_ISDIR)
    return folder / _RECORD


def _checksum(identity: object, value: object, files: object) -> str:
    return fingerprint_value([identity, value, files])


def _state(path: Path) -> list[int]:
    """Return what changes whenever a file of the user's own changes; a large file reaches the disk first."""
    status = _check_own(path, stat.S_ISREG)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _is_own(status: os.stat_result) -> bool:
    return os.name != "posix" or status.st_uid == os.geteuid()


def _check_own(path: Path, is_type: Callable[[int], bool]) -> os.stat_result:
    """Refuse links, pipes and devices, and files of other users."""
    status = path.lstat()
    if not is_type(status.st_mode) or not _is_own(status):
        msg = f"'{path}' is not a file or folder of this user"
        raise ArtifactError(msg)
    return status


def _damaged(path: Path) -> NoReturn:
    msg = f"'{path}' does not have the checksum that was recorded for it"
    raise ArtifactError(msg)


def _refuse(place: Path, problem: str) -> NoReturn:
    msg = f"the cache '{place}' cannot be used: {problem}. Set XDG_CACHE_HOME to a folder of yours."
    raise ArtifactError(msg)


def _replace(staging: Path, folder: Path) -> None:
    """Rename a complete entry to its place; another process may do the same."""
    for path in staging.iterdir():
        if path.stat().st_size >= _LARGE:  # its checksum is not compared after a power failure either
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    for _ in range(3):
        try:
            staging.rename(folder)
        except OSError:
            if not os.path.lexists(folder):
                raise
            old = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
            with suppress(FileNotFoundError):
                folder.rename(old / folder.name)
            shutil.rmtree(old, ignore_errors=True)
        else:
            return
    staging.rename(folder)


def _evict(home: Path, most: int) -> None:
    """Delete all but the most recently used entries, unless used just now, and what killed processes left."""
    now, entries = time.time(), list[tuple[float, Path]]()
    for path in home.iterdir():
        with suppress(FileNotFoundError):  # deleted by another process
            entries.append((path.lstat().st_mtime, path))
    entries.sort(reverse=True)
    hidden = [path for changed, path in entries if path.name[0] == "." and now - changed > _LEFT]
    unused = [path for changed, path in entries if path.name[0] != "." and now - changed > _USED]
    kept = len([path for _, path in entries if path.name[0] != "."]) - len(unused)
    for path in [*hidden, *unused[max(0, most - kept) :]]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


@functools.cache
def _say(sentence: str) -> None:
    """Issue a note, once per process. It is not an error in a strict command, whose results are the same."""
    from retrievalkit.reporting import notices

    notices.note(f"{sentence[0].upper()}{sentence[1:].rstrip('.')}.", harmless=True)
