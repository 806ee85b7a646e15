"""`rkit sync`: keeps indexes in sync with a folder of documents.

rkit sync FOLDER INDEX... [--passages N] [--stride N] [--model M] [--language L] [--name N] [--dry-run]
    [--watch [--serve]]
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

import retrievalkit as rk
from retrievalkit.contracts.commands import CommandOptions, say
from retrievalkit.contracts.declarations import Argument, Flag, Place, command
from retrievalkit.errors import InputError, OptionError
from retrievalkit_documents.collection import Collection, CollectionOptions
from retrievalkit_documents.listing import is_excluded
from retrievalkit_documents.report import Synced

_LOOK = 0.2
"""Seconds between checks of a first sync, before the service starts."""

_EVERY = 10_000
"""Milliseconds between checks of a folder without reported changes, as on network file systems."""


@dataclass(frozen=True)
class SyncOptions(CollectionOptions, CommandOptions):
    """Options of `sync`.

    Args:
        folder: The folder of documents and tables, including all subfolders.
        indexes: Collections (created if missing, with a dense and a bm25 index), or existing indexes.
        dry_run: List what would be added, changed, removed and renamed; change nothing.
        watch: Keep following the folder until interrupted.
        serve: With `watch`: serve the indexes as soon as one can be searched, as `rkit serve` does.
        host: With `serve`: address to listen on; by default this machine only.
        port: With `serve`: port to listen on; by default 8000, 0 = any free port.
    """

    folder: Annotated[Place, Argument()]
    indexes: Annotated[Place | tuple[Place, ...], Argument(several=True), Flag(metavar="INDEX...")]
    _: KW_ONLY
    dry_run: bool = False
    watch: bool = False
    serve: bool = False
    host: str | None = None
    port: Annotated[int, Ge(0), Le(65535)] | None = None

    @property
    def address(self) -> dict[str, Any]:
        """The options of `rkit serve`."""
        options = {"host": self.host, "port": self.port, "name": self.name}
        return {name: value for name, value in options.items() if value is not None}


class Syncs(list[Synced]):
    """The reports of a sync, one for each collection."""

    def as_json(self) -> list[dict[str, Any]]:
        """Return the reports as JSON values."""
        return [report.as_json() for report in self]

    @property
    def summary(self) -> str:
        """The reports as tables."""
        return "\n".join(report.summary for report in self)


@command("sync", SyncOptions)
def sync(options: SyncOptions) -> Syncs:
    """Keep each INDEX in sync with FOLDER: read, cut and encode new or changed files, delete removed ones.

    \b
    rkit sync docs/ my-index                  # a collection: dense and bm25
    rkit search my-index --query "refunds"
    rkit sync docs/ my-index --watch --serve  # a page at http://127.0.0.1:8000
    """  # noqa: D301 - click needs the literal backspace to keep the lines apart
    if options.watch and options.dry_run:
        msg = "watch and dry_run exclude each other. Set only one of them."
        raise OptionError(msg)
    if options.serve and not options.watch:
        msg = "serve needs watch. Set watch too, or serve what is synced: rkit serve INDEX"
        raise OptionError(msg)
    if not options.serve and (unused := options.address.keys() & {"host", "port"}):
        msg = f"{min(unused)} has no effect without serve. Set serve and watch too, or leave it out."
        raise OptionError(msg)
    places = options.indexes if isinstance(options.indexes, tuple) else (options.indexes,)
    collections = [Collection(place) for place in places]
    syncs = Syncs()
    if options.serve:
        _serve(collections, options, syncs)
        return syncs
    syncs.extend(index.follow(options.folder, options, dry_run=options.dry_run) for index in collections)
    if options.watch:
        with suppress(KeyboardInterrupt):  # the next sync completes an interrupted one
            _follow(collections, options.folder, syncs, threading.Event())
    return syncs


def _serve(collections: list[Collection], options: SyncOptions, syncs: Syncs) -> None:
    """Serve indexes while a thread keeps them in sync; when one of both ends, so does the other."""
    stop, started, errors = threading.Event(), threading.Event(), list[Exception]()

    def keep_in_sync() -> None:
        try:
            syncs.extend(index.follow(options.folder, options) for index in collections)
            _follow(collections, options.folder, syncs, stop)
        except KeyboardInterrupt:
            return
        except Exception as error:  # noqa: BLE001 - raised by the main thread
            errors.append(error)
            if started.is_set():
                os.kill(os.getpid(), signal.SIGTERM)  # ends the service once all requests are answered

    thread = threading.Thread(target=copy_context().run, args=(keep_in_sync,))
    thread.start()
    try:
        while thread.is_alive() and not all(index.is_searchable for index in collections):
            time.sleep(_LOOK)
        started.set()
        if not errors:
            rk.serve([index.path for index in collections], **options.address)
    except KeyboardInterrupt:
        if not errors:
            raise
    finally:
        stop.set()
        thread.join(_LOOK)
        if thread.is_alive():  # as Ctrl-C in a sync: the next one continues it
            number = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(KeyboardInterrupt))
        thread.join()
    if errors:
        raise errors[0]


def _follow(collections: list[Collection], folder: Place, syncs: Syncs, stop: threading.Event) -> None:
    """Sync again after each change of the folder; a persisting error is reported once."""
    say(f"{syncs.summary}\nFollowing {folder}; Ctrl-C stops.", err=True)
    problems: dict[Collection, str] = {}
    for _ in _changes(Path(folder), collections, stop):
        for number, collection in enumerate(collections):
            try:
                synced = collection.follow(folder, CollectionOptions(), retry=False)
            except InputError as error:
                if str(error) != problems.get(collection):
                    problems[collection] = str(error)
                    say(f"Error: {error} The folder is still followed.", err=True)
                continue
            problems.pop(collection, None)
            if synced.documents:
                syncs[number] = synced
                say(synced.summary, err=True)


def _changes(folder: Path, collections: list[Collection], stop: threading.Event) -> Iterator[None]:
    """Yield after each burst of changes in the folder, until stopped."""
    import watchfiles

    ours = [collection.path.resolve() for collection in collections]
    root = folder.resolve()
    patterns = {collection.exclude for collection in collections}

    def concerns(_: watchfiles.Change, path: str) -> bool:
        place = Path(path)
        if not place.is_relative_to(root) or any(map(place.is_relative_to, ours)):
            return False
        return any(not is_excluded(root, place, exclude) for exclude in patterns)

    limits: dict[str, Any] = {"rust_timeout": _EVERY, "yield_on_timeout": True}
    for _ in watchfiles.watch(root, watch_filter=concerns, stop_event=stop, **limits):
        yield
        with suppress(InputError):  # another sync may have changed them; this one reports a damaged manifest
            patterns = {collection.exclude for collection in collections}
