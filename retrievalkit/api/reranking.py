"""A cross-encoder applied: to a run, or to training examples as a teacher."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from retrievalkit.api.mining import Examples
from retrievalkit.api.options import call, options_of
from retrievalkit.api.places import scratch
from retrievalkit.api.runs import Run
from retrievalkit.data import inputs as given
from retrievalkit.data.runs import open_run, write_run
from retrievalkit.errors import InputError


@options_of("rerank apply", without=("reranker", "run", "queries", "corpus"))
def rerank(
    reranker: str | os.PathLike[str],
    run: Any = None,
    queries: Any = None,
    corpus: Any = None,
    *,
    examples: Any = None,
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run | Examples:
    """Rank a run anew, or give training examples a teacher's scores.

    Args:
        reranker: The folder or the name of a cross-encoder.
        run: The run: in memory, or its file.
        queries: The texts of its queries: a file or another source, a dict id -> text, a table.
        corpus: The texts of the documents: as above.
        examples: Training examples to score for distillation, instead of a run.
        output: The file to write; interrupted and called again it goes on. None = in memory.
        **options: Of `rkit rerank apply`.

    Returns:
        The run in the order of the scores, or the examples with them.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    known = examples.corpus if isinstance(examples, Examples) else None
    passages = known if corpus is None else given.passages(corpus)
    words: dict[str, Any] = {"reranker": reranker, "corpus": passages}
    if queries is not None:
        words["queries"] = given.queries(queries)
    with scratch() as folder:
        place = Path(output) if output is not None else folder / "output"
        if run is not None:
            words["run"] = _file_of(run, folder)
        if examples is not None:
            words["examples"] = examples.address if isinstance(examples, Examples) else given.examples(examples)
        call("rerank apply", words | {"output": place} | options)
        if examples is not None:
            return Examples(_rows(place), passages)
        name = f"{run.name}, re-ranked" if isinstance(run, Run) else "re-ranked"
        # Equal scores stay in the order of the file.
        return Run.found(Run.load(place, ties="run").items(), name)


def _rows(place: Path) -> Any:
    from retrievalkit.data.examples import read_examples

    return list(read_examples(place).rows)


def _file_of(run: Any, folder: Path) -> str:
    if isinstance(run, str | os.PathLike):
        return os.fspath(run)
    hits = open_run(given.run(run))
    if not any(hits.values()):
        msg = "the run is empty: there is nothing to rank anew."
        raise InputError(msg)
    place = folder / "run.trec"
    write_run(place, hits)
    return str(place)
