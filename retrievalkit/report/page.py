"""Pages to read in a browser: one HTML file each, which holds all that it shows and fetches nothing.

    page = Page("Comparison", "BM25 against a dense retriever, CACM")
    page.text("Means over 52 queries.")
    page.table(["run", "nDCG@10"], [["bm25", 0.4871], ["dense", 0.5012]], numeric=["nDCG@10"])
    page.figure(Path("means.png").read_bytes(), "Means with their intervals.")
    with_texts = page.details("Query 7: what is the time sharing system?")
    with_texts.text("...")
    page.write("comparison.html")

Everything given is text and is shown as such: nothing in it is taken for HTML, but for an SVG figure. Pages follow the
reader's choice of a light or dark screen, and print. A table's rows are put in order by a click on a column's head, and
with `find=True` a field above it leaves only the rows that hold what is typed there; without scripts both stay away.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from retrievalkit.artifacts import write_file

Tone = Literal["good", "bad", "muted", "strong", "code", "name"]


@dataclass(frozen=True)
class Mark:
    """A text with a look, or a cell with another value to be ordered by.

    Attributes:
        text: What is shown.
        tone: Its look.
        sort: What a table's row is ordered by, where that is not the text.
        title: What is shown where the reader points at it.
    """

    text: str
    tone: Tone | None = None
    sort: float | str | None = None
    title: str | None = None


Text = str | Mark
Cell = str | float | Mark | None | Sequence[Text]


class Block:
    """A part of a page, to which parts are added one after another."""

    def __init__(self) -> None:
        self._parts: list[str | Block] = []
        self._before, self._after = "", ""

    def heading(self, title: str) -> None:
        """A heading of a section."""
        self._parts.append(f"<h2>{escape(title)}</h2>")

    def text(self, *pieces: Text, tone: Tone | None = None) -> None:
        """A paragraph, of one text or of several with looks of their own; lines of its text stay lines."""
        self._parts.append(f"<p{_class(tone)}>{''.join(map(_inline, pieces))}</p>")

    def bullets(self, items: Iterable[Text | Sequence[Text]]) -> None:
        """A list, of texts or of several texts in a row; nothing where there is no item."""
        rows = [[item] if isinstance(item, str | Mark) else item for item in items]
        if inner := "".join(f"<li>{''.join(map(_inline, row))}</li>" for row in rows):
            self._parts.append(f"<ul>{inner}</ul>")

    def figures(self, values: Iterable[tuple[str, str]]) -> None:
        """A row of the few figures that matter most, each with its name."""
        inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values)
        self._parts.append(f'<dl class="figures">{inner}</dl>')

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        numeric: Collection[str] = (),
        caption: str = "",
        find: bool = False,
    ) -> None:
        """A table whose rows the reader can order.

        Args:
            columns: The heads.
            rows: A cell a column: text, a number (shown with four decimals where it is no whole one), a `Mark`, several
                texts side by side, or None for nothing.
            numeric: The columns that are ordered as numbers and stand to the right.
            caption: Above the table.
            find: Whether to offer a field that leaves only the rows that hold what is typed.

        Raises:
            ValueError: A row has not as many cells as there are columns.
        """
        right = [name in numeric for name in columns]
        head = "".join(
            f'<th scope="col"{_number(one)}>{escape(name)}</th>' for name, one in zip(columns, right, strict=True)
        )
        body = "".join(
            f"<tr>{''.join(_cell(cell, one) for cell, one in zip(row, right, strict=True))}</tr>\n" for row in rows
        )
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        table = (
            f"<table{' data-find' if find else ''}>{title}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        )
        self._parts.append(f'<div class="table">{table}</div>')

    def figure(self, image: bytes | str, caption: str = "", *, dark: bytes | None = None, alt: str = "") -> None:
        """A picture.

        Args:
            image: The bytes of a PNG, shown in the size that its dots an inch give it, or the text of an SVG, which is
                put in as it is.
            caption: Below it.
            dark: The bytes of a PNG that takes its place on a dark screen.
            alt: What it shows, for who does not see it; the caption where it is left out.
        """
        described = escape(alt or caption)
        if isinstance(image, str):
            picture = f'<div role="img" aria-label="{described}">{image[max(0, image.find("<svg")) :]}</div>'
        else:
            other = f'<source media="(prefers-color-scheme: dark)" srcset="{_data(dark)}">' if dark else ""
            picture = f'<picture>{other}<img src="{_data(image)}" alt="{described}"{_width(image)}></picture>'
        look = ' class="light"' if dark is None else ""
        told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        self._parts.append(f"<figure{look}>{picture}{told}</figure>")

    def details(self, *summary: Text, opened: bool = False) -> Block:
        """A part that is folded away under a line, until the reader opens it."""
        start = f"<details{' open' if opened else ''}><summary>{''.join(map(_inline, summary))}</summary>"
        return self._inside(start, "</details>")

    def beside(self, count: int) -> list[Block]:
        """Parts that stand side by side where there is room."""
        row = self._inside('<div class="beside">', "</div>")
        return [row._inside("<div>", "</div>") for _ in range(count)]

    def _inside(self, before: str, after: str) -> Block:
        block = Block()
        block._before, block._after = before, after
        self._parts.append(block)
        return block

    def html(self) -> str:
        """The part as HTML."""
        inner = "\n".join(part if isinstance(part, str) else part.html() for part in self._parts)
        return f"{self._before}{inner}{self._after}"


class Page(Block):
    """A page with a title; see the module."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        super().__init__()
        self._title, self._subtitle = title, subtitle

    def html(self) -> str:
        """The whole page."""
        style, script = (
            files("retrievalkit.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js")
        )
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        subtitle = f'<p class="subtitle">{escape(self._subtitle)}</p>' if self._subtitle else ""
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{escape(self._title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
            f"<header><h1>{escape(self._title)}</h1>{subtitle}</header>\n{super().html()}\n</main>\n"
            f"<script>{script}</script>\n</body>\n</html>\n"
        )

    def write(self, path: str | Path) -> None:
        """Write the page; the file appears when it is whole."""
        text = self.html()
        with write_file(path) as staging:
            staging.write_text(text, encoding="utf-8", errors="replace")


def _inline(piece: Text) -> str:
    if isinstance(piece, str):
        return escape(piece)
    title = f' title="{escape(piece.title)}"' if piece.title else ""
    return f"<span{_class(piece.tone)}{title}>{escape(piece.text)}</span>"


def _cell(cell: Cell, right: bool) -> str:
    order, shown = "", ""
    if isinstance(cell, Mark):
        order, shown = ("" if cell.sort is None else f' data-sort="{escape(str(cell.sort))}"'), _inline(cell)
    elif isinstance(cell, int | float):
        order, shown = f' data-sort="{cell!r}"', _decimal(cell)
    elif isinstance(cell, str):
        shown = escape(cell)
    elif cell is not None:
        shown = "".join(map(_inline, cell))
    return f"<td{_number(right)}{order}>{shown}</td>"


def _decimal(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if math.isfinite(value) else ""


def _class(tone: str | None) -> str:
    return f' class="{tone}"' if tone else ""


def _number(right: bool) -> str:
    return ' class="number"' if right else ""


def _width(png: bytes) -> str:
    """The width in points of the screen, 96 to the inch, where the picture says how many of its own an inch has."""
    place = png.find(b"pHYs", 0, 200) + 4
    if place < 4 or png[place + 8] != 1:
        return ""
    a_metre = int.from_bytes(png[place : place + 4], "big")
    return f' width="{int.from_bytes(png[16:20], "big") / a_metre / 0.0254 * 96:.0f}"' if a_metre else ""


def _data(png: Any) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
