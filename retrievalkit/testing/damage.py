"""The conformance check of index folders: damage to any file is found when an index is opened with --verify."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Literal

from retrievalkit.artifacts import MANIFEST, kind_of, verifying
from retrievalkit.errors import InputError

Damage = Literal["bytes", "cut", "longer", "gone", "added", "other", "link"]
DAMAGES: tuple[Damage, ...] = ("bytes", "cut", "longer", "gone", "added", "other", "link")
"""64 random bytes, fewer bytes, more bytes, no file, another file beside it, the file of another index, a link."""


def check_damage(index: str | Path, other: str | Path, folder: str | Path, *, seeds: int = 4) -> None:
    """Check that `--verify` refuses copies of an index with damage to one file, naming the file.

    Args:
        index: An index folder that `rkit index` wrote.
        other: One of the same indexer, of other texts.
        folder: A folder for copies.
        seeds: How many copies have each kind of damage.

    Raises:
        AssertionError: Says which damage was not found.
    """
    for kind in DAMAGES:
        for seed in range(seeds):
            copy = Path(folder) / f"{kind}-{seed}"
            shutil.copytree(index, copy)
            damaged = _damage(copy, Path(other), kind, random.Random(f"{kind}:{seed}"))
            message = _refusal(copy)
            where = f"{kind}, seed {seed}: '{damaged.relative_to(copy)}'"
            assert message is not None, f"an index is opened whose files were damaged ({where})"
            named = str(damaged) in message or (damaged.name == MANIFEST and str(copy) in message)
            assert named, f"a message that does not name the file ({where}): {message}"
            assert "\n" not in message, f"a message of several lines ({where}): {message}"


def _refusal(index: Path) -> str | None:
    from retrievalkit.search.sources import open_index

    try:
        with verifying():
            open_index(index)
    except InputError as error:
        return str(error)
    return None


def _damage(index: Path, other: Path, kind: Damage, draw: random.Random) -> Path:
    """Damage a copy of an index; returns the path of what was changed."""
    files = sorted(path for path in index.rglob("*") if path.is_file())
    # Where a manifest lies does not matter.
    path = draw.choice([path for path in files if kind != "link" or path.name != MANIFEST])
    content = path.read_bytes()
    if kind == "added":
        # What a folder of vectors holds is read by name.
        path = (index if kind_of(path.parent) else path.parent) / f"{path.name}.more"
        path.write_bytes(content)
        return path
    # A new file: the copy of an index may share its files.
    path.unlink()
    match kind:
        case "bytes":
            path.write_bytes(_altered(content, draw))
        case "cut":
            path.write_bytes(content[: draw.randrange(len(content))] if content else b"?")
        case "longer":
            path.write_bytes(content + draw.randbytes(draw.randint(1, 5000)))
        case "other":
            path.write_bytes(_of(other, path.relative_to(index), content, draw))
        case "link":
            (index.parent / f"{index.name}.moved").write_bytes(content)
            path.symlink_to(index.parent / f"{index.name}.moved")
    return path


def _altered(content: bytes, draw: random.Random) -> bytes:
    altered = bytearray(content or b"?")
    for _ in range(64):
        altered[draw.randrange(len(altered))] = draw.randrange(256)
    return bytes(altered) if altered != content else content + b"?"


def _of(other: Path, name: Path, content: bytes, draw: random.Random) -> bytes:
    """Of the other index, the file of this name, or some file, but for the same bytes."""
    files = [other / name] if (other / name).is_file() else sorted(path for path in other.rglob("*") if path.is_file())
    found = draw.choice(files).read_bytes()
    return found if found != content else content + b"?"
