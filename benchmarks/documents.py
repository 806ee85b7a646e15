"""Reading of documents: words found, words welded and seconds, by format, next to markitdown (and unstructured).

    .venv/bin/python benchmarks/documents.py                     # 300 documents; writes results/documents.json
    .venv/bin/python benchmarks/documents.py --each 2 --sides ours,unstructured

Documents of known words are written in every format, by two writers where there are two; a missing writer is reported.
Every word is invented and occurs once, so a missing word was lost or welded to another. The peers are in
.venv-bench-documents (make .venv-bench-documents/installed); unstructured has to be installed there, and downloads a
model at the first document.
"""

from __future__ import annotations

import argparse
import email.message
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-bench-documents" / "bin" / "python"
SIDES = ("ours", "markitdown")
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"] + ["é", "ü", "ø"]


@dataclass
class Words:
    """Invented words, each given out once."""

    random: random.Random
    used: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)

    def __call__(self, count: int = 1) -> str:
        words: list[str] = []
        while len(words) < count:
            word = "".join(self.random.choices(SYLLABLES, k=self.random.randint(3, 5)))
            if word not in self.known:
                self.known.add(word)
                self.used.append(word)
                words.append(word)
        return " ".join(words)


def source_of(words: Words, *, title: bool = True) -> str:
    """Return a document in pandoc's Markdown: headings, emphasis, links, lists, tables, code, notes and quotations."""
    parts = [f"---\ntitle: {words(3)}\n---\n"] if title else []
    for section in range(3):
        parts.append(f"{'#' * (1 + section % 2)} {words(3)}\n")
        parts.append(
            f"{words(12)} *{words(2)}* {words(6)}, **{words()}** {words(5)} [{words(2)}](https://example.org/). "
            f"{words(8)} `{words()}` ({words(3)}); {words(4)}[^{section}] {words(3)}\n{words(9)}.\n\n"
            f"[^{section}]: {words(6)}.\n"
        )
        parts.append("".join(f"- {words(4)}\n" for _ in range(3)) + f"    - {words(3)}\n")
        parts.append(
            f"| {words()} | {words()} |\n|---|---|\n" + "".join(f"| {words(2)} | {words()} |\n" for _ in range(4))
        )
        parts.append(f"```\n{words()} = {words()}\n  {words()}({words()})\n```\n")
        parts.append(f"> {words(10)}\n\n1. {words(3)}\n2. {words(3)}\n")
        parts.append(f"{words(3)}\n:   {words(5)}\n\n{words(4)}\\\n{words(4)}\n")
    return "\n".join(parts)


def pandoc(source: str, path: Path, form: str = "") -> None:
    """Write a document with pandoc."""
    command = ["pandoc", "--from", "markdown", "--standalone", "--output", str(path), *(["--to", form] if form else [])]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)


def office(path: Path, folder: Path, ending: str) -> None:
    """Convert a document with LibreOffice."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            "soffice",
            f"-env:UserInstallation=file://{profile}",
            "--headless",
            "--convert-to",
            ending,
            "--outdir",
        ]
        subprocess.run([*command, str(folder), str(path)], check=True, capture_output=True)


def printed(page: Path, path: Path) -> None:
    """Print a page with a browser."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={path}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def word(words: Words, path: Path, *, comments: bool = True) -> None:
    """Write a Word document with python-docx, with a header, a footer and a comment."""
    import docx

    document = docx.Document()
    document.core_properties.title = words(3)
    document.sections[0].header.paragraphs[0].text = words(3)
    document.sections[0].footer.paragraphs[0].text = words(3)
    for level in (1, 2):
        document.add_heading(words(3), level)
        paragraph = document.add_paragraph(words(20))
        paragraph.add_run().add_break()
        paragraph.add_run(words(2)).bold = True
        paragraph.add_run().add_tab()
        paragraph.add_run(words(6))
        if comments:
            document.add_comment(paragraph.runs, words(4), author="A", initials="A")
        for _ in range(3):
            document.add_paragraph(words(4), style="List Bullet")
        table = document.add_table(3, 3)
        for cell in (cell for row in table.rows for cell in row.cells):
            cell.text = words(2)
    document.save(str(path))


def without_comments(words: Words, path: Path) -> None:
    """Write a Word document to be printed."""
    word(words, path, comments=False)


def slides(words: Words, path: Path) -> None:
    """Write a presentation with python-pptx, with notes and tables."""
    import pptx

    deck = pptx.Presentation()
    for _ in range(4):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = words(3)
        body = slide.placeholders[1].text_frame
        body.text = words(8)
        for _ in range(3):
            body.add_paragraph().text = words(5)
        table = slide.shapes.add_table(3, 2, 0, 0, 100, 100).table
        for cell in (cell for row in table.rows for cell in row.cells):
            cell.text = words(2)
        slide.notes_slide.notes_text_frame.text = words(10)
    deck.save(str(path))


def sheets(words: Words, path: Path) -> None:
    """Write a workbook with openpyxl, with two sheets and comments."""
    import openpyxl
    from openpyxl.comments import Comment

    book = openpyxl.Workbook()
    for sheet in (book.active, book.create_sheet()):
        sheet.title = words(2)
        for row in range(1, 30):
            for column in range(1, 5):
                sheet.cell(row, column, words(2))
        sheet["A1"].comment = Comment(words(4), "A")
    book.save(path)


def typeset(words: Words, path: Path) -> None:
    """Write a PDF document with reportlab, with tables and several pages."""
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

    styles = getSampleStyleSheet()
    story = []
    for _ in range(4):
        story.append(Paragraph(words(3), styles["Heading1"]))
        story += [Paragraph(f"{words(30)} <b>{words(2)}</b> {words(20)}.", styles["BodyText"]) for _ in range(3)]
        story.append(Table([[words(), words(2), words()] for _ in range(5)]))
    SimpleDocTemplate(str(path)).build(story)


def page(words: Words, path: Path) -> None:
    """Write a page as content management systems do: little white space, many elements, hidden text."""
    rows = "".join(f"<tr><td>{words()}</td><td>{words(2)}</td></tr>" for _ in range(5))
    cards = "".join(
        f"<section><h2>{words(2)}</h2><div class=card><div>{words(2)}</div><div>{words(9)}</div><p>{words(6)}<br>"
        f"{words(3)} <a href=/>{words()}</a>, <em>{words(2)}</em></p></div><button>{words()}</button>"
        f"<button>{words()}</button>"
        f"<details><summary>{words(2)}</summary>{words(5)}</details><dl><dt>{words()}<dd>{words(3)}</dl>"
        f"<figure><img src=x alt='{words(2)}'><figcaption>{words(2)}</figcaption></figure></section>"
        for _ in range(4)
    )
    path.write_text(
        f"<!doctype html><html><head><title>{words(3)}</title><style>p{{x:y}}</style></head><body><header>{words(2)}"
        f"</header><main><article>{cards}<table>{rows}</table><pre>{words()}\n  {words()}</pre></article></main>"
        f"<div hidden>hidden</div><script>var x;</script><footer>{words(3)}</footer></body></html>",
        encoding="utf-8",
    )


def mail(words: Words, path: Path, kind: str) -> None:
    """Write an e-mail."""
    message = email.message.EmailMessage()
    message["Subject"], message["From"], message["To"] = words(4), "a@example.org", "b@example.org"
    if kind == "plain":
        message.set_content("\n\n".join(words(12) for _ in range(5)))
    else:
        message.set_content("".join(f"<p>{words(9)}<br>{words(4)}</p>" for _ in range(5)), subtype="html")
    path.write_bytes(bytes(message))


def notebook(words: Words, path: Path) -> None:
    """Write a notebook with outputs."""
    cells: list[dict[str, object]] = []
    for _ in range(3):
        cells.append(
            {"cell_type": "markdown", "metadata": {}, "source": [f"# {words(2)}\n", f"{words(15)} **{words()}**"]}
        )
        outputs = [{"output_type": "stream", "name": "stdout", "text": [words(5)]}]
        source = f"{words()} = {words()}"
        cells.append({"cell_type": "code", "metadata": {}, "execution_count": 1, "source": source, "outputs": outputs})
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))


def by_pandoc(ending: str, form: str = "") -> Callable[[Words, Path], None]:
    """Return a writer of a format."""
    # Its notebooks have no title.
    return lambda words, path: pandoc(source_of(words, title=ending != "ipynb"), path, form)


def by_office(ending: str, first: str, writer: Callable[[Words, Path], None]) -> Callable[[Words, Path], None]:
    """Return a writer of a format by LibreOffice, from what another writer wrote."""

    def write(words: Words, path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            before = Path(folder, f"before.{first}")
            writer(words, before)
            office(before, Path(folder, "after"), ending)
            shutil.move(Path(folder, "after", f"before.{ending}"), path)

    return write


def by_browser(words: Words, path: Path) -> None:
    """Print a page that pandoc wrote."""
    before = path.with_suffix(".html")
    pandoc(source_of(words), before)
    printed(before, path)
    before.unlink()


WRITERS: dict[str, dict[str, Callable[[Words, Path], None]]] = {
    "md": {
        "pandoc": by_pandoc("md", "gfm"),
        "source": lambda words, path: path.write_text(source_of(words)) and None,
    },
    "html": {"pandoc": by_pandoc("html"), "site": page},
    "docx": {"pandoc": by_pandoc("docx"), "python-docx": word, "libreoffice": by_office("docx", "docx", word)},
    "pdf": {"reportlab": typeset, "libreoffice": by_office("pdf", "docx", without_comments), "chromium": by_browser},
    "pptx": {"pandoc": by_pandoc("pptx"), "python-pptx": slides},
    "xlsx": {"openpyxl": sheets, "libreoffice": by_office("xlsx", "xlsx", sheets)},
    "odt": {"pandoc": by_pandoc("odt"), "libreoffice": by_office("odt", "docx", word)},
    "epub": {"pandoc": by_pandoc("epub")},
    "rst": {"pandoc": by_pandoc("rst")},
    "ipynb": {"pandoc": by_pandoc("ipynb"), "json": notebook},
    "eml": {"plain": lambda *to: mail(*to, "plain"), "html": lambda *to: mail(*to, "html")},
    "txt": {"utf-8": lambda words, path: path.write_text("\n".join(words(9) for _ in range(20))) and None},
}
NEEDS = {"pandoc": "pandoc", "libreoffice": "soffice", "chromium": "chromium"}


def write(folder: Path, each: int) -> dict[str, list[str]]:
    """Write the documents; returns their words by name."""
    expected = {}
    for ending, writers in WRITERS.items():
        for name, writer in writers.items():
            if name in NEEDS and shutil.which(NEEDS[name]) is None:
                print(f"{ending} by {name}: not written, {NEEDS[name]} is not installed", file=sys.stderr)
                continue
            for number in range(max(1, each // len(writers))):
                words = Words(random.Random(f"{ending} {name} {number}"))
                path = folder / f"{name}-{number}.{ending}"
                writer(words, path)
                expected[path.name] = words.used
    (folder / "expected.json").write_text(json.dumps(expected))
    return expected


READ = {
    "ours": """
import sys, json, time
from pathlib import Path
from retrievalkit_documents.workers import read_documents
paths = [Path(path) for path in json.load(sys.stdin)]
list(read_documents(paths[:2], lambda path: path))
start, texts = time.perf_counter(), {}
for path, document in read_documents(paths, lambda path: path):
    texts[path.name] = f"{document.title}\\n{document.text}" if hasattr(document, "text") else ""
print(json.dumps([time.perf_counter() - start, texts]))
""",
    "markitdown": """
import sys, json, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from markitdown import MarkItDown
paths = [Path(path) for path in json.load(sys.stdin)]
reader = MarkItDown()
def read(path):
    try:
        document = reader.convert(str(path))
        return f"{document.title or ''}\\n{document.markdown}"
    except Exception:
        return ""
read(paths[0])
start = time.perf_counter()
texts = {path.name: read(path) for path in paths}
print(json.dumps([time.perf_counter() - start, texts]))
""",
    "unstructured": """
import sys, json, time
from pathlib import Path
from unstructured.partition.auto import partition
paths = [Path(path) for path in json.load(sys.stdin)]
def read(path):
    return "\\n".join(str(element) for element in partition(str(path), strategy="fast"))
read(paths[0])
start = time.perf_counter()
texts = {path.name: read(path) for path in paths}
print(json.dumps([time.perf_counter() - start, texts]))
""",
}


def measure(side: str, paths: list[Path], expected: dict[str, list[str]]) -> dict[str, float]:
    """Return the share of words found, the words welded and the seconds of one side for the documents of a format."""
    python = sys.executable if side == "ours" else str(PEERS)
    done = subprocess.run(
        [python, "-c", READ[side]],
        input=json.dumps([str(path) for path in paths]),
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, texts = json.loads(done.stdout.splitlines()[-1])
    total = missing = welded = 0
    for path in paths:
        wanted = set(expected[path.name])
        # Markdown marks emphasis with underscores.
        words = set(re.findall(r"[^\W_]+", texts[path.name]))
        total += len(wanted)
        missing += len(wanted - words)
        welded += sum(_is_welded(word, wanted) for word in words - wanted)
    return {"found": 1 - missing / total, "welded": welded, "seconds": seconds, "documents": len(paths), "words": total}


def _is_welded(word: str, wanted: set[str]) -> bool:
    return any(word[:cut] in wanted and word[cut:] in wanted for cut in range(1, len(word)))


def main() -> None:
    """Measure, and print a table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--each", type=int, default=25, help="documents per format")
    arguments.add_argument("--sides", default=",".join(SIDES))
    arguments.add_argument("--only", default="", help="formats")
    arguments.add_argument("--folder", type=Path, help="where the documents are written, or were before")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        listed = folder / "expected.json"
        expected = json.loads(listed.read_text()) if listed.exists() else write(folder, options.each)
        results: dict[str, dict[str, dict[str, float]]] = {}
        print(
            f"{'format':<8}{'files':>6}" + "".join(f"{side:>14} found  welded  s" for side in options.sides.split(","))
        )
        for ending in options.only.split(",") if options.only else WRITERS:
            paths = sorted(folder / name for name in expected if name.endswith(f".{ending}"))
            results[ending] = {side: measure(side, paths, expected) for side in options.sides.split(",")}
            cells = (
                f"{row['found']:>20.4f}{row['welded']:>7.0f}{row['seconds']:>7.2f}" for row in results[ending].values()
            )
            print(f"{ending:<8}{len(paths):>6}" + "".join(cells), flush=True)
    if not options.only and not options.folder:
        (ROOT / "benchmarks" / "results" / "documents.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
