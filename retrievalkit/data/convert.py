"""`rkit convert`: data of any known format in, the same in ours out.

    rkit convert SOURCE OUTPUT [--kind KIND] [--passages 100 --stride 50] [--parts sentences]

`data.convert` shows what becomes of each format, `passage_parts` how passages are cut.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from retrievalkit.contracts.declarations import Argument, CommandOptions, Flag, Place, Reads, command
from retrievalkit.data import inputs
from retrievalkit.errors import OptionError
from retrievalkit.reporting.counts import counted

_OF_DATA = {
    "corpus": inputs.passages,
    "queries": inputs.queries,
    "examples": inputs.examples,
    "qrels": inputs.judgements,
}


@dataclass(frozen=True, kw_only=True)
class OwnFileOptions:
    """Options for files of one's own: documents in passages, and the fields of tables.

    Args:
        passages: Cut into passages of N words.
        stride: With passages: a passage begins N words after the one before; by default they do not overlap.
        by: With passages: what is counted; by default words.
        text_field: The field (column) of a table with the texts.
        title_field: The field with the titles.
        id_field: The field with the ids; by default made from title and text.
        root: The folder that ids of documents are relative to; by default the source. Name it to convert a part of a
            folder.
    """

    heading: ClassVar = "Own files"

    passages: Annotated[int, Ge(1)] | None = None
    stride: Annotated[int, Ge(1)] | None = None
    by: Literal["words", "sentences"] | None = None
    text_field: Annotated[str | None, Flag(metavar="NAME")] = None
    title_field: Annotated[str | None, Flag(metavar="NAME")] = None
    id_field: Annotated[str | None, Flag(metavar="NAME")] = None
    root: Annotated[Place | None, Flag(metavar="FOLDER")] = None


@dataclass(frozen=True, kw_only=True)
class HardNegativeOptions:
    """Options for sentence-transformers' file of hard negatives by system.

    Args:
        queries: The texts of their queries.
        systems: Only those of these systems, between commas.
        per_system: Most hard negatives of a system.
        scores: A re-ranker's scores (qid, pid, score), which become a teacher's.
        margin: Keep hard negatives that score this much below each positive, or lower.
    """

    heading: ClassVar = "Hard negatives by system"

    queries: Annotated[Any, Reads(inputs.queries)] = None
    systems: str | Sequence[str] | None = None
    per_system: Annotated[int, Ge(1)] | None = None
    scores: Annotated[Place | None, Reads()] = None
    margin: float | None = None


@dataclass(frozen=True)
class ConvertOptions(HardNegativeOptions, OwnFileOptions, CommandOptions):
    """Options of `convert`.

    Args:
        source: A file, a folder or another source; in Python also data in memory, with its kind.
        output: The file or folder to write.
        kind: The kind of data in the source, or the part of a collection to convert; by default as it looks.
        split: Which split of a collection with several.
        form: The format to write a run or qrels in.
        parts: Cut passages into sentences or K equal parts, ID#1, ID#2 ...; judgements and examples follow them.
        merge_parts: Of a run of such parts make one of passages, by their best part.
        corpus: The passages that examples or judgements name, if the source does not hold them.
    """

    source: Annotated[Any, Argument(), Reads()]
    output: Annotated[Place, Argument()]
    _: KW_ONLY
    kind: Literal["corpus", "queries", "examples", "qrels", "run", "collection"] | None = None
    split: str | None = None
    form: Literal["trec", "msmarco", "beir"] | None = None
    parts: Annotated[str | None, Flag(metavar="sentences|K")] = None
    merge_parts: bool = False
    corpus: Annotated[Any, Reads(inputs.passages)] = None

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with the address of a source in memory."""
        source, kind = values.get("source"), values.get("kind")
        if source is None or isinstance(source, str | os.PathLike):
            return dict(values)
        if kind not in _OF_DATA:
            msg = f"data in memory is of one of the kinds {', '.join(_OF_DATA)}, and kind is {kind!r}. Give it."
            raise OptionError(msg)
        return {**values, "source": _OF_DATA[kind](source)}


class Converted(dict[str, int]):
    """What was written: kind of row -> number of rows.

    Args:
        output: The file or folder.
        counts: The numbers.
    """

    def __init__(self, output: Place, counts: Mapping[str, int]) -> None:
        super().__init__(counts)
        self.summary = f"{output}: " + ", ".join(counted(value, name) for name, value in counts.items())

    def as_json(self) -> dict[str, int]:
        """What `--json` prints."""
        return self


@command("convert", ConvertOptions)
def convert(options: ConvertOptions) -> Converted:
    """Read a source in any known format, or a folder of .txt, .md, .html and .pdf, and write it in ours."""
    from retrievalkit.data.columns import Columns
    from retrievalkit.data.conversion import convert as program
    from retrievalkit.data.hard_negatives import HardNegatives
    from retrievalkit.data.passage_parts import Windows, contents_of

    if options.passages is None and (options.stride is not None or options.by is not None):
        name = "by" if options.stride is None else "stride"
        msg = f"{name} is about passages of N words, which are not asked for. Give passages too, or leave it out."
        raise OptionError(msg)
    windows = None if options.passages is None else Windows(options.passages, options.stride, options.by or "words")
    fields = [options.text_field or "", options.title_field or "", options.id_field or ""]
    names = ("queries", "systems", "per_system", "scores", "margin")
    chosen = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.systems is not None:
        lists = [options.systems] if isinstance(options.systems, str) else options.systems
        chosen["systems"] = [name.strip() for text in lists for name in text.split(",")]
    counts = program(
        options.source,
        Path(options.output),
        kind=options.kind,
        split=options.split,
        corpus=options.corpus,
        form=options.form,
        hard_negatives=HardNegatives(**chosen) if chosen else None,
        root=None if options.root is None else Path(options.root),
        contents=contents_of(
            options.parts,
            merge=options.merge_parts,
            windows=windows,
            columns=Columns(*fields) if any(fields) else None,
        ),
    )
    return Converted(options.output, counts)
