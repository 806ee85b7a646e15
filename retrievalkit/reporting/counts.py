"""Numbers with what they count, as messages and outcomes print them."""

from __future__ import annotations

import re


def counted(number: int, plural: str) -> str:
    """A number and its noun: "1 query", "2 queries"."""
    singular = re.sub(r"(?<=ss|.x)es$|s$", "", re.sub(r"ies$", "ys", plural))
    return f"{number:,} {singular if number == 1 else plural}"
