"""Integrity of a folder's files: sizes and checksums are compared with the manifest whenever the folder is opened.

Checksums are compared for files modified after the manifest was written, and with RKIT_VERIFY=1 for all files. File
names never lead out of their folder.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from retrievalkit.errors import ArtifactError
from retrievalkit.storage.cache import read_entry, write_entry
from retrievalkit.storage.fingerprints import Counter, fingerprint_file, fingerprint_value, verifies
from retrievalkit.storage.manifest import kind_of, read_manifest
from retrievalkit.storage.outputs import MANIFEST

Files = Mapping[str, Mapping[str, Any]]
"""Name, relative to the folder and with slashes -> {"bytes": size, "blake2b": checksum}."""

_THREADS = 8
_SILENT_SECONDS = 2.0
_MEGABYTE = 1 << 20
_LARGE = 16 * _MEGABYTE
_SETTLED = 2 * 10**9  # ns

_Known = dict[str, tuple[int, int, int, int, str]]
"""File -> its size, times and inode, and its fingerprint."""

Result = TypeVar("Result")


def fingerprint_folder(folder: str | Path, *, skip: tuple[str, ...] = (MANIFEST, "README.md")) -> str:
    """Return the fingerprint of a folder's files, by relative path, except hidden files and those in `skip`."""
    folder = Path(folder)
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    counted = [name for name in names if not any(part in skip or part.startswith(".") for part in name.parts)]
    return fingerprint_value(_digests(folder, [name.as_posix() for name in counted]))


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the fingerprint of each file; for large files unchanged since an earlier call, from the user's cache."""
    identity = os.path.realpath(folder)
    statuses = {name: (folder / name).stat() for name in names}
    large = any(status.st_size >= _LARGE for status in statuses.values())
    entry = read_entry("fingerprints", identity, _Known) if large and not verifies() else None
    known = {} if entry is None else entry.value
    digests, current, settled = dict[str, str](), _Known(), time.time_ns() - _SETTLED
    for name, status in statuses.items():
        state = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
        *before, digest = known.get(name, (0, 0, 0, 0, ""))
        digests[name] = digest if (*before,) == state else fingerprint_file(folder / name)
        # A later change within the clock's resolution would leave the times of a new file as they are.
        if status.st_size >= _LARGE and status.st_ctime_ns < settled:
            current[name] = (*state, digests[name])
    if large and current != known:
        write_entry("fingerprints", identity, current)
    return digests


def is_inner_name(name: str) -> bool:
    """True if a name is a relative path downward, such as "ids.txt" or "postings/terms-00000.npy", on any system."""
    return not set(name) & {"\0", "\\", ":"} and not {"", ".", ".."} & set(name.split("/"))


def check_own_files(folder: str | Path) -> None:
    """Refuse pipes, devices and links out of a model's folder, before a library opens files by name.

    An untrusted pipe may never end, and a link may lead to any file of the user. Hidden files are not checked; links
    from the hub's cache to its own `blobs` are allowed.
    """
    root = Path(os.path.realpath(folder))
    # A model is a snapshot of the cache, or a folder in a snapshot.
    homes = [root, *(place.parent / "blobs" for place in list(root.parents)[:2] if place.name == "snapshots")]
    for path in sorted(path for pattern in ("[!.]*", "[!.]*/[!.]*") for path in Path(folder).glob(pattern)):
        if not path.is_file() and not path.is_dir() and path.exists():
            msg = f"'{path}' is not a regular file: '{folder}' is damaged. Remove it, or copy the model again."
            raise ArtifactError(msg)
        if path.is_symlink() and path.exists() and not any(path.resolve().is_relative_to(home) for home in homes):
            msg = f"'{path}' is a link to '{path.resolve()}', outside the folder. Replace it by the file."
            raise ArtifactError(msg)


def inside(folder: str | Path, name: str) -> Path:
    """Return the path of a listed file; a path outside the folder is refused."""
    path = Path(folder) / name
    if is_inner_name(name) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        return path
    msg = f"{name!r} leads out of the folder '{folder}', which lists it. Get another copy of the folder."
    raise ArtifactError(msg)


def describe_files(folder: str | Path, *, skip: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Return the size and checksum of each file of a folder, for its manifest's entry `files`.

    Excludes the manifest itself, hidden files, and the files of a subfolder that another command wrote, which its own
    manifest lists.
    """
    folder = Path(folder)
    names = _names(folder, skip, lambda inner: kind_of(folder / inner) is not None)
    sizes = {name: (folder / name).stat().st_size for name in names}
    digests = for_each_file("compute checksums", sizes, lambda name, count: fingerprint_file(folder / name, count))
    return {name: {"bytes": sizes[name], "blake2b": digest} for name, digest in digests.items()}


def fingerprint_files(files: Files) -> str:
    """Return the result of `fingerprint_folder` for these files, without reading them."""
    return fingerprint_value({name: entry["blake2b"] for name, entry in files.items()})


def check_files(folder: str | Path, files: Files, *, remedy: str) -> None:
    """Check the sizes of a folder's listed files, and the checksums of files that may have changed."""
    folder = Path(folder)
    root = os.path.join(os.path.realpath(folder), "")
    for name, entry in files.items():
        path, problem = folder / name, ""
        try:
            status = path.stat()
        except (OSError, ValueError):
            problem = "is missing"
        else:
            if not stat.S_ISREG(status.st_mode):
                problem = "is not a regular file"
            elif not os.path.realpath(path).startswith(root):
                problem = "lies outside its folder"
            elif status.st_size != entry["bytes"]:
                problem = f"has {status.st_size:,} bytes instead of {entry['bytes']:,}"
        if problem:
            msg = f"'{path}' {problem}: '{folder}' is damaged. {remedy}"
            raise ArtifactError(msg)

    manifest, suspect = folder / MANIFEST, list(files)
    if not verifies() and manifest.exists():
        listed = manifest.stat().st_mtime_ns
        suspect = [name for name in files if (folder / name).stat().st_mtime_ns > listed]

    def check(name: str, count: Counter) -> None:
        if fingerprint_file(folder / name, count) != files[name]["blake2b"]:
            msg = f"'{folder / name}' was altered: its checksum is not the one recorded in '{folder}'. {remedy}"
            raise ArtifactError(msg)

    for_each_file(f"check '{folder}'", {name: files[name]["bytes"] for name in suspect}, check)


def check_unlisted(folder: str | Path, files: Files, *, skip: tuple[str, ...] = (), remedy: str) -> None:
    """Refuse files that the manifest does not list, because libraries read any file in a folder."""
    listed = (Path(name) for name in files if not name.endswith(f"/{MANIFEST}"))
    holding = {parent.as_posix() for path in listed for parent in path.parents}
    for name in _names(Path(folder), skip, lambda inner: f"{inner}/{MANIFEST}" in files and inner not in holding):
        if name not in files:
            msg = f"'{Path(folder) / name}' is not listed in the manifest of '{folder}'. Remove it. {remedy}"
            raise ArtifactError(msg)


def checked_fingerprint(folder: str | Path, kind: str, *, skip: tuple[str, ...], remedy: str) -> str:
    """Check the files of a model's folder, and return its fingerprint."""
    manifest = read_manifest(folder, kind) if kind_of(folder) == kind else {}
    recorded, files = manifest.get("fingerprint"), manifest.get("files")
    if files is None:
        check_own_files(folder)
        fingerprint = fingerprint_folder(folder, skip=skip)
    else:
        check_unlisted(folder, files, skip=skip, remedy=remedy)
        check_files(folder, files, remedy=remedy)
        fingerprint = fingerprint_files(files)
    if recorded is not None and fingerprint != recorded:
        prints = f"its fingerprint is {fingerprint[:12]}, but {recorded[:12]} in its {MANIFEST}"
        msg = f"'{folder}' was altered: {prints}. {remedy}"
        raise ArtifactError(msg)
    return fingerprint


def _names(folder: Path, skip: tuple[str, ...], is_described: Callable[[str], bool]) -> list[str]:
    """List the files of a folder, and links to folders; of a subfolder with its own manifest, only the manifest."""
    names: list[str] = []
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        if not inside.parts:
            files = [name for name in files if name != MANIFEST]
        elif is_described(inside.as_posix()):
            files, folders[:] = [name for name in files if name == MANIFEST], []
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        names += [(inside / name).as_posix() for name in [*files, *links]]
    return sorted(name for name in names if not any(part in skip or part[0] == "." for part in name.split("/")))


def for_each_file(label: str, sizes: Mapping[str, int], work: Callable[[str, Counter], Result]) -> dict[str, Result]:
    """Run `work` on each file, in several threads; after two seconds, show a progress bar.

    Args:
        label: Label of the progress bar.
        sizes: The bytes of each file.
        work: Called with a file's name and a function that counts the bytes read; the function raises after an
            interruption or a failure in another thread, so that nobody waits for a large file.
    """
    from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait

    from retrievalkit.reporting.progress import ProgressBar

    started, done, stopped, lock = time.monotonic(), 0, False, threading.Lock()

    def count(read: int) -> None:
        nonlocal done
        if stopped:
            raise CancelledError
        with lock:
            done += read

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool, ExitStack() as stack:
        running = {name: pool.submit(work, name, count) for name in sizes}
        bar, shown = None, os.environ.get("RANK", "0") == "0"  # with torchrun, only by the first process
        try:
            while wait(running.values(), 0.2, FIRST_EXCEPTION).not_done:
                if any(future.done() and future.exception() for future in running.values()):
                    break
                if shown and bar is None and time.monotonic() - started >= _SILENT_SECONDS:
                    total = -(-sum(sizes.values()) // _MEGABYTE)
                    bar = stack.enter_context(ProgressBar(label, total, unit="MB", done=done // _MEGABYTE))
                if bar is not None:
                    bar.update(done // _MEGABYTE)
            return {name: future.result() for name, future in running.items()}
        except BaseException:
            stopped = True
            pool.shutdown(cancel_futures=True)
            raise
