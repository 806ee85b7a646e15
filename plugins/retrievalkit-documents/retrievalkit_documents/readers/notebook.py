"""Jupyter notebooks: Markdown, code and the texts of outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from retrievalkit_documents.readers.html import add_fragment
from retrievalkit_documents.readers.markdown import add_markdown
from retrievalkit_documents.readers.plain import content, decoded
from retrievalkit_documents.text import Document, Text, UnreadableError


def read_notebook(stream: BinaryIO) -> Document:
    """Read the cells of a notebook in any format from 3 on."""
    text = Text()
    try:
        notebook = json.loads(decoded(content(stream), text))
    except (ValueError, RecursionError):
        raise UnreadableError("damaged") from None
    if not isinstance(notebook, dict):
        raise UnreadableError("damaged")
    for cell in _cells(notebook):
        source = _joined(cell.get("source", cell.get("input")))
        text.line()
        if cell.get("cell_type") in ("markdown", "heading"):
            mark = text.mark()
            add_markdown(source, text)
            if cell.get("cell_type") == "heading":
                level = cell.get("level")
                text.end_heading(mark, level if isinstance(level, int) else 1)
        else:
            text.keep(source.strip("\n"))
        for output in _dicts(cell.get("outputs")):
            _add_output(output, text)
    metadata = notebook.get("metadata")
    title = metadata.get("title") if isinstance(metadata, dict) else ""
    return text.document(title if isinstance(title, str) else "")


def _cells(notebook: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for sheet in (notebook, *_dicts(notebook.get("worksheets"))):
        yield from _dicts(sheet.get("cells"))


def _dicts(values: Any) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _add_output(output: dict[str, Any], text: Text) -> None:
    data = output.get("data") if isinstance(output.get("data"), dict) else output
    assert isinstance(data, dict)
    text.count("images", sum(str(kind).startswith("image/") or kind in ("png", "jpeg", "svg") for kind in data))
    text.line()
    if output.get("output_type") == "error" or "ename" in output:
        text.add(f"{output.get('ename')}: {output.get('evalue')}")
    elif "text/markdown" in data:
        add_markdown(_joined(data["text/markdown"]), text)
    elif "text/plain" in data or "text" in data:
        text.keep(_joined(data.get("text/plain", data.get("text"))).strip("\n"))
    elif "text/html" in data:
        add_fragment(_joined(data["text/html"]), text)
    else:
        for kind, value in data.items():
            if str(kind).startswith("text/"):
                text.keep(_joined(value).strip("\n"))
            elif kind == "application/json":
                text.keep(json.dumps(value, ensure_ascii=False))
    text.line()


def _joined(source: Any) -> str:
    """Return a text, which notebooks store as a text or a list of lines."""
    return "".join(map(str, source)) if isinstance(source, list) else source if isinstance(source, str) else ""
