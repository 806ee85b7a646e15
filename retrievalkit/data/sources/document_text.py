"""Title and text of a document: plain text, Markdown, HTML, PDF or Word (.docx).

HTML is parsed by libxml2, which also handles broken pages, in linear time.
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
_SLOW = ("idna", "punycode")  # quadratic in Python, and not used by web pages
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(\S.*)$", re.MULTILINE)
_LONGEST_FRONT = 1 << 16  # characters; the YAML parser is slow
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}[ \t]+(.*)$")
_UNDERLINE = re.compile(r"[ ]{0,3}(?:=+|-{2,})[ \t]*$")
_LINK = re.compile(r"!?\[([^][]*)\]\([^()\s]*(?:[ \t]+\"[^\"]*\")?\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

_DECLARED = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})""", re.IGNORECASE)
_LOOK = 1 << 12
_BLOCK = 1 << 16
DEEPEST = 2048
"""Maximum nesting of elements; for each unmatched end tag, libxml2 scans all open elements."""

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
"""Time limit per MiB of a PDF document, in seconds."""


class UnreadableError(Exception):
    """A document without readable text. The message is the reason in a few words: "binary"."""


class Document(NamedTuple):
    """Title, text and front matter fields of a document."""

    title: str
    text: str
    fields: Mapping[str, Any] = {}


def read_document(path: Path, name: str) -> Document:
    """Read a document.

    Args:
        path: The file.
        name: The name of the document, used as title if it has none.
    """
    title, text, fields = READERS[path.suffix.lower()](path)
    text = text.strip()
    if not text:
        raise UnreadableError("without text")
    title = " ".join(title.split()) or PurePosixPath(name).stem
    return Document(_whole(title), _whole(text), fields)


def _read_plain(path: Path) -> Document:
    return Document("", _decoded(_content(path)))


def _read_markdown(path: Path) -> Document:
    """Read text without front matter, comments and link targets; headings become plain lines."""
    text = _decoded(_content(path)).replace("\r\n", "\n")
    front = _FRONT.match(text)
    named = _FRONT_TITLE.search(front[1]) if front else None
    title, headings, lines = named[1].strip(" \t'\"") if named else "", [], []
    fence = ""
    # Search comments only before the last "-->", where every comment ends: unclosed comments would take quadratic time.
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
        elif _UNDERLINE.match(line):  # of the heading above, or a horizontal rule
            headings += lines[-1:]
        else:
            lines.append(_LINK.sub(r"\1", line))
    fields = _front_matter(front[1]) if front else {}
    return Document(title or next(filter(str.strip, headings), ""), "\n".join(lines), fields)


def _front_matter(front: str) -> dict[str, Any]:
    """Parse the front matter, without the title; {} if it is not YAML."""
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
            process = subprocess.run(command, stdin=stream, capture_output=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            msg = f"PDF that takes longer than {seconds} s"
            raise UnreadableError(msg) from None
    answer = json.loads(process.stdout) if process.returncode == 0 else {"problem": "damaged"}
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
        except Exception:  # noqa: BLE001 - zipfile, lxml and python-docx document no exceptions
            raise UnreadableError("damaged") from None


def _parsed_docx(stream: IO[bytes]) -> Document:
    """Text of all paragraphs, including tables and text boxes; title from the properties or the first heading."""
    import docx
    from lxml import etree

    with zipfile.ZipFile(stream) as packed:
        if sum(part.file_size for part in packed.infolist()) > files.LONGEST_LINE:
            raise UnreadableError("of too much text")
    document = docx.Document(stream)
    headings = (part.text for part in islice(document.paragraphs, 100) if _DOCX_TITLES.match(part.style.name or ""))
    title = document.core_properties.title or next(filter(str.strip, headings), "")
    body = document.element.body
    etree.strip_elements(body, "{*}Fallback", with_tail=False)  # repeats the text of text boxes
    marks = {"p": "\n", "tr": "\n", "br": "\n", "tab": "\t"}
    parts = ((etree.QName(element).localname, element.text or "") for element in body.iter("{*}*"))
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
"""File extension -> reader of the document; it returns the title "" if there is none."""


def _content(path: Path) -> bytes:
    try:
        with files.open_bytes(path) as stream:
            raw = stream.read(files.LONGEST_LINE + 1)
    except DataError as error:
        if error.file is None:  # no access: an error, not a skipped file
            raise
        raise UnreadableError("binary") from None
    if len(raw) > files.LONGEST_LINE:
        msg = f"larger than {files.LONGEST_LINE >> 20} MiB"
        raise UnreadableError(msg)
    return raw


def _decoded(raw: bytes, declared: str = "") -> str:
    """Decode bytes in UTF-8, in UTF-16 with a byte order mark, or in the declared encoding."""
    marked = next((name for mark, name in _BOMS.items() if raw.startswith(mark)), "")
    if not marked and b"\0" in raw:
        raise UnreadableError("binary")
    for name in filter(None, (marked or "utf-8", declared)):
        try:
            if codecs.lookup(name).name not in _SLOW:
                return raw.decode(name)
        except (UnicodeError, LookupError):
            continue
    msg = "in an unknown encoding, to be saved as UTF-8"
    raise UnreadableError(msg)


def _whole(text: str) -> str:
    """Replace NUL and lone surrogates, which neither tokenizers nor files accept."""
    return HALF_CHARACTER.sub("\ufffd", text.replace("\0", "\ufffd"))


def read_html(text: str) -> tuple[str, str]:
    """Return the title (<title>, the first <h1> or the first heading; "" if there is none) and visible text of a page.

    Blocks start a new line. Scripts, styles, menus and similar elements are left out.
    """
    from lxml import etree

    page = _Page()
    parser = etree.HTMLParser(target=page, huge_tree=True)
    for start in range(0, len(text) + 1, _BLOCK):  # the parser stops at an error only after a block
        parser.feed(text[start : start + _BLOCK])
    parser.close()
    headings = sorted(page.headings, key=lambda heading: heading[0] != "h1")
    title = _joined(page.title) or next(filter(None, (_joined(words) for _, words in headings)), "")
    lines = (_BLANKS.sub(" ", line).strip() for line in "".join(page.words).split("\0"))
    return title, "\n".join(line for line in lines if line)


def _joined(words: list[str]) -> str:
    return " ".join("".join(words).split())


class _Page:
    """Collector of the words of a page; NUL, which the parser replaces in texts, marks a line end."""

    def __init__(self) -> None:
        self.title: list[str] = []
        self.headings: list[tuple[str, list[str]]] = []
        self.words: list[str] = []
        self._depth = 0
        self._hidden = 0  # number of open elements with hidden content
        self._in_title = False
        self._heading = ""

    def start(self, tag: str, attrs: Mapping[str, str]) -> None:
        """Start an element; <body> closes hidden elements before it."""
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
        """End an element, with or without an end tag."""
        self._depth -= 1
        if tag in _HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag == "title":
            self._in_title = False
        elif tag == self._heading:
            self._heading = ""
        self._break(tag)

    def data(self, data: str) -> None:
        """Add text between tags."""
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self.words.append(data)
            if self._heading:
                self.headings[-1][1].append(data)

    def close(self) -> None:
        """End the page."""

    def _break(self, tag: str) -> None:
        if tag in _LINES:
            self.words.append("\0")
        elif tag in _CELLS:
            self.words.append(" ")
