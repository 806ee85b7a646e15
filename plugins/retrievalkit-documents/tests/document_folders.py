"""Documents of several kinds, and a command that syncs them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from retrievalkit.cli import main

CITIES = {
    "rome": "The Tiber flows through Rome, whose forum is old.",
    "paris": "Paris lies on both banks of the Seine.",
    "prague": "The Vltava flows through Prague, below the castle.",
    "london": "The Thames has tides as far as London.",
    "berlin": "Berlin lies on the Spree, and has many lakes.",
}


def write(path, text):
    """Write a text as a document of the type of its file extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".docx":
        docx = pytest.importorskip("docx")
        document = docx.Document()
        document.add_paragraph(text)
        document.save(path)
    elif path.suffix == ".html":
        path.write_text(f"<html><body><p>{text}</p></body></html>")
    elif path.suffix == ".csv":
        path.write_text(f"id,text\n1,{text.replace(',', ' ')}\n2,another row\n")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": word}) + "\n" for word in text.split()[:3]))
    else:
        path.write_text(text)


def rkit(*words, code=0):
    """Run a command, and return its standard output, or its standard error for an exit code other than 0."""
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout
