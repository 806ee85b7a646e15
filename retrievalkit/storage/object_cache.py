"""Local copies of objects in a store: inputs of commands, and outputs until they are sent to the store.

    ~/.cache/retrievalkit/objects/ADDRESS/STATE/NAME   a file, or a folder without its vectors
    ~/.cache/retrievalkit/outputs/ADDRESS/NAME         an output, until the store has it

Of a folder with a manifest, the listed files are copied, and copied again when the manifest has changed. The shards of
vectors stay in the store and are read by range; `.store.json` in the copy has their address. Messages and manifests
contain addresses instead of these places (`places.named`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from filelock import FileLock

from retrievalkit.errors import ArtifactError
from retrievalkit.storage.cache import cache_folder, required_folder
from retrievalkit.storage.fingerprints import Counter, describe_file, fingerprint_value
from retrievalkit.storage.integrity import for_each_file, is_inner_name
from retrievalkit.storage.json_files import read_document
from retrievalkit.storage.manifest import kind_of, read_manifest
from retrievalkit.storage.outputs import MANIFEST, discard, full_disk_named
from retrievalkit.storage.places import ADDRESSES, is_address
from retrievalkit.storage.stores import Store

PARTIAL = ".partial"
"""Folder within an output in a store with the files needed to resume the output."""

VECTORS = "vectors-*.npy"
_ORIGIN = ".store.json"
_A_DAY = 86_400


def local(place: str | Path) -> str | Path:
    """Return the local copy of an object or a folder in a store; other places are returned unchanged."""
    if not isinstance(place, str) or not is_address(place):
        return place
    store = Store(place)
    home = required_folder("objects") / fingerprint_value(store.url)
    names, folder = None, store.is_folder()
    if folder:
        try:
            state = store.read(MANIFEST).hex()
        except ArtifactError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            names = store.names()
            state = store.state()
    else:
        state = store.state()
    copy = home / fingerprint_value(state) / store.name
    ADDRESSES[str(copy)] = store.url
    copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(copy.parent / ".lock"):  # one process at a time fetches a copy
        os.utime(copy.parent)
        if folder:
            _fetch_folder(store, copy, names)
        else:
            _fetch(store.parent(), copy.parent, {store.name: store.size()}, {})
    for state_folder in home.iterdir():  # earlier states of the object, unless used in the last day
        with suppress(OSError):  # another process may remove it too
            if state_folder != copy.parent and time.time() - state_folder.lstat().st_mtime > _A_DAY:
                discard(state_folder)
    return copy


def store_of(place: str | Path) -> Store | None:
    """Return the store that a local place is a copy of, or an output for; None for any other place."""
    if (url := ADDRESSES.get(str(place))) is not None:
        return Store(url)
    try:
        copies = cache_folder("objects")
    except ArtifactError:
        return None
    # Only our own copies: an untrusted folder must not choose a store.
    if not Path(os.path.realpath(place)).is_relative_to(copies):
        return None
    with suppress(ArtifactError, KeyError):
        return Store(read_document(Path(place) / _ORIGIN, dict[str, str], do="")["url"])
    return None


@contextmanager
def sent(url: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield a local place for an output; it is sent to a store when the block ends, its manifest last."""
    store = Store(url)
    place = required_folder("outputs") / fingerprint_value(store.url) / store.name
    ADDRESSES[str(place)] = store.url
    if os.environ.get("RANK", "0") != "0":  # with torchrun, only the first process writes
        yield place
        return
    if "/" not in store.url.partition("://")[2]:
        msg = f"output '{url}' is a whole bucket. Name a folder or an object in it."
        raise ArtifactError(msg)
    existing = store.names()
    if MANIFEST in existing and not overwrite:
        msg = f"output folder '{store.url}' exists already. Choose another --output, or replace it with --overwrite."
        raise ArtifactError(msg)
    if existing and MANIFEST not in existing and not any(name.startswith(f"{PARTIAL}/") for name in existing):
        msg = f"'{store.url}' contains objects but no {MANIFEST}, so rkit did not write it. Choose another --output."
        raise ArtifactError(msg)
    if place.exists():
        msg = f"an unsent output for '{url}' is in {_hidden(place)}. Move or remove it."
        raise ArtifactError(msg)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Check now, not after hours, that the store can be written to.
        (probe := place.parent / ".probe").touch()
        try:
            store.parent().put(probe, name := f".{store.name}{PARTIAL}")
            store.parent().remove([name])
        finally:
            probe.unlink()
        yield place
        if place.exists():
            _send(store, place, existing)
    finally:
        with suppress(OSError):
            place.parent.rmdir()


def _send(store: Store, place: Path, existing: Mapping[str, int]) -> None:
    """Send a finished output, and remove the previous output; the local copy is removed afterwards."""
    home = place.parent
    files = [path for path in home.rglob("*") if path.is_file()]
    names = [path.relative_to(home).as_posix() for path in files]
    names = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    whole = f"{place.name}/{MANIFEST}"
    above = store.parent()
    try:
        if place.is_dir():
            store.remove([MANIFEST])
            (home / PARTIAL).touch()
            store.put(home / PARTIAL, f"{PARTIAL}/sent")
        sizes = {name: (home / name).stat().st_size for name in names if name != whole}

        def send(name: str, count: Counter) -> None:
            above.put(home / name, name)
            count(sizes[name])

        for_each_file(f"send '{store.url}'", sizes, send)
        if whole in names:
            above.put(home / whole, whole)
    except ArtifactError as error:
        msg = f"{error} The output is complete, in {_hidden(place)}: move it from there."
        raise ArtifactError(msg) from error
    current = {name.partition("/")[2] for name in names if name.startswith(f"{place.name}/")}
    if place.is_dir():
        current |= set(read_manifest(place).get("files", ())) if kind_of(place) else set()
        store.remove([name for name in store.names() if name not in current and (name in existing or name[0] == ".")])
    for path in home.iterdir():
        discard(path)


def _hidden(place: Path) -> str:
    """Name a local place in a way that `places.named` does not replace by its address."""
    return f"'{place.name}' of the folder '{place.parent}'"


def _fetch_folder(store: Store, folder: Path, names: Mapping[str, int] | None) -> None:
    """Copy a folder, except the shards of vectors."""
    folder.mkdir(parents=True, exist_ok=True)
    listed: Mapping[str, Any] = {}
    if names is None:
        (folder / MANIFEST).write_bytes(store.read(MANIFEST))
        manifest = read_manifest(folder) if kind_of(folder) else {}
        listed = manifest.get("files") or {}
        names = {name: entry["bytes"] for name, entry in listed.items()}
        if not listed or "segments" in manifest:
            names = store.names()
        if manifest.get("kind") == "vectors":
            names = {name: size for name, size in names.items() if not fnmatchcase(name, VECTORS)}
    nested = {name.removesuffix(f"/{MANIFEST}") for name in names if name.endswith(f"/{MANIFEST}")}
    nested = {inner for inner in nested if not any(inner.startswith(f"{outer}/") for outer in nested)}
    direct = {name: size for name, size in names.items() if not any(name.startswith(f"{inner}/") for inner in nested)}
    _fetch(store, folder, {name: size for name, size in direct.items() if name != MANIFEST or not listed}, listed)
    for inner in sorted(nested):
        _fetch_folder(store.below(inner), folder / inner, None)
    (folder / _ORIGIN).write_text(json.dumps({"url": store.url}), encoding="utf-8")


def _fetch(store: Store, folder: Path, names: Mapping[str, int], listed: Mapping[str, Any]) -> None:
    """Copy the missing objects, each atomically, and compared with its checksum if there is one."""
    for name in names:
        if not is_inner_name(name):
            msg = f"'{store.url}' contains an object {name!r:.200}, which is not a valid file name. Remove it."
            raise ArtifactError(msg)

    def fetch(name: str, count: Counter) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_name(f".partial.{target.name}")
        with full_disk_named(folder):
            store.fetch(name, staging)
        if name in listed and describe_file(staging) != listed[name]:
            staging.unlink()
            msg = f"'{store.url}/{name}' does not match its {MANIFEST}: it is damaged, or being replaced. Run the "
            msg += "command again, or write the folder again."
            raise ArtifactError(msg)
        staging.replace(target)
        count(names[name])

    paths = {name: folder / name for name in names}
    missing = [name for name, path in paths.items() if not path.exists() or path.stat().st_size != names[name]]
    for_each_file(f"fetch '{store.url}'", {name: names[name] for name in missing}, fetch)
