"""Spreadsheets: a line per row, a page per sheet; hidden sheets are counted."""

from __future__ import annotations

import zipfile
from datetime import date, time
from typing import Any, BinaryIO

from retrievalkit_documents.text import Document, Text


def read_sheets(stream: BinaryIO) -> Document:
    """Read the cells of all visible sheets, and the comments."""
    import python_calamine as calamine

    text, title = Text(), ""
    book: Any = calamine.load_workbook(stream)
    for sheet in book.sheets_metadata:
        if sheet.visible != calamine.SheetVisibleEnum.Visible:
            text.count("hidden sheets")
            continue
        text.page()
        if sheet.typ != calamine.SheetTypeEnum.WorkSheet:
            text.count("charts")
            continue
        with text.heading(1):
            text.add(sheet.name)
        for row in book.get_sheet_by_name(sheet.name).iter_rows():
            for cell in row:
                if (words := _shown(cell)) and not words.isspace():
                    text.add(words)
                    text.cell()
            text.line()
    stream.seek(0)
    if zipfile.is_zipfile(stream):
        title = _add_others(stream, text)
    document = text.document(title)
    document.title = " ".join(title.split())
    return document


def _shown(value: Any) -> str:
    """Return a cell as text."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"{int(value)}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, date | time):
        return value.isoformat().removesuffix("T00:00:00").replace("T", " ")
    return str(value)


def _add_others(stream: BinaryIO, text: Text) -> str:
    """Add comments and the words of drawings, count what is not read, and return the title."""
    from retrievalkit_documents.readers import office

    package = office.Package(stream)
    for name in sorted(package.names):
        if name.startswith(("xl/comments", "xl/threadedComments/", "xl/drawings/drawing")) and name.endswith(".xml"):
            package.parse(name, office.Drawing(text))
            text.line()
    package.count_unread(text)
    return office.title(package, "meta.xml" if "meta.xml" in package.names else "docProps/core.xml")
