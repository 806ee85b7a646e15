"""The text of a document as a reader writes it: words flow into lines, and gaps between them never weld two words.

Modules of this package that run in workers import nothing of retrievalkit except its top module: workers start quickly.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

# Hyphens that are only drawn at the end of a line, and marks without width inside words.
_INVISIBLE = "\u00ad\u2060\ufeff"
_LIGATURES = {code: unicodedata.normalize("NFKC", chr(code)) for code in range(0xFB00, 0xFB07)}
_CONTROL: dict[int, str] = {code: " " for code in range(32) if chr(code) not in "\t\n\f"}
_FORM: dict[int, str | None] = {**dict.fromkeys(map(ord, _INVISIBLE)), **_LIGATURES, **_CONTROL, ord("\f"): "\n"}
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
        left: Content that is not in the text, and guesses: kind, such as "images" -> count.
    """

    title: str = ""
    text: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    headings: list[tuple[int, int, str]] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)


def form_of(text: str) -> str:
    """Return a text in composed letters (NFC), without soft hyphens, ligatures, control characters, lone surrogates."""
    if "\x1b" in text:
        text = _COLOURS.sub("", text)
    return _SURROGATE.sub("\ufffd", unicodedata.normalize("NFC", text.translate(_FORM)))


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

    def keep(self, text: str) -> None:
        """Add preformatted text, with its lines and indentation."""
        if text:
            self._write(text)

    def space(self) -> None:
        """Separate the next words by a space, unless they are separated already."""
        self._gap = self._gap or " "

    def note(self) -> None:
        """Separate raised words, such as the number of a note, from the word before; not in units such as km2."""
        if _WORD_END.search("".join(self._pieces[-4:])[-8:]):
            self.space()

    def cell(self) -> None:
        """End a cell of a table row."""
        self._gap = _CELL

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
        places = (place for start, _, end in self._headings for place in (start, end))
        marks = sorted({0, len(pieces), *self._pages, *places})
        texts, starts, length = list[str](), dict[int, int](), 0
        for first, last in pairwise(marks):
            text = _tidy(form_of("".join(pieces[first:last])))
            text = text if length else text.lstrip("\n")
            starts[first] = length + len(text) - len(text.lstrip())
            texts.append(text)
            length += len(text)
        starts[len(pieces)] = length
        whole = "".join(texts)
        headings = [
            (starts[start], level, " ".join(whole[starts[start] : starts[end]].split()))
            for start, level, end in self._headings
        ]
        headings = [heading for heading in headings if heading[2]]
        highest = min((level for _, level, _ in headings), default=0)
        first_heading = next((words for _, level, words in headings if level == highest), "")
        title = " ".join(form_of(title).split()) or first_heading
        pages = [starts[page] for page in self._pages]
        return Document(title, whole.rstrip(), fields or {}, headings, pages, self.left)


def _tidy(text: str) -> str:
    """Remove white space at line ends, and more than one empty line."""
    if "\n" not in text:
        return text
    end = text[len(text.rstrip(" ")) :]  # the text may go on in the same line
    return _EMPTY_LINES.sub("\n\n", "\n".join(map(str.rstrip, text.split("\n")))) + end
