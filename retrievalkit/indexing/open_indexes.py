"""Sources of a search: open index folders and run files.

A source returns rankings for queries, and the scores of listed documents if it can compute them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retrievalkit import registry, storage
from retrievalkit.contracts import Allowed, Indexer, Text
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.fields import FieldTable
from retrievalkit.data.json_text import shown
from retrievalkit.data.passage_parts import part_of, read_documents
from retrievalkit.data.runs import Hits, Ranking, check_run, open_run, ranking
from retrievalkit.data.same_text import FORMS
from retrievalkit.errors import (
    ArtifactError,
    DataError,
    InputError,
    OptionError,
    UnknownNameError,
    UnsupportedError,
    nearest,
    shortlist,
)
from retrievalkit.indexing.segments import FOLDER as SEGMENTS
from retrievalkit.indexing.segments import Lease, Segmented, joined_vectors, segments_of
from retrievalkit.registry import trust
from retrievalkit.reporting.terminal import counted

if TYPE_CHECKING:
    from retrievalkit.contracts.cluster import ClusterOptions
    from retrievalkit.indexing.query_encoders import QueryBatch

Options = Mapping[str, Any]
Place = str | Path

_DEEPER, _HITS_AT_ONCE = 8, 1 << 21
"""Factor by which a search deepens for texts with equal scores, and its most hits at a time."""

_ATTEMPTS = 10
"""Attempts to open a folder that is being replaced."""


@dataclass
class OpenIndex:
    """An open index folder."""

    folder: Path
    manifest: Mapping[str, Any]
    name: str
    indexer: Indexer
    label: str = ""
    # Keeps the files for workers that open them later.
    lease: Lease | None = None
    # The texts, their fields and their documents at the time of opening, if there are any.
    held_corpus: Corpus | None = field(init=False, default=None)
    fields: FieldTable | None = field(init=False, default=None)
    held_documents: storage.HeldFile | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.label = self.label or self.folder.name

    @property
    def place(self) -> Path:
        """The index folder."""
        return self.folder

    @property
    def needs_encoding(self) -> bool:
        """True if the queries of the index are encoded, False if they are texts."""
        return self.indexer.indexes == "vectors"

    @property
    def checkpoint(self) -> Mapping[str, Any] | None:
        """The model of the texts: path and fingerprint, or the description of an untrained model; None = unknown."""
        entry: Mapping[str, Any] | None = self.manifest.get("checkpoint")
        return entry

    @property
    def identity(self) -> str:
        """Fingerprint of the inputs and the indexer."""
        return storage.fingerprint_value([self.manifest["indexer"], self.manifest["inputs"]])

    def form(self, text: str) -> str:
        """Return a query, id or value in the form of the texts, if they record it; otherwise as it is."""
        return FORMS[self.manifest.get("text_form", "")](text)

    def formed(self, query: Text) -> Text:
        """Return a query in the form of the texts."""
        return query._replace(title=self.form(query.title), body=self.form(query.body))

    def document_of(self, text: str) -> str | None:
        """Return the document that a text was cut from; None if there is none."""
        part = part_of(text, self.documents)
        return None if part is None else part[0]

    @cached_property
    def documents(self) -> Mapping[str, int]:
        """The documents that rkit cut into the texts -> number of passages; empty if none is recorded."""
        return {} if self.held_documents is None else read_documents(self.held_documents)

    def rankings(self, queries: QueryBatch, k: int, allowed: Allowed | None = None) -> list[Ranking]:
        """Return the ids and scores of each query's top-k texts, optionally among allowed texts; ties by id.

        The order of ids does not depend on the order in which texts were added.
        """
        # One more hit shows if a tie is cut off. Then the search deepens until it has all texts of this tie.
        rankings: list[Ranking] = [([], np.empty(0))] * len(queries)
        depth, pending = k + 1, [list(range(len(queries)))]
        while pending:
            cut: list[int] = []
            for rows in pending:
                batch = queries if len(rows) == len(queries) else queries.take(rows)
                for row, (ids, values) in zip(rows, self._rankings(batch, depth, allowed), strict=True):
                    scores = np.asarray(values)
                    if len(ids) == depth and scores[k - 1] == scores[-1]:
                        cut.append(row)
                    else:
                        rankings[row] = _by_score_and_id(ids, scores, k)
            depth *= _DEEPER
            size = max(1, _HITS_AT_ONCE // depth)
            pending = [cut[start : start + size] for start in range(0, len(cut), size)]
        return rankings

    def _rankings(self, queries: QueryBatch, k: int, allowed: Allowed | None) -> list[Ranking]:
        if allowed is not None and not allowed:
            return [([], np.empty(0, dtype=np.float32))] * len(queries)
        vector = queries.vector_for(self) if allowed is None else None
        encoded = queries.encoded_for(self) if vector is None else vector
        search = self.indexer.search if allowed is None else partial(self.indexer.search_among, allowed=allowed)
        rankings, problem = _read_hits(search(encoded, k), len(queries), k)
        if problem:
            raise registry.wrong_result("indexer", self.indexer, f"search() of {k} hits {problem}")
        if not all(np.isfinite(values).all() for _, values in rankings):
            msg = f"'{self.folder}' returns scores that are not finite. Encode with rkit and index again."
            raise ArtifactError(msg)
        return rankings

    def scores(self, queries: QueryBatch, ids: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return the scores of listed texts, for each query."""
        return self.indexer.scores(queries.encoded_for(self), ids)


def corpus_of(index: OpenIndex) -> Corpus:
    """Return the texts of an index, as they were when it was opened.

    Raises:
        InputError: They are not recorded, missing, or others than those indexed.
    """
    entry = index.manifest.get("corpus")
    if entry is None:
        msg = f"the manifest of '{index.folder}' names no corpus."
        raise InputError(msg)
    if index.held_corpus is None:
        return open_recorded_corpus(entry, index.folder)
    return _checked(index.held_corpus, entry, index.folder)


def state_of(index: OpenIndex) -> str:
    """Return a fingerprint of everything that a search of an index depends on."""
    return storage.fingerprint_value({name: value for name, value in index.manifest.items() if name != "check"})


def _by_score_and_id(ids: Sequence[str], scores: NDArray[Any], k: int) -> Ranking:
    if (scores[1:] == scores[:-1]).any():
        order = sorted(range(len(ids)), key=list(zip((-scores).tolist(), ids, strict=True)).__getitem__)
        ids, scores = [ids[place] for place in order[:k]], scores[order[:k]]
    return list(ids[:k]), scores[:k]


def _read_hits(result: Any, queries: int, k: int) -> tuple[list[Ranking], str]:
    """Return the hits of each query in an indexer's result, and its problem if they are wrong."""
    ids, scores = result if isinstance(result, tuple) and len(result) == 2 else ((), ())
    rankings: list[Ranking] = []
    for hits, values in zip(ids, scores, strict=False):
        numbers = np.asarray(values)
        if numbers.dtype.kind not in "fiu" or numbers.shape != (len(hits),):
            return [], f"returns {shown(values)} as the scores of {counted(len(hits), 'ids')}; each id needs a number"
        if len(hits) > k or len(set(hits)) < len(hits) or not all(isinstance(name, str) for name in hits):
            return [], f"returns the ids {shown(hits)}, and should return at most {k} different texts"
        if (numbers[1:] > numbers[:-1]).any():
            return [], f"returns the scores {shown(values)}, and should return the best first"
        rankings.append((hits, numbers.astype(np.float32, copy=False)))
    wrong = len(rankings) != queries or any(isinstance(part, Sized) and len(part) != queries for part in (ids, scores))
    return rankings, f"of {counted(queries, 'queries')} does not return (ids, scores) for each query" if wrong else ""


@dataclass
class OpenRun:
    """A run file: the results of an earlier search, for fusion."""

    place: Path
    run: Mapping[str, Hits]
    label: str = ""
    # Query id -> id of the same query in the run, where it differs.
    names: Mapping[str, str] = field(default_factory=dict)
    # Largest number of hits of a query so far.
    deepest: int = 0

    def __post_init__(self) -> None:
        self.label = self.label or self.place.name

    @property
    def identity(self) -> str:
        """Fingerprint of the content."""
        return storage.fingerprint_file(self.place) if self.place.is_file() else storage.fingerprint_value(self.run)

    def rankings(self, queries: QueryBatch, k: int, allowed: Allowed | None = None) -> list[Ranking]:
        """Return the first k hits of each query in the run, or its first k allowed hits."""
        hits = (ranking(self.run, self.names.get(query.id, query.id)) for query in queries)
        rankings = []
        for ids, scores in hits:
            self.deepest = max(self.deepest, len(ids))
            if allowed is not None:
                rows = [row for row, name in enumerate(ids) if name in allowed]
                ids, scores = [ids[row] for row in rows], np.asarray(scores)[rows]
            rankings.append((ids[:k], scores[:k]))
        return rankings

    def scores(self, queries: QueryBatch, ids: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Unsupported: a run has scores for its hits only."""
        del queries, ids
        msg = "a run has scores for its hits only."
        raise UnsupportedError(msg)


Source = OpenIndex | OpenRun


def open_sources(places: Sequence[Path], options: Options, cluster: ClusterOptions | None = None) -> list[Source]:
    """Open index folders and run files."""
    sources: list[Source] = []
    used: set[tuple[str, str]] = set()
    names = [place.name for place in places]
    for place in places:
        label = place.name if names.count(place.name) == 1 else str(place)
        if place.is_file():
            try:
                run = open_run(place)
                # Fail now, not after hours of searching.
                check_run(run)
            except DataError as error:
                msg = f"{error} ('{place}' is a file, so it was read as a run; an index is a folder.)"
                raise InputError(msg) from error
            sources.append(OpenRun(place, run, label))
            continue
        own: dict[str, Any] = {}
        if options and storage.kind_of(place) == "index":
            recorded = storage.read_manifest(place, "index")["indexer"]
            # Later sections take precedence.
            for section in dict.fromkeys(("indexer", recorded["name"], place.name)):
                values = options.get(section)
                if not isinstance(values, Mapping):
                    continue
                for name in values:
                    # The section for all indexes may contain options that only some of them have.
                    if section != "indexer" or name in recorded["options"]:
                        own[name] = values[name]
                        used.add((section, name))
        index = open_index(place, options=own, cluster=cluster)
        index.label = label
        sources.append(index)
    for section, values in options.items():
        for name in values if isinstance(values, Mapping) else [""]:
            if (section, name) in used:
                continue
            setting = f"{section}.{name}" if name else section
            indexes = [source for source in sources if isinstance(source, OpenIndex)]
            known = sorted({option for index in indexes for option in index.manifest["indexer"]["options"]})
            close = nearest(name, known)
            offer = f"; did you mean 'indexer.{close}'?" if close and close != name else "."
            msg = f"--set {setting} is not an option of any index searched{offer} Their options: {shortlist(known)}."
            raise OptionError(msg)
    return sources


def open_index(
    folder: str | Path, *, options: Mapping[str, Any] | None = None, cluster: ClusterOptions | None = None
) -> OpenIndex:
    """Open an index folder with all its files, which the index keeps when the folder changes."""
    folder = Path(folder)
    for attempt in range(1, _ATTEMPTS + 1):
        manifest = storage.HeldFile.of(folder / storage.MANIFEST)
        try:
            index = _open_state(folder, options or {}, cluster)
            if _is_current(manifest):
                return index
        except (ArtifactError, OSError):
            if attempt == _ATTEMPTS or _is_current(manifest):
                raise
        time.sleep(attempt / 100)
    msg = f"'{folder}' changes while it is opened. Open it again when it is complete."
    raise ArtifactError(msg)


def _is_current(manifest: storage.HeldFile) -> bool:
    """True if a path still leads to the file that is held open, or if there is neither."""
    try:
        return os.path.samestat(manifest.stat(), os.stat(manifest))
    except OSError:
        # Between the two renames of a replacement, there is no folder.
        return not storage.replaced_folder(manifest.parent).exists()


def _open_state(folder: Path, options: Options, cluster: ClusterOptions | None) -> OpenIndex:
    kind = storage.kind_of(folder)
    if kind == "vectors":
        msg = f"'{folder}' is a vectors folder. Index it first: rkit index {folder} --output index"
        raise ArtifactError(msg)
    if kind == "checkpoint":
        msg = f"'{folder}' is a checkpoint. Encode and index a corpus first (rkit encode, rkit index)."
        raise ArtifactError(msg)
    manifest = storage.read_manifest(folder, "index")
    if (form := manifest.get("text_form", "")) not in FORMS:
        msg = f"'{folder}' has texts in the form '{form}', which this version does not support. Upgrade retrievalkit."
        raise ArtifactError(msg)
    if cluster is None:
        indexer, lease = opened_indexer(folder, manifest, options), None
    else:
        from retrievalkit.indexing.fanout import Spread

        # The workers check the files that they read.
        lease = Lease(folder, manifest)
        indexer = Spread(_created(folder, manifest, options), folder, manifest, options, cluster)
    index = OpenIndex(folder, manifest, manifest["indexer"]["name"], indexer, lease=lease)
    index.held_corpus = _held_corpus(manifest, folder)
    if "fields" in manifest:
        index.fields = FieldTable(storage.inside(folder, manifest["fields"]), index.form, index.document_of)
    if "documents" in manifest:
        index.held_documents = storage.HeldFile.of(storage.inside(folder, manifest["documents"]))
    return index


def opened_indexer(folder: Path, manifest: Mapping[str, Any], options: Options) -> Indexer:
    """Open the indexer of an index on the segments that a manifest lists."""
    _check_files(folder, manifest)
    segments = segments_of(manifest)
    for segment in segments:
        if segment.name:
            _check_files(segment.folder(folder), storage.read_manifest(segment.folder(folder), "index"))
    indexer = _created(folder, manifest, options)
    if len(segments) == 1 and not segments[0].deleted:
        indexer.open(segments[0].folder(folder))
        return indexer
    deleted = [segment.deleted_ids(folder) for segment in segments]
    joined = indexer.indexes == "vectors" and indexer.open_joined(
        lambda: joined_vectors(folder, manifest, view=indexer.view)
    )
    if joined:
        return indexer
    parts = [_created(folder, manifest, options) for _ in segments]
    for part, segment in zip(parts, segments, strict=True):
        part.open(segment.folder(folder))
    return Segmented(parts, deleted)


def _created(folder: Path, manifest: Mapping[str, Any], options: Options) -> Indexer:
    """Create the indexer that built an index, with its options."""
    recorded = manifest["indexer"]
    try:
        indexer: Indexer = registry.create("indexer", recorded["name"], **{**recorded["options"], **options})
    except UnknownNameError as error:
        msg = f"index '{folder}' was built by the indexer '{recorded['name']}' {registry.missing(recorded)}"
        raise ArtifactError(msg) from error
    except OptionError as error:
        if options:
            raise
        msg = f"'{folder / storage.MANIFEST}' is damaged: {error}"
        raise ArtifactError(msg) from error
    confirmed = () if trust.in_recipe() else options
    indexer.from_files = frozenset(recorded["options"]).difference(confirmed)
    return indexer


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Verify files before an indexer reads them: libraries such as faiss and Lucene trust them."""
    remedy = "Index again, or copy the folder again."
    if "files" not in manifest:
        msg = f"the {storage.MANIFEST} of '{folder}' lists no files: an older version wrote it. Index again."
        raise ArtifactError(msg)
    storage.inside(folder, SEGMENTS)
    skip = ("README.md", SEGMENTS, *manifest.get("superseded", ()))
    storage.check_unlisted(folder, manifest["files"], skip=skip, remedy=remedy)
    storage.check_files(folder, manifest["files"], remedy=remedy)


def locate_input(entry: Mapping[str, Any], folder: Path) -> str | None:
    """Return the absolute path of an input that an index's manifest names; None if it is gone.

    It is looked up in the index, at the recorded path, and next to the index. The manifest is untrusted. A store
    receives the user's credentials, so only the bucket of the index itself, which the user named, is opened. The caller
    compares the fingerprint of anything else outside the index before use.
    """
    place: str = entry.get("path", "")
    if storage.is_address(place):
        store = storage.store_of(folder)
        bucket = "" if store is None else "/".join(store.url.split("/")[:3])
        if not bucket or "::" in place or not place.startswith(f"{bucket}/"):
            msg = f"'{place}' is named only by the manifest of '{folder}', and a store is opened only if you name it."
            raise InputError(msg)
        return str(storage.local(place))
    nearby = [folder / entry["relative_path"]] if "relative_path" in entry else []
    places = [*filter(partial(_is_inside, folder), nearby), *([Path(place)] if place else []), *nearby]
    return next((os.path.abspath(place) for place in places if os.path.exists(place)), None)


def open_recorded_corpus(entry: Mapping[str, Any], folder: Path) -> Corpus:
    """Open the corpus that a folder's manifest names, if it is in the folder or its fingerprint matches."""
    source = str(entry["source"])
    # Absolute, since a file may have the name of a source, such as `documents:x`.
    place = locate_input(entry, folder) or (os.path.abspath(source) if os.path.exists(source) else source)
    return _checked(_corpus_at(place, entry, folder), entry, folder)


def _held_corpus(manifest: Mapping[str, Any], folder: Path) -> Corpus | None:
    """Open the recorded corpus if it is a file or a folder here; its content is compared when a text is read."""
    entry = manifest.get("corpus", {"path": ""})
    place = None if storage.is_address(entry.get("path", "")) else locate_input(entry, folder)
    with suppress(InputError):  # reported when a text is read
        return None if place is None else _corpus_at(place, entry, folder)
    return None


def _corpus_at(place: str, entry: Mapping[str, Any], folder: Path) -> Corpus:
    # The manifest is untrusted: names in it are looked up without the user's credentials.
    with trust.anonymously():
        corpus = open_corpus(place)
    if os.path.isfile(place) and _is_inside(folder, place):
        corpus._print = entry["fingerprint"]  # the file is checked against the manifest
    return corpus


def _checked(corpus: Corpus, entry: Mapping[str, Any], folder: Path) -> Corpus:
    with trust.anonymously():
        if corpus.fingerprint() == entry["fingerprint"]:
            return corpus
    msg = f"'{corpus.source}' is not the corpus of '{folder}': its fingerprint differs."
    raise InputError(msg)


def _is_inside(folder: Path, place: str | Path) -> bool:
    return Path(os.path.realpath(place)).is_relative_to(os.path.realpath(folder))
