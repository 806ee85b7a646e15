"""Readers of documents by format: each is a function that converts an open file to a `Document`.

A parser owns each format, and the reader walks its tree. The rule errs on the side of text: whatever is not known to be
hidden is read, and whatever is not known to be part of a word ends it.
"""

from __future__ import annotations

import zipfile
from typing import BinaryIO

from retrievalkit_documents.text import UnreadableError

PLAIN = ".txt"
TEXTUAL = (".md", ".markdown", ".html", ".htm", ".xhtml", ".rst", ".eml")
"""Formats whose files are readable as plain text if they cannot be parsed."""
CODE = (
    *(".py", ".js", ".jsx", ".ts", ".tsx", ".java", ".kt", ".scala", ".go", ".rs", ".c", ".h", ".cc", ".cpp", ".hpp"),
    *(".cs", ".swift", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".sh", ".sql", ".tex", ".adoc", ".org"),
)
READERS = {
    **dict.fromkeys((PLAIN, ".text", *CODE), "plain:read_plain"),
    **dict.fromkeys((".md", ".markdown"), "markdown:read_markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html:read_html"),
    ".rst": "rst:read_rst",
    ".ipynb": "notebook:read_notebook",
    ".eml": "mail:read_mail",
    ".pdf": "pdf:read_pdf",
    **dict.fromkeys((".docx", ".docm"), "office:read_word"),
    **dict.fromkeys((".pptx", ".pptm"), "office:read_slides"),
    **dict.fromkeys((".odt", ".odp"), "office:read_opendocument"),
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "sheets:read_sheets"),
    ".epub": "office:read_epub",
}
"""File extension -> reader."""

_ZIP, _OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ZIPPED = {"word/": ".docx", "ppt/": ".pptx", "xl/": ".xlsx"}
_MIMETYPES = {
    "application/epub+zip": ".epub",
    "application/vnd.oasis.opendocument.text": ".odt",
    "application/vnd.oasis.opendocument.presentation": ".odp",
    "application/vnd.oasis.opendocument.spreadsheet": ".ods",
}
_OFFICE = (".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm", ".xlsb")


def ending_of(stream: BinaryIO, ending: str) -> str:
    """Return the file extension for the content of a file: files often have a wrong one."""
    start = stream.read(1024)
    stream.seek(0)
    if start[:1024].lstrip(b"\0 \t\r\n").startswith(b"%PDF-"):
        return ".pdf"
    if start.startswith(_ZIP):
        return _zipped(stream, ending)
    if start.startswith(_OLE):
        if ending == ".xls":
            return ending
        reason = "encrypted, or in an old format of Office" if ending in _OFFICE else "binary"
        raise UnreadableError(reason)
    if ending == ".xls" or not READERS[ending].startswith(("office", "sheets", "pdf")):
        return ".html" if ending == ".xls" else ending
    if ending != ".pdf":
        raise UnreadableError("damaged" if start else "without text")
    return ending


def _zipped(stream: BinaryIO, ending: str) -> str:
    try:
        with zipfile.ZipFile(stream) as archive:
            names = archive.namelist()
            if "mimetype" in names and archive.getinfo("mimetype").file_size < 100:
                kind = archive.read("mimetype").decode("ascii", "replace").strip().removesuffix("-template")
                if kind in _MIMETYPES:
                    return _MIMETYPES[kind]
    except Exception as error:  # noqa: BLE001 - zipfile documents few of its exceptions
        reason = "encrypted" if "encrypted" in str(error) else "damaged"
        raise UnreadableError(reason) from None
    finally:
        stream.seek(0)
    for folder, known in _ZIPPED.items():
        if any(name.startswith(folder) for name in names):
            same = READERS.get(ending) == READERS[known]
            return ending if same else known
    msg = "damaged" if READERS[ending].startswith(("office", "sheets")) else "binary"
    raise UnreadableError(msg)
