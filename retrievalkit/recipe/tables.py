"""Rows as text for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Rows = Sequence[Sequence[str]]


def text_table(rows: Rows, *, header: bool = True, right: Collection[int] = ()) -> str:
    """Rows as lines, in columns.

    Args:
        rows: Equally long; the first one is the header.
        header: Whether there is a header.
        right: The columns that are aligned on the right.
    """
    del header  # a header looks like the other rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in cells).rstrip()

    return "\n".join(map(line, rows))


def markdown_table(rows: Rows, *, header: bool = True, right: Collection[int] = ()) -> str:
    """Rows as a Markdown table; as `text_table`."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    if not header:
        escaped.insert(0, [""] * len(escaped[0]))
    rule = ["---:" if i in right else "---" for i in range(len(escaped[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (escaped[0], rule, *escaped[1:]))
