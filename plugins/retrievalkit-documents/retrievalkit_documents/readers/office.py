"""Office Open XML, OpenDocument and EPUB: archives of XML parts, read as streams of elements.

A part is never held as a tree, so a small archive that unpacks to a huge part is bounded.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import unquote

from retrievalkit_documents.text import DAMAGED_PARTS, Document, Text, UnreadableError

_CHUNK = 1 << 16
_FALSE = ("0", "false", "off", "none")
_MEDIA = re.compile(r"(?:^|/)(?:media|Pictures|images?)/[^/]+\.(?!xml)\w+$", re.IGNORECASE)
_EMBEDDED = re.compile(r"/embeddings/[^/]+$|/afchunk[^/]*$|^Object \d+/content\.xml$", re.IGNORECASE)
_CHART = re.compile(r"/charts/chart[^/]*\.xml$", re.IGNORECASE)
_DEFAULT_TITLE = re.compile(r"PowerPoint Presentation|Word Document|Slide 1|Document\d*")
_NUMBER = re.compile(r"(\d+)")


class Package:
    """An archive of parts."""

    def __init__(self, stream: BinaryIO) -> None:
        self._archive = zipfile.ZipFile(stream)
        self._damaged = 0
        self.names = set(self._archive.namelist())

    def parse(self, name: str, target: Any) -> Any:
        """Feed a part to a parser target, and return its result; of a damaged part, what comes before the damage."""
        from lxml import etree

        parser = etree.XMLParser(target=target, huge_tree=True, resolve_entities=False, no_network=True)
        try:
            with self._archive.open(name) as part:
                while block := part.read(_CHUNK):
                    parser.feed(block)
            parser.close()
        except (etree.XMLSyntaxError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
            self._damaged += 1
        except RuntimeError as error:  # of zipfile
            raise UnreadableError("encrypted" if "encrypted" in str(error) else "damaged") from None
        return target.close()

    def read(self, name: str) -> bytes:
        """Return a part; b"" if it is damaged."""
        try:
            return self._archive.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
            self._damaged += 1
            return b""

    def attributes(self, name: str, *tags: str) -> list[dict[str, str]]:
        """Return the attributes of all elements with these local names, with their own name as "", in a part."""
        return self.parse(name, _Attributes(tags)) if name in self.names else []

    def texts(self, name: str) -> dict[str, str]:
        """Return the text of the first element of a part by its local name, such as the title of the properties."""
        return self.parse(name, _Texts()) if name in self.names else {}

    def related(self, name: str) -> dict[str, tuple[str, str]]:
        """Return the relations of a part: id -> last word of the type, name of the part."""
        folder, _, file = name.rpartition("/")
        listed = self.attributes(posixpath.join(folder, "_rels", f"{file}.rels"), "Relationship")
        return {
            row.get("Id", ""): (
                row.get("Type", "").rpartition("/")[2],
                posixpath.normpath(posixpath.join("/", folder, unquote(row.get("Target", "")))).lstrip("/"),
            )
            for row in listed
            if row.get("TargetMode") != "External"
        }

    def parts(self, name: str, kind: str) -> list[str]:
        """Return the existing parts that a part relates to by a type, in the order of their numbers."""
        return sorted(
            {part for kin, part in self.related(name).values() if kin == kind and part in self.names}, key=_by_number
        )

    def count_unread(self, text: Text) -> None:
        """Count images, charts, embedded files and damaged parts."""
        text.count(DAMAGED_PARTS, self._damaged)
        for kind, form in (("images", _MEDIA), ("embedded files", _EMBEDDED), ("charts", _CHART)):
            text.count(kind, sum(form.search(name) is not None for name in self.names))


def _by_number(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in _NUMBER.split(name)]


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _named(attributes: Mapping[str, str]) -> dict[str, str]:
    return {_local(name): value for name, value in attributes.items()}


class _Attributes:
    """Attributes of elements."""

    def __init__(self, tags: tuple[str, ...]) -> None:
        self._tags = tags
        self._rows: list[dict[str, str]] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if _local(tag) in self._tags:
            self._rows.append({"": _local(tag), **_named(attributes)})

    def close(self) -> list[dict[str, str]]:
        return self._rows


class _Texts:
    """Texts of elements; of several with a name, of the first."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._open: list[str] = []
        self._done = set[str]()

    def start(self, tag: str, _: Mapping[str, str]) -> None:
        self._open.append(_local(tag))

    def end(self, _: str) -> None:
        name = self._open.pop()
        if name in self._texts:
            self._done.add(name)

    def data(self, words: str) -> None:
        if words.strip() and self._open[-1] not in self._done:
            self._texts[self._open[-1]] = self._texts.get(self._open[-1], "") + words

    def close(self) -> dict[str, str]:
        return self._texts


class _Walker:
    """Writer of the words of an XML part; subclasses define what elements mean by methods for local names.

    Attributes:
        skipped: Elements whose content is not read.
        texts: Elements with words; None = all.
    """

    skipped: frozenset[str] = frozenset()
    texts: frozenset[str] | None = None
    lines: frozenset[str] = frozenset()
    gaps: frozenset[str] = frozenset()

    def __init__(self, text: Text) -> None:
        self.text = text
        self._depth = 0
        self._skipping = 0  # depth of the element whose content is skipped
        self._reading = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        if self._skipping:
            return
        name = _local(tag)
        if name in self.skipped:
            self._skipping = self._depth
            return
        if self.texts is None or name in self.texts:
            self._reading += 1
        if name in self.lines:
            self.text.start()
        elif name in self.gaps:
            self.text.space()
        if opener := getattr(self, f"open_{name}", None):
            opener(attributes)

    def end(self, tag: str) -> None:
        self._depth -= 1
        if self._skipping:
            if self._depth < self._skipping:
                self._skipping = 0
            return
        name = _local(tag)
        if self.texts is None or name in self.texts:
            self._reading -= 1
        if name in self.lines:
            self.text.line()
        elif name in self.gaps:
            self.text.space()
        if closer := getattr(self, f"close_{name}", None):
            closer()

    def data(self, words: str) -> None:
        if self._reading and not self._skipping:
            self.text.add(words)

    def skip(self) -> None:
        """Skip the element that has just started."""
        self._skipping = self._depth

    def close(self) -> None:
        """End the part."""


class _Office(_Walker):
    """Writer of the words of a part of an Office Open XML document."""

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self._choices: list[int] = []

    def open_AlternateContent(self, _: Mapping[str, str]) -> None:
        self._choices.append(self.text.mark())

    def close_AlternateContent(self) -> None:
        self._choices.pop()

    def open_Fallback(self, _: Mapping[str, str]) -> None:
        # It repeats the text of the choice for older programs.
        if self._choices and self.text.mark() > self._choices[-1]:
            self.skip()

    def open_tr(self, _: Mapping[str, str]) -> None:
        self.text.row()

    def close_tc(self) -> None:
        self.text.cell()


class _Word(_Office):
    """Words of a part of a Word document."""

    skipped = frozenset(
        ("del", "moveFrom", "instrText", "delText", "rPrChange", "pPrChange", "sdtPr", "tblPr", "sectPr")
    )
    texts = frozenset(("t",))
    lines = frozenset(("txbxContent", "tr", "tbl", "footnote", "endnote", "comment", "br", "cr"))
    gaps = frozenset(("tab", "ptab", "sym", "num", "den", "e", "sub", "sup", "deg", "rt", "rubyBase"))

    def __init__(self, text: Text, hidden: frozenset[str], levels: Mapping[str, int]) -> None:
        super().__init__(text)
        self._hidden_styles, self._levels = hidden, levels
        self._runs: list[bool] = []  # open runs: True if hidden
        self._paragraphs: list[tuple[int, int]] = []  # start and heading level of open paragraphs
        self._in_style = False

    def open_p(self, _: Mapping[str, str]) -> None:
        self.text.start()
        self._paragraphs.append((self.text.mark(), 0))

    def close_p(self) -> None:
        start, level = self._paragraphs.pop() if self._paragraphs else (0, 0)
        if level:
            self.text.end_heading(start, level)
        self.text.line()

    def open_pStyle(self, attributes: Mapping[str, str]) -> None:
        name = _named(attributes).get("val", "")
        if self._paragraphs and name in self._levels:
            self._paragraphs[-1] = (self._paragraphs[-1][0], self._levels[name])

    def open_tabs(self, _: Mapping[str, str]) -> None:
        self.skip()  # definitions of stops

    def open_r(self, _: Mapping[str, str]) -> None:
        self._runs.append(False)

    def close_r(self) -> None:
        if self._runs:
            self._runs.pop()

    def open_vanish(self, attributes: Mapping[str, str]) -> None:
        if self._runs and _named(attributes).get("val", "1") not in _FALSE:
            self._runs[-1] = True

    def open_rStyle(self, attributes: Mapping[str, str]) -> None:
        if self._runs and _named(attributes).get("val") in self._hidden_styles:
            self._runs[-1] = True

    def open_vertAlign(self, attributes: Mapping[str, str]) -> None:
        if _named(attributes).get("val") == "superscript":
            self.text.note()

    def open_noBreakHyphen(self, _: Mapping[str, str]) -> None:
        if not any(self._runs):
            self.text.add("-")

    def open_docPr(self, attributes: Mapping[str, str]) -> None:
        if description := attributes.get("descr"):
            self.text.add(f" {description} ")

    def data(self, words: str) -> None:
        if not any(self._runs):
            super().data(words)


def read_word(stream: BinaryIO) -> Document:
    """Read all parts of a Word document: body, notes, comments, headers and footers, text boxes and diagrams."""
    package, text = Package(stream), Text()
    main = _main(package, "word/document.xml")
    hidden, levels = _styles(package, main)
    seen = set[str]()

    def add(name: str) -> None:
        package.parse(name, _Word(text, hidden, levels))
        text.line()

    add(main)
    for kind in ("footnotes", "endnotes", "comments", "header", "footer"):
        for name in package.parts(main, kind):
            if (content := package.read(name).decode("utf-8", "replace")) not in seen:
                seen.add(content)
                add(name)
    for name in package.parts(main, "diagramData"):
        package.parse(name, Drawing(text))
    package.count_unread(text)
    return text.document(title(package, "docProps/core.xml"))


def _main(package: Package, usual: str) -> str:
    """Return the name of the main part."""
    names = package.parts("", "officeDocument") or [usual]
    if names[0] not in package.names:
        raise UnreadableError("damaged")
    return names[0]


def title(package: Package, name: str) -> str:
    """Return the title from the properties of a document, unless a program set it."""
    title = package.texts(name).get("title", "")
    # Default titles of programs.
    return (
        "" if re.fullmatch(r"(?:PowerPoint Presentation|Word Document|Slide 1|Document\d*)", title.strip()) else title
    )


class _Styles:
    """Styles of a Word document: those with hidden text, and the levels of headings."""

    def __init__(self) -> None:
        self.hidden = set[str]()
        self.levels: dict[str, int] = {}
        self._style = ""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        name, values = _local(tag), _named(attributes)
        if name == "style":
            self._style = values.get("styleId", "")
        elif name == "vanish" and values.get("val", "1") not in _FALSE:
            self.hidden.add(self._style)
        elif name == "name" and self._style:
            words = values.get("val", "").lower()
            if words == "title":
                self.levels[self._style] = 1
            elif (match := re.fullmatch(r"heading ([1-9])", words)) is not None:
                self.levels[self._style] = int(match[1])
        elif name == "outlineLvl" and values.get("val", "9").isdigit() and int(values["val"]) < 9:
            self.levels.setdefault(self._style, int(values["val"]) + 1)

    def close(self) -> _Styles:
        return self


def _styles(package: Package, main: str) -> tuple[frozenset[str], Mapping[str, int]]:
    for name in package.parts(main, "styles"):
        styles = package.parse(name, _Styles())
        return frozenset(styles.hidden - {""}), styles.levels
    return frozenset(), {}


class Drawing(_Office):
    """Words of a slide, notes, comments or a diagram."""

    skipped = frozenset(("instrText",))
    texts = frozenset(("t", "text"))
    lines = frozenset(("p", "br", "tr", "tbl", "cm", "pt", "sp"))
    gaps = frozenset(("tab", "num", "den", "e", "sub", "sup"))

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self._title = -1

    def open_ph(self, attributes: Mapping[str, str]) -> None:
        if attributes.get("type") in ("title", "ctrTitle"):
            self._title = self.text.mark()

    def close_sp(self) -> None:
        if self._title >= 0:
            self.text.end_heading(self._title, 1)
        self._title = -1

    def open_fld(self, attributes: Mapping[str, str]) -> None:
        if attributes.get("type") == "slidenum":
            self.skip()

    def open_rPr(self, attributes: Mapping[str, str]) -> None:
        if attributes.get("baseline", "0").isdigit() and attributes.get("baseline", "0") != "0":
            self.text.note()

    def open_cNvPr(self, attributes: Mapping[str, str]) -> None:
        if description := attributes.get("descr"):
            self.text.line()
            self.text.add(description)
            self.text.line()


def read_slides(stream: BinaryIO) -> Document:
    """Read the slides of a presentation with their notes, comments and diagrams; hidden slides are counted."""
    package, text = Package(stream), Text()
    main = _main(package, "ppt/presentation.xml")
    related = package.related(main)
    order = [related.get(row.get("id", ""), ("", ""))[1] for row in _slide_ids(package, main)]
    slides = [name for name in order if name in package.names] or package.parts(main, "slide")
    for name in slides:
        text.page()
        if any(row.get("show") in _FALSE for row in package.attributes(name, "sld")):
            text.count("hidden slides")
            continue
        package.parse(name, Drawing(text))
        text.line()
        for kind in ("diagramData", "notesSlide", "comments"):
            for part in package.parts(name, kind):
                package.parse(part, Drawing(text))
                text.line()
    package.count_unread(text)
    return text.document(title(package, "docProps/core.xml"))


def _slide_ids(package: Package, main: str) -> list[dict[str, str]]:
    """Return the ids of the relations to the slides, in their order."""

    class Ids(_Attributes):
        def start(self, tag: str, attributes: Mapping[str, str]) -> None:
            if _local(tag) == "sldId":
                self._rows.append(
                    {"id": next((value for name, value in attributes.items() if name.endswith("}id")), "")}
                )

    rows: list[dict[str, str]] = package.parse(main, Ids(()))
    return rows


class _OpenDocument(_Walker):
    """Words of the content of an OpenDocument file."""

    skipped = frozenset((
        "tracked-changes", "note-citation", "creator", "date", "date-string", "sender-initials", "hidden-text",
        "hidden-paragraph", "scripts", "font-face-decls", "forms", "binary-data", "page-number", "page-count",
    ))  # fmt: skip
    texts = frozenset(("p", "h", "title", "desc"))
    lines = frozenset(
        ("p", "table-row", "table", "line-break", "note-body", "annotation", "list-item", "title", "desc")
    )
    gaps = frozenset(("s", "tab", "ruby-base", "ruby-text"))

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self._headings: list[tuple[int, int]] = []
        self._style = ""
        self._hidden = set[str]()

    def open_h(self, attributes: Mapping[str, str]) -> None:
        level = _named(attributes).get("outline-level", "1")
        self.text.line()
        self._headings.append((self.text.mark(), int(level) if level.isdigit() else 1))

    def close_h(self) -> None:
        self.text.end_heading(*self._headings.pop())

    def open_page(self, _: Mapping[str, str]) -> None:
        self.text.page()

    def open_style(self, attributes: Mapping[str, str]) -> None:
        self._style = _named(attributes).get("name", "")

    def open_section(self, attributes: Mapping[str, str]) -> None:
        if _named(attributes).get("display") == "none":
            self.skip()

    def open_text_properties(self, attributes: Mapping[str, str]) -> None:
        if _named(attributes).get("display") == "none":
            self._hidden.add(self._style)

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        name = _local(tag)
        super().start(tag, attributes)
        if self._skipping:
            return
        if name == "table-row":
            self.text.row()
        elif name == "text-properties":
            self.open_text_properties(attributes)
        elif name in ("span", "p", "h") and self._hidden and _named(attributes).get("style-name") in self._hidden:
            self.skip()
            self._reading -= name != "span"

    def end(self, tag: str) -> None:
        super().end(tag)
        if not self._skipping and _local(tag) in ("table-cell", "covered-table-cell"):
            self.text.cell()


class _MasterPages(_OpenDocument):
    """Headers and footers."""

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self._inside = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._inside += _local(tag) in (
            "header",
            "footer",
            "header-left",
            "footer-left",
            "header-first",
            "footer-first",
        )
        super().start(tag, attributes)

    def end(self, tag: str) -> None:
        super().end(tag)
        self._inside -= _local(tag) in (
            "header",
            "footer",
            "header-left",
            "footer-left",
            "header-first",
            "footer-first",
        )

    def data(self, words: str) -> None:
        if self._inside:
            super().data(words)


def read_opendocument(stream: BinaryIO) -> Document:
    """Read a text or a presentation in OpenDocument format: content with notes and comments, headers and footers."""
    package, text = Package(stream), Text()
    if any(row.get("full-path") == "content.xml" and "algorithm-name" in str(row) for row in _manifest(package)):
        raise UnreadableError("encrypted")
    if "META-INF/manifest.xml" in package.names and b"encryption-data" in package.read("META-INF/manifest.xml"):
        raise UnreadableError("encrypted")
    if "content.xml" not in package.names:
        raise UnreadableError("damaged")
    package.parse("content.xml", _OpenDocument(text))
    if "styles.xml" in package.names:
        text.line()
        package.parse("styles.xml", _MasterPages(text))
    package.count_unread(text)
    return text.document(title(package, "meta.xml"))


def _manifest(package: Package) -> Iterator[dict[str, str]]:
    yield from package.attributes("META-INF/manifest.xml", "file-entry")


def read_epub(stream: BinaryIO) -> Document:
    """Read the chapters of a book in their order."""
    from retrievalkit_documents.readers.html import DECLARED, add_page
    from retrievalkit_documents.readers.plain import decoded

    package, text = Package(stream), Text()
    roots = [row.get("full-path", "") for row in package.attributes("META-INF/container.xml", "rootfile")]
    if not roots or roots[0] not in package.names:
        raise UnreadableError("damaged")
    listed = package.attributes(roots[0], "item", "itemref")
    items = {row.get("id", ""): row for row in listed if row[""] == "item"}
    chapters = [items[row["idref"]] for row in listed if row[""] == "itemref" and row.get("idref") in items]
    encrypted = {row.get("URI", "") for row in package.attributes("META-INF/encryption.xml", "CipherReference")}
    if not chapters:
        chapters = [row for row in items.values() if "html" in row.get("media-type", "")]
    same = {name.casefold(): name for name in package.names}
    for chapter in chapters:
        href = unquote(chapter.get("href", "").partition("#")[0])
        name = posixpath.normpath(posixpath.join(posixpath.dirname(roots[0]), href))
        name = name if name in package.names else same.get(name.casefold(), name)
        if name in encrypted:
            raise UnreadableError("encrypted")
        if name not in package.names or chapter.get("properties") == "nav":
            continue
        raw = package.read(name)
        declared = DECLARED.search(raw[:1024])
        text.page()
        add_page(decoded(raw, text, (declared[1] or declared[2]).decode() if declared else ""), text, is_xml=True)
    package.count_unread(text)
    return text.document(package.texts(roots[0]).get("title", ""))
