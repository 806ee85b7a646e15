"""Pages to read in a browser: one HTML file each, which holds all that it shows and fetches nothing.

Each kind of page has a template in templates/, which extends base.html.j2, takes its elements from parts.html.j2 and is
filled by `render`. Whatever is given is text and is shown as such; only an SVG figure is put in as it is. Pages follow
the reader's choice of a light or dark screen, and print. A click on a column's head sorts a table, and a field above a
table with `data-find` filters its rows; without scripts both stay away.
"""

from __future__ import annotations

import base64
import hashlib
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit.storage import write_file

if TYPE_CHECKING:
    from jinja2 import Environment

PAGES = (".html", ".htm")
"""How the names of pages end."""

_TEMPLATES = Path(__file__).with_name("templates")


def write_page(path: str | Path, html: str) -> None:
    """Write a rendered page; the file appears when it is complete."""
    with write_file(path) as staging:
        staging.write_text(html, encoding="utf-8", errors="replace")


def render(template: str | Path, **values: Any) -> str:
    """Fill one of the templates, or a file that extends one; values are escaped."""
    if isinstance(template, Path):
        return _environment().from_string(template.read_text("utf-8")).render(values)
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
