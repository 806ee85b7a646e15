"""What processes that were killed left beside their outputs, and in the folder for temporary files.

    .NAME.partial    a folder that was being written: by a training, an encoding or a scoring, which go on from there
    .NAME.mining     the finished parts of a mining, which goes on from there
    .NAME.old        a folder that was about to be replaced; without a NAME it is all there is, and gets its name back
    .partial.NAME    a file that was being written
    .NAME.lock       the lock of a process that ended without removing it
    rkit-...         temporary folders: of an embedded Milvus, and of outputs to a pipe

Whatever another process holds is left alone.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from retrievalkit.artifacts.locks import held, lock_of
from retrievalkit.artifacts.outputs import MANIFEST, discard, restore
from retrievalkit.errors import ArtifactError

TEMPORARY = "rkit-"
_A_DAY = 86_400
_LOCK_TEXT = re.compile(r"(\d+ \S+\n)?")
_MADE_BY = {
    "options.json": "a training (--resume goes on with it)",
    "identity.json": "rerank apply, which goes on with it",
    ".identity.json": "encode, which goes on with it",
    ".shards.json": "index --shards, which goes on with it",
}
"""A file of a `.NAME.partial` folder -> what wrote it."""


@dataclass(frozen=True)
class Leftover:
    """Something that a dead process left.

    Attributes:
        path: The file or folder.
        output: What it belongs to.
        kind: "partial", "mining", "building", "old", "lost" (an old folder without a new one), "file", "lock" or
            "temporary".
        made_by: What made it, and whether the same command goes on with it.
    """

    path: Path
    output: Path
    kind: str
    made_by: str

    @property
    def size(self) -> int:
        """Bytes on disk."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(one.lstat().st_size for one in files if not one.is_dir())


def find_leftovers(folders: Iterable[str | Path], *, temporary: bool = True) -> Iterator[Leftover]:
    """The leftovers of dead processes in folders and all folders below them.

    Args:
        folders: Where to look; links are not followed.
        temporary: Look into the folder for temporary files too.
    """
    for folder in dict.fromkeys(Path(os.path.realpath(one)) for one in folders):
        for parent, names, files in os.walk(folder):
            found = [one for name in sorted((*names, *files)) if (one := _leftover(Path(parent) / name))]
            names[:] = [name for name in names if Path(parent) / name not in {one.path for one in found}]
            yield from (one for one in found if not is_held(one))
    if temporary:
        for path in sorted(Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*")):
            one = Leftover(path, path, "temporary", "a temporary folder")
            if path.is_dir() and not path.is_symlink() and not is_held(one):
                yield one


def is_held(leftover: Leftover) -> bool:
    """Whether a living process holds the output that something belongs to."""
    path = leftover.path / ".lock" if leftover.kind == "temporary" else lock_of(leftover.output)
    if leftover.kind == "lock":
        path = leftover.path
    if not path.exists():
        # A temporary folder may be about to get its lock.
        return leftover.kind == "temporary" and time.time() - leftover.path.stat().st_mtime < _A_DAY
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def remove(leftover: Leftover) -> bool:
    """Remove a leftover, or give a lost folder its name back; returns False if a process holds it by now."""
    if leftover.kind in ("temporary", "lock"):
        if is_held(leftover):
            return False
        discard(leftover.path)
        return True
    try:
        with held(leftover.output):
            if leftover.kind == "lost":
                return restore(leftover.output)
            discard(leftover.path)
            return True
    except ArtifactError:
        return False


def remove_temporary_leftovers() -> None:
    """Remove the temporary folders of processes that were killed, known by a lock that nobody holds.

    Old folders without a lock stay until `rkit clean --remove`: they may only be named like ours.
    """
    for one in find_leftovers([]):
        if (one.path / ".lock").exists():
            remove(one)


def _leftover(path: Path) -> Leftover | None:
    name = path.name
    if path.is_symlink():
        return None
    if (match := re.fullmatch(r"\.partial\.(.+)", name)) and path.is_file():
        return Leftover(path, path.with_name(match[1]), "file", "a file that was being written")
    match = re.fullmatch(r"\.(.+)\.(partial|mining|building|old|lock)", name)
    if match is None or path.is_dir() != (match[2] != "lock"):
        return None
    output, kind = path.with_name(match[1]), match[2]
    if kind == "lock":
        return Leftover(path, output, kind, "a command that was killed") if _is_our_lock(path) else None
    if kind == "old":
        return _old(path, output) if (path / MANIFEST).is_file() else None
    if kind == "mining":
        return Leftover(path, output, kind, "mine-negatives, which goes on with it")
    if kind == "building":
        return Leftover(path, output, kind, "rk.Index.build, which goes on with it")
    made_by = next((text for file, text in _MADE_BY.items() if (path / file).exists()), "a command that starts anew")
    return Leftover(path, output, kind, made_by)


def _old(path: Path, output: Path) -> Leftover:
    if output.exists():
        return Leftover(path, output, "old", "a command that replaced this folder by a new one")
    return Leftover(path, output, "lost", "a command that was about to replace this folder: it gets its name back")


def _is_our_lock(path: Path) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return path.stat().st_size < 300 and _LOCK_TEXT.fullmatch(path.read_text(encoding="utf-8")) is not None
    return False
