"""The program behind `rkit index INDEX --add`, `--delete` and `--compact`: an index follows its collection.

    rkit index INDEX --add PASSAGES|VECTORS        texts that are new, or changed, are encoded and indexed
    rkit index INDEX --delete ID --delete FILE     texts, or documents with their passages, are removed
    rkit index INDEX --compact                     the index is rebuilt of what it holds

A changed index gives the hits of one that is built of the texts that are left, in their order, and those that were
added, in theirs; a changed text counts as an added one. See `retrievalkit.indexing.segments` for the files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.data import files
from retrievalkit.data.corpus import nearest_id, open_corpus
from retrievalkit.data.forms import corpus_table
from retrievalkit.data.passage_parts import PART
from retrievalkit.data.records import table_of
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, InputError, OptionError, UnsupportedError, shortlist
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change.commit import commit, sweep
from retrievalkit.indexing.change.texts import (
    Changes,
    Collected,
    corpus_of_vectors,
    superseded,
    texts_of,
    write_changes,
)
from retrievalkit.indexing.change.vectors import encoded, write_live
from retrievalkit.indexing.open_indexes import OpenIndex, open_index
from retrievalkit.indexing.segments import Segment, joined_vectors, segments_of
from retrievalkit.reporting import notices
from retrievalkit.reporting.counts import counted

WORK = ".changing"
"""The folder in an index in which a change is prepared; encoding goes on from there if it was killed."""


@dataclass
class Outcome:
    """What a change did.

    Attributes:
        texts: How many texts the index holds now.
        added: How many came that it did not hold.
        changed: How many came instead of others of their ids.
        unchanged: How many were given that it holds already.
        deleted: How many went.
        compacted: How many segments became one; 0 if nothing was to compact.
        segments: Of how many parts the index consists.
    """

    texts: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    deleted: int = 0
    compacted: int = 0
    segments: int = 1

    def as_json(self) -> dict[str, int]:
        """The counts as JSON values."""
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
    compact: bool = False,
    model: str | Path | None = None,
    precision: Any = None,
) -> Outcome:
    """Change an index: delete texts first, then add others, then compact it.

    A reader that has the index open goes on with what it was. Killed at any moment, the index is what it was or what it
    should become; the same command again does what is left to do.

    Args:
        index: The index folder.
        add: A corpus, or for an index of vectors also a vectors folder of the same model. Texts of ids that the index
            has take the place of these. A document that comes in passages ID#1 to ID#3 loses its other passages.
        delete: The ids of texts that go, and of documents whose passages ID#1, ID#2 ... go.
        id_files: Whether `delete` may also name files: of ids, one a line, or corpora, for the ids of their passages.
        compact: Whether to make one segment of all.
        model: Where the checkpoint is that encodes the texts, if it was moved.
        precision: The number format to encode in; None = as before.

    Raises:
        InputError: The index, what is added or the model is damaged or does not fit, an id to delete is unknown, or no
            text would be left.
    """
    folder = Path(index)
    if add is None and not delete and not compact:
        msg = "there is nothing to change. Give add, delete or compact."
        raise OptionError(msg)
    with storage.held(folder):
        storage.restore(folder)
        sweep(folder, storage.read_manifest(folder, "index"))
        outcome = Outcome()
        with storage.work_folder(folder / WORK) as work:
            if add is not None or delete:
                _add_and_delete(_opened(folder), work, add, delete, id_files, model, precision, outcome)
            if compact:
                outcome.compacted = _compact(_opened(folder), work)
        manifest = storage.read_manifest(folder, "index")
        sweep(folder, manifest)
        outcome.texts = int(manifest["counts"]["texts"])
        outcome.segments = len(segments_of(manifest))
    return outcome


@dataclass
class _Index:
    """An index that is changed.

    Attributes:
        opened: The index.
        segments: Its segments.
        deleted: For each, the ids of its texts that are gone.
    """

    opened: OpenIndex
    segments: list[Segment]
    deleted: list[frozenset[str]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.opened.folder

    def own(self, number: int) -> Path:
        """The folder of a segment."""
        return self.segments[number].folder(self.folder)


def _opened(folder: Path) -> _Index:
    opened = open_index(folder)
    assert opened.lease is not None
    opened.lease.release()  # nobody else changes it, and this change removes what it leaves
    segments = segments_of(opened.manifest)
    return _Index(opened, segments, [one.deleted_ids(folder) for one in segments])


def _add_and_delete(
    index: _Index,
    work: Path,
    add: str | Path | None,
    delete: Collection[str],
    id_files: bool,
    model: str | Path | None,
    precision: Any,
    outcome: Outcome,
) -> None:
    held = texts_of(index.folder, index.opened.manifest, list(zip(index.segments, index.deleted, strict=True)))
    lists = [files.fingerprint(one) for one in sorted(delete) if id_files and os.path.isfile(one)]
    deletion = storage.fingerprint_value([str(add), sorted(delete), lists])
    repeated = index.opened.manifest.get("deletion") == deletion
    index.opened.manifest = {**index.opened.manifest, "deletion": deletion}
    gone = _texts_to_delete(index, held, delete, id_files, repeated=repeated)
    changes = Changes()
    vectors = None
    if add is not None and storage.kind_of(add) == "vectors":
        vectors = _fitting(index, add)
        changes = Changes(added=list(vectors.ids), texts=corpus_of_vectors(Path(add), vectors.manifest))
        changes.superseded = superseded(changes.added, held.digests) - gone
    elif add is not None:
        changes = write_changes(add, held, gone, work / "texts.jsonl")
    gone |= changes.superseded
    replaced = {name for name in changes.added if name in held.digests and name not in gone}
    outcome.deleted, outcome.changed = len(gone), len(replaced)
    outcome.added, outcome.unchanged = len(changes.added) - len(replaced), changes.unchanged
    if not gone and not changes.added:
        return
    if len(held.digests) - len(gone) - len(replaced) + len(changes.added) == 0:
        msg = f"no text would be left in '{index.folder}'. Remove the folder, or add texts in the same command."
        raise InputError(msg)
    leaving = frozenset(gone | replaced)
    if index.opened.needs_encoding:
        if changes.added and not index.opened.indexer.segmented:
            name, options = index.opened.name, index.opened.manifest["indexer"]["options"]
            given = ", ".join(f"{key}={options[key]}" for key in ("uri", "scale") if key in options)
            msg = (
                f"'{index.folder}' cannot be added to: an index of '{name}' ({given}) is built of all texts at once. "
                "Index the whole collection again."
            )
            raise UnsupportedError(msg)
        if changes.added and vectors is None:
            vectors = VectorStore(
                encoded(index.opened, work / "texts.jsonl", work / "vectors", model=model, precision=precision)
            )
        _change_vectors(index, work, held, leaving, vectors, changes)
    else:
        if vectors is not None:
            msg = f"'{index.folder}' indexes texts, and '{add}' is a vectors folder. Give the passages instead."
            raise InputError(msg)
        _change_texts(index, work, held, leaving, changes, compact=False)


def _texts_to_delete(
    index: _Index, held: Collected, delete: Collection[str], id_files: bool, *, repeated: bool
) -> set[str]:
    """The ids of the texts that are named, by their ids, their documents' or files of these.

    Args:
        index: The index.
        held: Its texts.
        delete: The names.
        id_files: Whether names may be those of files.
        repeated: Whether the last change was the same, so that it was killed or deleted them already.
    """
    documents: dict[str, list[str]] = {}
    for name in held.digests:
        part = PART.fullmatch(name)
        while part is not None:
            documents.setdefault(part[1], []).append(name)
            part = PART.fullmatch(part[1])
    known = held.digests.keys() | documents.keys()
    names: list[str] = []
    read = [name for name in delete if id_files and name not in known and os.path.isfile(name)]
    for name in delete:
        if name not in read:
            names.append(name)
        elif name.endswith(".parquet") or files.first_character(name) in ("{", "[") or table_of(name, corpus_table):
            names += open_corpus(name).ids()
        else:  # an id a line
            names += [line.text for line in files.filled_lines(name)]
    unknown = [name for name in names if name not in known]
    if unknown and repeated:
        notices.note(f"the last change of '{index.folder}' deleted these texts already.")
        return set()
    if unknown:
        # A document may be named by its path from here, and its lines were then read as ids.
        paths = (name for name in known for one in (*read, unknown[0]) if one.endswith(f"/{name}"))
        close = next(paths, None) or nearest_id(unknown[0], sorted(known))
        msg = (
            f"the index '{index.folder}' has neither text nor document of {len(unknown):,} of the {len(names):,} ids "
            f"to delete{f' (read from {shortlist(read)})' if read else ''}: {shortlist(unknown, 3)}"
            f"{f'; did you mean {close!r}?' if close else '.'} Nothing was changed. Leave them out, or correct them."
        )
        raise InputError(msg)
    return {text for name in names for text in ([name] if name in held.digests else documents[name])}


def _change_vectors(
    index: _Index,
    work: Path,
    held: Collected,
    leaving: frozenset[str],
    vectors: VectorStore | None,
    changes: Changes,
) -> None:
    """Mark the texts that leave as deleted, and build a segment of those that come."""
    kept: list[tuple[Segment, frozenset[str]]] = []
    for number, (segment, deleted) in enumerate(zip(index.segments, index.deleted, strict=True)):
        own = held.ids[number]
        names = list(leaving)
        here = {name for name, row in zip(names, own.rows(names).tolist(), strict=True) if row >= 0}
        if len(deleted | here) < len(own):
            kept.append((segment, frozenset(deleted | here)))
    built = None if vectors is None else _built(index, vectors.folder, work)
    commit(index.opened, kept, built, corpus=held.corpus_after(leaving, changes))


def _change_texts(
    index: _Index, work: Path, held: Collected, leaving: frozenset[str], changes: Changes, *, compact: bool
) -> None:
    """Let an indexer of texts write what the index becomes."""
    target = work / "segment"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    counts = index.opened.indexer.changed(
        index.own(0), target, deleted=leaving, added=changes.corpus(), compact=compact
    )
    if "empty" in counts:
        # Texts without a word are in no index.
        texts = len(held.digests) - len(leaving) + len(changes.added)
        counts = {**counts, "texts": texts, "empty": texts - (counts["texts"] - counts["empty"])}
    manifest = index.opened.manifest
    storage.write_manifest(
        target,
        "index",
        command="index",
        options=manifest["options"],
        inputs=manifest["inputs"],
        counts=counts,
        files=storage.describe_files(target),
        indexer=manifest["indexer"],
    )
    commit(index.opened, [], target, corpus=held.corpus_after(leaving, changes))


def _built(index: _Index, vectors: Path, work: Path) -> Path:
    """A segment of a vectors folder, by the indexer and with the options of the index."""
    made_by = index.opened.manifest["indexer"]
    target = work / "segment"
    shutil.rmtree(target, ignore_errors=True)
    build_index(vectors, indexer=made_by["name"], output=target, options=made_by["options"])
    return target


def _compact(index: _Index, work: Path) -> int:
    """Make one segment of all, and return how many there were; 0 if there is nothing to do."""
    if len(index.segments) == 1 and not any(index.deleted) and index.opened.needs_encoding:
        return 0
    segments = list(zip(index.segments, index.deleted, strict=True))
    held = texts_of(index.folder, index.opened.manifest, segments)
    if not index.opened.needs_encoding:
        if index.segments == [Segment("")]:
            return 0
        _change_texts(index, work, held, frozenset(), Changes(), compact=True)
        return len(index.segments)
    target = write_live(index.opened, segments, work / "live")
    commit(index.opened, [], _built(index, target, work), corpus=held.corpus_after(frozenset(), Changes()))
    return len(index.segments)


def _fitting(index: _Index, vectors: str | Path) -> VectorStore:
    """The vectors, if the model of the index made them."""
    store = VectorStore(vectors)
    ours, theirs = index.opened.checkpoint, store.manifest.get("checkpoint")
    known = ours is not None and theirs is not None
    if known and [ours.get(key) for key in _SAME] != [theirs.get(key) for key in _SAME]:  # type: ignore[union-attr]
        msg = (
            f"'{vectors}' was encoded by another model than the texts of '{index.folder}' ('{theirs['path']}' and "  # type: ignore[index]
            f"'{ours['path']}', by their fingerprints): their vectors are not comparable. Give the passages."  # type: ignore[index]
        )
        raise ArtifactError(msg)
    held = joined_vectors(index.folder, index.opened.manifest)
    if held is not None and (held.dim, held.vocabulary) != (store.dim, store.vocabulary):
        msg = (
            f"'{vectors}' holds vectors of size {store.dim or store.vocabulary:,}, and '{index.folder}' of size "
            f"{held.dim or held.vocabulary:,}: they are not comparable. Give vectors of the same model."
        )
        raise ArtifactError(msg)
    return store


_SAME = ("fingerprint", "description", "encoder_options", "dimensions")
