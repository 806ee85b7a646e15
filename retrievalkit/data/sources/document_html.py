"""Title and visible text of an HTML page, by the standard library's parser, which takes broken pages too."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_DECLARED = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_LOOK = 1 << 12

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


def read_html(text: str) -> tuple[str, str]:
    """Title (<title>, or the first <h1>, or the first heading; "" if there is none) and visible text of a page.

    A block begins a line. Scripts, styles, menus and the like are left out.
    """
    page = _Page()
    page.feed(text)
    page.close()
    headings = sorted(page.headings, key=lambda found: found[0] != "h1")
    title = _joined(page.title) or next(filter(None, (_joined(words) for _, words in headings)), "")
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(page.words).split("\0"))
    return title, "\n".join(line for line in lines if line)


def _joined(words: list[str]) -> str:
    return " ".join("".join(words).replace("\0", " ").split())


class _Page(HTMLParser):
    """Collects a page's words; NUL ends a line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.headings: list[tuple[str, list[str]]] = []
        self.words: list[str] = []
        self._hidden = ""  # the outermost element that hides
        self._depth = 0  # how many elements of that name are open
        self._in_title = False
        self._heading = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element starts; <body> ends whatever was left open before."""
        del attrs
        if tag == "body":
            self._hidden, self._in_title = "", False
        if self._hidden:
            self._depth += tag == self._hidden
        elif tag in _HIDDEN:
            self._hidden, self._depth = tag, 1
        elif tag == "title":
            self._in_title = not self.title
        elif tag in _HEADINGS:
            self._heading = tag
            self.headings.append((tag, []))
        self._break(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""
        del attrs
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        """An element ends."""
        if self._hidden and tag == self._hidden:
            self._depth -= 1
            self._hidden = self._hidden if self._depth else ""
        elif tag == "title":
            self._in_title = False
        elif tag == self._heading:
            self._heading = ""
        self._break(tag)

    def handle_data(self, data: str) -> None:
        """Text between tags."""
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            data = data.replace("\0", " ")
            self.words.append(data)
            if self._heading:
                self.headings[-1][1].append(data)

    def _break(self, tag: str) -> None:
        if tag in _LINES:
            self.words.append("\0")
        elif tag in _CELLS:
            self.words.append(" ")
