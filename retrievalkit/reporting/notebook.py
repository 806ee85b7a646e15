"""How objects look in notebooks: a piece of HTML that fetches nothing, runs nothing and escapes what it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrievalkit.reporting.page import render

_PAGE = "notebook.html.j2"


def lines(title: str, texts: Sequence[str]) -> str:
    """A title, and a line for each text."""
    return render(_PAGE, title=title, texts=texts)


def hits(title: str, found: Sequence[Any]) -> str:
    """Hits (`rk.Hit`) with the matching words marked, and the reasons for their scores."""
    return render(_PAGE, title=title, hits=found, texts=[])


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    numeric: Sequence[str] = (),
    texts: Sequence[str] = (),
    pictures: Sequence[Any] = (),
) -> str:
    """A table, with lines and plots below it; numbers have four decimals, and numeric columns stand to the right."""
    values = {"columns": columns, "rows": rows, "numeric": numeric, "texts": texts, "pictures": pictures}
    return render(_PAGE, title=title, **values)
