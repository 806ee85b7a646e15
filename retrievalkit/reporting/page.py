"""Self-contained HTML pages: single files that load nothing.

Each kind of page has a template in templates/, which extends base.html.j2, uses the elements of parts.html.j2 and is
filled by `render`. All values are escaped as text, except SVG figures. Pages follow the reader's preference for a light
or dark screen, and can be printed. A click on a column header sorts a table, and a field above a table with `data-find`
filters its rows; without scripts, both are hidden.
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
"""File name extensions of pages."""

_TEMPLATES = Path(__file__).with_name("templates")


def write_page(path: str | Path, html: str) -> None:
    """Write a rendered page atomically."""
    with write_file(path) as staging:
        staging.write_text(html, encoding="utf-8", errors="replace")


def render(template: str | Path, **values: Any) -> str:
    """Fill a template, or a file that extends a template; values are escaped."""
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
    # The page's security policy allows only this script, whatever the texts contain.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {"style": Markup(style), "script": Markup(script), "script_digest": digest}
    environment.filters |= {"number": _number, "share": share, "p_value": p_value, "png": _png, "svg": Markup}
    return environment


def share(part: int, whole: int) -> str:
    """Format a part of a whole in per cent."""
    return f"{part / whole:.1%}" if whole else "none"


def p_value(value: float) -> str:
    """Format a p-value with four decimals."""
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if math.isfinite(value) else ""


def _png(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
