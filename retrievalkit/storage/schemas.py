"""Forms of the files that describe a folder: its manifest, by kind, and the parts of a retriever.

Imported when a file is read, because pydantic is slow to import.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from retrievalkit.storage.integrity import is_inner_name


def _only(fits: Callable[[str], bool], form: str) -> AfterValidator:
    def check(text: str) -> str:
        if fits(text):
            return text
        msg = f"should be {form}"
        raise ValueError(msg)

    return AfterValidator(check)


Word = Annotated[str, Field(min_length=1, max_length=4096), _only(str.isprintable, "text without control characters")]
PathText = Annotated[str, Field(min_length=1, max_length=4096), _only(lambda path: "\0" not in path, "a path")]
InnerName = Annotated[str, _only(is_inner_name, "the name of a file of this folder")]
# These files are copied to other folders, so subfolders and the manifest itself are excluded.
PlainName = Annotated[
    InnerName, _only(lambda name: "/" not in name and name != "manifest.json", "the plain name of a file of vectors")
]
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
_MISSING: Any = Field(None)
"""The default of an entry that may be missing, but not null: defaults are not checked."""


class File(BaseModel):
    """A file of the folder."""

    bytes: Count
    blake2b: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class Input(BaseModel):
    """An input of a folder; an index also has the path relative to the index."""

    path: PathText
    fingerprint: Word
    relative_path: PathText = _MISSING


class Source(BaseModel):
    """The corpus whose texts were encoded or indexed."""

    source: PathText
    fingerprint: Word
    path: PathText = _MISSING
    relative_path: PathText = _MISSING


class Part(BaseModel):
    """A component by its registered name, and the distribution that provides it."""

    name: Word
    options: dict[Word, Any]
    distribution: Word
    version: Word


class Description(BaseModel):
    """The parts of a retriever: `retrievalkit.json`."""

    encoder: Part
    pooler: Part
    separate_towers: bool


class Untrained(Description):
    """The parts of a retriever that is not a checkpoint, but is created from its model."""

    model: PathText


class Checkpoint(Input):
    """The model that encoded the texts."""

    description: Untrained = _MISSING
    encoder_options: dict[Literal["query_length", "document_length"], Count | None] = _MISSING
    dimensions: Count = _MISSING
    compressor: Word = _MISSING


class Manifest(BaseModel):
    """Any folder's manifest."""

    kind: Word
    format: Count = 0
    command: Word = _MISSING
    options: dict[str, Any] = _MISSING
    inputs: dict[str, Input] = _MISSING
    counts: dict[str, float] = _MISSING
    versions: dict[str, Word] = _MISSING
    fingerprint: Word = _MISSING
    files: dict[InnerName, File] = _MISSING


class Vectors(Manifest):
    """The manifest of `rkit encode`."""

    inputs: dict[str, Input]
    files: dict[PlainName, File] = _MISSING
    checkpoint: Checkpoint = _MISSING
    dimensions: Count = _MISSING
    corpus: Source = _MISSING
    text_form: Word = _MISSING


class Segment(BaseModel):
    """A segment of a changed index, with the counts of its build.

    `name` is its folder in segments/, "" for the original index; `deleted` is the file that lists its deleted texts.
    """

    name: Annotated[str, Field(pattern="^([0-9]{4,12})?$")]
    deleted: Annotated[str, Field(pattern="^(deleted-[0-9]{4,12}-[0-9]*\\.txt)?$")] = ""
    counts: dict[str, float]


class Index(Manifest):
    """The manifest of `rkit index`."""

    inputs: dict[str, Input]
    indexer: Part
    checkpoint: Checkpoint = _MISSING
    dimensions: Count = _MISSING
    corpus: Source = _MISSING
    segments: Annotated[list[Segment], Field(min_length=1)] = _MISSING
    change: Count = _MISSING
    fields: InnerName = _MISSING
    documents: InnerName = _MISSING
    text_form: Word = _MISSING
    superseded: list[PlainName] = _MISSING


class Collection(Manifest):
    """The manifest of `rkit sync`, and of a folder that `rkit convert` writes, which has no indexes."""

    indexes: list[PlainName] = _MISSING
    notes: list[Word] = _MISSING


KINDS: dict[str, type[Manifest]] = {"vectors": Vectors, "index": Index, "collection": Collection}
"""Manifests of other kinds are read as `Manifest`."""
