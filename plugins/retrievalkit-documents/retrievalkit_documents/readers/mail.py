"""E-mail (.eml): subject, people, and the texts of the message and of attached messages."""

from __future__ import annotations

import email
import email.message
import email.policy
from contextlib import suppress
from typing import BinaryIO

from retrievalkit_documents.readers.html import add_fragment
from retrievalkit_documents.readers.plain import content, decoded
from retrievalkit_documents.text import Document, Text

_HEADERS = ("From", "To", "Cc", "Date")
_DEEPEST = 50
_NO_TEXTS = ("text/rtf", "text/richtext")
_RICHER = 4
"""A message is read as HTML if its plain text is shorter by this factor: "Please enable HTML"."""


def read_mail(stream: BinaryIO) -> Document:
    """Read a message; other attachments than texts are counted."""
    text = Text()
    message = email.message_from_bytes(content(stream), policy=email.policy.default)
    _add(message, text, 0)
    document = text.document(_header(message, "Subject"))
    document.title = " ".join(_header(message, "Subject").split()) or document.title
    return document


def _header(message: email.message.Message, name: str) -> str:
    raw = next((str(value) for key, value in message.raw_items() if key.lower() == name.lower()), "")
    if not raw.isascii():  # not encoded, as it should be
        declared = str(message.get_content_charset() or "cp1252")
        return " ".join(decoded(raw.encode("utf-8", "surrogateescape"), Text(), declared).split())
    with suppress(Exception):  # the standard library documents no exceptions of damaged headers
        return str(message[name] or "")
    return ""


def _add(message: email.message.Message, text: Text, depth: int) -> None:
    with text.heading(1 + depth):
        text.add(_header(message, "Subject"))
    for name in _HEADERS:
        if value := _header(message, name):
            text.add(f"{name}: {value}")
            text.line()
    _add_body(message, text, depth)


def _add_body(part: email.message.Message, text: Text, depth: int) -> None:
    if depth > _DEEPEST:
        msg = "messages that are nested too deeply"
        raise ValueError(msg)
    kind = part.get_content_type()
    payload = part.get_payload()
    parts = (
        [inner for inner in payload if isinstance(inner, email.message.Message)] if isinstance(payload, list) else []
    )
    if kind == "message/rfc822" and parts:
        for inner in parts:
            _add(inner, text, depth + 1)
    elif kind == "message/delivery-status":
        for name, value in (header for inner in parts for header in inner.items()):
            text.line()
            text.add(f"{name}: {value}")
    elif parts:
        for inner in [_best(parts)] if kind == "multipart/alternative" else parts:
            _add_body(inner, text, depth + 1)
    elif kind.startswith("text/") and kind not in _NO_TEXTS:
        raw = part.get_payload(decode=True)
        words = decoded(raw if isinstance(raw, bytes) else b"", text, str(part.get_content_charset() or ""))
        text.line()
        if kind == "text/html":
            add_fragment(words, text)
        elif words.strip():
            text.keep(words.strip("\n"), code=False)
        text.line()
    else:
        text.count("attachments")
        text.line()
        text.add(part.get_filename() or "")
        text.line()


def _best(parts: list[email.message.Message]) -> email.message.Message:
    """Return the form of a message to read: plain text, unless another form has much more text."""
    sizes = []
    for part in parts:
        text = Text()
        leaf = next((leaf for leaf in part.walk() if leaf.get_content_type() in ("text/plain", "text/html")), None)
        if leaf is not None:
            _add_body(leaf, text, 0)
        plain = leaf is not None and leaf.get_content_type() == "text/plain"
        sizes.append(len(text.document().text) * (_RICHER if plain else 1))
    return parts[sizes.index(max(sizes))]
