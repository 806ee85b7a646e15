"""Incremental updates of an index (`rkit index INDEX --add`, `--delete`, `--compact`).

A changed index returns the same hits as a new index of the remaining texts followed by the added texts, each in their
order. A changed text counts as added. See `retrievalkit.indexing.segments` for the files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import storage
from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, Cut, Passage, nearest_id, open_corpus, plain_passage, write_corpus
from retrievalkit.data.fields import FIELDS, FieldTable, Value, write_fields
from retrievalkit.data.forms import corpus_table
from retrievalkit.data.passage_parts import DOCUMENTS, TABLES, collected, part_of, read_documents
from retrievalkit.data.records import table_of
from retrievalkit.data.same_text import PLAIN
from retrievalkit.data.vectors import IDS, Ids, JoinedStore, VectorStore, VectorWriter
from retrievalkit.data.vectors.joined import SHARD_TEXTS
from retrievalkit.data.vectors.postings import Postings
from retrievalkit.errors import ArtifactError, InputError, OptionError, UnsupportedError, shortlist
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.corpus_encoding import encode
from retrievalkit.indexing.open_indexes import open_index, open_recorded_corpus
from retrievalkit.indexing.options import EncodingOptions
from retrievalkit.indexing.query_encoders import Encoders
from retrievalkit.indexing.segments import FOLDER, Segment, joined_vectors, segments_of, unused
from retrievalkit.registry.trust import anonymously
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import counted

_WORK = ".changing"
"""Folder inside an index where a change is prepared; a killed encoding resumes from it."""

_OURS = re.compile(
    r"[0-9]{4,12}|deleted-[0-9]+-[0-9]*\.txt|corpus-[0-9]+\.jsonl|fields-[0-9]+\.parquet|documents-[0-9]+\.json"
)
_Shard = tuple[Sequence[str], "np.ndarray | None", "np.ndarray | None", Any, "np.ndarray | None"]
"""Ids, vectors, number of vectors per text, weights, keys."""
_Row = tuple[str, str, Mapping[str, Value]]
"""Id, title and fields of a text."""
_OF_MODEL = ("fingerprint", "description", "encoder_options", "dimensions", "compressor")


@dataclass
class Outcome:
    """The result of a change.

    Attributes:
        texts: Number of texts in the index after the change.
        added: Number of new texts.
        changed: Number of texts that replaced texts with the same ids, or whose fields changed.
        unchanged: Number of input texts that the index already held.
        deleted: Number of removed texts.
        compacted: Number of segments merged into one; 0 if there was nothing to merge.
        encoded: Number of encoded texts; the others already had vectors, possibly under another id.
        segments: Number of segments of the index.
    """

    texts: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    encoded: int = 0
    compacted: int = 0
    segments: int = 1

    def as_json(self) -> dict[str, int]:
        """Return the counts as JSON values."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """The counts as a line of text."""
        kinds = ("added", "changed", "unchanged", "deleted")
        counts = [f"{value:,} {name}" for name, value in asdict(self).items() if name in kinds and value]
        done = ", ".join([*counts, *(["compacted"] if self.compacted else [])]) or "nothing to change"
        return f"{done}; {counted(self.texts, 'texts')} in {counted(self.segments, 'segments')}"


def change_index(
    index: str | Path,
    *,
    add: str | Path | None = None,
    delete: Collection[str] = (),
    id_files: bool = False,
    mirror: bool = False,
    compact: bool = False,
    model: str | Path | None = None,
    precision: Any = None,
) -> Outcome:
    """Change an index: delete texts, then add texts, then compact the index.

    A reader that has the index open keeps the old state. If the change is killed, the index is in its old or its
    new state, and the same command completes the change. See `IndexOptions`; `delete` may name files only with
    `id_files`.
    """
    folder = Path(index)
    if add is None and not delete and not compact:
        msg = "there is nothing to change. Set add, delete or compact."
        raise OptionError(msg)
    if mirror and add is None:
        msg = "mirror deletes the texts that are not in the passages of add. Set add too, or leave mirror out."
        raise OptionError(msg)
    with storage.held(folder):
        storage.restore(folder)
        _sweep(folder, storage.read_manifest(folder, "index"))
        outcome = Outcome()
        with storage.work_folder(folder / _WORK) as work:
            if add is not None or delete:
                _add_and_delete(_Index(folder), work, add, delete, id_files, mirror, model, precision, outcome)
            if compact:
                outcome.compacted = _compact(_Index(folder), work)
        manifest = storage.read_manifest(folder, "index")
        _sweep(folder, manifest)
        outcome.texts = int(manifest["counts"]["texts"])
        outcome.segments = len(segments_of(manifest))
    return outcome


class _Index:
    """An index being changed: its segments, each with the ids of its deleted texts."""

    def __init__(self, folder: Path) -> None:
        self.opened = open_index(folder)
        self.folder, self.manifest, self.indexer = folder, dict(self.opened.manifest), self.opened.indexer
        self.segments = [(segment, segment.deleted_ids(folder)) for segment in segments_of(self.manifest)]
        # Texts whose fields or place in a document changed, by id.
        self.relabelled: dict[str, Passage] = {}
        self.mirrored: Corpus | None = None  # with `mirror`: all texts of the index after the change
        # Documents that were cut into texts of the index before and after the change -> number of their passages.
        self.documents = dict(self.opened.documents)

    @cached_property
    def ids(self) -> list[Ids]:
        """The ids of the texts of each segment, including deleted texts."""
        ids = []
        for segment, _ in self.segments:
            folder = segment.folder(self.folder)
            file = next((path for path in (folder / "vectors" / IDS, folder / IDS) if path.is_file()), None)
            if file is None:
                msg = f"'{folder}' does not list its texts, so it cannot be changed. Index the whole corpus again."
                raise UnsupportedError(msg)
            ids.append(Ids(file))
        return ids

    @cached_property
    def corpus(self) -> Corpus | None:
        """The texts; None if the recorded corpus is missing or has changed."""
        return _recorded_corpus(self.manifest.get("corpus"), self.folder)

    def recorded(self, text: Passage) -> Passage:
        """Return a text of the changed index with the record of its document."""
        part = part_of(text.id, self.documents)
        return replace(text, cut=part and replace(text.cut or Cut(*part, 0), of=self.documents[part[0]]))

    def left(self, removed: Collection[str]) -> Iterator[_Row]:
        """Yield the id, title and fields of each remaining text."""
        rows: Iterable[_Row] = ((name, "", {}) for name in self.digests)
        if self.corpus is not None:
            rows = ((text.id, text.title, text.fields) for text in self.corpus)
        elif self.opened.fields is not None:
            rows = self.opened.fields.rows()
        changed = {name: text.fields for name, text in self.relabelled.items()}
        return ((name, title, changed.get(name, fields)) for name, title, fields in rows if name not in removed)

    def formed(self, corpus: Corpus) -> Iterator[Passage]:
        """Yield the passages of a corpus, in the form of the texts of the index.

        Raises:
            InputError: Two passages have the same id in this form.
        """
        seen: set[str] = set()
        for passage in corpus:
            text = plain_passage(passage) if self.opened.manifest.get("text_form") == PLAIN else passage
            if text.id in seen:
                msg = f"'{corpus.source}' has the id '{text.id}' twice, with letters in different forms. Rename one."
                raise InputError(msg)
            seen.add(text.id)
            yield text

    @cached_property
    def digests(self) -> dict[str, bytes | None]:
        """Id of each text -> digest of its title and text; None if the texts are unknown."""
        ids = self.ids
        if self.corpus is not None:
            return {passage.id: _digest(passage) for passage in self.corpus}
        own = zip(ids, self.segments, strict=True)
        return dict.fromkeys(name for names, (_, deleted) in own for name in names if name not in deleted)


def _add_and_delete(
    index: _Index,
    work: Path,
    add: str | Path | None,
    delete: Collection[str],
    id_files: bool,
    mirror: bool,
    model: str | Path | None,
    precision: Any,
    outcome: Outcome,
) -> None:
    """Delete and add texts in one change of the manifest, and record the counts in the outcome."""
    digests = index.digests
    lists = [files.fingerprint(name) for name in sorted(delete) if id_files and os.path.isfile(name)]
    deletion = storage.fingerprint_value([str(add), sorted(delete), lists])
    # If the last change was the same, it was killed, or has already deleted the texts.
    to_delete = _texts_to_delete(index, delete, id_files, repeated=index.manifest.get("deletion") == deletion)
    index.manifest["deletion"] = deletion
    input_ids: list[str] = []
    input_documents: dict[str, int] = {}
    forms: set[str] = set()
    added: list[str] = []
    texts_before = () if index.corpus is None else index.corpus
    labels = {text.id: _label(text) for text in texts_before if text.fields or text.cut}
    vectors, texts = None, None
    if add is not None and storage.kind_of(add) == "vectors":
        if not index.opened.needs_encoding:
            msg = f"'{index.folder}' indexes texts, and '{add}' is a vectors folder. Add the passages instead."
            raise UnsupportedError(msg)
        vectors = _fitting(index, add)
        input_ids = added = list(vectors.ids)
        if (vectors.folder / DOCUMENTS).is_file():
            input_documents = read_documents(vectors.folder / DOCUMENTS)
        if (entry := vectors.manifest.get("corpus")) is not None:
            place = vectors.manifest.get("inputs", {}).get("texts", {}).get("path", entry["source"])
            texts = _recorded_corpus({**entry, "path": place}, Path(add))
    elif add is not None:
        if index.corpus is None and digests:
            notices.note("the texts of the index are unknown, so every passage counts as new or changed.")

        def differing() -> Iterator[Passage]:
            for passage in collected(index.formed(open_corpus(add)), input_documents, forms):
                input_ids.append(passage.id)
                if digests.get(passage.id) != _digest(passage) or passage.id in to_delete:
                    added.append(passage.id)
                    yield passage
                elif labels.get(passage.id, _label(Passage("", "", ""))) != _label(passage):
                    index.relabelled[passage.id] = passage

        write_corpus(work / "texts.jsonl", differing())
        if added:
            texts = open_corpus(work / "texts.jsonl")
            texts.counts_empty = False  # reported already
    parts = ((name, part_of(name, index.documents)) for name in digests)
    to_delete |= {name for name, part in parts if part and part[1] > input_documents.get(part[0], math.inf)}
    index.documents = ({} if mirror else index.documents) | input_documents
    if mirror:
        to_delete |= digests.keys() - set(input_ids)
        if vectors is None and add is not None:
            index.mirrored = open_corpus(add)
            index.mirrored.counts_empty = False  # reported already
            index.manifest.pop("text_form", None)
            index.manifest |= {"text_form": PLAIN} if forms == {PLAIN} else {}
    replaced = {name for name in added if name in digests and name not in to_delete}
    relabelled = len(index.relabelled)
    outcome.deleted, outcome.changed = len(to_delete), len(replaced) + relabelled
    outcome.added, outcome.unchanged = len(added) - len(replaced), len(input_ids) - len(added) - relabelled
    if not to_delete and not added:
        other_form = index.manifest.get("text_form") != index.opened.manifest.get("text_form")
        if relabelled or other_form or index.documents != index.opened.documents:
            _commit(index, index.segments, None)
        return
    removed = frozenset(to_delete | replaced)
    if len(digests) - len(removed) + len(added) == 0:
        msg = f"no text would be left in '{index.folder}'. Remove the folder, or add texts in the same command."
        raise InputError(msg)
    if mirror and digests and len(to_delete) == len(digests):
        known = set(digests.values())
        if texts is None or not any(_digest(passage) in known for passage in texts):
            msg = f"'{add}' has none of the texts of '{index.folder}', so nothing was changed. Build a new index."
            raise InputError(msg)
    if not index.opened.needs_encoding:
        _change_texts(index, work, removed, added, texts, compact=False)
        return
    if added and not index.indexer.segmented:
        name, options = index.opened.name, index.manifest["indexer"]["options"]
        named = ", ".join(f"{key}={options[key]}" for key in ("uri", "scale") if key in options)
        msg = f"'{index.folder}' is built from all texts together (indexer '{name}', {named}). Index the whole corpus."
        raise UnsupportedError(msg)
    if added and vectors is None:
        assert texts is not None
        vectors = _vectors_of(index, texts, work, model, precision, outcome)
    kept, names = [], list(removed)
    for own, (segment, deleted) in zip(index.ids, index.segments, strict=True):
        here = {name for name, row in zip(names, own.rows(names).tolist(), strict=True) if row >= 0}
        if len(deleted | here) < len(own):
            kept.append((segment, deleted | here))
    built = None if vectors is None else _built(index, vectors.folder, work)
    _commit(index, kept, built, removed, added, texts)


def _texts_to_delete(index: _Index, delete: Collection[str], id_files: bool, *, repeated: bool) -> set[str]:
    """Return the ids of the texts to delete, named by text id, by document id, or in files that list ids."""
    digests = index.digests
    documents: dict[str, list[str]] = {}
    for name in digests:
        if (part := part_of(name, index.documents)) is not None:
            documents.setdefault(part[0], []).append(name)
    known = digests.keys() | documents.keys()
    names: list[str] = []
    form = index.opened.form
    read = [name for name in delete if id_files and {name, form(name)}.isdisjoint(known) and os.path.isfile(name)]
    for name in delete:
        if name not in read:
            names.append(name)
        elif name.endswith(".parquet") or files.first_character(name) in ("{", "[") or table_of(name, corpus_table):
            names += open_corpus(name).ids()
        else:  # an id per line
            names += [line.text for line in files.filled_lines(name)]
    names = [name if name in known else form(name).strip() for name in names]
    unknown = [name for name in names if name not in known]
    if unknown and repeated:
        notices.note(f"the last change of '{index.folder}' deleted these texts already.")
        return set()
    if unknown:
        close = nearest_id(unknown[0], sorted(known))
        source = f" (read from {shortlist(read)})" if read else ""
        unknown_ids = f"{len(unknown):,} of the {len(names):,} ids to delete{source}: {shortlist(unknown, 3)}"
        msg = f"'{index.folder}' does not contain {unknown_ids}{f'; did you mean {close!r}?' if close else '.'}"
        raise InputError(msg)
    return {text for name in names for text in (name, *documents.get(name, ())) if text in digests}


def _fitting(index: _Index, vectors: str | Path) -> VectorStore:
    """Open a vectors folder; refuse it unless the model of the index encoded it."""
    store = VectorStore(vectors)
    ours, theirs = index.opened.checkpoint, store.manifest.get("checkpoint")
    if ours and theirs and [ours.get(key) for key in _OF_MODEL] != [theirs.get(key) for key in _OF_MODEL]:
        msg = f"the vectors of '{vectors}' and '{index.folder}' are not comparable. Add the passages instead."
        raise ArtifactError(msg)
    stored = joined_vectors(index.folder, index.manifest)
    if stored and (store.dim, store.vocabulary, store.keyed) != (stored.dim, stored.vocabulary, stored.keyed):
        msg = f"'{vectors}' has vectors of size {store.dim or store.vocabulary:,}{', with keys' * store.keyed}; "
        msg += f"'{index.folder}' has others."
        raise ArtifactError(msg)
    return store


def _vectors_of(
    index: _Index, texts: Corpus, work: Path, model: str | Path | None, precision: Any, outcome: Outcome
) -> VectorStore:
    """Return the vectors of texts, in their order; those that the index holds under other ids are reused."""
    stored, digests = joined_vectors(index.folder, index.manifest), index.digests
    rows_stored = [] if stored is None else stored.ids.rows(list(digests)).tolist()
    row_by_digest = {digest: row for digest, row in zip(digests.values(), rows_stored, strict=False) if row >= 0}
    names: list[str] = []
    known: list[int] = []

    def unknown() -> Iterator[Passage]:
        for passage in texts:
            names.append(passage.id)
            known.append(row_by_digest.get(_digest(passage), -1))
            if known[-1] < 0:
                yield passage

    outcome.encoded = write_corpus(work / "unknown.jsonl", unknown())
    stores = [] if stored is None or outcome.encoded == len(names) else [stored]
    if outcome.encoded:
        stores.append(VectorStore(_encoded(index, work / "unknown.jsonl", work / "vectors", model, precision)))
    if stores[0] is not stored:
        return stores[0]
    rows, folder = np.array(known), work / "known-and-encoded"
    rows[rows < 0] = len(stored) + np.arange(outcome.encoded)
    _write_vectors(index, folder, _shards(index, JoinedStore(stores, [()] * len(stores)), rows, names))
    return VectorStore(folder)


def _encoded(index: _Index, texts: Path, output: Path, model: str | Path | None, precision: Any) -> Path:
    """Encode texts with the settings of the index; reuse vectors of a killed change."""
    place, checkpoint = Encoders(model, [index.opened]).place_of(index.opened), index.opened.checkpoint
    assert checkpoint is not None
    if storage.kind_of(output) == "vectors":
        encoded_texts = storage.read_manifest(output, "vectors")["inputs"].get("texts", {})
        if encoded_texts.get("fingerprint") == storage.fingerprint_file(texts):
            return output
        shutil.rmtree(output)
    recorded = _recorded_options(index) | ({} if precision is None else {"precision": precision})
    names = ("precision", "stored", "batch_tokens", "shard_texts")
    settings: dict[str, Any] = {name: recorded[name] for name in names if recorded.get(name)}
    settings |= {name: checkpoint.get(name) for name in ("encoder_options", "dimensions", "compressor")}
    if (described := checkpoint.get("description")) is not None:
        for part in ("encoder", "pooler"):
            settings[part] = described[part]["name"]
            settings[f"{part}_options"] = described[part]["options"] | (settings.get(f"{part}_options") or {})
    # A place named only by the manifest is untrusted: no token is sent to fetch it.
    with anonymously(place != str(model)):
        manifest = encode(place, texts, side="document", output=output, options=EncodingOptions(**settings))
    if manifest["checkpoint"]["fingerprint"] != checkpoint["fingerprint"]:
        msg = f"'{place}' is not the model that encoded '{index.folder}'. Set --model to the model that did."
        raise ArtifactError(msg)
    return output


def _recorded_options(index: _Index) -> dict[str, Any]:
    """Return the encoding options recorded in an index or in its source vectors; {} if unknown."""
    places = [segment.folder(index.folder) / "vectors" for segment, _ in index.segments]
    places.append(Path(index.manifest["inputs"].get("vectors", {}).get("path", "")))
    place = next((place for place in places if storage.kind_of(place) == "vectors"), None)
    return {} if place is None else dict(storage.read_manifest(place, "vectors").get("options", {}))


def _built(index: _Index, vectors: Path, work: Path) -> Path:
    """Build a segment from a vectors folder with the indexer and options of the index."""
    indexer, target = index.manifest["indexer"], work / "segment"
    shutil.rmtree(target, ignore_errors=True)
    build_index(vectors, indexer=indexer["name"], output=target, options=indexer["options"])
    return target


def _change_texts(
    index: _Index, work: Path, removed: frozenset[str], added: Sequence[str], texts: Corpus | None, *, compact: bool
) -> None:
    """Write the changed index of an indexer of texts."""
    target = work / "segment"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    own = index.segments[0][0].folder(index.folder)
    counts = index.indexer.changed(own, target, deleted=removed, added=texts if added else None, compact=compact)
    if "empty" in counts:
        # Texts without words are not indexed.
        number = len(index.digests) - len(removed) + len(added)
        counts = {**counts, "texts": number, "empty": number - (counts["texts"] - counts["empty"])}
    described = {name: index.manifest[name] for name in ("options", "inputs", "indexer")}
    listed = storage.describe_files(target)
    storage.write_manifest(target, "index", command="index", counts=counts, files=listed, **described)
    _commit(index, [], target, removed, added, texts)


def _compact(index: _Index, work: Path) -> int:
    """Merge all segments into one, and return their number; 0 if there is nothing to merge."""
    if not index.opened.needs_encoding:
        if index.segments == [(Segment(""), frozenset())]:
            return 0
        _change_texts(index, work, frozenset(), [], None, compact=True)
        return len(index.segments)
    if len(index.segments) == 1 and not index.segments[0][1]:
        return 0
    target = work / "live"
    joined = joined_vectors(index.folder, index.manifest)
    shards = _weights(index) if joined is None else _shards(index, joined, np.arange(len(joined)), joined.ids)
    _write_vectors(index, target, shards)
    _commit(index, [], _built(index, target, work))
    return len(index.segments)


def _write_vectors(index: _Index, folder: Path, shards: Iterable[_Shard]) -> None:
    """Write the vectors that a segment is built from."""
    shutil.rmtree(folder, ignore_errors=True)
    with storage.write_folder(folder) as staging:
        writer = VectorWriter(staging)
        for number, (ids, vectors, of_each, weights, keys) in enumerate(shards):
            writer.write_shard(number, ids, vectors, counts=of_each, weights=weights, keys=keys)
        counts = writer.finish()
        extra = {name: index.manifest[name] for name in ("checkpoint",) if name in index.manifest}
        listed = writer.checksums()
        recorded = _recorded_options(index)
        storage.write_manifest(
            staging, "vectors", command="encode", options=recorded, counts=counts, files=listed, **extra
        )


def _shards(index: _Index, store: VectorStore, rows: np.ndarray, ids: Ids | Sequence[str]) -> Iterator[_Shard]:
    """Yield vectors of a store and their ids, in shards of the recorded size."""
    size = int(_recorded_options(index).get("shard_texts") or SHARD_TEXTS)
    for start in range(0, len(rows), size):
        block = store.take(rows[start : start + size])
        counts = block.counts if store.dim else None
        yield ids[start : start + size], block.vectors, counts, block.weights, block.keys


def _weights(index: _Index) -> Iterator[_Shard]:
    """Yield the ids and weights of the remaining texts, from the postings of each segment."""
    for segment, deleted in index.segments:
        folder = segment.folder(index.folder)
        if not (folder / "postings").is_dir():
            msg = f"'{index.folder}' (indexer '{index.opened.name}') holds no vectors to build from. Index again."
            raise UnsupportedError(msg)
        ids = Ids(folder / "ids.txt")
        for block in Postings(folder / "postings").blocks():
            names = ids[block.first : block.first + block.texts]
            rows = np.array([row for row, name in enumerate(names) if name not in deleted], dtype=np.int64)
            if len(rows):
                yield [names[row] for row in rows.tolist()], None, None, block.weights.tocsr()[rows], None


def _commit(
    index: _Index,
    kept: Sequence[tuple[Segment, frozenset[str]]],
    built: Path | None,
    removed: frozenset[str] = frozenset(),
    added: Sequence[str] = (),
    texts: Corpus | None = None,
) -> None:
    """Replace the segments and fields of an index: rename the new files, then replace the manifest."""
    folder, manifest = index.folder, index.manifest
    number = int(manifest.get("change", 0)) + 1
    (folder / FOLDER).mkdir(exist_ok=True)
    recorded = manifest.get("segments", [{"counts": manifest["counts"]}])
    before = {entry.get("name", ""): entry["counts"] for entry in recorded}
    entries: list[dict[str, Any]] = []
    described = (text for text in texts or () if text.title or text.fields)
    new: dict[str, _Row] = {text.id: (text.id, text.title, text.fields) for text in described}
    for segment, deleted in kept:
        entry: dict[str, Any] = {"name": segment.name}
        if deleted:
            entry["deleted"] = segment.deleted
            if not segment.deleted or segment.deleted_ids(folder) != deleted:
                entry["deleted"] = f"deleted-{number:04d}-{segment.name}.txt"
                with storage.write_file(folder / FOLDER / entry["deleted"]) as staging:
                    staging.write_bytes("".join(f"{name}\n" for name in sorted(deleted)).encode())
        entries.append({**entry, "counts": before[segment.name]})
    if built is not None:
        name = f"{number:04d}"
        entries.append({"name": name, "counts": storage.read_manifest(built, "index")["counts"]})
        if (built / FIELDS).is_file():
            new = {row[0]: row for row in FieldTable(built / FIELDS).rows()}
        built.rename(folder / FOLDER / name)
    # The manifest lists the files of the original index, and the manifest of each segment.
    listed: dict[str, Any] = {}
    for entry in entries:
        names = [f"{FOLDER}/{entry['name']}/{storage.MANIFEST}"] if entry["name"] else []
        if not names:
            listed |= {name: file for name, file in manifest["files"].items() if not name.startswith(f"{FOLDER}/")}
        names += [f"{FOLDER}/{entry['deleted']}"] if "deleted" in entry else []
        listed |= {name: storage.describe_file(folder / name) for name in names}
    # The inputs get the fingerprint of the current content, which differs from the original input.
    holds = storage.fingerprint_value(listed)
    after = {name: entry for name, entry in manifest.items() if name not in ("check", "corpus", *TABLES)}
    fields, documents = f"{FOLDER}/fields-{number:04d}.parquet", f"{FOLDER}/documents-{number:04d}.json"
    write_fields(
        folder / fields, itertools.chain(index.left(removed), (new.get(name, (name, "", {})) for name in added))
    )
    after["fields"], listed[fields] = fields, storage.describe_file(folder / fields)
    if index.documents and (removed or added):
        remaining_ids = itertools.chain((name for name in index.digests if name not in removed), added)
        parts = filter(None, (part_of(name, index.documents) for name in remaining_ids))
        index.documents = {document: index.documents[document] for document, _ in parts}
    if index.documents:
        storage.write_json(folder / documents, index.documents, indent=None)
        after["documents"], listed[documents] = documents, storage.describe_file(folder / documents)
    # The files and folders of the original index are removed once it has only later segments.
    superseded: set[str] = set()
    if all(entry["name"] for entry in entries):
        superseded = {name.partition("/")[0] for name in manifest["files"]} - {FOLDER} | set(
            manifest.get("superseded", ())
        )
    after |= {
        "inputs": {name: {**entry, "fingerprint": holds} for name, entry in manifest["inputs"].items()},
        "counts": _counts([entry["counts"] for entry in entries], sum(len(deleted) for _, deleted in kept)),
        "files": listed,
        "segments": entries,
        "change": number,
        "superseded": sorted(superseded),
    }
    passages: Iterable[Passage] | None = None if index.mirrored is None else index.formed(index.mirrored)
    if passages is None and index.corpus is not None and (texts is not None or not added):
        ids = set(added)
        remaining = (passage for passage in index.corpus if passage.id not in removed)
        remaining = (index.relabelled.get(text.id, text) for text in remaining)
        passages = itertools.chain(remaining, (text for text in texts or () if text.id in ids))
    if passages is not None:
        name = os.path.join(FOLDER, f"corpus-{number:04d}.jsonl")
        place = str((folder / name).absolute())
        write_corpus(place, map(index.recorded, passages))
        fingerprint = storage.fingerprint_file(place)
        after["corpus"] = {"source": place, "fingerprint": fingerprint, "path": place, "relative_path": name}
        if "corpus" in after["inputs"]:
            after["inputs"]["corpus"]["fingerprint"] = fingerprint
    storage.write_json(folder / storage.MANIFEST, after)


def _counts(counts: Sequence[Mapping[str, Any]], deleted: int) -> dict[str, float]:
    if len(counts) == 1 and not deleted:
        return dict(counts[0])
    texts = sum(int(part["texts"]) for part in counts) - deleted
    total: dict[str, float] = {"texts": texts}
    if all("vectors" in part for part in counts):
        single = all(part["vectors"] == part["texts"] for part in counts)
        total["vectors"] = texts if single else sum(int(part["vectors"]) for part in counts)
    return {**total, "segments": len(counts), "deleted": deleted}


def _sweep(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Remove files that the index no longer lists, including those of a killed change, unless a reader holds them."""
    listed = {name for segment in segments_of(manifest) for name in (segment.name, segment.deleted)}
    listed |= {Path(manifest.get("corpus", {}).get("path", "")).name}
    listed |= {Path(manifest.get(entry, "")).name for entry in TABLES}
    place = folder / FOLDER
    for path in list(place.iterdir()) if place.is_dir() else []:
        if path.name not in listed and _OURS.fullmatch(path.name):
            with unused(path if path.is_dir() else place) as free:
                if free:
                    storage.discard(path)
    if manifest.get("superseded"):
        with unused(folder) as free:
            for name in manifest["superseded"] if free else ():
                storage.discard(folder / name)


def _recorded_corpus(entry: Mapping[str, Any] | None, folder: Path) -> Corpus | None:
    """Return the corpus that a manifest names; None if it is missing or has changed."""
    try:
        return None if entry is None else open_recorded_corpus(entry, folder)
    except InputError:
        return None


def _digest(passage: Passage) -> bytes:
    return hashlib.blake2b(json.dumps([passage.title, passage.text]).encode(), digest_size=16).digest()


def _label(text: Passage) -> bytes:
    place = None if text.cut is None or text.cut.start is None else {**text.cut.record, "of": 0}
    label = [text.fields, place]
    return hashlib.blake2b(json.dumps(label, sort_keys=True).encode(), digest_size=8).digest()
