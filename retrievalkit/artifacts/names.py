"""Names of files in a folder, as its manifest lists them: they never lead out of the folder."""

from __future__ import annotations

import os
from pathlib import Path

from retrievalkit.errors import ArtifactError


def is_inner_name(name: str) -> bool:
    """Whether a name is a relative path downward, such as "ids.txt" or "postings/terms-00000.npy", on any system."""
    return not set(name) & {"\0", "\\", ":"} and not {"", ".", ".."} & set(name.split("/"))


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
