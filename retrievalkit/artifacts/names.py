"""Names of files in a folder, as its manifest lists them: they never lead out of the folder."""

from __future__ import annotations

import os
from pathlib import Path

from retrievalkit.errors import ArtifactError


def is_inner_name(name: str) -> bool:
    """Whether a name is a relative path downward, such as "ids.txt" or "postings/terms-00000.npy", on any system."""
    return not set(name) & {"\0", "\\", ":"} and not {"", ".", ".."} & set(name.split("/"))


def check_own_files(folder: str | Path) -> None:
    """Refuse pipes, devices and links that lead out of the folder of a model, before a library opens files by name.

    A stranger's pipe never ends, and a link may lead to any file of the user. Hidden files are not looked at; the links
    of the hub's cache to its own `blobs` are.

    Raises:
        ArtifactError: Names the file.
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
    """The path of a file that the manifest of a folder lists.

    Raises:
        ArtifactError: The name, or a link, leads out of the folder.
    """
    path = Path(folder) / name
    if is_inner_name(name) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        return path
    msg = f"{name!r} leads out of the folder '{folder}', to which it should belong. Do without this copy."
    raise ArtifactError(msg)
