"""The files of a folder as its manifest lists them: compared by size and checksum whenever the folder is opened.

Checksums are compared of files that were modified after the manifest was written, and with RKIT_VERIFY=1 of all files.
A fingerprint, of a value, a file or a folder, is 32 hexadecimal digits of BLAKE2b. Names of files never lead out of
their folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from retrievalkit.errors import ArtifactError
from retrievalkit.storage.manifest import kind_of, read_manifest
from retrievalkit.storage.outputs import MANIFEST

if TYPE_CHECKING:
    from concurrent.futures import Future

    from retrievalkit.reporting.progress import ProgressBar

Files = Mapping[str, Mapping[str, Any]]
"""Name, relative to the folder and with slashes -> {"bytes": its size, "blake2b": its checksum}."""

VERIFY = "RKIT_VERIFY"
"""Environment variable: 1 reads all bytes of every file that is opened."""

_CHUNK_BYTES = 1 << 20

Result = TypeVar("Result")

_THREADS = 8
_SILENT_SECONDS = 2.0
_BETWEEN_SECONDS = 0.2
_MEGABYTE = 1 << 20


def fingerprint_value(value: Any) -> str:
    """A fingerprint (32 hexadecimal digits) of a JSON-able value; the order of keys does not matter."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def fingerprint_file(path: str | Path) -> str:
    """A fingerprint of a file's bytes."""
    try:
        with Path(path).open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        # Python names a file that cannot be opened, and none that cannot be read.
        error.filename = error.filename or str(path)
        raise


def describe_file(path: str | Path) -> dict[str, Any]:
    """The size and fingerprint of a file, as the lists of files in manifests have them."""
    return {"bytes": Path(path).stat().st_size, "blake2b": fingerprint_file(path)}


def fingerprint_folder(folder: str | Path, *, skip: tuple[str, ...] = (MANIFEST, "README.md")) -> str:
    """A fingerprint of every file in a folder, by relative path, without hidden files and those in `skip`."""
    folder = Path(folder)
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    counted = [name for name in names if not any(part in skip or part.startswith(".") for part in name.parts)]
    return fingerprint_value({name.as_posix(): fingerprint_file(folder / name) for name in counted})


def is_inner_name(name: str) -> bool:
    """Whether a name is a relative path downward, such as "ids.txt" or "postings/terms-00000.npy", on any system."""
    return not set(name) & {"\0", "\\", ":"} and not {"", ".", ".."} & set(name.split("/"))


def check_own_files(folder: str | Path) -> None:
    """Refuse pipes, devices and links that lead out of the folder of a model, before a library opens files by name.

    A stranger's pipe never ends, and a link may lead to any file of the user. Hidden files are not looked at; the links
    of the hub's cache to its own `blobs` are.
    """
    root = os.path.realpath(folder)
    snapshots = os.path.dirname(root)
    cached = os.path.basename(snapshots) == "snapshots"
    homes = [root, os.path.join(os.path.dirname(snapshots), "blobs")] if cached else [root]
    for path in sorted(path for pattern in ("[!.]*", "[!.]*/[!.]*") for path in Path(folder).glob(pattern)):
        if not path.is_file() and not path.is_dir() and path.exists():
            msg = f"'{path}' is no regular file: '{folder}' is damaged. Remove it, or copy the model again."
            raise ArtifactError(msg)
        if path.is_symlink() and path.exists() and not any(path.resolve().is_relative_to(home) for home in homes):
            msg = f"'{path}' is a link that leads out of the folder, to '{path.resolve()}'. Replace it by the file."
            raise ArtifactError(msg)


def inside(folder: str | Path, name: str) -> Path:
    """The path of a file that the manifest of a folder lists."""
    path = Path(folder) / name
    if is_inner_name(name) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        return path
    msg = f"{name!r} leads out of the folder '{folder}', to which it should belong. Do without this copy."
    raise ArtifactError(msg)


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

    Left out are the manifest itself, hidden files, and the files of a subfolder that another command wrote, which its
    own manifest lists.
    """
    folder = Path(folder)
    names = _names(folder, skip, lambda inner: kind_of(folder / inner) is not None)
    sizes = [(folder / name).stat().st_size for name in names]
    reading = Reading("compute checksums", sum(sizes))
    digests = reading.each(lambda name: _digest(folder / name, reading), names)
    return {name: {"bytes": size, "blake2b": digest} for name, size, digest in zip(names, sizes, digests, strict=True)}


def fingerprint_files(files: Files) -> str:
    """What `fingerprint_folder` makes of these files, without reading them."""
    return fingerprint_value({name: entry["blake2b"] for name, entry in files.items()})


def check_files(folder: str | Path, files: Files, *, remedy: str) -> None:
    """Compare the listed files of a folder with their sizes, and with their checksums where they may have changed."""
    folder = Path(folder)
    root = os.path.realpath(folder)
    for name, entry in files.items():
        problem = _visible_problem(folder / name, entry["bytes"], root)
        if problem:
            msg = f"'{folder / name}' {problem}: '{folder}' is damaged. {remedy}"
            raise ArtifactError(msg)

    manifest, suspect = folder / MANIFEST, list(files)
    if os.environ.get(VERIFY) != "1" and manifest.exists():
        listed = manifest.stat().st_mtime_ns
        suspect = [name for name in files if (folder / name).stat().st_mtime_ns > listed]
    reading = Reading(f"check '{folder}'", sum(files[name]["bytes"] for name in suspect))

    def check(name: str) -> None:
        if _digest(folder / name, reading) != files[name]["blake2b"]:
            msg = f"'{folder / name}' was altered: its checksum is not the one recorded in '{folder}'. {remedy}"
            raise ArtifactError(msg)

    reading.each(check, suspect)


def check_unlisted(folder: str | Path, files: Files, *, skip: tuple[str, ...] = (), remedy: str) -> None:
    """Refuse files that the manifest does not list, where a library reads whatever it finds in a folder."""
    listed = (Path(name) for name in files if not name.endswith(f"/{MANIFEST}"))
    holding = {parent.as_posix() for path in listed for parent in path.parents}
    for name in _names(Path(folder), skip, lambda inner: f"{inner}/{MANIFEST}" in files and inner not in holding):
        if name not in files:
            msg = f"'{Path(folder) / name}' is no file of '{folder}', whose list lacks it. Remove it. {remedy}"
            raise ArtifactError(msg)


def checked_fingerprint(folder: str | Path, kind: str, *, skip: tuple[str, ...], remedy: str) -> str:
    """The fingerprint of a model's folder, after its files were checked."""
    manifest = read_manifest(folder, kind) if kind_of(folder) == kind else {}
    recorded, files = manifest.get("fingerprint"), manifest.get("files")
    if files is None:
        check_own_files(folder)
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


def _names(folder: Path, skip: tuple[str, ...], is_described: Callable[[str], bool]) -> list[str]:
    """The files of a folder, and links to folders; of a subfolder whose own manifest lists its files, that alone."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        if not inside.parts:
            files = [name for name in files if name != MANIFEST]
        elif is_described(inside.as_posix()):
            files, folders[:] = [name for name in files if name == MANIFEST], []
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found += [(inside / name).as_posix() for name in [*files, *links]]
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


def _digest(path: Path, reading: Reading) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as stream:
        while not reading.stopped and (chunk := stream.read(_CHUNK_BYTES)):
            digest.update(chunk)
            reading.count(len(chunk))
    return digest.hexdigest()


class Reading:
    """Work on files that reads all of their bytes.

    Args:
        label: What is done, as progress names it.
        total: Bytes to read.

    Attributes:
        stopped: Whether the work was interrupted or failed: what reads a file should stop.
    """

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.stopped = label, total, False
        self._read = 0
        self._lock = threading.Lock()

    def count(self, read: int) -> None:
        """Count bytes that were read, or need not be."""
        with self._lock:
            self._read += read

    def each(self, work: Callable[[str], Result], names: Sequence[str]) -> list[Result]:
        """The results of work on each file, in several threads; an interruption does not wait for a large file."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            running = [pool.submit(work, name) for name in names]
            try:
                self._show(running)
                return [one.result() for one in running]
            except BaseException:
                self.stopped = True
                pool.shutdown(cancel_futures=True)
                raise

    def _show(self, running: Sequence[Future[Result]]) -> None:
        """Show how far it has come until all is done or something failed."""
        from concurrent.futures import FIRST_EXCEPTION, wait

        begun = time.monotonic()
        bar: ProgressBar | None = None
        # Of several processes that torchrun started, one tells.
        tells = os.environ.get("RANK", "0") == "0"
        try:
            while wait(running, _BETWEEN_SECONDS, FIRST_EXCEPTION).not_done:
                if any(one.done() and one.exception() for one in running):
                    return
                if bar is None and tells and time.monotonic() - begun >= _SILENT_SECONDS:
                    from retrievalkit.reporting.progress import ProgressBar

                    total, read = -(-self.total // _MEGABYTE), self._read // _MEGABYTE
                    bar = ProgressBar(self.label, total, unit="MB", done=read).start()
                if bar is not None:
                    bar.update(self._read // _MEGABYTE)
        finally:
            if bar is not None:
                bar.stop()
