"""Counts with their nouns, for messages and summaries."""

from __future__ import annotations

import re


def counted(number: int, plural: str) -> str:
    """Format a number with its noun: "1 query", "2 queries"."""
    singular = re.sub(r"(?<=ss|.x)es$|s$", "", re.sub(r"ies$", "ys", plural))
    return f"{number:,} {singular if number == 1 else plural}"
