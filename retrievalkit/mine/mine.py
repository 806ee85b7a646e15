"""`rkit mine-negatives`: hits and training examples in, examples with hard negatives and an audit of them out.

    rkit mine-negatives --from bm25|CHECKPOINT|INDEX|RUN --corpus CORPUS --examples TRAIN --output FILE

The best hits of each question go through the filters of `mine.filters`; of the remaining hits, the first or a seeded
sample are kept. FILE.audit.json records the hits that each filter dropped, with examples, and FILE.audit.html shows
them. Memory use does not grow with questions times hits (except that sets to pool are read whole), and a killed
command resumes where it stopped when it is run again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, SupportsIndex, overload

from retrievalkit import artifacts
from retrievalkit.cluster import RayOptions
from retrievalkit.data import inputs
from retrievalkit.data.examples import Example, read_examples, write_examples
from retrievalkit.declarations import Flag, Place, ReadingOptions, Reads, command
from retrievalkit.errors import InputError
from retrievalkit.mine.options import MiningOptions
from retrievalkit.report import notebook
from retrievalkit.report.counts import counted
from retrievalkit.report.table import Tabular
from retrievalkit.search.options import FusionOptions

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
        address: Where programs read them: the source as it was given, texts included.
        report: The result of the command that wrote them: the audit of mining, the counts of scoring.
        summary: The same as text.

    Raises:
        InputError: A row is damaged, or none has a positive.
    """

    def __init__(self, data: Any, corpus: Any = None) -> None:
        self.corpus = None if corpus is None else inputs.passages(corpus)
        self.report: dict[str, Any] | None = None
        self.summary = ""
        self.address = inputs.examples(data)
        self._rows  # noqa: B018 - damaged rows are refused here

    @classmethod
    def written(cls, path: Place, corpus: str, report: dict[str, Any], summary: str, *, stays: bool = True) -> Self:
        """The examples that a command wrote to a file; one that stays is read when they are first looked at."""
        made = cls.__new__(cls)
        rows = None if stays else read_examples(str(path)).rows
        made.corpus, made.report, made.summary = corpus, report, summary
        made.address = inputs.examples(path if rows is None else rows)
        return made

    @cached_property
    def _rows(self) -> tuple[Example, ...]:
        return tuple(read_examples(self.address).rows)

    def as_json(self) -> dict[str, Any] | None:
        """What `--json` prints."""
        return self.report

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


def hit_sources(several: Any) -> tuple[str, ...]:
    """The addresses of sources of hits: of places, and of what Python has open or in memory.

    Raises:
        InputError: One is of an unknown type.
    """
    return inputs.runs([getattr(one, "folder", None) or getattr(one, "source", None) or one for one in several])


@dataclass(frozen=True)
class MineOptions(MiningOptions, FusionOptions, RayOptions, ReadingOptions):
    """Options of `mine-negatives`.

    Args:
        source: "bm25", a checkpoint, an index or a run (TREC), in Python also an open one or a hybrid; several are
            fused.
        examples: The examples to find negatives for; in Python also rows.
        corpus: The passages to mine; in Python by default those of the examples, or those that were indexed.
        output: The file to write, with its audit beside it (.audit.json and .audit.html).
        split: The split of examples that are a folder or another source with several; train by default.
        merge_with: Examples to put before the mined ones.
        model: The new place of an index's checkpoint, if it was moved.
        precision: Number format that questions are encoded and pairs scored in, fp32 by default; passages too, if
            given (else auto). auto is bf16 if the hardware multiplies in it, else fp32.
        indexer_options: Options of the index that is made for bm25.
    """

    source: Annotated[Any | Sequence[Any], Flag(("--from",)), Reads(hit_sources)]
    examples: Annotated[Any, Reads(inputs.examples)]
    _: KW_ONLY
    corpus: Annotated[Any, Flag(required=True), Reads(inputs.passages)] = None
    output: Annotated[Place | None, Flag(("--output", "-o"), required=True)] = None
    split: str | None = None
    merge_with: Annotated[Any, Reads(inputs.examples)] = None
    model: Annotated[Any, Reads(inputs.model)] = None
    precision: Literal["auto", "fp32", "bf16", "fp16", "int8"] | None = None
    indexer_options: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the parts and the options of open indexes and hybrids, and with their passages."""
        given = inputs.with_corpus({name: value for name, value in values.items() if value is not None})
        if (source := given.get("source")) is None:
            return given
        several = source if isinstance(source, list | tuple) else [source]
        opened: dict[str, Any] = {}
        for one in several:
            opened |= one.mining_options() if hasattr(one, "mining_options") else {}
        if len(several) == 1:
            several = opened.get("source", several)
        known = (address for one in several if (address := getattr(one, "texts_address", None)) is not None)
        return opened | {"corpus": given.get("corpus") or next(known, None)} | given | {"source": several}


@command("mine-negatives", MineOptions)
def mine_negatives(options: MineOptions) -> Examples:
    """Find hard negatives: passages that rank high and are not the answer.

    Hits are dropped in this order: known positives and copies of their text, passages of a positive's document, its
    near duplicates, passages with an answer, the first ranks, scores too near the positive's, hits that filters of
    plugins drop, near duplicates of a better hit, and what a re-ranker considers relevant.

    OUTPUT.audit.html (and .json) shows what was dropped and what was kept. Killed and run again, it resumes.
    """
    from retrievalkit.mine.audit import audit_table
    from retrievalkit.mine.program import mine

    if options.corpus is None:
        msg = "the passages to mine are not known. Give them: corpus=..."
        raise InputError(msg)
    if options.output is not None:
        audit = mine(options)
        return Examples.written(options.output, options.corpus, audit, audit_table(audit))
    with artifacts.scratch() as folder:
        place = folder / "mined.jsonl"
        audit = mine(replace(options, output=place))
        return Examples.written(place, options.corpus, audit, audit_table(audit), stays=False)
