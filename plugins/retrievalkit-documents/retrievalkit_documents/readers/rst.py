"""reStructuredText, parsed by docutils; the words of roles and directives that it does not know are kept."""

from __future__ import annotations

import re
from typing import Any, BinaryIO

from retrievalkit_documents.readers.plain import content, decoded
from retrievalkit_documents.text import Document, Text

_ROLE = re.compile(r":[\w:.+-]{1,60}:`([^`]{1,2000})`|`([^`]{1,2000})`:[\w:.+-]{1,60}:")
_TARGET = re.compile(r"\s*<[^<>]*>\s*$")
_SKIPPED = ("comment", "substitution_definition", "target", "meta", "pending", "docinfo_item")
_LITERAL = ("literal_block", "doctest_block", "math_block")
_LINES = (
    "paragraph", "list_item", "term", "definition", "caption", "row", "line", "rubric", "attribution", "title",
    "subtitle", "field_name", "field_body", "legend",
)  # fmt: skip


def read_rst(stream: BinaryIO) -> Document:
    """Read a document; no file is included, and nothing raw is inserted."""
    from docutils import core, nodes, utils

    text = Text()
    source = decoded(content(stream), text)
    settings = {
        "file_insertion_enabled": False,
        "raw_enabled": False,
        "report_level": utils.Reporter.SEVERE_LEVEL,
        "halt_level": utils.Reporter.SEVERE_LEVEL + 1,
        "warning_stream": False,
        "doctitle_xform": False,
        "docinfo_xform": False,
        "input_encoding": "unicode",
        "_disable_config": True,
        "line_length_limit": 1 << 26,
    }
    tree = core.publish_doctree(_without_roles(source), settings_overrides=settings)
    _add(tree, text, nodes, 0)
    return text.document()


def _without_roles(source: str) -> str:
    """Return a text without roles, most of which only Sphinx knows: ":ref:`the guide <guide>`" becomes "the guide"."""
    return _ROLE.sub(lambda match: _TARGET.sub("", match[1] or match[2] or "") or match[1] or match[2] or "", source)


def _add(node: Any, text: Text, nodes: Any, level: int) -> None:
    for child in node.children:
        name = child.tagname
        if isinstance(child, nodes.Text):
            text.add(child.astext())
        elif name in _SKIPPED:
            continue
        elif name in _LITERAL:
            text.line()
            text.keep(child.astext())
            text.line()
        elif name == "system_message":
            # The source of an unknown directive, without the message.
            for block in child.findall(nodes.literal_block):
                text.line()
                text.keep(_directive(block.astext()), code=False)
                text.line()
        elif name == "image":
            text.count("images")
            text.add(f" {child.get('alt', '')} ")
        elif name == "title":
            with text.heading(max(level, 1)):
                _add(child, text, nodes, level)
        elif name == "entry":
            _add(child, text, nodes, level)
            text.cell()
        else:
            if name == "row":
                text.row()
            elif name in _LINES:
                text.start()
            elif name in ("option", "option_argument", "description"):
                text.space()
            _add(child, text, nodes, level + (name == "section"))
            if name in _LINES:
                text.line()


def _directive(source: str) -> str:
    """Return the words of a directive: ".. note:: Text" becomes "Text", without its options."""
    lines = [re.sub(r"^\.\. (?:\|[^|]*\| )?[\w:.+-]+::[ ]?", "", line) for line in source.split("\n")]
    return "\n".join(line for line in lines if not re.match(r"\s*:[\w-]+:(?:\s|$)", line)).strip("\n")
