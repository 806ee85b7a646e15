"""Cutting of documents into passages, by tokens of the model that reads them, or by words if there is no model.

A passage starts at each heading that has a text, and at each page. Longer sections are cut at sentences, and
consecutive passages share whole sentences. Code stays whole where it fits, and rows of a table are preceded by its
header. What is longer than a passage is cut at lines, words or tokens.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from retrievalkit.contracts import Text
from retrievalkit.data.corpus import Passage
from retrievalkit.data.passage_parts import Part, parts_of, words_in
from retrievalkit.data.sentences import sentence_ends
from retrievalkit.errors import OptionError
from retrievalkit.reporting.notices import gathered, note
from retrievalkit_documents.text import Document

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

WORDS = 100
"""Default size of a passage, in words."""
_MOST_TOKENS = 256
_OVERLAP = 5  # passages share a fifth
_LONGEST = 1 << 16  # tokens in the longest input of a model that is looked for
_LETTERS = 16
"""Most characters of a token: a tokenizer may read a long word, or a line of Thai, as one unknown token."""
_STEP = 16  # a document with a passage that is too long is cut again, by at least this part shorter
_PIECE, _BATCH = 1 << 16, 256  # characters, and passages, that are tokenised together
_LINES = r"(?<=\n)"
_FINER = (r"(?<=\n)(?=[^\S\n]*\n)", _LINES, None)
"""Places to cut a long part: empty lines, lines, words; else tokens."""


@dataclass(frozen=True)
class Outline:
    """The structure of a document.

    Attributes:
        sections: Start in the text, headings and page of each section, in order.
        blocks: Start, end and end of the header of each block of code, which has no header, and table.
    """

    sections: Sequence[tuple[int, str, int | None]] = ()
    blocks: Sequence[tuple[int, int, int]] = ()

    def place(self, position: int) -> tuple[str, int | None]:
        """Return the headings and the page at a position of the text."""
        number = bisect_right(self.sections, position, key=lambda section: section[0])
        return self.sections[number - 1][1:] if number else ("", None)


def outline_of(document: Document) -> Outline:
    """Return the sections of a document, each with its headings and page, and its blocks of code and tables."""
    text, starts = document.text, dict[int, str]()
    above: list[tuple[int, str]] = []
    last_start, last_words = 0, ["no heading"]
    for start, level, words in document.headings:
        above = [*(heading for heading in above if heading[0] < level), (level, words)]
        # A heading without a text of its own, such as a title, is in the section of the next heading.
        if text[last_start:start].split() != last_words:
            last_start = start
        starts[last_start] = " > ".join(heading for _, heading in above)
        last_words = text[last_start:start].split() + words.split()
    pages: dict[int, int] = {}
    for number, (start, end) in enumerate(pairwise([*document.pages, len(text)]), 1):
        pages[_sentence_start(text, start, end) if start not in starts else start] = number
    sections: list[tuple[int, str, int | None]] = []
    heading, page = "", None
    for start in sorted({*starts, *pages}):
        heading, page = starts.get(start, heading), pages.get(start, page)
        sections.append((start, heading, page))
    return Outline(sections, document.blocks)


def _sentence_start(text: str, start: int, end: int) -> int:
    """Return the start of the first sentence of a page; one that began on the page before continues in lower case."""
    if not start or not text[start : start + 1].islower():
        return start
    first = next(iter(sentence_ends(text[start:end])), 0)
    return start + first if start + first < end else start


class _Unit(NamedTuple):
    """A part of a text that stays whole: a sentence, a block of code or a row of a table."""

    start: int
    end: int
    header: tuple[int, int] | None = None  # of its table, unless it is the header
    repeats: bool = True  # a passage may begin with the last units of the one before


Spans = Callable[[Sequence[str]], list[list[tuple[int, int]]]]
"""Texts -> start and end of each of their tokens."""


@dataclass
class Cutter:
    """Cuts documents into passages.

    Attributes:
        size: Maximum number of tokens, or of words without a model.
        overlap: Maximum number that consecutive passages share.
        model: The model that reads the passages; None = they are cut by words.
        lost: Number of tokens that the model does not read.
    """

    size: int
    overlap: int
    model: ModelInput | None = None
    lost: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings for a manifest."""
        by = "words" if self.model is None else "tokens"
        return {"passages": self.size, "stride": self.size - self.overlap, "by": by}

    def __call__(self, passage: Passage) -> list[Passage]:
        """Return the passages of a document."""
        room, spans = self.size, _words
        if self.model is not None:
            passage, room = self.model.room(passage)
            spans = self.model.spans
        size = min(self.size, room)
        layout = _Layout(passage.text, passage.outline or Outline(), spans)
        while True:
            parts = parts_of(passage, layout.parts(size, min(self.overlap, size // 2)))
            over, lost = (0, 0) if self.model is None else self.model.excess(parts, self.size)
            # Tokens of a part alone may differ from those in its document, by a few.
            if not over or size == 1:
                self.lost += lost
                return parts
            size = max(1, size - max(over, size // _STEP))


def cutter(passages: int | None, stride: int | None, retriever: Retriever | None) -> Cutter:
    """Return a cutter into passages of N tokens of a model, or of N words without one.

    Args:
        passages: Maximum size; None = 100 words, or four fifths of the model's input, but at most 256 tokens.
        stride: Size minus the most that consecutive passages share; None = four fifths of the size.
        retriever: The model that reads the passages.

    Raises:
        OptionError: The stride is longer than a passage, or a passage is longer than the model's input.
    """
    model = None if retriever is None else ModelInput(retriever.tower("document"))
    if passages is None:
        passages = WORDS if model is None else max(1, min(_MOST_TOKENS, model.length - model.length // _OVERLAP))
    elif model is not None and passages > model.length:
        msg = f"passages is {passages:,} tokens, but the model reads {model.length:,}. Lower passages."
        raise OptionError(msg)
    if stride is None:
        stride = passages - passages // _OVERLAP
    if stride > passages:
        msg = f"stride is {stride}, but should be 1 to {passages} (passages), so that nothing is lost."
        raise OptionError(msg)
    return Cutter(passages, passages - stride, model)


class ModelInput:
    """The input of a model: its tokens and their maximum number.

    Args:
        encoder: The encoder of documents.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        # Offsets in the text are a feature of fast tokenizers.
        tokenizer = getattr(encoder, "tokenizer", None)
        self._tokenizer = tokenizer if getattr(tokenizer, "is_fast", False) else None

    @cached_property
    def length(self) -> int:
        """Maximum number of tokens, with special tokens, prompt and title."""
        return self._count(Text("", "a " * _LONGEST))

    def room(self, passage: Passage) -> tuple[Passage, int]:
        """Return the passage, and the number of tokens for its text; a title longer than half of the input is cut."""
        title = passage.title
        while title and 2 * (used := self._count(Text(title, "", passage.fields))) > self.length:
            kept = len(title) * self.length // (2 * used + 2)
            title = title[:kept].rsplit(maxsplit=1)[0] if title[:kept].strip() else ""
        if title != passage.title:
            note("Titles that are longer than half of the model's input were shortened; their words are not indexed.")
        used = self._count(Text(title, "", passage.fields))
        return replace(passage, title=title), max(1, self.length - used)

    def spans(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the positions of the tokens of texts."""
        if self._tokenizer is None:
            return _words(texts)
        options: dict[str, Any] = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
        encoded = self._tokenizer(list(texts), return_offsets_mapping=True, **options)
        return encoded["offset_mapping"]  # type: ignore[no-any-return]

    def excess(self, passages: Sequence[Passage], size: int) -> tuple[int, int]:
        """Return the most tokens of a passage beyond the size and the model's input, and the latter alone."""
        over, lost = 0, 0
        for first in range(0, len(passages), _BATCH):
            batch = passages[first : first + _BATCH]
            with gathered() as noted:
                self._encoder.tokenize([passage.content for passage in batch], "document")
            lost = max([lost, *(most for _, most in noted.cut.values())])
            if self._tokenizer is not None:
                over = max([over, *(len(spans) - size for spans in self.spans([passage.text for passage in batch]))])
        return max(over, lost), lost

    def _count(self, text: Text) -> int:
        with gathered():
            return len(self._encoder.tokenize([text], "document")[0])


def _words(texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    return [words_in(text) for text in texts]


class _Layout:
    """A text with the positions of its tokens and sections."""

    def __init__(self, text: str, outline: Outline, spans: Spans) -> None:
        self.text = text
        self._blocks: list[tuple[int, int, int]] = []
        for block in outline.blocks:
            if not self._blocks or block[0] >= self._blocks[-1][1]:  # not inside of another
                self._blocks.append(block)
        starts = [*dict.fromkeys([0, *(start for start, _, _ in outline.sections)]), len(text)]
        self._sections = [[*self._coarse(start, end)] for start, end in pairwise(starts) if start < end]
        self._tokens = array("q")
        for first, last in self._pieces():
            for start, end in spans([text[first:last]])[0]:
                if end - start <= _LETTERS:
                    self._tokens.append(first + start)
                else:
                    self._tokens.extend(range(first + start, first + end, _LETTERS))

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of parts of the text to tokenise, at units."""
        first = 0
        for unit in (unit for units in self._sections for unit in units):
            if unit.start - first > _PIECE:
                yield first, unit.start
                first = unit.start
        yield first, len(self.text)

    def parts(self, size: int, overlap: int) -> Iterator[Part]:
        """Yield the parts of the text with at most `size` tokens."""
        for section in self._sections:
            units = [part for unit in section for part in self._fine(unit, size, _FINER)]
            first = 0
            while first < len(units):
                start, header = units[first].start, units[first].header or (0, 0)
                room = size - self._count(*header)
                # A header that leaves less than half of the passage to the rows is not repeated.
                header, room = (header, room) if 2 * room >= size else ((0, 0), size)
                last = first + 1
                while last < len(units) and self._count(start, units[last].end) <= room:
                    last += 1
                yield Part(start, units[last - 1].end, f"{self.text[slice(*header)]}\n" if header[1] else "")
                first, end = last, units[last - 1].end
                while (
                    last < len(units)
                    and units[first - 1].start > start
                    and units[first - 1].repeats
                    and self._count(units[first - 1].start, end) <= overlap
                    and self._count(units[first - 1].start, units[last].end) <= size
                ):
                    first -= 1

    def _count(self, start: int, end: int) -> int:
        """Return the number of tokens that start in a part of the text."""
        return bisect_left(self._tokens, end) - bisect_left(self._tokens, start)

    def _coarse(self, start: int, end: int) -> Iterator[_Unit]:
        """Yield sentences, whole blocks of code, and rows of tables."""
        for block, last, header in self._blocks[bisect_right(self._blocks, start, key=lambda block: block[1]) :]:
            if block >= end:
                break
            first, last = max(block, start), min(last, end)
            yield from self._sentences(start, first)
            if header == block:
                yield _Unit(first, last, repeats=False)
            else:
                rows = _split(self.text, first, last, _LINES)
                yield from (_Unit(*row, (block, header) if row[0] >= header else None, repeats=False) for row in rows)
            start = last
        yield from self._sentences(start, end)

    def _sentences(self, start: int, end: int) -> Iterator[_Unit]:
        if start < end:
            ends = (start + place for place in sentence_ends(self.text[start:end]))
            yield from (_Unit(*span) for span in _stripped(self.text, [start, *ends]))

    def _fine(self, unit: _Unit, size: int, places: Sequence[str | None]) -> Iterator[_Unit]:
        """Yield a unit, or its parts if it is longer than a passage."""
        header = unit.header
        room = size - (self._count(*header) if header and 2 * self._count(*header) <= size else 0)
        if self._count(unit.start, unit.end) <= room:
            yield unit
        elif places:
            for start, end in _split(self.text, unit.start, unit.end, places[0]):
                yield from self._fine(unit._replace(start=start, end=end), size, places[1:])
        else:
            first, last = bisect_left(self._tokens, unit.start), bisect_left(self._tokens, unit.end)
            cuts = (_whole(self.text, self._tokens[place]) for place in range(first + room, last, room))
            marks = dict.fromkeys([unit.start, *(mark for mark in cuts if unit.start < mark), unit.end])
            yield from (unit._replace(start=start, end=end) for start, end in pairwise(marks))


def _split(text: str, start: int, end: int, places: str | None) -> list[tuple[int, int]]:
    """Split a part of a text at places, or at words; the parts have no white space around them."""
    part = text[start:end]
    marks = [a for a, _ in words_in(part)] if places is None else [match.start() for match in re.finditer(places, part)]
    return _stripped(text, [*dict.fromkeys([start, *(start + mark for mark in marks), end])])


def _stripped(text: str, marks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the parts between marks, without white space around them; blank parts are left out."""
    spans = []
    for start, end in pairwise(marks):
        while end > start and text[end - 1].isspace():
            end -= 1
        while end > start and text[start].isspace():
            start += 1
        spans += [(start, end)] if end > start else []
    return spans


def _whole(text: str, mark: int) -> int:
    """Return a place to cut a word, before a letter with its marks."""
    while mark and unicodedata.category(text[mark]).startswith("M"):
        mark -= 1
    return mark
