"""Title and text of a document: plain text, Markdown, HTML or PDF."""

from __future__ import annotations

import codecs
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from retrievalkit.data import files
from retrievalkit.data.files import reading
from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.data.sources.document_html import DEEPEST, NestedError, declared_encoding, read_html
from retrievalkit.errors import DataError

_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_SLOW = ("idna", "punycode")  # quadratic in Python, and of no page
_FRONT = re.compile(r"\A---[ \t]*\n(.*?)^(?:---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(\S.*)$", re.MULTILINE)
_FENCE = re.compile(r"[ ]{0,3}(```+|~~~+)")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}[ \t]+(.*)$")
_UNDERLINE = re.compile(r"[ ]{0,3}(?:=+|-{2,})[ \t]*$")
_LINK = re.compile(r"!?\[([^][]*)\]\([^()\s]*(?:[ \t]+\"[^\"]*\")?\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

PDF_SECONDS = 10
"""Time for each MiB of a PDF document."""


class UnreadableError(Exception):
    """A document without text that can be read. The message says why in a few words: "binary"."""


class Document(NamedTuple):
    """Title and text of a document."""

    title: str
    text: str


def read_document(path: Path, name: str) -> Document:
    """Read a document.

    Args:
        path: Its file.
        name: Its name, of which the title is made if the document has none.
    """
    title, text = READERS[path.suffix.lower()](path)
    text = text.strip()
    if not text:
        msg = "without text"
        raise UnreadableError(msg)
    title = " ".join(title.split()) or PurePosixPath(name).stem
    return Document(_whole(title), _whole(text))


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
    return Document(title or next(filter(str.strip, headings), ""), "\n".join(lines))


def _read_html(path: Path) -> Document:
    raw = _content(path)
    try:
        return Document(*read_html(_decoded(raw, declared_encoding(raw))))
    except NestedError:
        msg = f"HTML with more than {DEEPEST:,} elements inside one another"
        raise UnreadableError(msg) from None


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


READERS: dict[str, Callable[[Path], Document]] = {
    ".txt": _read_plain,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".html": _read_html,
    ".htm": _read_html,
    ".pdf": _read_pdf,
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
