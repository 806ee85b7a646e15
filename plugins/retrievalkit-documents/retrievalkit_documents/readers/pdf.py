"""PDF: the text of the pages, the values of forms and the comments."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, BinaryIO

from retrievalkit_documents.text import Document, Text, UnreadableError

_PROGRAMS = re.compile(r"(?:Microsoft (?:Word|PowerPoint|Excel)|OpenOffice[\w.]*|LibreOffice) - ", re.IGNORECASE)
_FILES = "docx?|pdf|indd|qxp|qxd|dvi|tex|ps|eps|pptx?|xlsx?|rtf|odt|html?|txt|tmp|cdr|ai|pub|wpd|md"
_NO_TITLE = re.compile(
    r"(?i)\W*(?:untitled(?:[ -]?document)?|no title|unknown|title|document\W?\d*|slide \d+|layout ?\d+|"
    rf"powerpoint presentation|anonymous|[\w\s().,~-]{{0,200}}\.(?:{_FILES})|"
    r"(?:[a-z]:\\|file:/|https?:/|/).*|[\d\s._-]*|[0-9a-f-]{16,})\W*"
)
_NOTE = re.compile(r"[^\W\d_]{3}[.,;:)]?([0-9]{1,3}|[*\u2020\u2021])(?!\w)")
_RAISED = 0.9  # of the font size
_HYPHEN = re.compile(r"(\w{1,99})\x02(?:\r?\n)?(\w{1,99})?")
_LINK, _POPUP, _WIDGET, _ATTACHED = 2, 16, 20, 17
_UNSEEN = 0b100010  # hidden, or not shown
_BUTTONS = (1, 2, 3)
_OFF = ("", "off", "yes", "on")


def read_pdf(stream: BinaryIO) -> Document:
    """Read the pages of a PDF document; the metadata has a title only if a person wrote it."""
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(stream)
    except pypdfium2.PdfiumError as error:
        encrypted = getattr(error, "err_code", None) == pypdfium2.raw.FPDF_ERR_PASSWORD
        raise UnreadableError("encrypted" if encrypted else "damaged") from None
    if document.get_formtype() != pypdfium2.raw.FORMTYPE_NONE:
        document.init_forms()
    text, empty = Text(), 0
    for number in range(len(document)):
        text.page()
        try:
            page = document[number]
        except pypdfium2.PdfiumError:
            text.count("damaged pages")
            continue
        textpage = page.get_textpage()
        words = _words(textpage)
        _add(words, text)
        _add_annotations(document, page, words, text)
        empty += not words.strip()
        textpage.close()
        page.close()
    text.count("pages without text (scanned?)", empty)
    text.count("embedded files", document.count_attachments())
    return text.document(title_of(document.get_metadata_value("Title")))


def title_of(title: str) -> str:
    """Return a title from the metadata; "" if it is a file name or the default of a program."""
    title = _PROGRAMS.sub("", " ".join(title.replace("\0", "").split()))
    return "" if _NO_TITLE.fullmatch(title) else title


def _words(textpage: Any) -> str:
    """Return the text inside a page, with a space before the raised number of a note: "word 1", not "word1"."""
    import pypdfium2.raw as raw

    inside: str = textpage.get_text_bounded()
    words: str = textpage.get_text_range()
    if len(words) != textpage.count_chars() or "".join(inside.split()) != "".join(words.split()):
        return inside  # without the positions of its letters
    size = raw.FPDFText_GetFontSize
    notes = [
        match.start(1)
        for match in _NOTE.finditer(words)
        if size(textpage, match.start(1)) < _RAISED * size(textpage, match.start())
    ]
    return (
        "".join(f"{words[start:end]} " for start, end in pairwise([0, *notes])) + words[notes[-1] :] if notes else words
    )


def _add(words: str, text: Text) -> None:
    """Add the words of a page, and join the halves of words that were divided at the end of a line."""
    whole = words.casefold()

    def joined(match: re.Match[str]) -> str:
        first, second = match[1], match[2] or ""
        compound = f"{first}-{second}".casefold()
        # A compound keeps its hyphen: it occurs elsewhere, or its halves are names or numbers.
        keep = (
            not second
            or compound in whole
            or second[:1].isupper()
            or first[-1:].isdigit()
            or second[:1].isdigit()
            or first[-1:].isupper()
        )
        return f"{first}-{second}" if keep else first + second

    for line in _HYPHEN.sub(joined, words).replace("\x02", "-").splitlines():
        text.add(line)
        text.line()


def _add_annotations(document: Any, page: Any, words: str, text: Text) -> None:
    """Add the values of form fields and the texts of comments that the page does not contain already."""
    import pypdfium2.raw as raw

    seen = " ".join(words.split())
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        if not annotation:
            continue
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        if kind == _ATTACHED:
            text.count("embedded files")
        if kind not in (_LINK, _POPUP) and not raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
            value = (
                _value(document, annotation)
                if kind == _WIDGET
                else _string(raw.FPDFAnnot_GetStringValue, annotation, b"Contents")
            )
            if value.strip() and " ".join(value.split()) not in seen:
                text.line()
                for line in value.splitlines():
                    text.add(line)
                    text.line()
        raw.FPDFPage_CloseAnnot(annotation)


def _value(document: Any, annotation: Any) -> str:
    """Return the value of a form field; "" for a button that is not set."""
    import pypdfium2.raw as raw

    if document.formenv is None:
        return _string(raw.FPDFAnnot_GetStringValue, annotation, b"V")
    form = document.formenv
    value = _string(raw.FPDFAnnot_GetFormFieldValue, form, annotation)
    if raw.FPDFAnnot_GetFormFieldType(form, annotation) in _BUTTONS:
        return "" if value.casefold() in _OFF or not raw.FPDFAnnot_IsChecked(form, annotation) else value
    return value


def _string(function: Any, *arguments: Any) -> str:
    """Return a string of pdfium, which first reports its size in bytes."""
    import ctypes

    import pypdfium2.raw as raw

    size = function(*arguments, None, 0)
    if size <= 2:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR)), size)
    return buffer.raw.decode("utf-16-le", "replace").rstrip("\0")
