"""Hostile documents: damaged, nested, swollen and mislabelled variants of a valid document of each format.

    python plugins/retrievalkit-documents/tests/attacked.py --trials 3000 --seed 1      # through the workers
    python plugins/retrievalkit-documents/tests/attacked.py --trials 300 --sync         # through `rkit sync`

A trial fails if a document raises anything but a reason to skip it, takes more than two minutes, or if a process needs
more than 1 GB. The variants are a function of the seed; failing ones are kept in the folder `--keep`.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import openpyxl
import pptx
from written import archive, opendocument, pdf, shown, word

MOST_MEMORY = 1 << 30
MOST_SECONDS = 120
SENTENCE = "The Tiber flows through Rome, whose forum is old; caf\u00e9 42."
_RUN = "<w:p><w:pPr><w:pStyle w:val='Heading1'/></w:pPr><w:r><w:t>{}</w:t></w:r></w:p>"
_TABLE = "<w:tbl><w:tr><w:tc>{0}</w:tc><w:tc>{0}</w:tc></w:tr></w:tbl>"
_BOMB = '<!DOCTYPE a [<!ENTITY a "lol">' + "".join(
    f'<!ENTITY {after} "{f"&{before};" * 10}">' for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
_ENTITIES = (f"{_BOMB}]>", '<!DOCTYPE a [<!ENTITY i SYSTEM "file:///etc/passwd">]>', '<!DOCTYPE a SYSTEM "http://x/y">')
_OPENERS = (
    "<div>", "<table><tr><td>", "<ul><li>", "<b>", "<!--", "<svg>", "<select>", "<template>", "<a href=x>", "<pre>",
    "> ", "* ", "- ", "1. ", "[", "![", "(", "`", "``", "*a ", "**a*", "__", "~~", "| ", "<", "&amp", "$", "^[", "[^1]",
    "\\", "#", "    ", "\t", ".. note::\n   ", ":a:`", "|a|", "`a`_ ", "+-", "===\n", "{", '{"a":', '"', ",", ";", "\n",
    "\0", "\ud7ff", "\u0301", "\u202e", "Content-Type: multipart/mixed; boundary=a\n\n--a\n", "=?utf-8?b?", "---\n",
    "+++\n", "a: &a [*a, ", "- - ", "? ", "<<: *a\n", "&a ", "!!python/object:os.system ", "%PDF-", "PK\x03\x04",
    "1e999", "9" * 40,
)  # fmt: skip
_SYNC = """
import sys
from retrievalkit.cli import main
try:
    main()
finally:
    print(open("/proc/self/status").read(), file=sys.stderr)
"""
_CODECS = ("utf-16", "utf-7", "idna", "zip", "rot13", "x" * 99, "ebcdic-cp-us")
_NUMBERS = ("0", "-1", "99999999999", "2147483648", "-9e999", "NaN", "1" * 5000, "", "x", "true")


def workbook() -> bytes:
    """Create a workbook."""
    book, stream = openpyxl.Workbook(), io.BytesIO()
    for row in range(1, 6):
        book.active.append([row, SENTENCE, 1.5, True])
    book.active.merge_cells("A1:B2")
    book.save(stream)
    return stream.getvalue()


def deck() -> bytes:
    """Create a presentation."""
    slides, stream = pptx.Presentation(), io.BytesIO()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text_frame.text = "Rome", SENTENCE
    slide.notes_slide.notes_text_frame.text = SENTENCE
    slides.save(stream)
    return stream.getvalue()


def book() -> bytes:
    """Create a book."""
    container = "<container><rootfiles><rootfile full-path='c.opf'/></rootfiles></container>"
    package = (
        "<package><metadata><title>Rome</title></metadata><manifest><item id='a' href='a.html'/></manifest>"
        "<spine><itemref idref='a'/></spine></package>"
    )
    page = f"<html><body><h1>Rome</h1><p>{SENTENCE}</p></body></html>"
    return archive(mimetype="application/epub+zip", **{
        "META-INF__container_xml": container, "c_opf": package, "a_html": page,
    })  # fmt: skip


def valid() -> dict[str, bytes]:
    """Return a valid document for each file extension."""
    cells = [
        {"cell_type": "markdown", "source": [f"# Rome\n{SENTENCE}"]},
        {"cell_type": "code", "source": "x = 1", "outputs": [{"output_type": "stream", "text": [SENTENCE]}]},
    ]
    form = "<</Type/Annot/Subtype/Widget/FT/Tx/T(a)/V(value)/Rect[0 0 9 9]/P 5 0 R>>"
    mail = (
        "From: a@b\nSubject: =?utf-8?b?Um9tZQ==?=\nMIME-Version: 1.0\nContent-Type: multipart/alternative; "
        f"boundary=x\n\n--x\nContent-Type: text/plain; charset=utf-8\n\n{SENTENCE}\n--x\nContent-Type: text/html\n\n"
        f"<p>{SENTENCE}</p>\n"
        "--x\nContent-Type: image/png; name=a.png\nContent-Transfer-Encoding: base64\n\naGFsbG8=\n--x--\n"
    )
    page = (
        f"<!doctype html><html><head><meta charset=utf-8><title>Rome</title></head><body><nav><a href=x>Home</a></nav>"
        f"<h1>Rome</h1><p>{SENTENCE}</p><table><tr><td>1<td>2</table><pre>a\n b</pre>"
        "<svg><text>x</text></svg></body></html>"
    )
    markdown = (
        f"---\ntitle: Rome\ntags: [a, b]\n---\n# Rome\n{SENTENCE}\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n"
        f"```\n\n- a\n  - b[^1]\n\n[^1]: note\n\n<div>{SENTENCE}</div>\n"
    )
    rule = "=====  =====\n"
    rst = f"Rome\n====\n\n{SENTENCE}\n\n.. note:: {SENTENCE}\n\n{rule}a      b\n{rule}1      2\n{rule}"
    rows = [{"id": str(number), "text": SENTENCE, "year": number} for number in range(5)]
    texts = {
        ".txt": SENTENCE * 9, ".md": markdown, ".html": page, ".rst": rst, ".eml": mail,
        ".ipynb": json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}),
        ".csv": f'id,text,price\n1,"{SENTENCE}",1.5\n2,"Paris ""a""\nb",2\n',
        ".tsv": f"id\ttext\n1\t{SENTENCE}\n2\tb\n",
        ".jsonl": "".join(json.dumps(row) + "\n" for row in rows),
    }  # fmt: skip
    text = f"<office:text><text:h text:outline-level='1'>Rome</text:h><text:p>{SENTENCE}</text:p></office:text>"
    return {ending: text.encode() for ending, text in texts.items()} | {
        ".docx": word(_RUN.format(SENTENCE) + _TABLE.format(_RUN.format("cell")), footnotes=_RUN.format("note")),
        ".pptx": deck(),
        ".xlsx": workbook(),
        ".odt": opendocument(text),
        ".epub": book(),
        ".pdf": pdf([shown("Rome", "whose forum is old"), shown("b")], title="Rome", annotations=[form]),
    }


def damage(choice: random.Random, content: bytes, others: dict[str, bytes]) -> bytes:
    """Change bytes: cut, flip, repeat, remove, move or fill them, or splice those of another document."""
    start, end = sorted(choice.choices(range(len(content) + 1), k=2))
    other = choice.choice(list(others.values()))
    return choice.choice((
        lambda: content[:start],
        lambda: content[start:],
        lambda: bytes(byte ^ (1 << choice.randrange(8)) if choice.random() < 0.01 else byte for byte in content),
        lambda: content[:start] + bytes([choice.randrange(256)]) + content[start + 1 :],
        lambda: content[:start] + content[start:end] * choice.choice((2, 50)) + content[end:],
        lambda: content[:start] + content[end:],
        lambda: content[:start] + b"\0" * (end - start) + content[end:],
        lambda: content[:start] + other[: len(other) // 2] + content[start:],
        lambda: content[:start] + choice.randbytes(choice.choice((1, 9, 999))) + content[start:],
        lambda: content + other,
        lambda: other + content,
    ))()  # fmt: skip


def distort(choice: random.Random, text: str) -> str:
    """Change a text or its marks: nest, swell, replace numbers and names, and declare entities."""
    place = choice.randrange(len(text) + 1)
    many = choice.choice((2, 100, 3_000, 60_000))
    opener = choice.choice(_OPENERS)
    tags = re.findall(r"<[\w:]+[^<>]*(?<!/)>", text)
    tag = choice.choice(tags) if tags else opener
    return choice.choice((
        lambda: text[:place] + opener * many + text[place:],
        lambda: text[:place] + "".join(choice.choices(_OPENERS, k=min(many, 3_000))) + text[place:],
        lambda: text.replace(tag, tag * many, 1),
        lambda: text[:place] + "a" * choice.choice((1_000, 1 << 20)) + text[place:],
        lambda: text[:place] + f"{SENTENCE} " * (many // 2) + text[place:],
        lambda: re.sub(r"\d+", lambda match: choice.choice((match[0], *_NUMBERS)), text),
        lambda: re.sub(r"\d+", choice.choice(_NUMBERS), text, count=1),
        lambda: re.sub(r"(<\?xml[^>]*\?>)?", lambda match: match[0] + choice.choice(_ENTITIES), text, count=1)
        .replace("Rome", "&i;", 1),
        lambda: re.sub(r'"[^"<>]*"', lambda match: choice.choice((match[0], '""', f'"{opener}"')), text),
        lambda: text.replace("</", "<", choice.choice((1, -1))),
        lambda: text.replace("utf-8", choice.choice(_CODECS)),
        lambda: "\n".join(choice.sample(lines := text.split("\n"), len(lines))),
    ))()  # fmt: skip


def repack(choice: random.Random, content: bytes, others: dict[str, bytes]) -> bytes:
    """Change a part of an archive, or the archive: bombs, copies, parts outside of it, wrong sizes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source:
        parts = {name: source.read(name) for name in source.namelist()}
    name = choice.choice(list(parts))
    change = choice.randrange(12)
    if change < 5:
        parts[name] = distort(choice, parts[name].decode("utf-8", "replace")).encode("utf-8", "replace")
    elif change == 5:
        parts[name] = damage(choice, parts[name], others)
    elif change == 6:
        del parts[name]
    elif change == 7:
        head, mark, tail = parts[name].partition(b">")
        parts[name] = head + mark + choice.choice((b" ", b"<a>", b"<w:p/>", b"<a/>", b"x")) * (40 << 20) + tail
    elif change == 8:
        parts[name], other = parts[choice.choice(list(parts))], parts[name]
        parts["../../outside.xml"] = other
    elif change == 9:
        parts |= {f"{number}/{name}": b"" for number in range(20_000)}
    elif change == 10:
        parts[name] = content
    with zipfile.ZipFile(
        stream, "w", choice.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))
    ) as to:
        for part, value in parts.items():
            to.writestr(part, value, zipfile.ZIP_DEFLATED if len(value) > 1 << 20 else None)
    packed = stream.getvalue()
    if change == 11:  # flags, sizes and offsets in the headers
        place = choice.choice([match.start() for match in re.finditer(rb"PK\x01\x02|PK\x03\x04|PK\x05\x06", packed)])
        field = place + choice.randrange(4, 40)
        packed = packed[:field] + choice.choice((b"\1\0", b"\xff" * 4, b"\0" * 4)) + packed[field + 2 :]
    return packed


def relink(choice: random.Random, content: bytes) -> bytes:
    """Change the references and numbers of a PDF document: cycles, huge counts, nested arrays, filters."""
    text = content.decode("latin-1")
    nested = "[" * 50_000

    def change(match: re.Match[str]) -> str:
        return choice.choice((match[0], f"{choice.randrange(9)} 0 R"))

    return choice.choice((
        lambda: re.sub(r"\d+ 0 R", change, text),
        lambda: re.sub(r"\d+", lambda match: choice.choice((match[0], match[0], *_NUMBERS[:6])), text),
        lambda: re.sub(r"/Kids\[[^]]*\]", "/Kids[2 0 R 2 0 R]", text),
        lambda: re.sub(r"/Count \d+", "/Count 2000000000", text),
        lambda: text.replace("[", nested, 1),
        lambda: text.replace("<</Type", "<<" * 50_000 + "/Type", 1),
        lambda: re.sub(r"/Length \d+", choice.choice((
            "/Length 99999999999", "/Length -1", "/Filter[/FlateDecode/FlateDecode]/Length 9",
            "/Filter/LZWDecode/Length 9", "/Filter/JBIG2Decode/Length 9",
        )), text),
        lambda: text.replace("BT", "q " * 100_000 + "BT", 1),
        lambda: text.replace("12 Tf", "1e38 Tf", 1),
        lambda: text.replace("(Rome)", f"({'x' * (1 << 20)})", 1),
        lambda: text.replace("/Root 1 0 R", "/Root 1 0 R/Prev 9/Encrypt 3 0 R", 1),
    ))().encode("latin-1", "replace")  # fmt: skip


def encode(choice: random.Random, text: str) -> bytes:
    """Encode a text in an unusual encoding."""
    name = choice.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-32", "utf-16-le", "cp1252", "shift_jis", "utf-7"))
    return text.encode(name, "replace")


def hostile(seed: str) -> tuple[str, bytes]:
    """Return the file extension and the content of a variant."""
    choice, documents = random.Random(seed), valid()
    ending = choice.choice(list(documents))
    content = documents[ending]
    for _ in range(choice.choice((1, 1, 2))):
        kind = choice.random()
        try:
            if kind < 0.3:
                content = damage(choice, content, documents)
            elif content.startswith(b"PK"):
                content = repack(choice, content, documents)
            elif content.startswith(b"%PDF"):
                content = relink(choice, content)
            else:
                content = encode(choice, distort(choice, content.decode("utf-8", "replace")))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError):  # damaged before
            content = damage(choice, content, documents)
    return choice.choice(list(documents)) if choice.random() < 0.1 else ending, content


def write_variants(folder: Path, trials: range, seed: int) -> list[Path]:
    """Write variants, one per trial."""
    paths = []
    for trial in trials:
        ending, content = hostile(f"{seed} {trial}")
        paths.append(folder / f"{trial:05}{ending}")
        paths[-1].write_bytes(content)
    return paths


def read_variants(paths: list[Path], reasons: Counter[str]) -> list[tuple[Path, str]]:
    """Read documents through the workers; returns failures."""
    from retrievalkit_documents.text import Document, UnreadableError
    from retrievalkit_documents.workers import read_documents

    failures, last = [], time.monotonic()
    for path, document in read_documents(paths, lambda path: path):
        seconds, last = time.monotonic() - last, time.monotonic()
        reasons["read" if isinstance(document, Document) else str(document)] += 1
        if not isinstance(document, Document | UnreadableError):
            failures.append((path, f"neither a document nor a reason: {document!r}"))
        if seconds > MOST_SECONDS:
            failures.append((path, f"{seconds:.0f} s"))
    return failures


def sync_variants(folder: Path, reasons: Counter[str]) -> list[tuple[Path, str]]:
    """Sync a folder of variants and one good document as a dry run; returns failures."""
    (folder / "good.txt").write_text(SENTENCE)
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-c", _SYNC, "sync", str(folder), f"{place}/index", "--dry-run", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode or "Traceback" in done.stderr:
        return [(folder, done.stderr[-2000:])]
    [report] = json.loads(done.stdout)
    most = int(done.stderr.rpartition("VmHWM:")[2].split()[0]) << 10
    failures = [(folder, f"{most >> 20} MiB of memory")] * (most > MOST_MEMORY)
    reasons.update({reason: len(names) for reason, names in report["skipped"].items()})
    reasons["read"] += len(report["documents"]["added"])
    listed = {*report["documents"]["added"], *(name for names in report["skipped"].values() for name in names)}
    return [*failures, *((path, "neither read nor listed") for path in folder.iterdir() if path.name not in listed)]


def attack(trials: int, seed: int, *, sync: bool = False, keep: Path | None = None) -> tuple[list[str], Counter[str]]:
    """Run trials; returns failures, and the number of documents for each reason."""
    failures: list[str] = []
    reasons: Counter[str] = Counter()
    for first in range(0, trials, 100):
        with tempfile.TemporaryDirectory(prefix="rkit-") as place:
            paths = write_variants(Path(place), range(first, min(first + 100, trials)), seed)
            if not sync:
                paths = [path for path in paths if path.suffix not in (".csv", ".tsv", ".jsonl")]
            bad = sync_variants(Path(place), reasons) if sync else read_variants(paths, reasons)
            for path, problem in bad:
                failures.append(f"seed {seed}: {path.name}: {problem}")
                if keep is not None:
                    (shutil.copytree if path.is_dir() else shutil.copy)(path, keep / path.name)
        # The system bounds the memory of workers.
        if (most := memory()) > MOST_MEMORY:
            failures.append(f"seed {seed}, trials {first} to {first + 100}: {most >> 20} MiB of memory")
    return failures, reasons


def memory() -> int:
    """Return the most memory that this process had, without that of its parent."""
    return int(Path("/proc/self/status").read_text().rpartition("VmHWM:")[2].split()[0]) << 10


def main() -> None:
    """Run trials, and print failures and reasons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    failures, reasons = attack(options.trials, options.seed, sync=options.sync, keep=options.keep)
    for reason, count in reasons.most_common():
        print(f"{count:>6}  {reason}")
    print("\n".join(failures))
    print(f"{options.trials} trials, {len(failures)} failures, {memory() >> 20} MiB of memory")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
