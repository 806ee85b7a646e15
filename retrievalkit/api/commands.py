"""Any command by its name."""

from __future__ import annotations

from typing import Any

from retrievalkit.api.options import call


def command(name: str, **options: Any) -> Any:
    """Run any command of `rkit`, also one that a plugin brings.

    Args:
        name: Its words, such as "analyse-views" or "rerank train".
        **options: Its arguments and options, with underscores.

    Returns:
        What it prints with `--json`, as a value; None of a plugin's command that returns nothing.

    Raises:
        OptionError: There is no such command, or an option does not fit.
        RetrievalkitError: It failed.
    """
    return call(name, options)
