"""Title and text of a document: plain text, Markdown, HTML, PDF or Word (.docx).

HTML is read by libxml2, which reads broken pages too, in linear time.
"""

from __future__ import annotations

import codecs
import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from retrievalkit.data import files
from retrievalkit.data.files import reading
from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.errors import DataError

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SLOW = ("idna", "punycode")  # quadratic in Python, and of no page
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(\S.*)$", re.MULTILINE)
_LONGEST_FRONT = 1 << 16  # characters, read by Python's slow parser
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}[ \t]+(.*)$")
_UNDERLINE = re.compile(r"[ ]{0,3}(?:=+|-{2,})[ \t]*$")
_LINK = re.compile(r"!?\[([^][]*)\]\([^()\s]*(?:[ \t]+\"[^\"]*\")?\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

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
_DOCX_TITLES = re.compile(r"Title|Heading")
_BLANKS = re.compile(r"[ \t\r\n\f\xa0]+")

PDF_SECONDS = 10
"""Time for each MiB of a PDF document."""


class UnreadableError(Exception):
    """A document without text that can be read. The message says why in a few words: "binary"."""


class Document(NamedTuple):
    """Title and text of a document, and the fields of its front matter."""

    title: str
    text: str
    fields: Mapping[str, Any] = {}


def read_document(path: Path, name: str) -> Document:
    """Read a document.

    Args:
        path: Its file.
        name: Its name, of which the title is made if the document has none.
    """
    title, text, fields = READERS[path.suffix.lower()](path)
    text = text.strip()
    if not text:
        msg = "without text"
        raise UnreadableError(msg)
    title = " ".join(title.split()) or PurePosixPath(name).stem
    return Document(_whole(title), _whole(text), fields)


def _read_plain(path: Path) -> Document:
    return Document("", _decoded(_content(path)))


def _read_markdown(path: Path) -> Document:
    """The text without front matter, comments and the addresses of links; headings as plain lines."""
    text = _decoded(_content(path)).replace("\r\n", "\n")
    front = _FRONT.match(text)
    named = _FRONT_TITLE.search(front[1]) if front else None
    title, headings, lines = named[1].strip(" \t'\"") if named else "", [], []
    fence = ""
    # Every comment that begins before the last end has one: searching in vain from each beginning would be quadratic.
    commented, end, rest = (text[front.end() :] if front else text).rpartition("-->")
    for line in (_COMMENT.sub("", commented + end) + rest).split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif fence:
            lines.append(line)
        elif heading := _HEADING.match(line):
            words = heading[1].rstrip(" \t").rstrip("#").rstrip(" \t")
            headings.append(_LINK.sub(r"\1", words))
            lines.append(headings[-1])
        elif _UNDERLINE.match(line):  # of the heading before, or a rule
            headings += lines[-1:]
        else:
            lines.append(_LINK.sub(r"\1", line))
    fields = _front_matter(front[1]) if front else {}
    return Document(title or next(filter(str.strip, headings), ""), "\n".join(lines), fields)


def _front_matter(front: str) -> dict[str, Any]:
    """The values of front matter, without the title; none if it is not YAML."""
    import yaml

    if len(front) > _LONGEST_FRONT:
        return {}
    try:
        values = yaml.safe_load(front)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return {name: value for name, value in values.items() if name != "title"} if isinstance(values, dict) else {}


def _read_html(path: Path) -> Document:
    raw = _content(path)
    declared = _DECLARED.search(raw[:_LOOK])
    return Document(*read_html(_decoded(raw, declared[1].decode("ascii") if declared else "")))


def _read_pdf(path: Path) -> Document:
    if importlib.util.find_spec("pypdfium2") is None:
        msg = "PDF, which needs a package: pip install 'retrievalkit[pdf]'"
        raise UnreadableError(msg)
    command = [sys.executable, "-P", str(Path(__file__).with_name("document_pdf.py")), str(files.LONGEST_LINE)]
    with reading(path), path.open("rb") as stream:
        seconds = PDF_SECONDS * (1 + (os.fstat(stream.fileno()).st_size >> 20))
        try:
            done = subprocess.run(command, stdin=stream, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            msg = f"PDF that takes longer than {seconds} s"
            raise UnreadableError(msg) from None
    answer = json.loads(done.stdout) if done.returncode == 0 else {"problem": "damaged"}
    if "problem" in answer:
        raise UnreadableError(answer["problem"])
    return Document(**answer)


def _read_docx(path: Path) -> Document:
    if importlib.util.find_spec("docx") is None:
        msg = "DOCX, which needs a package: pip install 'retrievalkit[docx]'"
        raise UnreadableError(msg)
    with reading(path), path.open("rb") as stream:
        try:
            return _parsed_docx(stream)
        except UnreadableError:
            raise
        except Exception:  # noqa: BLE001 - of zipfile, lxml and python-docx, which list none
            msg = "damaged"
            raise UnreadableError(msg) from None


def _parsed_docx(stream: IO[bytes]) -> Document:
    """The text of all paragraphs, also in tables and boxes; the title by the properties, or the first heading."""
    import docx
    from lxml import etree

    with zipfile.ZipFile(stream) as packed:
        if sum(part.file_size for part in packed.infolist()) > files.LONGEST_LINE:
            msg = "of too much text"
            raise UnreadableError(msg)
    document = docx.Document(stream)
    headings = (one.text for one in islice(document.paragraphs, 100) if _DOCX_TITLES.match(one.style.name or ""))
    title = document.core_properties.title or next(filter(str.strip, headings), "")
    body = document.element.body
    etree.strip_elements(body, "{*}Fallback", with_tail=False)  # repeats the text of boxes
    marks = {"p": "\n", "tr": "\n", "br": "\n", "tab": "\t"}
    parts = ((etree.QName(one).localname, one.text or "") for one in body.iter("{*}*"))
    return Document(title, "".join(text if name == "t" else marks.get(name, "") for name, text in parts))


READERS: dict[str, Callable[[Path], Document]] = {
    ".txt": _read_plain,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
    ".docx": _read_docx,
}
"""The ending of a file -> how its title ("" = none) and text are read."""


def _content(path: Path) -> bytes:
    try:
        with files.open_bytes(path) as stream:
            raw = stream.read(files.LONGEST_LINE + 1)
    except DataError as error:
        if error.file is None:  # no access, which concerns the user more than a skipped file
            raise
        msg = "binary"
        raise UnreadableError(msg) from None
    if len(raw) > files.LONGEST_LINE:
        msg = f"larger than {files.LONGEST_LINE >> 20} MiB"
        raise UnreadableError(msg)
    return raw


def _decoded(raw: bytes, declared: str = "") -> str:
    """The text of bytes in UTF-8, in UTF-16 with a byte order mark, or in the encoding that they declare."""
    marked = next((name for mark, name in _BOMS.items() if raw.startswith(mark)), "")
    if not marked and b"\0" in raw:
        msg = "binary"
        raise UnreadableError(msg)
    for name in filter(None, (marked or "utf-8", declared)):
        try:
            if codecs.lookup(name).name not in _SLOW:
                return raw.decode(name)
        except (UnicodeError, LookupError):
            continue
    msg = "in an unknown encoding, to be saved as UTF-8"
    raise UnreadableError(msg)


def _whole(text: str) -> str:
    """The text with NUL and halves of characters, which neither tokenizers nor files take, replaced."""
    return HALF_CHARACTER.sub("\ufffd", text.replace("\0", "\ufffd"))


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
            msg = f"HTML with more than {DEEPEST:,} elements inside one another"
            raise UnreadableError(msg)
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
