"""HTML representations of objects in notebooks: without scripts or external resources, and with escaped texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrievalkit.reporting.page import render

_PAGE = "notebook.html.j2"


def hits(title: str, results: Sequence[Any]) -> str:
    """Render hits (`rk.Hit`) with matching words highlighted, and explanations of their scores."""
    return render(_PAGE, title=title, hits=results, texts=[])


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    numeric: Sequence[str] = (),
    texts: Sequence[str] = (),
    pictures: Sequence[Any] = (),
) -> str:
    """Render a table with lines and plots below it; floats have four decimals, numeric columns are right-aligned."""
    values = {"columns": columns, "rows": rows, "numeric": numeric, "texts": texts, "pictures": pictures}
    return render(_PAGE, title=title, **values)
