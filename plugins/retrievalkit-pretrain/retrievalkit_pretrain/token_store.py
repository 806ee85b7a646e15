"""A tokenised corpus on disk: read, cut into sentences and spans, and tokenised once, with random access.

    texts.bin      uint32: for each document the ends of its sentences, in tokens; the ends of its spans, in sentences;
                   and its tokens, whose highest bit marks the beginning of a word
    documents.bin  int64 (documents, 4): the number of integers in texts.bin and of samples up to and including each
                   document; and its number of sentences and of spans
    counts.json    documents, dropped, samples, tokens: written last

Memory does not grow with the corpus, an epoch may use the samples in any order, and an interrupted training resumes
immediately. Interrupted reading resumes after the last document in documents.bin.
"""

from __future__ import annotations

import os
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from retrievalkit.contracts.commands import read_document, write_json
from retrievalkit.data.corpus import Passage
from retrievalkit.data.sentences import sentence_ends
from retrievalkit.data.tokenized_text import Document, Pieces, Vocabulary
from retrievalkit_pretrain.spans import draw_spans, token_ends

GROUP = 256
_STARTS = 1 << 31
_TEXTS, _DOCUMENTS, _COUNTS = "texts.bin", "documents.bin", "counts.json"


@dataclass(frozen=True)
class Cutter:
    """Cuts passages into sentences and spans.

    Attributes:
        vocabulary: Vocabulary of the encoder.
        max_length: Target length of a span, in tokens.
        short_spans: Fraction of the spans whose target length is drawn from 2 ... max_length.
        titles: Treat a title as the first sentence of its document.
        language: Language of the texts, for sentence splitting.
        seed: Seed of the spans.
    """

    vocabulary: Vocabulary
    max_length: int
    short_spans: float = 0.15
    titles: bool = True
    language: str = "en"
    seed: int = 42

    def cut(self, first: int, passages: Sequence[Passage]) -> Iterator[Document]:
        """Yield the documents of these passages; the first document has number `first`."""
        titles = [f"{passage.title} " if passage.title and self.titles else "" for passage in passages]
        texts = [title + passage.text for title, passage in zip(titles, passages, strict=True)]
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
    """Schema of counts.json."""

    documents: int
    dropped: int
    samples: int
    tokens: int


class TokenStore:
    """A completely tokenised corpus on disk, with random access to documents and samples.

    Attributes:
        counts: Numbers of "documents", of "dropped" documents among them, of "samples" and of "tokens".
    """

    def __init__(self, folder: Path, max_length: int) -> None:
        self.folder, self.max_length = folder, max_length
        counts = read_document(folder / _COUNTS, _Counts, do="Start the training again, without --resume.")
        self.counts: dict[str, int] = asdict(counts)

    @cached_property
    def _texts(self) -> np.ndarray:
        return np.memmap(self.folder / _TEXTS, np.uint32, "r")

    @cached_property
    def _documents(self) -> np.ndarray:
        return np.memmap(self.folder / _DOCUMENTS, np.int64, "r").reshape(-1, 4)

    def __len__(self) -> int:
        return self.counts["documents"]

    def find(self, sample: int) -> tuple[int, int]:
        """Return the document of a sample, and the number of the sample within the document."""
        document = bisect_right(self._documents[:, 1], sample)
        return document, sample - (int(self._documents[document - 1, 1]) if document else 0)

    def document(self, number: int) -> Document:
        """Return a document, whose tokens are read from disk on access."""
        stop, _, sentences, spans = self._documents[number].tolist()
        start = int(self._documents[number - 1, 0]) if number else 0
        ends, stops, tokens = np.split(self._texts[start:stop], [sentences, sentences + spans])
        bounds = pairwise([0, *stops.tolist()])
        return Document(_Packed(tokens), ends.tolist(), [range(*pair) for pair in bounds], self.max_length)


class _Packed:
    """Word pieces of a document, decoded from disk on access."""

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
) -> None:
    """Tokenise the part of a corpus that a folder lacks; `advance` receives the number of new documents."""
    folder.mkdir(exist_ok=True)
    if (folder / _COUNTS).exists():
        return
    with (folder / _TEXTS).open("ab") as texts, (folder / _DOCUMENTS).open("ab") as documents:
        number = documents.tell() // 32
        documents.truncate(32 * number)
        done = np.fromfile(folder / _DOCUMENTS, np.int64).reshape(-1, 4)
        stop, total = done[-1, :2].tolist() if number else (0, 0)
        texts.truncate(4 * stop)
        dropped = int((np.diff(done[:, 1], prepend=0) == 0).sum())
        tokens = stop - int(done[:, 2:].sum())
        advance(number)
        passages = islice(corpus, number, None)
        while group := list(islice(passages, GROUP)):
            rows = array("q")
            for document in cutter.cut(number, group):
                pieces = document.pieces[0 : len(document.pieces)]
                packed = (token | start * _STARTS for token, start in zip(pieces.ids, pieces.starts, strict=True))
                numbers = array("I", [*document.ends, *(span.stop for span in document.spans), *packed])
                numbers.tofile(texts)
                own = samples(document)
                stop, total = stop + len(numbers), total + own
                dropped, tokens = dropped + (own == 0), tokens + len(pieces)
                rows.extend((stop, total, len(document.ends), len(document.spans)))
            texts.flush()
            os.fsync(texts.fileno())  # before the index of its documents
            rows.tofile(documents)
            documents.flush()
            number += len(group)
            advance(len(group))
        os.fsync(documents.fileno())
    write_json(folder / _COUNTS, asdict(_Counts(number, dropped, total, tokens)), indent=None)
