"""The open indexes of a service, with their models and texts.

A collection never changes, so several threads can use it. A reload opens a new collection; requests that started with
the old collection finish with it. `State` shows when the folders have changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, TypeVar

from retrievalkit.contracts.commands import HybridOptions, kind_of, read_manifest
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.passage_parts import Document, open_document
from retrievalkit.errors import InputError, OptionError, check_choice
from retrievalkit.reporting import notices
from retrievalkit.search.public import FUSION_DEPTH, Fusion, OpenIndex, Searcher, facets, open_texts, opened
from retrievalkit_serve.doubts import scores_of_nonsense
from retrievalkit_serve.failures import RefusedError
from retrievalkit_serve.serve import ServeOptions

_Read = TypeVar("_Read")
_SAMPLE = 200
_EXAMPLES, _PASSAGES_READ, _LONGEST_EXAMPLE = 5, 2000, 80
_CHANGED = "the texts can no longer be read ({}). Hits have no texts until the indexes are reloaded."


@dataclass(frozen=True)
class State:
    """The state of the folders that a service follows; its own manifest identifies the state of each index.

    Attributes:
        indexes: Each index folder, with the identity, size and time of its manifest.
        names: The names of the collections.
        notes: Sentences about the collections, such as the number of texts without vectors so far.
        replacing: Collections whose indexes are being replaced by a sync.
    """

    indexes: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = field(compare=False)
    replacing: tuple[str, ...]

    @classmethod
    def of(cls, options: ServeOptions) -> State:
        """Look at the folders.

        Raises:
            ArtifactError: One of them is neither an index nor a collection with an index.
            OSError: An index does not exist.
        """
        known = [(place, read_manifest(place)) for place in options.indexes if kind_of(place) == "collection"]
        statuses = [(place, os.stat(os.path.join(place, "manifest.json"))) for place in options.places]
        return cls(
            tuple((place, f"{file.st_ino} {file.st_size} {file.st_mtime_ns}") for place, file in statuses),
            tuple(str(manifest.get("name", "")) for _, manifest in known),
            tuple(note for _, manifest in known for note in manifest.get("notes", ())),
            tuple(place for place, manifest in known if manifest.get("replacing")),
        )


class Texts:
    """Passages of a corpus, for several threads. Creating it reads the whole corpus, to locate each text."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._warned = False
        corpus.counts_empty = False  # `rkit index` reported them
        corpus.missing([""])
        self._first = next(iter(corpus)).id

    @property
    def current(self) -> bool:
        """True if the passages can still be read where they were."""
        with suppress(InputError, OSError):
            return not self._warned and bool(self.corpus.find([self._first]))
        return False

    def of(self, ids: Iterable[str]) -> dict[str, Passage]:
        """Return the passages with these ids; unknown ids are skipped."""
        return self._read(lambda: self.corpus.find(ids)) or {}

    def document(self, identifier: str) -> Document | None:
        """Return the document or passage with an id; None if it does not exist."""
        return self._read(lambda: open_document(self.corpus, identifier))

    def _read(self, read: Callable[[], _Read]) -> _Read | None:
        try:
            return read()
        except (InputError, OSError) as error:
            # The file was replaced while the indexes are open; they can still answer.
            if not self._warned:
                self._warned = True
                notices.show(_CHANGED.format(error))
            return None


@dataclass(frozen=True)
class Choice:
    """The indexes that a request searches, and how.

    Attributes:
        labels: Names of the indexes.
        fusion: Fusion of several indexes; None for a single index.
        depth: Number of hits of each index to fuse; None = 1,000, or k if that is more.
        filter: Condition on the texts' fields; None = all texts.
    """

    labels: tuple[str, ...]
    fusion: Fusion | None
    depth: int | None
    filter: str | None = None


class Collection:
    """Open indexes, with the models that encode queries.

    Args:
        options: The options of the service.
        generation: Number of this collection, from 1.
        before: Previous collection, whose models and texts are reused if they have not changed.

    Attributes:
        state: The state of the folders before they were opened.
        deepest: Maximum number of hits of each index to fuse.
        nonsense: Limits of the scores of made-up words, by index; until `calibrate`, those of the previous collection.

    Raises:
        InputError: An index is missing or damaged or comes from another model, or an option is invalid.
    """

    def __init__(self, options: ServeOptions, generation: int = 1, before: Collection | None = None) -> None:
        self.generation = generation
        self.state = State.of(options)
        self.deepest = max(FUSION_DEPTH, options.max_k)
        self._options = options
        self._all = opened([place for place, *_ in self.state.indexes], options, options.named_options, notices.note)
        self.encoders = self._all.encoders
        self.encoders.check()
        if before is not None:
            self.encoders.adopt(before.encoders)
        self.indexes = dict(zip(self._all.labels, self._all.indexes, strict=True))
        self.fusion = options.fused(len(self._all.sources), self._all.identities)
        self._shared: dict[Any, Texts] = {}
        self._texts_of = self._open_texts({} if before is None else before._shared)
        self._searchers: dict[tuple[str, ...], Searcher] = {tuple(self.indexes): self._all}
        for index in self.indexes.values():
            if index.needs_encoding:
                self.encoders.of(index)
        self.nonsense: dict[str, float] = {}
        if before is not None:
            models = {label: index.checkpoint for label, index in before.indexes.items()}
            same = {label for label, index in self.indexes.items() if models.get(label) == index.checkpoint}
            self.nonsense = {label: limit for label, limit in before.nonsense.items() if label in same}

    def calibrate(self) -> None:
        """Set the limits of the scores of made-up words by searching for them."""
        self.nonsense = scores_of_nonsense(self._all)

    def _open_texts(self, before: Mapping[Any, Texts]) -> dict[str, Texts]:
        """Open the texts of each index, by its name; indexes of the same corpus share them."""
        by_label: dict[str, Texts] = {}
        shared = self._shared
        for label, index in self.indexes.items():
            entry = index.manifest.get("corpus")
            key = None if self._options.corpus is not None or entry is None else entry["fingerprint"]
            if key not in shared:
                alone = Searcher.of([index], self.encoders, notices.note)
                corpus = open_texts(alone, self._options.corpus)
                if corpus is None:
                    continue
                known = None if key is None else before.get(key)
                if known is None or known.corpus.source != corpus.source or not known.current:
                    known = Texts(corpus)
                shared[key] = known
            by_label[label] = shared[key]
        return by_label

    def sample(self) -> str:
        """Return the start of the first text, as a query that has hits."""
        for texts in self._texts_of.values():
            first = next(iter(texts.corpus))
            return first.text[:_SAMPLE].strip() or first.title or "a"
        return "a"

    @cached_property
    def name(self) -> str:
        """The name by the options, else the names of the collections, the corpora, or indexes without texts."""
        return self._options.name or ", ".join(dict.fromkeys(map(self._name_of, self.indexes)))

    def _name_of(self, label: str) -> str:
        folder = self.indexes[label].folder
        if (name := collection_name(folder)) or label not in self._texts_of:
            return name or label
        source = self._texts_of[label].corpus.source
        # A changed index holds its texts itself.
        return folder.name if Path(source).is_relative_to(folder.absolute()) else corpus_name(source)

    @cached_property
    def examples(self) -> list[str]:
        """Short titles from the start of the first corpus, as example queries; empty if texts have no titles."""
        for texts in self._texts_of.values():
            passages = islice(texts.corpus, _PASSAGES_READ)
            titles = dict.fromkeys(passage.title for passage in passages if passage.title.strip())
            short = [title for title in titles if len(title) <= _LONGEST_EXAMPLE]
            return short[:: max(1, len(short) // _EXAMPLES)][:_EXAMPLES]
        return []

    @cached_property
    def facets(self) -> dict[str, list[tuple[Any, int]]]:
        """Fields with few distinct values: each value with its number of texts."""
        return facets(self._all)

    def choose(self, labels: Sequence[str] | None = None, options: HybridOptions | None = None) -> Choice:
        """Resolve the indexes and fusion of a request; by default all indexes, with the service's options.

        Raises:
            InputError: An index is unknown, or an option is invalid; with the messages of `rkit search`.
        """
        chosen = tuple(self.indexes) if labels is None else tuple(labels)
        for label in chosen:
            check_choice("index", label, self.indexes)
        if not chosen or len(set(chosen)) < len(chosen):
            msg = f"indexes are {list(chosen)}. Name each index once. Known: {', '.join(self.indexes)}."
            raise OptionError(msg)
        options = options or HybridOptions()
        depth, usual = options.depth, self.fusion if len(chosen) > 1 else None
        if depth is not None and depth > self.deepest:
            msg = f"depth is {depth}; this service fuses at most {self.deepest:,} hits of each index. Lower depth."
            raise OptionError(msg)
        # Weights in the service's order of indexes, so that equal requests can share a batch.
        fusion, weighed = usual, tuple(self.indexes)
        if options.given().keys() - {"depth"} or (depth is not None and len(chosen) == 1):
            if options.fusion is None and usual is not None:
                options = replace(options, fusion=usual.method)
            fusion, weighed = options.fused(len(chosen)), chosen
        ordered = tuple(label for label in self.indexes if label in chosen)
        if fusion is not None and fusion.weights is not None:
            by_label = dict(zip(weighed, fusion.weights, strict=True))
            fusion = replace(fusion, weights=tuple(by_label[label] for label in ordered))
        return Choice(ordered, fusion, self._options.depth if depth is None and fusion is not None else depth)

    def searcher(self, labels: tuple[str, ...]) -> Searcher:
        """Return a searcher over some of the indexes."""
        if labels not in self._searchers:
            self._searchers[labels] = Searcher.of(
                [self.indexes[label] for label in labels], self.encoders, notices.note
            )
        return self._searchers[labels]

    def texts(self, labels: Sequence[str], ids: Iterable[str]) -> Corpus | None:
        """Read passages, each from the first index that has it, into memory; None if no index has any of them."""
        ids, passages = list(ids), dict[str, Passage]()
        for texts in dict.fromkeys(self._texts_of[label] for label in labels if label in self._texts_of):
            if missing := [passage for passage in ids if passage not in passages]:
                passages |= texts.of(missing)
        if not passages:
            return None
        corpus = Corpus.of(passages.values())
        corpus.counts_empty = False
        return corpus

    def passages(self, labels: Sequence[str], identifier: str) -> tuple[str, list[str]]:
        """Return the id of a document in the form of the texts, and the ids of its passages; else the id itself."""
        known = dict.fromkeys(self._texts_of[label] for label in labels if label in self._texts_of)
        document = next(filter(None, (texts.document(identifier) for texts in known)), None)
        return (identifier, [identifier]) if document is None else (document.id, list(document.passages))

    def document(self, identifier: str) -> Document:
        """Return a whole document, or a passage, from the first corpus that has it.

        Raises:
            RefusedError: No corpus has the document, or the indexes have no texts.
        """
        if not self._texts_of:
            msg = "the texts are not available. Start the service with --corpus."
            raise RefusedError(404, msg)
        for texts in dict.fromkeys(self._texts_of.values()):
            if (document := texts.document(identifier)) is not None:
                return document
        msg = f"unknown document id '{identifier:.200}'. No index of this service has it. Send the id of a hit."
        raise RefusedError(404, msg)

    @cached_property
    def models(self) -> dict[str, OpenIndex]:
        """One index per model that encodes queries, by the name of the collection, else of the model."""
        by_model: dict[str, tuple[str, OpenIndex]] = {}
        for index in self.indexes.values():
            if index.needs_encoding:
                entry = index.checkpoint or {}
                known = self._options.model or entry.get("description", {}).get("model") or entry.get("path")
                name = self._options.name or collection_name(index.folder) or _model_name(known, index.label)
                by_model.setdefault(self.encoders.of(index).fingerprint, (name, index))
        names = [name for name, _ in by_model.values()]
        return {name if names.count(name) == 1 else f"{name}:{index.label}": index for name, index in by_model.values()}

    def descriptions(self) -> list[dict[str, Any]]:
        """Describe each index: name, indexer, counts, fields, and the model that encodes its queries."""
        model_of = {self.encoders.of(index).fingerprint: name for name, index in self.models.items()}
        return [
            {
                "name": label,
                "indexer": index.name,
                "texts": index.manifest["counts"]["texts"],
                "vectors": index.manifest["counts"].get("vectors"),
                "fields": [] if index.fields is None else index.fields.names,
                "model": model_of[self.encoders.of(index).fingerprint] if index.needs_encoding else None,
            }
            for label, index in self.indexes.items()
        ]


def collection_name(index: Path) -> str:
    """Return the recorded name of the collection that an index belongs to; "" if it belongs to none."""
    for home in (index.absolute().parent, index / ".sync"):
        if kind_of(home) == "collection":
            manifest: Mapping[str, Any] = read_manifest(home)
            if home.parent == index or index.name in manifest.get("indexes", ()):
                return str(manifest.get("name", ""))
    return ""


def _model_name(place: str | None, default: str) -> str:
    """Shorten a model's place to a name: the package of "package:NAME/model", else the last folder."""
    prefix, _, inside = (place or default).rpartition(":")
    return PurePath(inside).parts[0] if prefix == "package" else PurePath(place or default).name


def corpus_name(source: str) -> str:
    """Shorten a corpus's address to a name: the folder of "scifact/corpus.jsonl", else the file name."""
    prefix, _, place = source.rpartition(":")
    if prefix not in ("", "documents"):
        return source
    path = PurePath(place)
    stem = path.name.partition(".")[0]
    return path.parent.name if stem == "corpus" and path.parent.name else stem or source
