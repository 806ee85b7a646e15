"""A corpus as tokens on disk: read, cut into sentences and spans, and tokenised once; then any document at once.

    tokens-00000.npy     uint32: the tokens of a shard's documents; the highest bit marks those that begin a word
    sentences-00000.npy  uint32: where each sentence ends, in tokens of its document
    spans-00000.npy      uint32: where each span ends, in sentences of its document
    documents-00000.npy  int64 (documents, 4): where the tokens, sentences and spans of each document end in the shard,
                         and its number of samples; written last of these
    samples.npy          int64: how many samples there are up to each document
    counts.json          documents, dropped, samples, tokens, shards: written last

So memory does not grow with the corpus, an epoch may take the samples in any order, and a killed training resumes at
once. A killed reading resumes at the first shard that is incomplete.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from retrievalkit import storage
from retrievalkit.data.corpus import Passage
from retrievalkit.data.spans import Document, draw_spans, sentence_ends, token_ends
from retrievalkit.data.tokenized_text import Pieces, Vocabulary
from retrievalkit.storage import write_file, write_json

SHARD_TOKENS = 1 << 24
_STARTS = 1 << 31
_GROUP_CHARACTERS, _GROUP_PASSAGES = 1 << 20, 256
_COUNTS, _SAMPLES = "counts.json", "samples.npy"
_KINDS = ("tokens", "sentences", "spans")


@dataclass(frozen=True)
class Cutter:
    """Cuts passages into sentences and spans.

    Attributes:
        vocabulary: The encoder's.
        max_length: Target length of a span, in tokens.
        short_spans: Fraction of the spans whose target is drawn from 2 ... max_length.
        titles: Whether a title counts as the first sentence of its document.
        language: Language of the texts, for splitting them into sentences.
        seed: Seed of the spans.
    """

    vocabulary: Vocabulary
    max_length: int
    short_spans: float = 0.15
    titles: bool = True
    language: str = "en"
    seed: int = 42

    def cut(self, first: int, passages: Sequence[Passage]) -> Iterator[Document]:
        """The documents of some passages, the first of which has number `first`."""
        texts = [f"{one.title} {one.text}" if one.title and self.titles else one.text for one in passages]
        split = self.vocabulary.split(texts)
        for number, (passage, text, (pieces, piece_ends)) in enumerate(zip(passages, texts, split, strict=True), first):
            title = len(text) - len(passage.text)
            ends = [title, *(title + end for end in sentence_ends(passage.text, self.language))]
            in_tokens = token_ends(piece_ends, ends)
            draw = random.Random(f"spans {self.seed} {number}")
            spans = draw_spans(in_tokens, self.max_length, draw, short=self.short_spans)
            yield Document(pieces, in_tokens, spans, self.max_length)


@dataclass(frozen=True)
class _Counts:
    """The form of counts.json."""

    documents: int
    dropped: int
    samples: int
    shards: int
    tokens: int


class TokenStore:
    """A corpus on disk that was read completely.

    Attributes:
        counts: Number of "documents", of "dropped" ones among them, of "samples" and of "tokens".
    """

    def __init__(self, folder: Path, max_length: int) -> None:
        self.max_length = max_length
        counts = storage.read_document(folder / _COUNTS, _Counts, do="Start the training anew, without --resume.")
        self.counts: dict[str, int] = asdict(counts)
        shards = self.counts.pop("shards")
        self._shards = [
            {kind: _open(folder, kind, number) for kind in (*_KINDS, "documents")} for number in range(shards)
        ]
        self._first = [0]
        for shard in self._shards:
            self._first.append(self._first[-1] + len(shard["documents"]))
        self._samples = np.load(folder / _SAMPLES, mmap_mode="r")

    def __len__(self) -> int:
        return self.counts["documents"]

    def find(self, sample: int) -> tuple[int, int]:
        """The document of a sample, and the number of the sample within the document."""
        document = int(np.searchsorted(self._samples, sample, side="right"))
        return document, sample - (int(self._samples[document - 1]) if document else 0)

    def document(self, number: int) -> Document:
        """A document, whose tokens are read from disk on access."""
        place = int(np.searchsorted(self._first, number, side="right")) - 1
        shard, row = self._shards[place], number - self._first[place]
        stops = shard["documents"][row]
        starts = shard["documents"][row - 1] if row else np.zeros_like(stops)
        tokens, ends, spans = (shard[kind][starts[column] : stops[column]] for column, kind in enumerate(_KINDS))
        bounds = pairwise([0, *spans.tolist()])
        return Document(_Packed(tokens), ends.tolist(), [range(start, stop) for start, stop in bounds], self.max_length)


class _Packed:
    """Pieces as stored on disk."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, part: slice) -> Pieces:
        tokens = self.tokens[part]
        return Pieces((tokens & (_STARTS - 1)).tolist(), (tokens >= _STARTS).tolist())


def read_corpus(
    folder: Path,
    corpus: Iterable[Passage],
    cutter: Cutter,
    samples: Callable[[Document], int],
    advance: Callable[[int], object] = lambda _: None,
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """Write a corpus to a folder, or the part that is missing there.

    Args:
        folder: The folder, created if it does not exist.
        corpus: The passages.
        cutter: Cuts them into documents.
        samples: Number of samples of a document.
        advance: Called with the number of documents that were just done.
        shard_tokens: Approximate number of tokens per shard, which is held in memory.
    """
    folder.mkdir(exist_ok=True)
    if (folder / _COUNTS).exists():
        return
    shards = number = 0
    while _path(folder, "documents", shards).exists():
        number += len(_open(folder, "documents", shards))
        shards += 1
    advance(number)
    shard = _Shard()
    for group in _groups(islice(corpus, number, None)):
        for document in cutter.cut(number, group):
            shard.add(document, samples(document))
            if len(shard.tokens) >= shard_tokens:
                shard.write(folder, shards)
                shard, shards = _Shard(), shards + 1
        number += len(group)
        advance(len(group))
    if shard.documents:
        shard.write(folder, shards)
        shards += 1
    _finish(folder, shards)


def _groups(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    """Passages that are tokenised together."""
    group: list[Passage] = []
    characters = 0
    for passage in passages:
        group.append(passage)
        characters += len(passage.text)
        if len(group) == _GROUP_PASSAGES or characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


class _Shard:
    """A shard in the making."""

    def __init__(self) -> None:
        self.tokens, self.sentences, self.spans = array("I"), array("I"), array("I")
        self.documents: list[tuple[int, int, int, int]] = []

    def add(self, document: Document, samples: int) -> None:
        pieces = document.pieces[0 : len(document.pieces)]
        self.tokens.extend(
            token | _STARTS if starts else token for token, starts in zip(pieces.ids, pieces.starts, strict=True)
        )
        self.sentences.extend(document.ends)
        self.spans.extend(span.stop for span in document.spans)
        self.documents.append((len(self.tokens), len(self.sentences), len(self.spans), samples))

    def write(self, folder: Path, number: int) -> None:
        for kind in _KINDS:
            _save(_path(folder, kind, number), np.asarray(getattr(self, kind), dtype=np.uint32))
        _save(_path(folder, "documents", number), np.asarray(self.documents, dtype=np.int64))


def _finish(folder: Path, shards: int) -> None:
    documents = [_open(folder, "documents", number) for number in range(shards)]
    taken = np.concatenate([[], *(one[:, 3] for one in documents)]).astype(np.int64)
    _save(folder / _SAMPLES, np.cumsum(taken))
    tokens = sum(int(one[-1, 0]) for one in documents)
    counts = _Counts(len(taken), int((taken == 0).sum()), int(taken.sum()), shards, tokens)
    write_json(folder / _COUNTS, asdict(counts), indent=None)


def _path(folder: Path, kind: str, number: int) -> Path:
    return folder / f"{kind}-{number:05d}.npy"


def _save(path: Path, values: np.ndarray) -> None:
    with write_file(path) as staging:
        np.save(staging, values)


def _open(folder: Path, kind: str, number: int) -> np.ndarray:
    mapped: np.ndarray = np.load(_path(folder, kind, number), mmap_mode="r")
    return mapped
