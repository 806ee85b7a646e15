"""Damage to the files of an index, which `--verify` must detect for every indexer."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path
from typing import Literal

import retrievalkit as rk
from retrievalkit.errors import InputError

MANIFEST = "manifest.json"
Damage = Literal["bytes", "cut", "longer", "gone", "added", "other", "link"]
DAMAGES: tuple[Damage, ...] = ("bytes", "cut", "longer", "gone", "added", "other", "link")
"""64 random bytes, fewer bytes, more bytes, no file, another file next to it, the file of another index, a link."""


def check_damage(index: str | Path, other: str | Path, folder: str | Path, *, seeds: int = 4) -> None:
    """Check that `--verify` rejects copies of an index with damage to one file, naming the file.

    Args:
        index: An index folder written by `rkit index`.
        other: An index of the same indexer with other texts.
        folder: A folder for copies.
        seeds: Number of copies for each kind of damage.

    Raises:
        AssertionError: Damage was not detected; the message names it.
    """
    for kind, seed in itertools.product(DAMAGES, range(seeds)):
        copy = Path(folder) / f"{kind}-{seed}"
        shutil.copytree(index, copy)
        damaged = _damage(copy, Path(other), kind, random.Random(f"{kind}:{seed}"))
        where = f"{kind}, seed {seed}: '{damaged.relative_to(copy)}'"
        message = ""
        try:
            rk.Index.open(copy, verify=True)
        except InputError as error:
            message = str(error)
        assert message, f"damage was not detected ({where})"
        named = str(damaged) in message or (damaged.name == MANIFEST and str(copy) in message)
        assert named, f"the message does not name the file ({where}): {message}"
        assert "\n" not in message, f"the message has several lines ({where}): {message}"


def _damage(index: Path, other: Path, kind: Damage, draw: random.Random) -> Path:
    """Damage a copy of an index; returns the path of the damaged file."""
    files = sorted(path for path in index.rglob("*") if path.is_file())
    # The location of a manifest does not matter.
    path = draw.choice([path for path in files if kind != "link" or path.name != MANIFEST])
    content = path.read_bytes()
    if kind == "added":
        # The files of a vectors folder are read by name.
        path = (index if (path.parent / MANIFEST).is_file() else path.parent) / f"{path.name}.more"
        path.write_bytes(content)
        return path
    # Write a new file: the copy may share files with the original index.
    path.unlink()
    if kind == "link":
        (index.parent / f"{index.name}.moved").write_bytes(content)
        path.symlink_to(index.parent / f"{index.name}.moved")
    elif kind != "gone":
        same = other / path.relative_to(index)
        if not same.is_file():
            same = draw.choice(sorted(file for file in other.rglob("*") if file.is_file()))
        start = draw.randrange(len(content) + 1)
        changed = {
            "bytes": content[:start] + draw.randbytes(64) + content[start + 64 :],
            "cut": content[: max(0, start - 1)],
            "longer": content + draw.randbytes(draw.randint(1, 5000)),
            "other": same.read_bytes(),
        }[kind]
        path.write_bytes(changed if changed != content else content + b"?")
    return path
