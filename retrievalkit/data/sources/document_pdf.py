"""Extract the title and the text of a PDF document: `python document_pdf.py MOST_CHARACTERS < FILE`, to JSON.

A process of its own, so that `document_text` can end it: a file of a few KB can keep any PDF library busy for days, or
make it fill the memory. Imports nothing of ours, because it starts once for each document.
"""

from __future__ import annotations

import json
import resource
import sys

import pypdfium2

_MEMORY = 2 << 30


def main() -> None:
    """Read the document from standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    left, pages = int(sys.argv[1]), []
    try:
        document = pypdfium2.PdfDocument(sys.stdin.buffer)
    except pypdfium2.PdfiumError as error:
        if error.err_code != pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise
        sys.stdout.write('{"problem": "encrypted"}')
        return
    for page in document:
        # Lines end by CR LF, and U+0002 stands for a hyphen at the end of a line.
        pages.append(page.get_textpage().get_text_bounded().replace("\r\n", "\n").replace("\x02", ""))
        page.close()
        left -= len(pages[-1])
        if left < 0:
            sys.stdout.write('{"problem": "of too much text"}')
            return
    json.dump({"title": document.get_metadata_value("Title"), "text": "\n\n".join(pages)}, sys.stdout)


if __name__ == "__main__":
    main()
