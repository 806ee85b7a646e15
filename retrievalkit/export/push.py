"""Uploads an export to the Hugging Face hub, by huggingface_hub; dry unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from retrievalkit.artifacts import MANIFEST
from retrievalkit.errors import RetrievalkitError


def files_of(folder: str | Path) -> list[tuple[str, int]]:
    """The files that are uploaded, with their bytes: all but the manifest, which names paths of this machine."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.name != MANIFEST)
    return [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]


def push(folder: str | Path, name: str) -> str:
    """Make the repository if it does not exist, private, and upload the files; returns its address.

    Raises:
        RetrievalkitError: The hub cannot be reached, or refuses.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    try:
        api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=str(folder), ignore_patterns=[MANIFEST])
    except Exception as error:  # those of the library's HTTP client, which its releases change
        reason = " ".join(str(error).split())[:300]
        msg = f"'{folder}' was not uploaded to '{name}': {reason} Log in (hf auth login), then run the command again."
        raise RetrievalkitError(msg) from error
    return f"https://huggingface.co/{name}"
