"""JSON that a stranger may have written: parsed within bounds."""

from __future__ import annotations

import json
from typing import Any


def loads_json(text: str | bytes) -> Any:
    """The value of a JSON text, as `json.loads` gives it.

    Raises:
        ValueError: It is not JSON, not UTF-8, nested too deeply, or holds NaN, an infinity, a number that Python's
            floats cannot hold, or an integer of thousands of digits. The message needs no further explanation.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        msg = "its values are nested too deeply"
        raise ValueError(msg) from None


def _refuse_constant(name: str) -> Any:
    msg = f"{name} is not a JSON value"
    raise ValueError(msg)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        msg = f"the number {digits[:20]} is too large"
        raise ValueError(msg)
    return value
