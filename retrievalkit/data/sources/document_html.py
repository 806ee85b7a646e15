"""Title and visible text of an HTML page, by libxml2, which reads broken pages too, in linear time."""

from __future__ import annotations

import re
from collections.abc import Mapping

_DECLARED = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_LOOK = 1 << 12

_BLOCK = 1 << 16

DEEPEST = 2048
"""Most elements inside one another; for each end tag without a start, libxml2 looks at all that are open."""

_HIDDEN = {"script", "style", "template", "noscript", "svg", "math", "select", "textarea", "nav", "iframe", "object"}
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_LINES = {
    *("address", "article", "aside", "blockquote", "br", "caption", "dd", "div", "dl", "dt", "fieldset", "figcaption"),
    *("figure", "footer", "form", "header", "hr", "li", "main", "ol", "p", "pre", "section", "table", "tr", "ul"),
    *_HEADINGS,
}
_CELLS = {"td", "th"}
_BLANKS = re.compile(r"[ \t\r\n\f\xa0]+")


def declared_encoding(raw: bytes) -> str:
    """The encoding that a page names near its start; "" if it names none."""
    found = _DECLARED.search(raw[:_LOOK])
    return found[1].decode("ascii") if found else ""


class NestedError(ValueError):
    """A page whose elements are nested deeper than `DEEPEST`."""


def read_html(text: str) -> tuple[str, str]:
    """Title (<title>, or the first <h1>, or the first heading; "" if there is none) and visible text of a page.

    A block begins a line. Scripts, styles, menus and the like are left out.
    """
    from lxml import etree

    page = _Page()
    parser = etree.HTMLParser(target=page, huge_tree=True)
    for start in range(0, len(text) + 1, _BLOCK):  # the parser stops at an error only when it has read a block
        parser.feed(text[start : start + _BLOCK])
    parser.close()
    headings = sorted(page.headings, key=lambda heading: heading[0] != "h1")
    title = _joined(page.title) or next(filter(None, (_joined(words) for _, words in headings)), "")
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(page.words).split("\0"))
    return title, "\n".join(line for line in lines if line)


def _joined(words: list[str]) -> str:
    return " ".join("".join(words).split())


class _Page:
    """Collects a page's words; NUL, which the parser replaces in texts, ends a line."""

    def __init__(self) -> None:
        self.title: list[str] = []
        self.headings: list[tuple[str, list[str]]] = []
        self.words: list[str] = []
        self._depth = 0
        self._hidden = 0  # open elements that hide their content
        self._in_title = False
        self._heading = ""

    def start(self, tag: str, attrs: Mapping[str, str]) -> None:
        """An element starts; <body> ends whatever was left open before."""
        del attrs
        self._depth += 1
        if self._depth > DEEPEST:
            raise NestedError
        if tag == "body":
            self._hidden = 0
        elif tag in _HIDDEN:
            self._hidden += 1
        elif tag == "title" and not self._hidden:
            self._in_title = not self.title
        elif tag in _HEADINGS and not self._hidden:
            self._heading = tag
            self.headings.append((tag, []))
        self._break(tag)

    def end(self, tag: str) -> None:
        """An element ends, with or without an end tag."""
        self._depth -= 1
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag == "title":
            self._in_title = False
        elif tag == self._heading:
            self._heading = ""
        self._break(tag)

    def data(self, data: str) -> None:
        """Text between tags."""
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self.words.append(data)
            if self._heading:
                self.headings[-1][1].append(data)

    def close(self) -> None:
        """The page ends."""

    def _break(self, tag: str) -> None:
        if tag in _LINES:
            self.words.append("\0")
        elif tag in _CELLS:
            self.words.append(" ")
