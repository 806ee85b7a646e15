"""`documents:FOLDER` and `rkit convert FOLDER`: text, Markdown, HTML, PDF and Word files as passages."""

from __future__ import annotations

import contextlib
import json
import zipfile

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from linear import assert_linear
from retrievalkit.cli import main
from retrievalkit.data.convert import convert
from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.sources import open_source
from retrievalkit.data.sources.document_text import UnreadableError, read_document, read_html
from retrievalkit.data.sources.documents import as_documents

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


def pdf(text="BT /F 9 Tf 9 9 Td (The Tiber) Tj ET", *forms):
    """Create a PDF document with a title and a page, which draws a text, or the first form with "/X Do"."""
    resources = "/Resources<</Font<</F 5 0 R>>/XObject<</X {} 0 R>>>>"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R{resources.format(7)}>>",
        f"<</Length {len(text)}>>stream\n{text}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        "<</Title(Of water)>>",
        *(
            f"<</Type/XObject/Subtype/Form/BBox[0 0 99 99]/Length {len(form)}{resources.format(number)}>>"
            f"stream\n{form}\nendstream"
            for number, form in enumerate(forms, 8)
        ),
    ]
    content, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(f"{len(content):010} 00000 n \n")
        content += f"{number} 0 obj\n{body}\nendobj\n"
    size = len(objects) + 1
    table = f"xref\n0 {size}\n0000000000 65535 f \n{''.join(places)}trailer<</Size {size}/Root 1 0 R/Info 6 0 R>>\n"
    return f"{content}{table}startxref\n{len(content)}\n%%EOF\n".encode()


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
        Passage("a/c.md", "Of rivers", "Rivers\n\nSee the Tiber and a map.\n\n# kept [as it](is)", {"tags": ["a"]}),
        Passage("b.html", "Rome & Tiber", "The city\nIt is old,\nvery old.\none\ntwo\n1 2"),
    ]


@given(
    st.lists(
        st.sampled_from(["<p", ">", "</", "script", "<svg>", "<title>", "<![CDATA[", "&#x0;", "&am", "a b", "<!--"])
    )
)
def test_broken_pages_have_a_title_and_a_text(parts):
    title, text = read_html("".join(parts))
    assert "\0" not in title + text


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("a.html", part) for part in ("<!--", "<a href='", "<div>", "<i></b>")),
        ("a.html", "aaaa"),
        *(("a.md", part) for part in ("<!--", "[a](b ", " ")),
    ],
)
def test_reading_a_hostile_document_takes_linear_time(tmp_path, name, part):
    """A few KB would keep the standard library's parser, or a regular expression, busy for minutes."""

    def read(count):
        start, end = ("<meta charset=punycode>", b"\xff") if part == "aaaa" else ("# " if part == " " else "", b"x")
        (tmp_path / name).write_bytes((start + part * len(count)).encode() + end)
        with contextlib.suppress(UnreadableError):
            read_document(tmp_path / name, name)

    assert_linear(read, range(10_000), range(80_000))


def test_encodings(tmp_path):
    page = '<meta charset="latin-1"><p>caf\xe9'
    docs = folder(
        tmp_path / "docs", a_txt="café".encode("utf-16"), b_html=page.encode("latin-1"), c_txt=b"\xef\xbb\xbfx"
    )
    assert [passage.text for passage in open_corpus(f"documents:{docs}")] == ["café", "café", "x"]


def test_unreadable_documents_are_skipped_and_counted(tmp_path):
    """A note has their number, names and reasons; with --strict it is an error."""
    odd = {
        "a_txt": b"\0\1",
        "b_txt": "caf\xe9".encode("latin-1"),
        "c_md": " \n",
        "d_html": "<div>" * 10_000,
        "e_txt": b"PK\x03\x04",
    }
    docs = folder(tmp_path / "docs", good_txt="text", **odd)
    done = run(docs, tmp_path / "out.jsonl")
    assert done.exit_code == 0
    assert done.stdout == f"{tmp_path}/out.jsonl: 1 passage\n"
    assert "5 of the 6 files of" in done.stderr
    for words in ("binary (2): a.txt, e.txt", "unknown encoding", "(1): b.txt", "without text (1): c.md", "2,048"):
        assert words in done.stderr
    strict = run(docs, tmp_path / "out.jsonl", "--strict")
    assert strict.exit_code == 2
    assert "Not read" in strict.stderr
    (docs / "good.txt").unlink()
    nothing = run(docs, tmp_path / "no.jsonl")
    assert nothing.exit_code == 2
    assert "no document can be read: binary (2)" in nothing.stderr
    assert not (tmp_path / "no.jsonl").exists()


def test_other_files_are_counted_and_named(tmp_path):
    """Including broken links and links to folders, but not hidden files."""
    docs = folder(tmp_path / "docs", a_txt="text", B_TXT="text", a__b_odt="x", a__faq_csv="x", t_csv="x", _git__x="x")
    (docs / "gone.txt").symlink_to(tmp_path / "gone.txt")
    (docs / "more").symlink_to(folder(tmp_path / "more", x_txt="x"))
    (docs / "noending").write_text("x")
    done = run(docs, tmp_path / "out.jsonl")
    assert done.stdout == f"{tmp_path}/out.jsonl: 2 passages\n"
    assert "6 of the 8 files of" in done.stderr
    for words in (".csv (2): ", "a/faq.csv", "t.csv", ".odt (1): a/b.odt", "gone.txt", "more", "noending"):
        assert words in done.stderr
    assert done.stderr.count("\n") == 1
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
    assert [passage.id for passage in open_corpus(f"documents:{data}")] == ["README.md"]
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


def test_pdf(tmp_path):
    """Title and text are read; damaged PDF documents are skipped."""
    docs = folder(tmp_path / "docs", a_pdf=pdf(), b_pdf=b"%PDF-1.4 broken", c_txt="text")
    pytest.importorskip("pypdfium2")
    done = run(docs, tmp_path / "out.jsonl")
    assert "damaged (1): b.pdf" in done.stderr
    assert [passage.title + ": " + passage.text for passage in open_corpus(tmp_path / "out.jsonl")] == [
        "Of water: The Tiber",
        "c: text",
    ]


def test_a_pdf_that_takes_too_long_is_skipped(tmp_path, monkeypatch):
    """30 forms, each drawing the next twice: the note names the file, and --strict makes it an error."""
    pytest.importorskip("pypdfium2")
    monkeypatch.setattr("retrievalkit.data.sources.document_text.PDF_SECONDS", 1)
    endless = pdf("/X Do", *["/X Do /X Do"] * 30, "BT /F 9 Tf 9 9 Td (x) Tj ET")
    docs = folder(tmp_path / "docs", a_pdf=endless, b_txt="text")
    done = run(docs, tmp_path / "out.jsonl")
    assert (done.exit_code, "takes longer than 1 s (1): a.pdf" in done.stderr) == (0, True)
    assert run(docs, tmp_path / "out.jsonl", "--strict").exit_code == 2


def test_word_documents(tmp_path):
    """Text of all paragraphs and tables; title from the properties or the first heading."""
    docx = pytest.importorskip("docx")
    docs = folder(tmp_path / "docs", c_docx=b"PK broken")
    for name, title in (("a", "Of water"), ("b", "")):
        document = docx.Document()
        document.add_heading("Rivers", 1)
        document.add_paragraph("The Tiber").add_run(" is old.").bold = True
        document.add_table(1, 2).cell(0, 1).text = "a cell"
        document.core_properties.title = title
        document.save(docs / f"{name}.docx")
    done = run(docs, tmp_path / "out.jsonl")
    assert "damaged (1): c.docx" in done.stderr
    first, second = open_corpus(tmp_path / "out.jsonl")
    assert [line for line in first.text.split("\n") if line] == ["Rivers", "The Tiber is old.", "a cell"]
    assert (first.title, second.title) == ("Of water", "Rivers")


def test_a_word_document_that_expands_to_too_much_text_is_skipped(tmp_path):
    pytest.importorskip("docx")
    folder(tmp_path / "docs", a_txt="text")
    with zipfile.ZipFile(tmp_path / "docs" / "b.docx", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("word/document.xml", b" " * (65 << 20))
    assert "of too much text (1): b.docx" in run(tmp_path / "docs", tmp_path / "out.jsonl").stderr


def test_pdf_without_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pypdfium2", None)
    done = run(folder(tmp_path, a_pdf=pdf()) / "a.pdf", tmp_path / "out.jsonl")
    assert done.exit_code == 2
    assert "pip install 'retrievalkit[pdf]'" in done.stderr


@pytest.mark.parametrize(
    ("page", "title", "text"),
    [
        ("<title> A\n b </title><h1>c</h1>", "A b", "c"),
        ("<h2>b</h2><h1>c</h1>", "c", "b\nc"),
        ("<h3></h3><h2>b</h2>", "b", "b"),
        ("text", "", "text"),
    ],
)
def test_the_title_comes_from_the_page_or_its_first_heading(page, title, text):
    assert read_html(page) == (title, text)


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
