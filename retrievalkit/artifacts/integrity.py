"""The files of a folder as its manifest lists them: compared by size and checksum whenever the folder is opened.

Sizes and a sample of blocks are compared always. All bytes are read when a file is opened for the first time, and again
after it was written to: a file that was found whole is remembered in the user's cache folder. RKIT_VERIFY=1 reads all
bytes whatever is remembered.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrievalkit.artifacts.fingerprints import fingerprint_folder, fingerprint_value
from retrievalkit.artifacts.manifest import kind_of, read_manifest
from retrievalkit.artifacts.memory import is_remembered, remember, state_of
from retrievalkit.artifacts.outputs import MANIFEST
from retrievalkit.errors import ArtifactError

Files = Mapping[str, Mapping[str, Any]]
"""Name, relative to the folder and with slashes -> {"bytes": its size, "blake2b": its checksum}."""

VERIFY = "RKIT_VERIFY"
"""Environment variable: 1 reads all bytes of every file that is opened."""

_THREADS = 8
_CHUNK_BYTES = 1 << 20


@contextmanager
def verifying() -> Iterator[None]:
    """In this block, and in processes started in it, all bytes are read."""
    before = os.environ.get(VERIFY)
    os.environ[VERIFY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VERIFY]
        else:
            os.environ[VERIFY] = before


def describe_files(folder: str | Path, *, skip: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """The size and checksum of each file of a folder, for its manifest's entry `files`.

    Left out are the manifest itself, hidden files, and the files of a subfolder with a manifest of its own, which lists
    them.

    Args:
        folder: The folder.
        skip: Names of further files and folders to leave out.
    """
    folder = Path(folder)
    names = _names(folder, skip)
    digests = _each(lambda name, stopped: _digest(folder / name, stopped), names)
    return {
        name: {"bytes": (folder / name).stat().st_size, "blake2b": digest}
        for name, digest in zip(names, digests, strict=True)
    }


def fingerprint_files(files: Files) -> str:
    """What `fingerprint_folder` makes of these files, without reading them."""
    return fingerprint_value({name: entry["blake2b"] for name, entry in files.items()})


def check_files(folder: str | Path, files: Files, *, remedy: str) -> None:
    """Compare the listed files of a folder with their sizes and checksums.

    Args:
        folder: The folder.
        files: The entry `files` of its manifest.
        remedy: What to do about damage, as a sentence.

    Raises:
        ArtifactError: A file is missing, is no regular file of this folder, or is not what the manifest says.
    """
    folder = Path(folder)
    root = os.path.realpath(folder)
    for name, entry in files.items():
        problem = _visible_problem(folder / name, entry["bytes"], root)
        if problem:
            msg = f"'{folder / name}' {problem}: '{folder}' is damaged. {remedy}"
            raise ArtifactError(msg)

    def check(name: str, stopped: threading.Event) -> None:
        path, expected = folder / name, files[name]["blake2b"]

        def compare() -> None:
            if _digest(path, stopped) != expected:
                msg = f"'{path}' was altered: its checksum is not the one recorded in '{folder}'. {remedy}"
                raise ArtifactError(msg)

        once(path, _checksum(expected), compare)

    _each(check, list(files))


def check_unlisted(folder: str | Path, files: Files, *, skip: tuple[str, ...] = (), remedy: str) -> None:
    """Refuse files that the manifest does not list, where a library reads whatever it finds in a folder.

    Raises:
        ArtifactError: Names such a file.
    """
    for name in _names(Path(folder), skip):
        if name not in files:
            msg = f"'{Path(folder) / name}' is no file of '{folder}', whose list lacks it. Remove it. {remedy}"
            raise ArtifactError(msg)


def checked_fingerprint(folder: str | Path, kind: str, *, skip: tuple[str, ...], remedy: str) -> str:
    """The fingerprint of a model's folder, after its files were checked.

    Args:
        folder: The folder.
        kind: Of which kind its manifest says it is. The fingerprint of any other folder is computed.
        skip: Names of files and folders that do not count.
        remedy: What to do about damage, as a sentence.

    Raises:
        ArtifactError: The files are not those that the manifest's fingerprint was made of.
    """
    manifest = read_manifest(folder, kind) if kind_of(folder) == kind else {}
    recorded, files = manifest.get("fingerprint"), manifest.get("files")
    if files is None:
        found = fingerprint_folder(folder, skip=skip)
    else:
        check_unlisted(folder, files, skip=skip, remedy=remedy)
        check_files(folder, files, remedy=remedy)
        found = fingerprint_files(files)
    if recorded is not None and found != recorded:
        prints = f"its fingerprint is {found[:12]}, and its {MANIFEST} says {recorded[:12]}"
        msg = f"'{folder}' was altered: {prints}. {remedy}"
        raise ArtifactError(msg)
    return found


def once(path: Path, what: str, check: Callable[[], object]) -> None:
    """Run a check of a file, unless the file passed it before and was not written to since.

    Args:
        path: The file.
        what: Names the check and what it depends on besides the file.
        check: Raises if the file does not pass.
    """
    before = state_of(path, what)
    if is_remembered(before, in_this_process=os.environ.get(VERIFY) == "1"):
        return
    check()
    if state_of(path, what) == before:
        remember(before)


def link_file(source: Path, target: Path, *, checksum: str, checks: tuple[str, ...] = ()) -> None:
    """Link a file. A link changes the time of the inode, so what is remembered of the file is remembered anew.

    Args:
        source: The file.
        target: Its new name.
        checksum: What `check_files` compares it with.
        checks: The names of other checks that it may have passed; see `once`.

    Raises:
        OSError: It cannot be linked.
    """
    names = [_checksum(checksum), *checks]
    before = [state_of(source, name) for name in names]
    os.link(source, target)
    for name, state in zip(names, before, strict=True):
        linked = state_of(target, name)
        if linked.content == state.content and is_remembered(state):
            remember(linked)


def _checksum(expected: str) -> str:
    return f"blake2b {expected}"


def _names(folder: Path, skip: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        if MANIFEST in files:
            # Of the folder itself everything else counts, of a nested one only the manifest, which lists the rest.
            files = [MANIFEST] if inside.parts else [name for name in files if name != MANIFEST]
            folders[:] = [] if inside.parts else folders
        found += [(inside / name).as_posix() for name in files]
    return sorted(name for name in found if not any(part in skip or part[0] == "." for part in name.split("/")))


def _visible_problem(path: Path, size: int, root: str) -> str:
    """What is wrong with a file, as seen without reading it; "" if nothing is."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return "is missing"
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    if not os.path.realpath(path).startswith(os.path.join(root, "")):
        return "lies outside of its folder"
    return "" if found.st_size == size else f"has {found.st_size:,} bytes instead of {size:,}"


def _digest(path: Path, stopped: threading.Event) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as stream:
        while not stopped.is_set() and (chunk := stream.read(_CHUNK_BYTES)):
            digest.update(chunk)
    return digest.hexdigest()


def _each(work: Callable[[str, threading.Event], Any], names: Iterable[str]) -> list[Any]:
    """The results of work on each file, in several threads; an interruption does not wait for a large file."""
    from concurrent.futures import ThreadPoolExecutor

    stopped = threading.Event()
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        running = [pool.submit(work, name, stopped) for name in names]
        try:
            return [one.result() for one in running]
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
