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


def read_mail(stream: BinaryIO) -> Document:
    """Read a message; other attachments than texts are counted."""
    text = Text()
    message = email.message_from_bytes(content(stream), policy=email.policy.default)
    _add(message, text, 0)
    document = text.document(_header(message, "Subject"))
    document.title = " ".join(_header(message, "Subject").split()) or document.title
    return document


def _header(message: email.message.Message, name: str) -> str:
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
    elif parts:
        if kind == "multipart/alternative":
            # The same text in several forms; plain text if it has any.
            best = sorted(parts, key=lambda inner: inner.get_content_type() != "text/plain")
            before = text.mark()
            for inner in best:
                _add_body(inner, text, depth + 1)
                if text.mark() > before:
                    break
        else:
            for inner in parts:
                _add_body(inner, text, depth + 1)
    elif kind in ("text/plain", "text/html"):
        raw = part.get_payload(decode=True)
        words = decoded(raw if isinstance(raw, bytes) else b"", text, str(part.get_content_charset() or ""))
        text.line()
        if kind == "text/html":
            add_fragment(words, text)
        else:
            text.keep(words.strip("\n"), code=False)
        text.line()
    else:
        text.count("attachments")
        text.line()
        text.add(part.get_filename() or "")
        text.line()
