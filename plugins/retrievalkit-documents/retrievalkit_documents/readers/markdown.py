"""Markdown: CommonMark with tables, footnotes and definition lists; the words without their marks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, BinaryIO

from retrievalkit_documents.readers import front_matter
from retrievalkit_documents.readers.html import add_fragment, is_block
from retrievalkit_documents.readers.plain import content, decoded
from retrievalkit_documents.text import Document, Text

_DEEPEST = 90
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]*)([^>]*)>", re.DOTALL)
_ALT = re.compile(r"""\balt\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""", re.IGNORECASE)
_CELL = re.compile(r"(?<!\\)\|")


def read_markdown(stream: BinaryIO) -> Document:
    """Read a Markdown document; the title comes from its front matter or its first heading of the highest level."""
    text = Text()
    fields, source = front_matter.split(decoded(content(stream), text), text)
    title = fields.pop("title", "")
    add_markdown(source, text)
    return text.document(title if isinstance(title, str) else str(title), fields)


def add_markdown(source: str, text: Text) -> None:
    """Add the words of a Markdown text.

    Raises:
        ValueError: Its blocks are nested too deeply.
    """
    from markdown_it import MarkdownIt
    from mdit_py_plugins.deflist import deflist_plugin
    from mdit_py_plugins.footnote import footnote_plugin
    from mdit_py_plugins.tasklists import tasklists_plugin

    parser = MarkdownIt("commonmark", {"maxNesting": _DEEPEST + 10}).enable(["table", "strikethrough"])
    parser.use(footnote_plugin).use(deflist_plugin).use(tasklists_plugin)
    parser.disable("footnote_tail")  # footnotes are read where they are written, also without a reference
    environment: dict[str, Any] = {}
    tokens = parser.parse(source, environment)
    if any(token.level >= _DEEPEST for token in tokens):
        msg = "blocks that are nested too deeply"
        raise ValueError(msg)
    _add_blocks(tokens, environment, source.split("\n"), text)


def _add_blocks(tokens: Iterable[Any], environment: dict[str, Any], lines: list[str], text: Text) -> None:
    headings: list[int] = []
    columns = 0
    row = ""
    for token in tokens:
        kind = token.type
        if kind == "inline":
            _add_inline(token.children or [], environment, text)
        elif kind in ("code_block", "fence"):
            text.line()
            text.keep(token.content.strip("\n"))
            text.line()
        elif kind == "html_block":
            text.line()
            add_fragment(_shown(token.content), text)
            text.line()
        elif kind == "heading_open":
            text.line()
            headings.append(text.mark())
        elif kind == "heading_close":
            text.end_heading(headings.pop(), int(token.tag[1:]))
        elif kind in ("th_close", "td_close"):
            columns += kind == "th_close"
            text.cell()
        elif kind == "tr_open":
            text.row()
            row = lines[token.map[0]] if token.map else ""
        elif kind == "tr_close":
            # The parser drops cells beyond the header's: code with a "|" has too many.
            for cell in _CELL.split(row.strip().strip("|"))[columns:]:
                add_fragment(cell, text)
                text.cell()
            text.line()
        elif kind == "table_open":
            columns = 0
            text.start()
        elif kind.endswith("_open"):
            text.start()
        else:
            text.line()


def _add_inline(tokens: list[Any], environment: dict[str, Any], text: Text) -> None:
    for token in tokens:
        kind = token.type
        if kind in ("text", "text_special", "code_inline"):
            text.add(token.content)
        elif kind == "softbreak":
            text.space()
        elif kind == "hardbreak":
            text.line()
        elif kind == "image":
            _add_inline(token.children or [], environment, text)
            text.count("images")
        elif kind == "html_inline":
            _add_tag(token.content, text)
        elif kind == "footnote_ref":
            note = environment.get("footnotes", {}).get("list", {}).get(token.meta.get("id"), {})
            if note.get("tokens"):  # an inline note, ^[...]
                text.add(" (")
                _add_inline(note["tokens"], environment, text)
                text.add(") ")


def _add_tag(tag: str, text: Text) -> None:
    """Add the effect of an HTML tag among words."""
    match = _TAG.match(tag)
    if match is None:
        return  # a comment or a declaration
    name = match[1].lower()
    if name == "img":
        alt = _ALT.search(match[2])
        text.add(f" {alt[1] or alt[2] or alt[3] or ''} " if alt else "")
        text.count("images")
    elif is_block(name):
        text.line()


def _shown(source: str) -> str:
    """Return HTML whose last comment ends: browsers show nothing after an open comment, but its writer meant to."""
    return source.replace("<!--", "") if source.rfind("<!--") > source.rfind("-->") else source
