"""Words of documents: all are found, none is welded to its neighbour, hidden text is left out, in each format."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrievalkit_documents.readers.front_matter import split
from retrievalkit_documents.readers.html import html_document
from retrievalkit_documents.readers.markdown import add_markdown
from retrievalkit_documents.readers.pdf import title_of
from retrievalkit_documents.text import Text
from retrievalkit_documents.worker import read
from written import archive, opendocument, pdf, shown, word


@pytest.fixture
def reading(tmp_path):
    """Read a document from its content."""

    def reads(content, ending):
        path = tmp_path / f"document{ending}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read(str(path), ending)

    return reads


def words(document):
    return re.findall(r"\w+", document.text)


def run(inner):
    return f"<w:p><w:r>{inner}</w:r></w:p>"


MARKDOWN = {
    "two rules around text": ("---\n\nWelcome zebra\n\n---\n\nEnd", "Welcome zebra End"),
    "code that looks like a link": (
        "`handlers[kind](event)`\n\n    table[row](column)",
        "handlers kind event table row column",
    ),
    "emphasis": ("_crucial_ __bold__ max\\_retries *in*side ~~old~~", "crucial bold max_retries inside old"),
    "links": ("[one](http://x.y/a_(b)) ![two](i.png) [three][r] <http://a.b>\n\n[r]: x 'no'", "one two three http a b"),
    "comments in code": ("Use `<!--` here. between\n\n```\n<!-- kept -->\n```\nand `-->`", "Use here between kept and"),
    "comments": ("seen <!-- hidden --> also\n\n<!-- hidden\n\nhidden -->\n\nend", "seen also end"),
    "a comment without an end": ("a\n\n<!-- TODO\n\nrest", "a TODO rest"),
    "a table": ("| lynx | puma |\n|---|---|\n| a `b|c` | d<br>e |", "lynx puma a b c d e"),
    "notes": ("word[^1] and^[inline] x\n\n[^1]: first\n\n[^2]: unused\n[^3]: x", "word and inline x first unused x"),
    "definitions": ("Term\n: Definition\n\n- [ ] todo\n- [x] done", "Term Definition todo done"),
    "html": (
        "<details><summary>Refunds</summary>\n\nWithin *days*\n\n</details> a<br>b<img alt='pic'>c",
        "Refunds Within days a b pic c",
    ),
    "line ends": ("one\ntwo\\\nthree  \nfour", "one two three four"),
    "headings": ("Setext\n===\ntext\n# ATX #\n####### seven", "Setext text ATX seven"),
}


@pytest.mark.parametrize("case", MARKDOWN)
def test_markdown(reading, case):
    source, expected = MARKDOWN[case]
    assert words(reading(source, ".md")) == expected.split()


HTML = {
    "blocks": (
        "<details><summary>Refunds</summary>Within</details><dialog>Billing</dialog><x-card>Own</x-card>Tail",
        "Refunds Within Billing Own Tail",
    ),
    "controls": (
        "<button>Open</button><button>Close</button><label>A</label><label>B</label><option>C<option>D",
        "Open Close A B C D",
    ),
    "parts of words": (
        "<p>in<b>si</b>de trans<wbr>port e&shy;mail H<sub>2</sub>O e&#64259;cient",
        "inside transport email H2O efficient",
    ),
    "neighbours": ("<a href=/>Home</a><a href=/>About</a> <del>old</del><ins>new</ins>", "Home About old new"),
    "raised numbers": ("see note<sup><a href=#n>1</a></sup> of 5 km<sup>2</sup>", "see note 1 of 5 km2"),
    "cells": ("<table><tr><th>name<th>price<tr><td><p>zebra</p><td>42</table>", "name price zebra 42"),
    "hidden text": (
        "<p hidden>no</p><p style='color:red;DISPLAY : none'>no</p><template>no</template><script>no</script>yes",
        "yes",
    ),
    "text for searching": ("<p hidden=until-found>found</p><details>closed</details>", "found closed"),
    "attributes": (
        "<img alt='a map'><input value=Send><input type=hidden value=no><input type=password value=no>",
        "a map Send",
    ),
    "navigation": (
        "<nav>Home</nav><p>The whole of the text</p><div role=navigation>Next</div>",
        "The whole of the text",
    ),
    "a page of navigation": ("<nav><ul><li>Chapter one<li>Chapter two</ul></nav>", "Chapter one Chapter two"),
    "drawings": (
        "<svg><style>no</style><text>label</text></svg><math><mi>x</mi><mo>=</mo><mn>1</mn></math>after",
        "label x 1 after",
    ),
    "ruby": ("<ruby>kanji<rt>reading</rt></ruby>", "kanji reading"),
    "frames": ("<frameset><noframes><p>in</p><p>frames</p></noframes></frameset>", "in frames"),
}


@pytest.mark.parametrize("case", HTML)
def test_html(reading, case):
    source, expected = HTML[case]
    assert words(reading(f"<!DOCTYPE html>{source}", ".html")) == expected.split()


def test_preformatted_text_keeps_its_lines(reading):
    page = "<pre>if x:\n    <b>y</b> = 1</pre>after<textarea>a\nb</textarea>"
    assert reading(page, ".html").text == "if x:\n    y = 1\nafter a\nb"


def cell(text):
    return f"<w:tc><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>"


def choice(new, old):
    inner = f"<mc:Choice>{new}</mc:Choice><mc:Fallback>{old}</mc:Fallback>"
    return run(f"<mc:AlternateContent xmlns:mc='m'>{inner}</mc:AlternateContent>")


BREAKS = "<w:t>a</w:t><w:cr/><w:t>b</w:t><w:br/><w:t>c</w:t><w:tab/><w:t>d</w:t><w:ptab/><w:t>e</w:t>"
DELETED = "<w:del><w:r><w:delText>no</w:delText></w:r></w:del><w:moveFrom><w:r><w:t>no</w:t></w:r></w:moveFrom>"
RAISED = "<w:r><w:rPr><w:vertAlign w:val='superscript'/></w:rPr><w:t>1</w:t></w:r>"
BOX = f"<w:txbxContent>{run('<w:t>box</w:t>')}</w:txbxContent>"
WORDS = {
    "breaks": (run(BREAKS), "a b c d e"),
    "hyphens": (
        run("<w:t>1</w:t><w:noBreakHyphen/><w:t>24 trans</w:t><w:softHyphen/><w:t>port</w:t>"),
        "1 24 transport",
    ),
    "runs in a word": ("<w:p><w:r><w:t>un</w:t></w:r><w:r><w:t>do</w:t></w:r></w:p>", "undo"),
    "deleted text": (f"<w:p>{DELETED}<w:ins><w:r><w:t>yes</w:t></w:r></w:ins></w:p>", "yes"),
    "hidden text": (run("<w:rPr><w:vanish/></w:rPr><w:t>no</w:t>"), ""),
    "shown text": (run('<w:rPr><w:vanish w:val="0"/></w:rPr><w:t>yes</w:t>'), "yes"),
    "fields": (run("<w:instrText>HYPERLINK no</w:instrText>") + run("<w:t>yes</w:t>"), "yes"),
    "tables": (f"<w:tbl><w:tr>{cell('a')}{cell('b')}</w:tr><w:tr>{cell('c')}</w:tr></w:tbl>", "a b c"),
    "text boxes": (choice(BOX, BOX), "box"),
    "an empty choice": (choice("", "<w:t>old</w:t>"), "old"),
    "raised numbers": (f"<w:p><w:r><w:t>word</w:t></w:r>{RAISED}</w:p>", "word 1"),
}


@pytest.mark.parametrize("case", WORDS)
def test_word(reading, case):
    body, expected = WORDS[case]
    assert words(reading(word(run("<w:t>first</w:t>") + body), ".docx")) == ["first", *expected.split()]


def test_all_parts_of_a_word_document(reading):
    kinds = ("footnotes", "endnotes", "comments", "header", "footer")
    body = '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Head</w:t></w:r></w:p>' + run("<w:t>body</w:t>")
    document = reading(word(body, **{name: run(f"<w:t>in{name}</w:t>") for name in kinds}), ".docx")
    assert set(words(document)) == {"Head", "body", *(f"in{name}" for name in kinds)}
    assert document.title == "Head"


def test_slides_with_notes_tables_and_hidden_slides(tmp_path):
    pptx = pytest.importorskip("pptx")
    deck = pptx.Presentation()
    for title in ("First", "Second"):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text_frame.text = "one\vtwo"
        slide.shapes.add_table(1, 2, 0, 0, 9, 9).table.cell(0, 1).text = "cell"
        slide.notes_slide.notes_text_frame.text = "note"
    slide._element.set("show", "0")
    deck.save(tmp_path / "a.pptx")
    document = read(str(tmp_path / "a.pptx"), ".pptx")
    assert words(document) == ["First", "one", "two", "cell", "note"]
    assert (document.title, document.pages, document.left) == ("First", [0, len(document.text)], {"hidden slides": 1})


def test_sheets_with_comments_and_hidden_sheets(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for sheet, values in ((book.active, ["name", 42.0, 1.5, True]), (book.create_sheet("Secret"), ["hidden"])):
        sheet.append(values)
    book["Secret"].sheet_state = "hidden"
    book.active["A1"].comment = openpyxl.comments.Comment("remark", "A")
    book.save(tmp_path / "a.xlsx")
    document = read(str(tmp_path / "a.xlsx"), ".xlsx")
    assert document.text == "Sheet\nname | 42 | 1.5 | TRUE\nremark"
    assert document.left == {"hidden sheets": 1}


def test_opendocument_texts(reading):
    note = "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>note</text:p></text:note-body>"
    cells = "".join(f"<table:table-cell><text:p>{name}</text:p></table:table-cell>" for name in "xy")
    content = (
        "<office:text><text:tracked-changes><text:p>no</text:p></text:tracked-changes>"
        "<text:h text:outline-level='1'>Head</text:h><text:p>a<text:s/>b<text:tab/>c<text:line-break/>d un"
        f"<text:span>do</text:span> e{note}</text:note></text:p>"
        f"<table:table><table:table-row>{cells}</table:table-row></table:table></office:text>"
    )
    document = reading(opendocument(content), ".odt")
    assert words(document) == ["Head", "a", "b", "c", "d", "undo", "e", "note", "x", "y"]
    assert document.title == "Head"


def test_books_are_read_in_the_order_of_their_spine(reading):
    book = {
        "mimetype": "application/epub+zip",
        "META-INF__container_xml": '<container><rootfile full-path="x/book.opf"/></container>',
        "x__book_opf": '<package><title>Of rivers</title><manifest><item id="b" href="b.html"/>'
        '<item id="a" href="a%20a.html"/></manifest><spine><itemref idref="a"/><itemref idref="b"/></spine></package>',
        "x__a a_html": "<p>one</p>",
        "x__b_html": "<p>two</p>",
    }
    document = reading(archive(**book), ".epub")
    assert (document.title, document.text, document.pages) == ("Of rivers", "one\ntwo", [0, 4])


FIELD = "<</Type/Annot/Subtype/Widget/FT/{}/T(n)/V({})/Rect[150 660 400 690]/F {}/DA(/F 9 Tf)>>"
NOTE = "<</Type/Annot/Subtype/Text/Contents({})/Rect[0 0 9 9]/F {}>>"


def test_pdf_pages_form_values_and_comments(reading):
    notes = [
        FIELD.format("Tx", "Quillback Harbour", 4),
        FIELD.format("Tx", "hidden", 2),
        NOTE.format("a remark", 0),
        NOTE.format("Applicant", 0),
        "<</Type/Annot/Subtype/Link/Contents(no)/Rect[0 0 9 9]>>",
    ]
    document = reading(pdf([shown("Applicant:", "next"), shown("page two")], "Of water", notes), ".pdf")
    assert document.text == "Applicant:\nnext\nQuillback Harbour\na remark\npage two"
    assert document.title == "Of water"
    assert [document.text[start:].split()[0] for start in document.pages] == ["Applicant:", "page"]


def test_words_divided_at_the_end_of_a_line_are_joined_but_compounds_keep_their_hyphen(reading):
    page = shown("the trans-", "portation of well-", "known goods; well-known")
    assert "transportation of well-known goods" in " ".join(reading(pdf([page]), ".pdf").text.split())


def test_pages_without_text_are_counted(reading):
    document = reading(pdf([shown("text"), ""]), ".pdf")
    assert document.left == {"pages without text (scanned?)": 1}


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Of water", "Of water"),
        ("Microsoft Word - Report 2020.docx", ""),
        ("Microsoft Word - Annual report", "Annual report"),
        ("untitled", ""),
        ("C:\\x\\y", ""),
        ("report_final.pdf", ""),
        ("12.03.2020", ""),
        ("Section 2.1 of the report", "Section 2.1 of the report"),
        ("", ""),
    ],
)
def test_titles_of_pdf_documents_that_programs_set_are_none(title, expected):
    assert title_of(title) == expected


def test_mail(reading):
    mail = (
        "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nFrom: A <a@b.c>\nContent-Type: multipart/mixed; boundary=X\n\n--X\n"
        "Content-Type: text/html; charset=latin-1\n\n<p>caf\xe9</p><p>two</p>\n--X\n"
        'Content-Type: application/pdf; name="plan.pdf"\n\nno\n--X\n'
        "Content-Type: message/rfc822\n\nSubject: inner\n\nbody\n--X--\n"
    )
    document = reading(mail.encode("latin-1"), ".eml")
    assert document.title == "Grüße"
    assert document.text.split("\n")[2:] == ["café", "two", "plan.pdf", "inner", "body"]
    assert document.left == {"attachments": 1}


def test_notebooks(reading):
    outputs = [{"text": ["out\n"]}, {"data": {"image/png": "no", "text/plain": "42"}}, 5]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "x = 1", "outputs": outputs},
        None,
    ]
    document = reading(json.dumps({"cells": cells, "metadata": []}), ".ipynb")
    assert (document.title, document.text, document.left) == ("Title", "Title\ntext\nx = 1\nout\n42", {"images": 1})


def test_restructured_text(reading):
    source = (
        "Title\n=====\n\nSee :ref:`the guide <g>` and *emph*.\n\n.. note:: Mind\n\n"
        ".. unknown:: arg\n   :opt: no\n\n   body\n\n"
        ".. include:: /etc/hostname\n\n.. |s| replace:: said\n\n|s| `open\n"
    )
    document = reading(source, ".rst")
    assert " ".join(words(document)) == "Title See the guide and emph Mind arg body etc hostname said open"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_texts_are_in_composed_letters_without_ligatures_and_soft_hyphens(reading, form):
    text = unicodedata.normalize(form, "Orléans e\u00adffort o\ufb03ce")
    for ending in (".txt", ".md", ".html"):
        assert reading(text, ending).text == "Orléans effort office"


ENCODED = {
    "utf-16 without a mark": ("naïve text".encode("utf-16-le"), ".txt", "naïve text", 0),
    "utf-16 with a mark": ("naïve text".encode("utf-16"), ".txt", "naïve text", 0),
    "a mark": (b"\xef\xbb\xbfx", ".md", "x", 0),
    "a declared encoding": ('<meta charset="latin-1"><p>caf\xe9'.encode("latin-1"), ".html", "café", 0),
    "an XML declaration": ('<?xml version="1.0" encoding="koi8-r"?><p>мир</p>'.encode("koi8-r"), ".html", "мир", 0),
    "a wrong declaration": ('<meta charset="latin-1"><p>café'.encode(), ".html", "café", 0),
    "western european": ("“Grüße” an alle".encode("cp1252"), ".txt", "“Grüße” an alle", 1),
    "one damaged letter": ("éèà".encode() + b"\xff", ".txt", "éèà\ufffd", 1),
}


@pytest.mark.parametrize("case", ENCODED)
def test_encodings(reading, case):
    """Guesses are counted."""
    raw, ending, text, guesses = ENCODED[case]
    document = reading(raw, ending)
    assert (document.text, sum(document.left.values())) == (text, guesses)


def test_a_wrong_file_extension_does_not_matter(reading):
    assert reading(pdf([shown("a page")]), ".docx").text == "a page"
    assert reading(word(run("<w:t>a word</w:t>")), ".txt").text == "a word"
    assert reading("<table><tr><td>a<td>b</table>", ".xls").text == "a | b"


FRONT = {
    "a colon in a value": ("title: Guide: install\nyear: 2021", {"title": "Guide: install", "year": 2021}),
    "YAML 1.2": ("a: no\nb: true\nc: 0123\nd: 2021-05-01\ne: 12:30:00\nf: 1_0\ng: 1e3",
        {"a": "no", "b": True, "c": "0123", "d": "2021-05-01", "e": "12:30:00", "f": "1_0", "g": 1000.0}),
    "other types": ('n: !!bool "x"\nm: !!python/object:os.system 1\nk: [a, b]', {"n": "x", "m": 1, "k": ["a", "b"]}),
    "itself": ("a: &a [*a]\nb: 2", {"b": 2}),
    "a key of another kind": ("a: {b: 1}\nc: |\n  text\n  more", {"a": {"b": 1}, "c": "text\nmore\n"}),
    "one bad entry": ("a: [1\nb: 2\nc: 'x", {"a": "[1", "b": 2, "c": "x"}),
    "merges": ("x: &x {k: 1}\n<<: *x\ny: 2", {"x": {"k": 1}, "k": 1, "y": 2}),
    "prose": ("Note this:\n\nsome prose without entries.", {}),
    "a list": ("- a\n- b", {}),
}  # fmt: skip


@pytest.mark.parametrize("case", FRONT)
def test_front_matter(case):
    """A block that is not a mapping stays in the text."""
    source, fields = FRONT[case]
    whole = f"---\n{source}\n---\nbody"
    values, rest = split(whole, Text())
    assert (values, rest) == (fields, "body" if fields else whole)
    assert {name: type(value) for name, value in values.items()} == {
        name: type(value) for name, value in fields.items()
    }


def test_front_matter_that_expands_without_bound_is_counted():
    levels = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    text = Text()
    values, _ = split(f"---\na0: &a0 [x, x]\n{levels}end: 1\n---\n", text)
    assert values["end"] == 1
    assert sum(text.left.values()) > 3


def test_toml_front_matter():
    assert split('+++\ntitle = "T"\nd = 2020-01-01\n+++\nx', Text()) == ({"title": "T", "d": "2020-01-01"}, "x")


@given(
    st.lists(
        st.sampled_from(
            ["one", " ", "\n", "*", "_", "`", "[", "](x)", "|", "> ", "- ", "#", "<b>", "<!--", "-->", "&shy;", "\\"]
        )
    )
)
def test_any_markdown_is_read_without_losing_a_word(parts):
    """Except in comments, tags and link targets."""
    source = "".join(parts)
    text = Text()
    add_markdown(source, text)
    document = text.document()
    if "<!--" not in source and "](x" not in source and "<b" not in source:
        assert document.text.count("one") >= source.count("one")
    assert all(document.text[start:].startswith(words.split()[0]) for start, _, words in document.headings if words)


@given(
    st.lists(
        st.sampled_from(
            [
                "<p>",
                "<div hidden>",
                "</",
                "<nav>",
                "<h1>",
                "</h1>",
                "<svg>",
                "<![CDATA[",
                "&#x0;",
                "&am",
                "a b",
                "<!--",
                "<td>",
            ]
        )
    )
)
def test_broken_pages_have_a_text(parts):
    document = html_document("".join(parts).encode())
    assert "\0" not in document.text
    assert all(0 <= start <= len(document.text) for start, *_ in document.headings)


def test_headings_and_pages_are_located_in_the_text(reading):
    document = reading("# Guide\n\ntext\n\n## In*stall*\n\nmore e\u00adnd\n\n# Last", ".md")
    assert [(document.text[start:].split("\n")[0], level) for start, level, _ in document.headings] == [
        ("Guide", 1), ("Install", 2), ("Last", 1),
    ]  # fmt: skip


_PARTS = (
    "Subject: s\nMIME-Version: 1.0\nContent-Type: multipart/{}; boundary=x\n\n--x\n\n{}\n--x\nContent-Type: {}\n--x--\n"
)
_CELL = {"cell_type": "code", "source": "y"}


def notebook(output):
    return json.dumps({"cells": [_CELL | {"outputs": [{"output_type": "display_data"} | output]}]})


def book(spine="<itemref idref='a'/>", href="a.xhtml", **parts):
    package = (
        "<package><metadata><title>Main</title><title>Sub</title></metadata><manifest>"
        f"<item id='a' href='{href}' media-type='application/xhtml+xml'/></manifest><spine>{spine}</spine></package>"
    )
    container = "<container><rootfiles><rootfile full-path='c.opf'/></rootfiles></container>"
    return archive(mimetype="application/epub+zip", c_opf=package, **{
        "META-INF__container_xml": container, **parts,
    })  # fmt: skip


_CHAPTER = {"a_xhtml": "<html xmlns='x'><head><title/><script src='s'/></head><body>one<br/>two</body></html>"}


@pytest.mark.parametrize(
    ("content", "ending", "expected"),
    [
        ("<a-b><template shadowrootmode=open>shown</template>lit</a-b><template>no</template>", ".html", "shown lit"),
        ("<select><optgroup label=Group><option>one</select>", ".html", "Group one"),
        ("<head><style>" + "a{}" * 9999 + "</style><meta charset=koi8-r></head>да", ".html", "да"),
        ('<?xml version="1.0"?><html><head><title/></head><body><a id="x"/>one<br/>two', ".html", "one two"),
        ("-a, --all  Show\n-b file   Other", ".rst", "a all Show b file Other"),
        (notebook({"data": {"text/latex": ["alpha"]}}), ".ipynb", "y alpha"),
        (notebook({"data": {"application/json": {"key": "value"}}}), ".ipynb", "y key value"),
        (notebook({"text": "\x1b[1;32mgreen\x1b[0m done"}), ".ipynb", "y green done"),
        (_PARTS.format("alternative", " ", "text/html\n\n<p>html"), ".eml", "s html"),
        (
            _PARTS.format("alternative", "No HTML", f"text/html\n\n<p>{'word ' * 9}"),
            ".eml",
            "s " + "word " * 9,
        ),
        (_PARTS.format("mixed", "see", "text/csv\n\nname,price"), ".eml", "s see name price"),
        (
            _PARTS.format("report", "no", "message/delivery-status\n\nStatus: 5\n\nTo: x"),
            ".eml",
            "s no Status 5 To x",
        ),
        ("Subject: Grüße\n\ntext".encode("cp1252"), ".eml", "Grüße text"),
        ("Café à la crème".encode("cp1252"), ".txt", "Café à la crème"),
        (book(**_CHAPTER), ".epub", "one two"),
        (book(spine="", **_CHAPTER), ".epub", "one two"),
        (book(href="A.xhtml#part", **_CHAPTER), ".epub", "one two"),
    ],
)  # fmt: skip
def test_words_in_awkward_places_are_found(reading, content, ending, expected):
    """Shadow roots, labels, late declarations, XML's empty elements, outputs, forms of messages, short texts, books."""
    if isinstance(content, str) and "koi8" in content:
        content = content.encode("koi8-r")
    document = reading(content, ending)
    assert words(document) == expected.split()
    assert ending != ".epub" or document.title == "Main"
