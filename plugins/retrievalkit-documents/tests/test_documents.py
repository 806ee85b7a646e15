"""`documents:FOLDER` and `rkit convert FOLDER`: files as passages, ids, notes and refusals."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.convert import convert
from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.sources import as_documents, open_source

PAGE = """<!DOCTYPE html><html><head><title>Rome &amp; Tiber</title><style>p {color: red}</style></head>
<body><nav><a href="/">Home</a></nav><h1>The <i>city</i></h1><p>It is <b>old</b>,<br>very old.
<script>var a = "</p>";</script><ul><li>one<li>two</ul><table><tr><td>1<td>2</table></body></html>"""

MARKDOWN = """---
title: "Of rivers"
tags: [a]
---
# Rivers

See [the Tiber](https://example.org/a_b) and ![a map](map.png).<!-- not
shown -->

```
# kept [as it](is)
```
"""


def folder(place, **contents):
    """Create a folder of files; in names, "_" stands for a dot and "__" for a slash."""
    for name, content in contents.items():
        path = place / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return place


def run(*words):
    return CliRunner().invoke(main, ["convert", *map(str, words)])


def test_documents_become_passages_in_the_order_of_their_paths(tmp_path):
    """The path is the id; the title comes from the document, or from its name."""
    docs = folder(tmp_path / "docs", b_html=PAGE, a__c_md=MARKDOWN, a_txt="Plain.\n", i_png="x", _hidden_md="x")
    assert list(open_corpus(f"documents:{docs}")) == [
        Passage("a.txt", "a", "Plain."),
        Passage("a/c.md", "Of rivers", "Rivers\nSee the Tiber and a map.\n# kept [as it](is)", {"tags": ["a"]}),
        Passage("b.html", "Rome & Tiber", "The city\nIt is old,\nvery old.\none\ntwo\n1 | 2"),
    ]


def test_unreadable_documents_are_skipped_and_counted(tmp_path):
    """A note has their number, names and reasons; with --strict it is an error."""
    odd = {
        "a_txt": b"\0\1",
        "b_pdf": b"%PDF-1.4 broken",
        "c_md": " \n",
        "d_docx": "no archive",
        "e_txt": b"PK\x03\x04",
    }
    docs = folder(tmp_path / "docs", good_txt="text", **odd)
    done = run(docs, tmp_path / "out.jsonl")
    assert done.exit_code == 0
    assert done.stdout == f"{tmp_path}/out.jsonl: 1 passage\n"
    assert "5 of the 6 files of" in done.stderr
    for words in ("binary (1): a.txt", "damaged (3): b.pdf, d.docx, e.txt", "without text (1): c.md"):
        assert words in done.stderr
    strict = run(docs, tmp_path / "out.jsonl", "--strict")
    assert strict.exit_code == 2
    assert "Not read" in strict.stderr
    (docs / "good.txt").unlink()
    nothing = run(docs, tmp_path / "no.jsonl")
    assert nothing.exit_code == 2
    assert "no document can be read: " in nothing.stderr
    assert not (tmp_path / "no.jsonl").exists()


def test_other_files_are_counted_and_named(tmp_path):
    """Including broken links, links to folders and excluded files."""
    docs = folder(tmp_path / "docs", a_txt="text", B_TXT="text", a__b_xyz="x", a__faq_csv="x", t_csv="x", _git__x="x")
    (docs / "gone.txt").symlink_to(tmp_path / "gone.txt")
    (docs / "more").symlink_to(folder(tmp_path / "more", x_txt="x"))
    (docs / "noending").write_text("x")
    done = run(docs, tmp_path / "out.jsonl")
    assert done.stdout == f"{tmp_path}/out.jsonl: 2 passages\n"
    assert "6 of the 8 files of" in done.stderr
    tables = "not a table with a header and rows (2): a/faq.csv"
    for words in ("hidden (1): .git/", tables, "t.csv", ".xyz (1): a/b.xyz", "gone.txt", "more", "noending"):
        assert words in done.stderr
    assert run(docs, tmp_path / "out.jsonl", "--strict").exit_code == 2


def test_ids_are_relative_to_the_root(tmp_path, monkeypatch):
    """`--root` sets the base folder of the ids; manifests record it."""
    monkeypatch.chdir(tmp_path)
    docs = folder(tmp_path / "docs", a_txt="one", sub__b_txt="two", sub__deep__c_txt="three")
    for source, ids in (("docs", ["a.txt"]), ("docs/sub", []), (docs / "sub/b.txt", None)):
        out = tmp_path / str(len(str(source)))
        assert run(source, out, "--root", "docs").exit_code == 0
        wanted = ["sub/b.txt"] if ids is None else [*ids, "sub/b.txt", "sub/deep/c.txt"]
        assert [passage.id for passage in open_corpus(out)] == wanted
        assert json.loads((out / "manifest.json").read_text())["options"]["root"] == str(docs)
    assert run(docs, tmp_path / "unnamed").exit_code == 0
    assert json.loads((tmp_path / "unnamed/manifest.json").read_text())["options"]["root"] == str(docs)
    assert [passage.id for passage in open_corpus("documents:docs/./sub/deep")] == ["sub/deep/c.txt"]


def test_data_is_not_mistaken_for_documents(tmp_path):
    """A folder of data with a README and a table named .txt are data; `documents:` reads them as documents."""
    data = folder(tmp_path / "data", corpus_jsonl='{"_id": "1", "title": "", "text": "x"}', README_md="about")
    table = folder(tmp_path / "tables", qrels_txt="1 0 a 2\n") / "qrels.txt"
    assert (as_documents(data), as_documents(table)) == (data, table)
    assert convert(table, tmp_path / "out.tsv") == {"judgements": 1}
    assert [passage.id for passage in open_corpus(f"documents:{data}")] == ["README.md", "corpus.jsonl/1"]
    notes = folder(tmp_path, notes_txt="A note of mine.\nIt has 2 lines.\n") / "notes.txt"
    assert as_documents(notes) == f"documents:{notes}"


def test_the_fingerprint_depends_on_names_and_contents(tmp_path):
    """It changes when a document is changed, renamed or added."""
    docs = folder(tmp_path / "docs", a_txt="one", b_txt="two")
    prints = [open_source(f"documents:{docs}").fingerprint()]
    for change in (
        lambda: folder(docs, a_txt="1"),
        lambda: (docs / "a.txt").rename(docs / "c.txt"),
        lambda: folder(docs, d_txt=""),
    ):
        change()
        prints.append(open_source(f"documents:{docs}").fingerprint())
    assert len(set(prints)) == 4


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("a", ["--root", "other"], "not in the root"),
        ("c.jsonl", ["--root", "other"], "ids of its own"),
        ("documents:i.png", [], "contains no documents"),
    ],
)
def test_wrong_sources_and_roots_are_refused(tmp_path, monkeypatch, source, options, words):
    monkeypatch.chdir(folder(tmp_path, a__b_txt="one", c_jsonl='{"_id": "1", "title": "", "text": "x"}', i_png="x"))
    folder(tmp_path / "other", x_txt="x")
    refused = run(source, tmp_path / "out.jsonl", *options)
    assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
