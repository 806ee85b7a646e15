"""`rkit sync`: keeps indexes in sync with a folder of documents.

rkit sync FOLDER INDEX... [--passages N] [--stride N] [--model M] [--language L] [--dry-run] [--watch]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

from retrievalkit.contracts.commands import CommandOptions, say
from retrievalkit.contracts.declarations import Argument, Flag, Place, command
from retrievalkit.errors import InputError, OptionError
from retrievalkit_documents.collection import Collection, CollectionOptions
from retrievalkit_documents.listing import is_excluded
from retrievalkit_documents.report import Synced

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
    """

    folder: Annotated[Place, Argument()]
    indexes: Annotated[Place | tuple[Place, ...], Argument(several=True), Flag(metavar="INDEX...")]
    _: KW_ONLY
    dry_run: bool = False
    watch: bool = False


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
    rkit sync docs/ my-index --watch
    """  # noqa: D301 - click needs the literal backspace to keep the lines apart
    if options.watch and options.dry_run:
        msg = "watch and dry_run exclude each other. Set only one of them."
        raise OptionError(msg)
    places = options.indexes if isinstance(options.indexes, tuple) else (options.indexes,)
    collections = [Collection(place) for place in places]
    syncs = Syncs(index.follow(options.folder, options, dry_run=options.dry_run) for index in collections)
    if not options.watch:
        return syncs
    say(f"{syncs.summary}\nFollowing {options.folder}; Ctrl-C stops.", err=True)
    with suppress(KeyboardInterrupt):  # the next sync completes an interrupted one
        _follow(collections, options.folder, syncs)
    return syncs


def _follow(collections: list[Collection], folder: Place, syncs: Syncs) -> None:
    """Sync again after each change of the folder; a persisting error is reported once."""
    problems: dict[Collection, str] = {}
    for _ in _changes(Path(folder), collections):
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


def _changes(folder: Path, collections: list[Collection]) -> Iterator[None]:
    """Yield after each burst of changes in the folder, until interrupted."""
    import watchfiles

    ours = [collection.path.resolve() for collection in collections]
    root = folder.resolve()

    def concerns(_: watchfiles.Change, path: str) -> bool:
        place = Path(path)
        if not place.is_relative_to(root) or any(map(place.is_relative_to, ours)):
            return False
        return any(not is_excluded(root, place, collection.exclude) for collection in collections)

    for _ in watchfiles.watch(root, watch_filter=concerns, rust_timeout=_EVERY, yield_on_timeout=True):
        yield
