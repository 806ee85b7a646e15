"""Plain text and code, and the decoding of all formats that are text."""

from __future__ import annotations

import codecs
import re
from typing import BinaryIO

from retrievalkit_documents.text import Document, Text, UnreadableError

MOST_BYTES = 1 << 26
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark begins it
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WIDE = ["utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "utf_7"]  # see _marked
_SLOW = ("idna", "punycode")  # quadratic in Python, and not used in documents
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_HIGH = re.compile(rb"[\x80-\xff]+")
_LETTER = re.compile(rb"[A-Za-z]")
_ACCENTS = 2  # next to each other, on average
_LOOK = 1 << 16
GUESSED = "texts in an encoding that was guessed"


def read_plain(stream: BinaryIO) -> Document:
    """Read a text file."""
    text = Text()
    text.keep(decoded(content(stream), text).strip("\n"), code=False)
    return text.document()


def content(stream: BinaryIO) -> bytes:
    """Return the content of a file of text."""
    raw = stream.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        msg = f"larger than {MOST_BYTES >> 20} MiB"
        raise UnreadableError(msg)
    return raw


def decoded(raw: bytes, text: Text, declared: str = "") -> str:
    """Decode bytes by their byte order mark, in UTF-8, or in the declared encoding; a guess is counted."""
    for name in filter(None, (_marked(raw), "utf-8", declared)):
        try:
            if codecs.lookup(name).name not in _SLOW:
                return _checked(raw.decode(name))
        except (UnicodeError, LookupError):
            continue
    mended = _checked(raw.decode("utf-8", "replace"))
    if 2 * (bad := mended.count("\ufffd")) < sum(map(len, _NOT_ASCII.findall(mended))):
        text.count("damaged letters", bad)
        return mended
    text.count(GUESSED)
    return _checked(raw.decode(_guessed(raw[:_LOOK]), "replace"))


def _guessed(raw: bytes) -> str:
    """Return the likely encoding of bytes that are not UTF-8."""
    runs = _HIGH.findall(raw)
    high = sum(map(len, runs))
    # Letters with accents among others are Western European; a detector errs on short texts.
    if high <= _ACCENTS * len(runs) and high <= len(_LETTER.findall(raw)):
        return "cp1252"
    from charset_normalizer import from_bytes

    best = from_bytes(raw, cp_exclusion=_WIDE).best()
    return best.encoding if best else "cp1252"


def _marked(raw: bytes) -> str:
    """Return the encoding that a byte order mark, or the zeros of UTF-16, show; "" if none does."""
    if name := next((name for mark, name in _BOMS.items() if raw.startswith(mark)), ""):
        return name
    even, odd = raw[0:_LOOK:2].count(0), raw[1:_LOOK:2].count(0)
    # One in five letters of a text has a high byte of zero, even in Asian languages, whose spaces and digits do.
    if max(even, odd) * 10 < len(raw[:_LOOK]) or min(even, odd) * 20 > max(even, odd):
        return ""
    return "utf-16-le" if odd > even else "utf-16-be"


def _checked(text: str) -> str:
    """Return a text with line feeds; a text with many control characters is none."""
    if len(_CONTROL.findall(text, 0, _LOOK)) * 20 > min(len(text), _LOOK):
        raise UnreadableError("binary")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
