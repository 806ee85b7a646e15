"""Pages to read in a browser: one HTML file each, which holds all that it shows and fetches nothing.

    page = Page("Training", "msmarco, 3 epochs")
    page.text("The loss fell until the second epoch.")
    page.table(["run", "nDCG@10"], [["bm25", 0.4871], ["dense", 0.5012]], numeric=["nDCG@10"])
    page.figure(line_chart({"loss": points}, x="step", y="loss"), "Training loss")
    page.details("Options").table(["option", "value"], rows)
    page.write("training.html")

Pages with a layout of their own have a template in templates/, which extends base.html.j2 and is filled by `render`.
Whatever is given is text and is shown as such; only an SVG figure is put in as it is. Pages follow the reader's choice
of a light or dark screen, and print. A click on a column's head sorts a table, and with `find=True` a field above the
table filters its rows; without scripts both stay away.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from retrievalkit.artifacts import write_file

if TYPE_CHECKING:
    from jinja2 import Environment

Tone = Literal["good", "bad", "muted", "strong", "code", "name"]

PAGES = (".html", ".htm")
"""How the names of pages end."""

_TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Mark:
    """A text with a look, or a cell that is sorted by another value than its text.

    Attributes:
        text: The text.
        tone: Its look.
        sort: What rows are sorted by, if that is not the text.
        title: The tooltip.
    """

    text: str
    tone: Tone | None = None
    sort: float | str | None = None
    title: str | None = None


Text = str | Mark
Cell = str | float | Mark | None | Sequence[Text]


class Block:
    """A part of a page; elements are added from top to bottom."""

    def __init__(self) -> None:
        self.elements: list[dict[str, Any]] = []

    def heading(self, title: str) -> None:
        """A heading of a section."""
        self._add("heading", title=title)

    def text(self, *pieces: Text, tone: Tone | None = None) -> None:
        """A paragraph of one or several pieces; line breaks in them stay."""
        self._add("text", pieces=pieces, tone=tone)

    def figures(self, values: Iterable[tuple[str, str]]) -> None:
        """The few numbers that matter most, side by side, each with its name: (name, value)."""
        self._add("figures", figures=list(values))

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]],
        *,
        numeric: Collection[str] = (),
        caption: str = "",
        find: bool = False,
    ) -> None:
        """A table that the reader can sort.

        Args:
            columns: The heads.
            rows: A cell per column: text, a number (a float is shown with four decimals), a `Mark`, several pieces
                side by side, or None for an empty cell.
            numeric: The columns that are sorted as numbers and aligned to the right.
            caption: Above the table.
            find: Whether to offer a field that filters the rows.

        Raises:
            ValueError: A row has more or fewer cells than there are columns.
        """
        rows = [list(row) for row in rows]
        if wrong := next((row for row in rows if len(row) != len(columns)), None):
            msg = f"a row has {len(wrong)} cells, and the table {len(columns)} columns: {wrong}"
            raise ValueError(msg)
        self._add("table", columns=columns, rows=rows, numeric=numeric, caption=caption, find=find)

    def figure(
        self,
        image: bytes | str,
        caption: str = "",
        *,
        dark: bytes | None = None,
        width: int | None = None,
        alt: str = "",
    ) -> None:
        """A picture.

        Args:
            image: A PNG, or the text of an SVG that is put in as it is: give none that somebody else wrote.
            caption: Below the picture.
            dark: The PNG that replaces it on a dark screen.
            width: Of a PNG in CSS pixels (96 per inch); its own width in dots if None.
            alt: What it shows, for people who cannot see it; the caption if "".
        """
        svg = image[max(0, image.find("<svg")) :] if isinstance(image, str) else None
        self._add("figure", image=image, svg=svg, dark=dark, width=width, caption=caption, alt=alt or caption)

    def details(self, *summary: Text, opened: bool = False) -> Block:
        """A part that is folded away under a line until the reader opens it."""
        inner = Block()
        self._add("details", summary=summary, opened=opened, elements=inner.elements)
        return inner

    def _add(self, kind: str, **values: Any) -> None:
        self.elements.append({"kind": kind, **values})


class Page(Block):
    """A page with a title; see the module."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        super().__init__()
        self.title, self.subtitle = title, subtitle

    def html(self) -> str:
        """The whole page."""
        return render("page.html.j2", title=self.title, subtitle=self.subtitle, elements=self.elements)

    def write(self, path: str | Path) -> None:
        """Write the page; the file appears when it is complete."""
        write_page(path, self.html())


def write_page(path: str | Path, html: str) -> None:
    """Write a rendered page; the file appears when it is complete."""
    with write_file(path) as staging:
        staging.write_text(html, encoding="utf-8", errors="replace")


def render(template: str, **values: Any) -> str:
    """Fill one of the templates; values are escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((_TEMPLATES / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # A page may run this script alone, whatever the texts hold.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {"style": Markup(style), "script": Markup(script), "script_digest": digest}
    environment.filters |= {"number": _number, "share": share, "p_value": p_value, "png": _png, "svg": Markup}
    return environment


def share(part: int, whole: int) -> str:
    """A part in per cent."""
    return f"{part / whole:.1%}" if whole else "none"


def p_value(value: float) -> str:
    """A p-value with four decimals."""
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if math.isfinite(value) else ""


def _png(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
