"""The text of a document as a reader writes it: words flow into lines, and gaps between them never weld two words.

Modules of this package that run in workers import nothing of retrievalkit except its top module and the plain form of
texts: workers start quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from retrievalkit.data.same_text import plain_form

_CONTROL: dict[int, str] = {code: " " for code in range(32) if chr(code) not in "\t\n\f"} | {ord("\f"): "\n"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_COLOURS = re.compile("\x1b\\[[0-9;?]*[ -/]*[@-~]")  # of terminals, in logs and outputs
_WORD_END = re.compile(r"[^\W\d_]{3}[.,;:!?)\u201d]?\Z")
_EMPTY_LINES = re.compile(r"\n{3,}")
_CELL = " | "
MOST_CHARACTERS = 1 << 26
DAMAGED_PARTS = "damaged parts"


class UnreadableError(Exception):
    """A document without readable text. The message is the reason in a few words: "binary"."""


@dataclass
class Document:
    """A document as it was read.

    Attributes:
        title: Its title; "" if it has none.
        text: Its text.
        fields: Metadata, such as front matter.
        headings: Start in the text, level from 1, and words of each heading.
        pages: Start in the text of each page, slide or sheet.
        blocks: Start, end, and end of the header of each block of code, which has no header, and table.
        left: Content that is not in the text, and guesses: kind, such as "images" -> count.
    """

    title: str = ""
    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    headings: list[tuple[int, int, str]] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)


def form_of(text: str) -> str:
    """Return a text in plain form, without control characters, colours of terminals and lone surrogates."""
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    return _SURROGATE.sub("\ufffd", plain_form(text.translate(_CONTROL)))


class Text:
    """A text under construction.

    Before each piece, at most one gap is written: a line end, a cell separator or a space.
    """

    def __init__(self) -> None:
        self.left: dict[str, int] = {}
        self._pieces: list[str] = []
        self._gap = ""
        self._size = 0
        self._headings: list[tuple[int, int, int]] = []  # first piece, level, piece after the last
        self._pages: list[int] = []
        self._asides: list[tuple[int, int]] = []
        self._code: list[list[int]] = []  # first piece, piece after the last
        self._rows: list[list[int]] = []
        self._line = self._cell = 0  # first piece of the line, and of the cell

    def add(self, words: str) -> None:
        """Add words; white space in them, and at their ends, becomes a space."""
        if not (flat := " ".join(words.split())):
            if words:
                self.space()
            return
        if words[0].isspace():
            self.space()
        self._write(flat)
        if words[-1].isspace():
            self.space()

    def keep(self, text: str, *, code: bool = True) -> None:
        """Add preformatted text, with its lines and indentation."""
        if not text:
            return
        first = len(self._pieces)
        if code and self._code and self._code[-1][1] == first and not self._gap:
            self._code[-1][1] = first + 1
        elif code:
            self._code.append([first, first + 1])
        self._write(text)

    def space(self) -> None:
        """Separate the next words by a space, unless they are separated already."""
        self._gap = self._gap or " "

    def note(self) -> None:
        """Separate raised words, such as the number of a note, from the word before; not in units such as km2."""
        if _WORD_END.search("".join(self._pieces[-4:])[-8:]):
            self.space()

    def row(self) -> None:
        """Start a table row."""
        self.start()
        self._cell = len(self._pieces)

    def cell(self) -> None:
        """End a cell of a table row; an empty cell at the start of a row does not join it to the row before."""
        end = len(self._pieces)
        if end > self._cell or not self._gap:
            self._gap = _CELL
        if end > self._line and self._rows and self._rows[-1][0] == self._line:
            self._rows[-1][1] = end
        elif end > max(self._line, self._cell):
            self._rows.append([self._line, end])
        self._cell = end

    def start(self) -> None:
        """Start a block on a new line, or the first block of a cell in its row."""
        self._gap = self._gap if self._gap == _CELL else "\n"

    def line(self) -> None:
        """End the line."""
        self._gap = "\n"

    def page(self) -> None:
        """Start a page."""
        self.line()
        self._pages.append(len(self._pieces))

    def count(self, kind: str, number: int = 1) -> None:
        """Count content that is not read."""
        if number:
            self.left[kind] = self.left.get(kind, 0) + number

    @contextmanager
    def heading(self, level: int) -> Iterator[None]:
        """Add a heading in a block."""
        self.line()
        start = self.mark()
        yield
        self.end_heading(start, level)

    def mark(self) -> int:
        """Return the current position, for `end_heading` and `aside`."""
        return len(self._pieces)

    def end_heading(self, start: int, level: int) -> None:
        """End a heading that began at a position."""
        if len(self._pieces) > start:
            self._headings.append((start, level, len(self._pieces)))
        self.line()

    def aside(self, start: int) -> None:
        """Leave out the text from a position, unless it is most of the document."""
        if len(self._pieces) > start:
            self._asides.append((start, len(self._pieces)))

    def _write(self, piece: str) -> None:
        if self._gap == "\n":
            self._line = len(self._pieces)
        self._pieces.append(self._gap + piece if self._pieces else piece)
        self._gap = ""
        self._size += len(piece)
        if self._size > MOST_CHARACTERS:
            msg = "of too much text"
            raise UnreadableError(msg)

    def document(self, title: str = "", fields: dict[str, Any] | None = None) -> Document:
        """Return the document; its default title is the first heading of the highest level."""
        pieces = self._pieces
        sizes = [sum(len(piece) for piece in pieces[start:end]) for start, end in self._asides]
        if 2 * sum(sizes) <= self._size:
            for start, end in self._asides:
                pieces[start:end] = [""] * (end - start)
        blocks = [(start, end, start) for start, end in self._code]
        for row in self._rows:
            if blocks and blocks[-1][2] > blocks[-1][0] and blocks[-1][1] == row[0]:
                blocks[-1] = (blocks[-1][0], row[1], blocks[-1][2])
            else:
                blocks.append((row[0], row[1], row[1]))
        headings = (place for start, _, end in self._headings for place in (start, end))
        marks = sorted({0, len(pieces), *self._pages, *headings, *(place for block in blocks for place in block)})
        texts, starts, length = list[str](), dict[int, int](), 0
        for first, last in pairwise(marks):
            text = _tidy(form_of("".join(pieces[first:last])))
            text = text if length else text.lstrip("\n")
            starts[first] = length + len(text) - len(text.lstrip())
            texts.append(text)
            length += len(text)
        starts[len(pieces)] = length
        whole = "".join(texts)
        located = [
            (starts[start], level, " ".join(whole[starts[start] : starts[end]].split()))
            for start, level, end in self._headings
        ]
        located = [heading for heading in located if heading[2]]
        highest = min((level for _, level, _ in located), default=0)
        first_heading = next((words for _, level, words in located if level == highest), "")
        title = " ".join(form_of(title).split()) or first_heading
        pages = [starts[page] for page in self._pages]
        located_blocks = [(starts[start], starts[end], starts[header]) for start, end, header in blocks]
        located_blocks.sort(key=lambda block: (block[0], -block[1]))  # a table before the code in its first cell
        spans = [(start, _end(whole, start, end), _end(whole, start, header)) for start, end, header in located_blocks]
        spans = [span for span in spans if span[0] < span[1]]
        return Document(title, whole.rstrip(), fields or {}, located, pages, spans, self.left)


def _end(text: str, start: int, end: int) -> int:
    """Return the end of a part of a text without white space."""
    while end > start and text[end - 1].isspace():
        end -= 1
    return end


def _tidy(text: str) -> str:
    """Remove white space at line ends, and more than one empty line."""
    if "\n" not in text:
        return text
    end = text[len(text.rstrip(" ")) :]  # the text may go on in the same line
    return _EMPTY_LINES.sub("\n\n", "\n".join(map(str.rstrip, text.split("\n")))) + end
