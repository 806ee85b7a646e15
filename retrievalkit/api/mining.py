"""Training examples in memory, and negatives mined for them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from retrievalkit.api.hybrid import Hybrid
from retrievalkit.api.index import Index
from retrievalkit.api.options import call, options_of
from retrievalkit.api.places import scratch
from retrievalkit.api.runs import Run
from retrievalkit.data import inputs as given
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.errors import InputError, OptionError
from retrievalkit.report import notebook
from retrievalkit.report.counts import counted
from retrievalkit.report.table import Tabular

if TYPE_CHECKING:
    from pandas import DataFrame

_SHOWN = 5


class Examples(Sequence[Example], Tabular):
    """Training examples: queries with the ids of documents that answer them, and of others that do not.

    Args:
        data: A file or another source, rows (dicts, a table, a data set) of any known form, or examples.
        corpus: The passages that they name, which trainings then take from here.

    Attributes:
        corpus: The address of these passages; None = not known, or the examples bring their own.
        address: What programs read: the source as it was given, texts included.
        report: What mining dropped and kept, if they were mined.

    Raises:
        InputError: A row is damaged, or none has a positive.
    """

    def __init__(self, data: Any, corpus: Any = None) -> None:
        self.corpus = None if corpus is None else given.passages(corpus)
        self.report: dict[str, Any] | None = None
        self.address = given.examples(data)
        self._rows = tuple(read_examples(self.address).rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Example, ...]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Example | tuple[Example, ...]:
        return self._rows[place]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them as JSON lines of ids; the file appears when it is whole."""
        write_examples(os.fspath(path), self)

    def to_pandas(self) -> DataFrame:
        """A table with a row for each example."""
        import pandas

        columns = ["query_id", "query", "positives", "negatives", "answers"]
        return pandas.DataFrame([[getattr(one, name) for name in columns] for one in self], columns=columns)

    def __repr__(self) -> str:
        negatives = sum(len(one.negatives) for one in self)
        return f"Examples({counted(len(self), 'queries')}, {counted(negatives, 'negatives')})"

    def _repr_html_(self) -> str:
        rows = [[one.query_id, one.query, ", ".join(one.positives[:3]), len(one.negatives)] for one in self[:_SHOWN]]
        rest = [f"and {len(self) - _SHOWN:,} more"] if len(self) > _SHOWN else []
        columns = ["id", "query", "positives", "negatives"]
        return notebook.table(repr(self), columns, rows, numeric=["negatives"], texts=rest)


@options_of("mine-negatives", without=("from",))
def mine_negatives(
    source: Any,
    examples: Any,
    *,
    corpus: Any = None,
    output: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Examples:
    """Find hard negatives: passages that rank high and are not the answer.

    Args:
        source: Where hits come from: an index, a hybrid, a run, a retriever, the place of one of these, "bm25"; or a
            list of several, which are fused.
        examples: The examples to find negatives for: a file or another source, rows, or `Examples`.
        corpus: The passages; None = those of the examples, or those that the index was made of.
        output: The file to write, with its audit beside it; interrupted and called again it goes on. None = in memory.
        **options: Of `rkit mine-negatives`.

    Returns:
        The examples with negatives; `report` says what was dropped and kept.

    Raises:
        InputError: Something about the input is wrong, or no question has a negative.
    """
    several = source if isinstance(source, list | tuple) else [source]
    settings: dict[str, Any] = {}
    if isinstance(source, Hybrid):
        several, settings = source.parts, source.options
    for index in several:
        if isinstance(index, Index) and index.moved_model is not None:
            settings["model"] = index.moved_model
        if isinstance(index, Index) and index.settings:
            settings |= _as_opened(index)
    if settings:
        flags = {name: settings.pop(name) for name in ("fusion", "weights", "precision") if name in settings}
        options = flags | options | {"set": settings | (options.get("set") or {})}
    passages = _corpus(corpus, examples, several)
    with scratch() as folder:
        place = Path(output) if output is not None else folder / "mined.jsonl"
        names = [_place(one, folder / f"{number}.trec") for number, one in enumerate(several)]
        words = {"from": names, "examples": _examples(examples), "corpus": passages, "output": place}
        if options.get("merge_with") is not None:
            options["merge_with"] = _examples(options["merge_with"])
        report = call("mine-negatives", words | options)
        mined = Examples(list(read_examples(place).rows), passages)
    mined.report = report
    return mined


def _examples(data: Any) -> str:
    return data.address if isinstance(data, Examples) else given.examples(data)


def _place(source: Any, run: Path) -> str:
    if isinstance(source, Run):
        source.save(run)
        return str(run)
    place = getattr(source, "folder", None) or getattr(source, "source", None) or source
    if isinstance(place, str | os.PathLike):
        return os.fspath(place)
    msg = f"hits cannot come from {type(source).__name__}. Give an index, a hybrid, a run, a retriever, or a place."
    raise InputError(msg)


def _as_opened(index: Index) -> dict[str, Any]:
    """The settings of an open index that mining takes too, as it opens the folder again."""
    if others := [name for name in index.settings if name != "precision"]:
        msg = (
            f"'{index.name}' was opened with {others[0]}={index.settings[others[0]]!r}, which mining does "
            "not take. Give hits that were found so: "
            "rk.mine_negatives(index.search(queries, k=200), examples, corpus=...)."
        )
        raise OptionError(msg)
    return {"precision": index.settings["precision"]}


def _corpus(corpus: Any, examples: Any, sources: Iterable[Any]) -> str:
    if corpus is not None:
        return given.passages(corpus)
    if isinstance(examples, Examples) and examples.corpus is not None:
        return examples.corpus
    for index in sources:
        if isinstance(index, Index) and (address := index.texts_address) is not None:
            return address
    msg = "the passages to mine are not known. Give them: corpus=..."
    raise InputError(msg)
