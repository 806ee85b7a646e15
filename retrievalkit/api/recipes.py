"""Recipes run, the quickstart among them, and files converted."""

from __future__ import annotations

import os
from typing import Any

from retrievalkit.api.options import call, options_of
from retrievalkit.api.tables import Table
from retrievalkit.data import inputs as given
from retrievalkit.errors import OptionError


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


@options_of("convert", without=("source", "output"))
def convert(source: Any, output: str | os.PathLike[str], *, kind: str | None = None, **options: Any) -> dict[str, int]:
    """Read a source in any known format and write it in ours.

    Args:
        source: A file, a folder or another source; or data in memory, of which `kind` says what it is.
        output: The file or folder to write.
        kind: "corpus", "queries", "examples", "qrels", "run" or "collection"; None = found out.
        **options: Of `rkit convert`.

    Returns:
        How many rows of each kind were written.

    Raises:
        InputError: The source is damaged or unknown; nothing was written.
    """
    kinds = {"corpus": given.passages, "queries": given.queries, "examples": given.examples, "qrels": given.judgements}
    if not isinstance(source, str | os.PathLike) and kind not in kinds:
        msg = f"data in memory is of one of the kinds {', '.join(kinds)}, and kind is {kind!r}. Give it."
        raise OptionError(msg)
    address = kinds.get(kind or "", os.fspath)(source)
    found: dict[str, int] = call("convert", {"source": address, "output": output, "kind": kind, **options})
    return found
