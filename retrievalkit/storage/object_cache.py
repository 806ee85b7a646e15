"""Local copies of objects in a store: inputs of commands, and outputs until they are sent to the store.

    ~/.cache/retrievalkit/objects/ADDRESS/STATE/NAME   a file, or a folder without its vectors
    ~/.cache/retrievalkit/outputs/ADDRESS/NAME         an output, until the store has it

A folder with a manifest is copied as the manifest lists it, and again when the manifest has changed. The shards of
vectors stay in the store and are read by range; `.store.json` in the copy holds their address. Messages and manifests
that name a place here are written with the address instead (`places.named`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from filelock import FileLock

from retrievalkit.errors import ArtifactError
from retrievalkit.storage.integrity import Counter, describe_file, fingerprint_value, for_each_file, is_inner_name
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
    """The local copy of an object or a folder in a store; other places are returned unchanged."""
    if not isinstance(place, str) or not is_address(place):
        return place
    store = Store(place)
    home = cache_folder("objects") / fingerprint_value(store.url)
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
    for one in home.iterdir():  # earlier states of the object, unless used in the last day
        if one != copy.parent and time.time() - one.stat().st_mtime > _A_DAY:
            shutil.rmtree(one, ignore_errors=True)
    return copy


def store_of(place: str | Path) -> Store | None:
    """The store that a local place is a copy of, or an output for; None for any other place."""
    if (url := ADDRESSES.get(str(place))) is not None:
        return Store(url)
    # Only in our own copies: an untrusted folder must not choose a store.
    if not Path(os.path.realpath(place)).is_relative_to(cache_folder("objects")):
        return None
    with suppress(OSError, ValueError, KeyError):
        return Store(json.loads((Path(place) / _ORIGIN).read_text(encoding="utf-8"))["url"])
    return None


@contextmanager
def sent(url: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield a local place for an output; it is sent to a store when the block ends, its manifest last."""
    store = Store(url)
    place = cache_folder("outputs") / fingerprint_value(store.url) / store.name
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
        msg = f"'{store.url}' holds objects and no {MANIFEST}, so rkit leaves it alone. Choose another --output."
        raise ArtifactError(msg)
    if place.exists():
        msg = f"an output for '{url}', which the store does not have, is in {_hidden(place)}. Move or remove it."
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
    kept = {name.partition("/")[2] for name in names if name.startswith(f"{place.name}/")}
    if place.is_dir():
        kept |= set(read_manifest(place).get("files", ())) if kind_of(place) else set()
        store.remove([name for name in store.names() if name not in kept and (name in existing or name[0] == ".")])
    for path in home.iterdir():
        discard(path)


def _hidden(place: Path) -> str:
    """A name for a local place that stays unchanged in messages."""
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
    within = {name.removesuffix(f"/{MANIFEST}") for name in names if name.endswith(f"/{MANIFEST}")}
    within = {one for one in within if not any(one.startswith(f"{other}/") for other in within)}
    own = {name: size for name, size in names.items() if not any(name.startswith(f"{one}/") for one in within)}
    _fetch(store, folder, {name: size for name, size in own.items() if name != MANIFEST or not listed}, listed)
    for one in sorted(within):
        _fetch_folder(store.below(one), folder / one, None)
    (folder / _ORIGIN).write_text(json.dumps({"url": store.url}), encoding="utf-8")


def _fetch(store: Store, folder: Path, names: Mapping[str, int], listed: Mapping[str, Any]) -> None:
    """Copy the missing objects, each atomically, and compared with its checksum if there is one."""
    for name in names:
        if not is_inner_name(name):
            msg = f"'{store.url}' holds an object {name!r:.200}, which cannot be the name of a file here. Remove it."
            raise ArtifactError(msg)

    def fetch(name: str, count: Counter) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = target.with_name(f".partial.{target.name}")
        with full_disk_named(folder):
            store.fetch(name, staging)
        if name in listed and describe_file(staging) != listed[name]:
            staging.unlink()
            msg = f"'{store.url}/{name}' is not what its {MANIFEST} says: it is damaged, or is being replaced. Run the "
            msg += "command again, or write it anew."
            raise ArtifactError(msg)
        staging.replace(target)
        count(names[name])

    there = {name: folder / name for name in names}
    lacking = [name for name, path in there.items() if not path.exists() or path.stat().st_size != names[name]]
    for_each_file(f"fetch '{store.url}'", {name: names[name] for name in lacking}, fetch)


def cache_folder(kind: str) -> Path:
    """The folder of the user's cache for one kind of content, such as "objects"."""
    place = os.environ.get("XDG_CACHE_HOME", "")
    # Links are resolved, as in messages about files.
    home = os.path.realpath(place if os.path.isabs(place) else os.path.expanduser("~/.cache"))
    return Path(home) / "retrievalkit" / kind
