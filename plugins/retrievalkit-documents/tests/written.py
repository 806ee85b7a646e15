"""Writers of small documents: archives of XML parts, PDF objects."""

from __future__ import annotations

import io
import zipfile
import zlib

import docx

WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
_OFFICE = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_KINDS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def archive(**parts):
    """Create an archive; in names of parts, "__" stands for a slash and "_" for a dot."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(name.replace("__", "/").replace("_", "."), content)
    return stream.getvalue()


def word(body, **parts):
    """Create a Word document with a body, and other parts by kind: footnotes, endnotes, comments, header, footer."""
    stream, copy = io.BytesIO(), io.BytesIO()
    docx.Document().save(stream)
    related = "".join(f'<Relationship Id="x{name}" Type="{_KINDS}/{name}" Target="{name}9.xml"/>' for name in parts)
    kinds = "".join(f'<Override PartName="/word/{name}9.xml" ContentType="{_OFFICE}.{name}+xml"/>' for name in parts)
    with zipfile.ZipFile(stream) as packed, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as changed:
        for name in packed.namelist():
            content = packed.read(name)
            if name == "word/document.xml":
                content = f"<w:document {WORD}><w:body>{body}</w:body></w:document>".encode()
            elif name == "word/_rels/document.xml.rels":
                content = content.replace(b"</Relationships>", f"{related}</Relationships>".encode())
            elif name == "[Content_Types].xml":
                content = content.replace(b"</Types>", f"{kinds}</Types>".encode())
            changed.writestr(name, content)
        for name, content in parts.items():
            changed.writestr(f"word/{name}9.xml", f"<w:{name} {WORD}>{content}</w:{name}>")
    return copy.getvalue()


def opendocument(content, kind="text"):
    """Create an OpenDocument file with a body."""
    spaces = " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "text", "table", "draw", "style", "presentation")
    )
    body = f"<office:document-content {spaces}><office:body>{content}</office:body></office:document-content>"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        packed.writestr("mimetype", f"application/vnd.oasis.opendocument.{kind}")
        packed.writestr("content.xml", body)
    return stream.getvalue()


def pdf(pages, title="", annotations=(), packed=False, copies=1):
    """Create a PDF document from the operators of each page, with copies, and annotations of the first page."""
    first = 5
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(pages)))
    kids = " ".join([kids] * copies)
    objects = [
        "<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[]/DR<</Font<</F 3 0 R>>>>/DA(/F 9 Tf)>>>>",
        f"<</Type/Pages/Kids[{kids}]/Count {copies * len(pages)}>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        f"<</Title({title})>>",
    ]
    last = first + 2 * len(pages)
    listed = " ".join(f"{last + number} 0 R" for number in range(len(annotations)))
    for number, page in enumerate(pages):
        notes = f"/Annots[{listed}]" if not number else ""
        look = f"/Resources<</Font<</F 3 0 R>>>>/MediaBox[0 0 600 800]/Contents {first + 2 * number + 1} 0 R{notes}"
        content = zlib.compress(page.encode()).decode("latin-1") if packed else page
        how = "/Filter/FlateDecode" if packed else ""
        objects.append(f"<</Type/Page/Parent 2 0 R{look}>>")
        objects.append(f"<</Length {len(content)}{how}>>stream\n{content}\nendstream")
    objects += annotations
    content, places = "%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        places.append(f"{len(content):010} 00000 n \n")
        content += f"{number} 0 obj\n{body}\nendobj\n"
    size = len(objects) + 1
    table = f"xref\n0 {size}\n0000000000 65535 f \n{''.join(places)}trailer<</Size {size}/Root 1 0 R/Info 4 0 R>>\n"
    return f"{content}{table}startxref\n{len(content)}\n%%EOF\n".encode("latin-1")


def shown(*lines):
    """Return the operators of a page with lines of text."""
    return "BT /F 12 Tf 50 700 Td " + " ".join(f"({line}) Tj 0 -20 Td" for line in lines) + " ET"
