"""Workers: hostile documents are skipped with a reason, the rest is read in order, and no process is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from retrievalkit_documents import workers
from retrievalkit_documents.text import Document
from retrievalkit_documents.workers import read_documents
from test_readers import run
from written import archive, pdf, shown, word

SLOW = pdf([shown(*["word"] * 40_000)], packed=True, copies=20_000)

LARGE = "that stops the reader: damaged, or larger than 768 MiB of memory"
SKIPPED = {
    "truncated.docx": (word(run("<w:t>x</w:t>"))[:2000], "damaged"),
    "empty.docx": (b"", "without text"),
    "empty.pdf": (b"", "damaged"),
    "no.pdf": (b"%PDF-1.4 broken", "damaged"),
    "binary.txt": (bytes(range(1, 32)) * 9, "binary"),
    "zeros.html": (b"\0" * 9999, "binary"),
    "old.docx": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 999, "encrypted, or in an old format of Office"),
    "bomb.docx": (word(run(f"<w:t>{'a ' * (35 << 20)}</w:t>")), "of too much text"),
    "bomb.pdf": (pdf([" " * (900 << 20)], packed=True), LARGE),
    "deep.ipynb": (b"[" * 99_999, "damaged"),
    "list.ipynb": (b"[1]", "damaged"),
    "images.md": (b"<img src=x>", "without text, but with images"),
    "archive.txt": (archive(a="b"), "binary"),
    "book.epub": (archive(mimetype="application/epub+zip"), "damaged"),
    "gone.txt": (None, "No such file or directory"),
}  # fmt: skip
READ = {
    "good.txt": (b"words", "words"),
    "deep.html": (b"<div>" * 20_000 + b"deep", "deep"),
    "deep.md": (b"> " * 5_000 + b"deep", "deep"),
    "deep.docx": (word("<w:tbl>" * 20_000 + run("<w:t>deep</w:t>") + "</w:tbl>" * 20_000), "deep"),
    "deep.rst": (b"* " * 5_000 + b"deep", "deep"),
    "deep.eml": (b"".join(b"Content-Type: multipart/mixed; boundary=%d\n\n--%d\n" % (n, n) for n in range(99)), "98"),
    "front.md": (b"---\na: " + b"[" * 9_999 + b"\n---\nbody", "body"),
    "damaged.docx": (word(run("<w:t>beginning</w:t>") + "<w:p><"), "beginning"),
    "links.md": (b"[a](" * 3_000, "a"),
    "rows.docx": (word("<w:p/>" * 99_999 + run("<w:t>end</w:t>")), "end"),
}  # fmt: skip


def write(folder, documents):
    for name, (content, _) in documents.items():
        if content is not None:
            (folder / name).write_bytes(content)
    return [folder / name for name in documents]


def test_hostile_documents_are_skipped_with_a_reason_and_the_rest_is_read(tmp_path):
    """In the order of the files."""
    both = SKIPPED | READ
    answers = {path.name: answer for path, answer in read_documents(write(tmp_path, both), lambda path: path)}
    assert list(answers) == list(both)
    assert {name: str(answers[name]) for name in SKIPPED} == {name: reason for name, (_, reason) in SKIPPED.items()}
    read = {name: answers[name].text for name in READ if isinstance(answers[name], Document)}
    assert read.keys() == READ.keys()
    assert [name for name, (_, text) in READ.items() if text not in read[name]] == []


def test_a_document_that_takes_too_long_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS", 1)
    (tmp_path / "slow.pdf").write_bytes(SLOW)
    (tmp_path / "fast.txt").write_text("fast")
    slow, fast = (
        answer for _, answer in read_documents([tmp_path / "slow.pdf", tmp_path / "fast.txt"], lambda path: path)
    )
    assert str(slow).startswith("that takes longer than")
    assert fast.text == "fast"


def test_a_page_that_cannot_be_parsed_in_time_is_read_as_plain_text(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SECONDS", 1)
    (tmp_path / "a.html").write_text(f"<p {' '.join(f'a{n}=1' for n in range(90_000))}>words")
    [(_, document)] = read_documents([tmp_path / "a.html"], lambda path: path)
    assert document.text.endswith("words")
    assert document.left == {"formats that could not be parsed, read as plain text": 1}


def test_a_worker_is_used_again_while_it_behaves(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    worker = workers.Worker()
    try:
        pids = [worker.read(tmp_path / name, ".txt") and worker._process.pid for name in ("a.txt", "b.txt")]
    finally:
        worker.stop()
    assert pids[0] == pids[1]


def test_a_reader_that_is_not_consumed_leaves_no_process(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    before, children = threading.active_count(), children_of(os.getpid())
    documents = read_documents([tmp_path / "a.txt"] * 50, lambda path: path)
    next(documents)
    documents.close()
    assert threading.active_count() == before
    assert set(children_of(os.getpid())) <= set(children)


def children_of(parent):
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
def test_a_command_that_is_killed_leaves_no_worker(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "slow.pdf").write_bytes(SLOW)
    words = [sys.executable, "-m", "retrievalkit", "convert", str(tmp_path / "docs"), str(tmp_path / "out.jsonl")]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (children := children_of(process.pid)) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)  # it is reading
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert children
    while alive := [
        child
        for child in children
        if Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes()
    ]:
        assert time.monotonic() < end, alive
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is listed in /proc")
def test_variants_of_each_format_are_read_or_skipped_with_a_reason():
    """Damaged, nested, swollen and mislabelled documents, through the workers; `attacked.py` runs thousands."""
    command = [sys.executable, str(Path(__file__).with_name("attacked.py")), "--trials", "15", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
