"""Extract title and text of a PDF document as JSON: `python document_pdf.py MOST_CHARACTERS < FILE`.

It runs as a separate process that `document_text` can kill: a file of a few KB can keep any PDF library busy for days,
or exhaust the memory. It imports no rkit module, because it starts once per document.
"""

from __future__ import annotations

import json
import resource
import sys

import pypdfium2

_MEMORY = 2 << 30


def main() -> None:
    """Convert standard input to JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    budget, pages = int(sys.argv[1]), []
    try:
        document = pypdfium2.PdfDocument(sys.stdin.buffer)
    except pypdfium2.PdfiumError as error:
        if error.err_code != pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise
        sys.stdout.write('{"problem": "encrypted"}')
        return
    for page in document:
        # Lines end with CR LF, and U+0002 marks a hyphen at the end of a line.
        pages.append(page.get_textpage().get_text_bounded().replace("\r\n", "\n").replace("\x02", ""))
        page.close()
        budget -= len(pages[-1])
        if budget < 0:
            sys.stdout.write('{"problem": "of too much text"}')
            return
    json.dump({"title": document.get_metadata_value("Title"), "text": "\n\n".join(pages)}, sys.stdout)


if __name__ == "__main__":
    main()
