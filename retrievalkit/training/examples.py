"""Training examples that stay on disk, so that memory hardly grows with their number: 16 bytes per example.

Training draws its examples in any order, so memory holds only the file position of each and a hash of its query, to
find queries that occur more than once. Each passage with its text in a file takes 12 more bytes.

Plain JSON lines and tables are read this way. Compressed files, JSON arrays and DPR's format (whose query ids depend on
the preceding rows) are held in memory, as are examples built from queries and judgements.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from retrievalkit import storage
from retrievalkit.data import forms
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import (
    Example,
    Examples,
    check_examples,
    check_texts,
    example_of,
    is_bare,
    no_positive,
    note_dropped,
    note_unread,
    read_examples,
    texts_wanted,
)
from retrievalkit.data.hard_negatives import Chooser, HardNegatives
from retrievalkit.data.passage_parts import in_passages, passages_of
from retrievalkit.data.positions import Places
from retrievalkit.data.records import QuestionNamer, Record, table_of
from retrievalkit.data.same_text import normal_form, same_text, text_hash
from retrievalkit.data.sources import fingerprint, open_source
from retrievalkit.errors import DataError, InputError
from retrievalkit.reporting import notices

Numbers = np.ndarray[Any, np.dtype[Any]]
_AT_ONCE = 1 << 16
_REREAD = 1 << 10
_SHOWN = 3


@dataclass(frozen=True)
class ExampleData:
    """Training and dev examples with their corpus, after validation."""

    train: Examples
    dev: Examples | None
    corpus: Corpus | None
    inputs: dict[str, dict[str, str]]

    @classmethod
    def read(cls, examples: str, corpus: str | None, dev: str | None) -> ExampleData:
        """Read and validate the sources."""
        opened = open_corpus(corpus) if corpus else None

        def read(source: str, split: str) -> Examples:
            rows = open_examples(source, opened, split)
            note_dropped(rows)
            if not rows.rows:
                msg = f"'{source}' has no example with a positive passage, so there is nothing to train on."
                raise InputError(msg)
            return rows

        train = read(examples, "train")
        held_out = read(dev, "dev") if dev else None
        for identifier, passage in {} if held_out is None else held_out.passages.items():
            if (other := train.passages.get(identifier)) is not None and not same_text(other.text, passage.text):
                problem = f"the passage id '{identifier}' has another text in the training examples ('{train.source}')"
                msg = f"{problem}. Use an id for a single text."
                raise DataError(msg, file=dev)
        if held_out and (seen := _count_shared(held_out.rows, train.rows)):
            shared = f"{seen:,} of the {len(held_out):,} dev questions are training questions too"
            notices.note(f"{shared}, so the best state on them may not generalise. Leave them out of the training.")
        sources = {"examples": examples, "corpus": corpus, "dev": dev}
        inputs = {name: storage.describe_input(path, fingerprint(path)) for name, path in sources.items() if path}
        return cls(train, held_out, opened, inputs)

    def passage(self, identifier: str) -> Passage:
        """Return the passage with this id."""
        # The corpus takes precedence: it is what will be searched.
        if self.corpus is not None and identifier in self.corpus:
            return self.corpus.get(identifier)
        own = self.train.passages
        if self.dev is not None and identifier in self.dev.passages:
            own = self.dev.passages
        return own[identifier]


def open_examples(source: str | Path, corpus: Corpus | None, split: str) -> Examples:
    """Open training examples, on disk if possible; their documents are in the corpus or the files."""
    opened = open_source(source)
    files = opened.example_files(split)
    first = next(iter(opened.records("examples", split)), None) if files else None
    if first is not None and "positive_ctxs" not in first.fields:
        name = str(files[0] if len(files) == 1 else source)
        if on_disk := _examples_on_disk(files, name, partial(opened.records, "examples", split), corpus):
            return on_disk
    examples = read_examples(source, split=split)
    if corpus is not None:
        examples = in_passages(examples, corpus)
    check_examples(examples, corpus)
    return examples


def hashes_of(rows: Sequence[Example]) -> Numbers:
    """Return the query hash of each example."""
    if isinstance(rows, Rows):
        return rows.queries
    return np.fromiter((text_hash(row.query) for row in rows), np.uint32, len(rows))


def _count_shared(rows: Sequence[Example], others: Sequence[Example]) -> int:
    """Count the rows whose question is also in the other rows."""
    # Hashes find the candidates, and their texts decide.
    hashes = hashes_of(rows), hashes_of(others)
    shared, known = (
        [normal_form(row.query) for row in examples_at(rows_of, np.flatnonzero(np.isin(own, other)))]
        for rows_of, own, other in ((rows, *hashes), (others, *hashes[::-1]))
    )
    return sum(map(set(known).__contains__, shared))


def examples_at(rows: Sequence[Example], positions: Sequence[int] | Numbers) -> Sequence[Example]:
    """Return the examples at these positions."""
    if isinstance(rows, Rows):
        return rows.at(np.asarray(positions, np.int64))
    return [rows[position] for position in positions]


class Rows(Sequence[Example]):
    """Training examples in plain files, read on access."""

    def __init__(self, places: Places, starts: Numbers, sizes: Numbers, queries: Numbers) -> None:
        self._places, self._starts, self._sizes, self.queries = places, starts, sizes, queries
        # A step draws its examples, and then looks up the passages in them.
        self.parsed = lru_cache(_REREAD)(self._parsed)

    def at(self, positions: Any) -> Rows:
        """Return the examples at these positions."""
        return Rows(self._places, self._starts[positions], self._sizes[positions], self.queries[positions])

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, position: int) -> Example: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[Example]: ...

    def __getitem__(self, position: int | slice) -> Example | Sequence[Example]:
        return self.at(position) if isinstance(position, slice) else self.parsed(position)[0]

    def _parsed(self, position: int) -> tuple[Example, list[Passage]]:
        record = self._places.read(int(self._starts[position]), int(self._sizes[position]))
        return example_of(record, QuestionNamer(), Chooser(HardNegatives()))


class Passages(Mapping[str, Passage]):
    """Passages in the example files, by id."""

    def __init__(self, rows: Rows, hashes: Numbers, first: Numbers) -> None:
        self._rows, self._hashes, self._first = rows, hashes, first

    def __len__(self) -> int:
        return len(self._hashes)

    def __getitem__(self, identifier: str) -> Passage:
        place = int(self._hashes.searchsorted(hash(identifier)))
        if place < len(self) and self._hashes[place] == hash(identifier):
            for passage in self._rows.parsed(int(self._first[place]))[1]:
                if passage.id == identifier:
                    return passage
        raise KeyError(identifier)

    def __iter__(self) -> Iterator[str]:
        for row in np.unique(self._first).tolist():
            for identifier in dict.fromkeys(passage.id for passage in self._rows.parsed(row)[1]):
                if self._first[self._hashes.searchsorted(hash(identifier))] == row:
                    yield identifier


def _examples_on_disk(
    files: tuple[Path, ...], source: str, records: Callable[[], Iterator[Record]], corpus: Corpus | None
) -> Examples | None:
    """Read example files once, and keep only the positions of the examples.

    Returns None if an id seems to have two texts, or names a document that the corpus splits into passages.
    """
    starts, sizes, queries, ids = array("q"), array("I"), array("I"), array("q")
    passage_ids, passage_texts, first = array("q"), array("q"), array("I")
    empty: dict[str, dict[str, None]] = {"queries": {}, "passages": {}}
    places = Places(files, [table_of(file, forms.EXAMPLES.table) for file in files])
    others: set[str] = set()
    dropped = 0

    def read() -> Iterator[tuple[Record, Example, list[Passage]]]:
        """Yield the examples with a positive."""
        nonlocal dropped
        namer, chooser, dropped = QuestionNamer(), Chooser(HardNegatives()), 0
        for record in records():
            example, passages = example_of(record, namer, chooser)
            others.update(forms.unread(record.fields))
            if example.positives:
                yield record, example, passages
            else:
                dropped += 1

    unknown: dict[str, tuple[str, int]] = {}
    wanted: dict[str, tuple[str, int]] = {}
    texts: dict[str, tuple[str, int | None]] = {}

    def look_up() -> None:
        missing = wanted.keys() if corpus is None else corpus.missing(wanted)
        unknown.update({name: place for name, place in wanted.items() if name in missing and name not in unknown})
        wanted.clear()
        if corpus is not None:
            check_texts(texts, corpus)
        texts.clear()

    for record, example, passages in read():
        row = len(starts)
        starts.append(places.start(record))
        sizes.append(record.end - record.start)
        queries.append(text_hash(example.query))
        ids.append(hash(example.query_id))
        if not example.query.strip():
            empty["queries"][example.query_id] = None
        for passage in passages:
            passage_ids.append(hash(passage.id))
            passage_texts.append(hash(passage.text))
            first.append(row)
            if not passage.title.strip() and not passage.text.strip():
                empty["passages"][passage.id] = None
        own, place = {passage.id for passage in passages}, (record.file, record.line)
        for identifier in (*example.positives, *example.negatives):
            if identifier not in own:
                wanted.setdefault(identifier, place)
        texts |= {passage.text: place for passage in passages if is_bare(passage)}
        if max(len(texts), len(wanted)) > _AT_ONCE:
            look_up()
    look_up()
    if not starts:
        raise no_positive(dropped, source)

    if _two_meanings(ids, queries) or _two_meanings(passage_ids, passage_texts):
        return None
    rows = Rows(places, _numbers(starts), _numbers(sizes), _numbers(queries))
    note_unread(others, source)
    hashes, kept = np.unique(_numbers(passage_ids), return_index=True)
    stored = Passages(rows, hashes, _numbers(first)[kept])
    for kind, count in (("queries", _count(_numbers(ids))), ("passages", len(stored))):
        notices.empty(kind, source, count, len(empty[kind]), list(empty[kind])[:_SHOWN])
    lacking = {identifier: place for identifier, place in unknown.items() if identifier not in stored}
    for identifier, (file, line) in lacking.items():
        if corpus is None:
            raise texts_wanted(len(lacking), source)
        if not passages_of(corpus, identifier):
            raise corpus.unknown(identifier, file=file, line=line)
        return None
    return Examples(
        rows, stored, source, dropped, reread=lambda: ((record.line, example) for record, example, _ in read())
    )


def _count(numbers: Numbers) -> int:
    """Return the number of distinct values."""
    ordered = np.sort(numbers)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(ordered))


def _two_meanings(names: array[int], values: array[int]) -> bool:
    """True if some name seems to occur with several values."""
    pairs = _numbers(values).astype(np.int64)
    pairs *= -0x61C8864680B583EB  # odd, so that no value is lost
    pairs ^= _numbers(names)
    return _count(pairs) != _count(_numbers(names))


def _numbers(values: array[int]) -> Numbers:
    kind = np.int64 if values.typecode == "q" else np.uint32
    return np.frombuffer(values, kind) if values else np.empty(0, kind)
