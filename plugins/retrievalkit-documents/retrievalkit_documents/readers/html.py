"""HTML: the text that a browser shows. Elements of the list `_INLINE` are parts of words; all others are blocks."""

from __future__ import annotations

import re
from typing import Any, BinaryIO

from retrievalkit_documents.readers.plain import content, decoded
from retrievalkit_documents.text import Document, Text

_INLINE = frozenset((
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "blink", "cite", "code", "data", "del", "dfn", "em", "font", "i",
    "ins", "kbd", "mark", "nobr", "q", "rb", "ruby", "s", "samp", "slot", "small", "span", "strike", "strong", "sub",
    "sup", "time", "tspan", "tt", "u", "var", "wbr", "mi", "mn", "mo", "mtext",
))  # fmt: skip
_APART = frozenset((
    "label", "button", "output", "meter", "progress", "rt", "rp", "rtc", "input", "img", "area", "option", "text",
    "math", "svg", "select", "textarea", "audio", "video", "canvas", "object", "picture", "map", "mrow", "msup",
    "msub", "mfrac", "msqrt", "embed", "optgroup",
))  # fmt: skip
"""Elements that flow in a line, but whose words are apart from the words around them."""
_BESIDE = frozenset(("a", "del", "ins"))
"""Inline elements whose words are apart if nothing is between them: <a>Home</a><a>About</a>."""
_NOTES = {"doc-noteref", "noteref"}
_HIDDEN = frozenset((
    "script", "style", "template", "noscript", "head", "iframe", "datalist", "noframes", "annotation", "annotation-xml",
    "metadata",
))  # fmt: skip
_PREFORMATTED = frozenset(("pre", "listing", "xmp", "plaintext", "textarea"))
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_CELLS = frozenset(("td", "th"))
_MEDIA = {"img": "images", "audio": "audio", "video": "videos", "iframe": "embedded pages", "canvas": "drawings"}
_UNSEEN = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))", re.IGNORECASE)
DECLARED = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9._:-]{1,40})|\A\s*<\?xml[^>]{0,100}?encoding\s*=\s*["']([\w.:-]{1,40})""",
    re.IGNORECASE,
)
_LOOK = 1 << 16
_XML = re.compile(r"\A[^<]{0,10}<\?xml|\A.{0,999}<html[^>]{0,300}w3.org/1999/xhtml", re.DOTALL)
_EMPTY = re.compile(r"""<([a-zA-Z][\w:.-]*+)((?:[^<>"'/]|"[^"]*+"|'[^']*+'|/(?!>))*+)/>""")
# Browsers show the content of these templates.
_SHADOW = re.compile(r"<template(\s[^<>]{0,300}shadowrootmode.*?</)template", re.IGNORECASE | re.DOTALL)
_VOID = frozenset((
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
))  # fmt: skip


def is_block(tag: str) -> bool:
    """True if an element starts a new line."""
    return tag not in _INLINE and tag not in _APART


def read_html(stream: BinaryIO) -> Document:
    """Read a page; its title is <title>, or the first heading of the highest level."""
    return html_document(content(stream))


def html_document(raw: bytes) -> Document:
    """Read a page from its bytes, by their byte order mark or declared encoding."""
    text = Text()
    declared = DECLARED.search(raw[:_LOOK])
    title = add_page(decoded(raw, text, (declared[1] or declared[2]).decode("ascii") if declared else ""), text)
    return text.document(title)


def add_page(source: str, text: Text, *, is_xml: bool = False) -> str:
    """Add the words of a page, and return its title; in XML, an element such as <title/> ends itself."""
    from selectolax.lexbor import LexborHTMLParser

    if is_xml or _XML.search(source[:2000]):
        source = _EMPTY.sub(lambda tag: tag[0] if tag[1] in _VOID else f"<{tag[1]}{tag[2]}></{tag[1]}>", source)
    page = LexborHTMLParser(_SHADOW.sub(r"<div\1div", source))
    root = page.root
    if root is not None:
        _add(root, text)
    frames = page.css("noframes") if "<noframes" in source[:1_000_000].lower() else []
    for frame in frames:
        add_fragment(frame.text(), text)
    title = page.css_first("head > title")
    return title.text() if title is not None else ""


def add_fragment(source: str, text: Text) -> None:
    """Add the words of a part of a page."""
    from selectolax.lexbor import LexborHTMLParser

    root = LexborHTMLParser(source).root
    if root is not None:
        _add(root, text)


def _add(root: Any, text: Text) -> None:
    """Walk a tree without recursion: pages may be nested deeply."""
    node, depth = root, 0
    kept = 0  # number of open elements with preformatted text
    opened: list[tuple[str, int]] = []  # headings and navigation: tag, position
    while True:
        enter = _open(node, text, kept, opened)
        child = node.first_child if enter else None
        if enter:
            kept += node.tag in _PREFORMATTED
        if child is not None:
            node, depth = child, depth + 1
            continue
        while True:
            if enter:
                kept -= node.tag in _PREFORMATTED
                _close(node, text, opened)
            if not depth:
                return
            if (after := node.next) is not None:
                node = after
                break
            node, depth, enter = node.parent, depth - 1, True


def _open(node: Any, text: Text, kept: int, opened: list[tuple[str, int]]) -> bool:
    """Start a node; returns False if its content is not read."""
    tag = node.tag
    if tag == "-text":
        words = node.text_content
        text.keep(words) if kept else text.add(words)
        return False
    if tag.startswith(("-", "!")):
        return False
    if tag in _MEDIA:
        text.count(_MEDIA[tag])
    if tag in _HIDDEN:
        return False
    attributes = node.attributes
    if attributes and _is_hidden(attributes):
        return False
    if tag == "br":
        text.line() if not kept else text.keep("\n")
    elif tag in _HEADINGS:
        text.start()
        opened.append((tag, text.mark()))
    elif tag == "nav" or attributes.get("role") == "navigation":
        text.line()
        opened.append(("nav", text.mark()))
    elif tag in _BESIDE:
        before = node.prev
        if before is not None and before.tag in _BESIDE:
            text.space()
        if _NOTES & {attributes.get("role"), attributes.get("epub:type")}:
            text.note()
    elif tag == "sup":
        text.note()
    elif tag in _APART:
        text.space()
        text.add(_attribute(tag, attributes))
    elif tag == "tr":
        text.row()
    elif tag not in _INLINE and tag not in _CELLS:
        text.start()
    return True


def _close(node: Any, text: Text, opened: list[tuple[str, int]]) -> None:
    tag = node.tag
    if tag in _HEADINGS:
        text.end_heading(opened.pop()[1], _HEADINGS[tag])
    elif tag == "nav" or node.attributes.get("role") == "navigation":
        text.aside(opened.pop()[1])
        text.line()
    elif tag in _CELLS:
        text.cell()
    elif tag in _APART:
        text.space()
    elif tag not in _INLINE:
        text.line()


def _is_hidden(attributes: dict[str, str | None]) -> bool:
    if "hidden" in attributes and attributes["hidden"] != "until-found":
        return True
    style = attributes.get("style")
    return bool(style and _UNSEEN.search(style))


def _attribute(tag: str, attributes: dict[str, str | None]) -> str:
    """Return the text that an element shows from its attributes."""
    if tag in ("img", "area"):
        return attributes.get("alt") or ""
    if tag == "input" and attributes.get("type") not in ("hidden", "password", "checkbox", "radio"):
        names = ("alt",) if attributes.get("type") == "image" else ("value", "placeholder")
        return next((value for name in names if (value := attributes.get(name))), "")
    return attributes.get("label") or "" if tag in ("option", "optgroup") else ""
