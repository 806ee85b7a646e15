"""Recipes run, the quickstart among them."""

from __future__ import annotations

import os
from typing import Any

from retrievalkit.api.options import call, options_of
from retrievalkit.api.tables import Table
from retrievalkit.data import inputs as given


@options_of("run", without=("recipe", "output"))
def run(recipe: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """Run the steps of a recipe in order; those whose inputs have not changed are skipped.

    Args:
        recipe: A file, or the name of a recipe that comes with retrievalkit.
        output: The folder to write.
        **options: Of `rkit run`.

    Returns:
        Its steps with their times, and its table if it has one: what `rkit run --json` prints.

    Raises:
        RetrievalkitError: A step failed.
    """
    return call("run", {"recipe": given.place(recipe, "the recipe"), "output": output, **options})


@options_of("quickstart", without=("output",))
def quickstart(output: str | os.PathLike[str] = "quickstart", **options: Any) -> Table:
    """Train, index, search and compare on real text: every step of `rkit quickstart`; called again it goes on.

    Args:
        output: The folder for everything that the steps write; `compare.html` in it shows question by question.
        **options: Of `rkit quickstart`; own `corpus`, `examples`, `queries` and `qrels` are files or other sources.

    Returns:
        A row for each system with its figures, and how it compares with the one that it should beat.

    Raises:
        RetrievalkitError: A step failed, or a package is missing.
    """
    place = given.place(output, "the output")
    return Table(f"Quickstart in {place}", call("quickstart", {"output": place, **options}))
