"""`rkit index`: build an index/ folder from a vectors/ folder or a corpus; change or check an index.

rkit index VECTORS|CORPUS --indexer N --output DIR [--shards N] [--check]
rkit index INDEX --add PLACE [--mirror] | --delete ID | --compact | --check
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from retrievalkit import storage
from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Argument, Flag, Named, Place, ReadingOptions, Reads, Rest, command
from retrievalkit.data import inputs
from retrievalkit.data.sources import InMemory
from retrievalkit.errors import ArtifactError, OptionError
from retrievalkit.indexing.options import Count, Precision
from retrievalkit.reporting.terminal import counted
from retrievalkit.storage import Folder

if TYPE_CHECKING:
    from retrievalkit.indexing.change import Outcome
    from retrievalkit.indexing.recall import Recall


@dataclass(frozen=True)
class IndexOptions(RayOptions, ReadingOptions):
    """Options of `index`.

    Args:
        source: A vectors folder or a corpus; with `add`, `delete`, `compact` or `check` alone, the index.
        indexer: Indexer (rkit plugins list); by default flat for vectors, bm25 for a corpus.
        output: The index folder to write; not needed to change or to check an index.
        overwrite: Replace an existing output folder.
        shards: Number of parts to build the index in; a killed build resumes when run again.
        add: Add passages, or vectors, to the index; only new texts are encoded.
        mirror: With `add`: also delete texts that are not in PLACE.
        delete: Ids of texts or documents to delete, or files that list them (ids, or a corpus).
        compact: Merge the segments into one, as in a new build.
        check: Compare the new index, or the index SOURCE, with brute force.
        check_queries: Queries for the check; by default texts of the folder.
        check_count: Number of queries to check; by default 100.
        check_k: Hits per query to check; by default 10.
        model: With `add` or `check_queries`: new place of the encoding checkpoint, if it was moved.
        precision: Number format for encoding the texts of `add` (by default as in the index) or the queries of
            `check_queries` (fp32).
        indexer_options: Options of the indexer.
    """

    source: Annotated[Any, Argument(), Reads(inputs.passages, ("passages", "vectors"))]
    _: KW_ONLY
    indexer: Annotated[str | None, Named("indexer")] = None
    output: Annotated[Place | None, Flag(("--output", "-o"))] = None
    overwrite: bool = False
    shards: Count | None = None
    add: Annotated[Any, Flag(metavar="PLACE"), Reads(inputs.passages, ("passages", "vectors"))] = None
    mirror: bool = False
    delete: Annotated[Sequence[str], Flag(metavar="ID|FILE")] = ()
    compact: bool = False
    check: bool = False
    check_queries: Annotated[Any, Reads(inputs.queries)] = None
    check_count: Count | None = None
    check_k: Count | None = None
    model: Annotated[Any, Reads(accepts=("model",))] = None
    precision: Precision | None = None
    indexer_options: Annotated[Mapping[str, Any], Rest()] = field(default_factory=dict)


class IndexFolder(Folder):
    """An index that was built, changed or checked.

    Attributes:
        outcome: The changes; None if there were none.
        recall: The comparison with brute force; None without a check.
    """

    def __init__(
        self, path: Place, lines: Sequence[str], *, outcome: Outcome | None = None, recall: Recall | None = None
    ) -> None:
        super().__init__(path, summary="\n".join(f"{path}: {line}" for line in lines))
        self.outcome = outcome
        self.recall = recall

    def as_json(self) -> dict[str, Any]:
        """Return the recall, the changes, or the manifest of a new index."""
        result = self.recall or self.outcome
        return self.manifest if result is None else result.as_json()


@command("index", IndexOptions)
def index(options: IndexOptions) -> IndexFolder:
    """Index SOURCE: a vectors folder (rkit encode) or a corpus.

    With --add, --delete, --compact or --check alone, SOURCE is the index to change or check.
    """
    cluster = options.cluster
    if cluster is not None and options.shards is None:
        msg = "ray and torchrun build the shards of an index in parallel. Set shards, or leave them out."
        raise OptionError(msg)
    if options.add is not None or options.delete or options.mirror or options.compact:
        return _changed(options)
    encoding = ("model", "precision", "check_queries", "check_count", "check_k")
    if not options.check and (unused := _set(options, encoding)):
        encode = f" To encode texts first: rkit encode {options.model} {options.source}" if options.model else ""
        msg = f"{', '.join(unused)} has no effect without a check of the index. Add check, or leave it out.{encode}"
        raise OptionError(msg)
    if options.output is None:
        if not options.check:
            msg = "index needs 'output', the folder to write (--output)."
            raise OptionError(msg)
        if unused := _set(options, ("indexer", "overwrite", "shards")):
            msg = f"{', '.join(unused)} has no effect on a check. Set output to build an index, or leave it out."
            raise OptionError(msg)
        recall = _recall(options.source, options, options.indexer_options)
        return IndexFolder(options.source, [recall.summary], recall=recall)
    if options.check:
        from retrievalkit.indexing.recall import check_beforehand

        check_beforehand(options.source, options.check_queries)
    from retrievalkit.indexing.build import build_index

    manifest = build_index(
        options.source,
        indexer=options.indexer,
        output=str(options.output),
        options=options.indexer_options,
        overwrite=options.overwrite,
        texts=options.source if isinstance(options.source, InMemory) else None,
        parts=options.shards,
        cluster=cluster,
    )
    counts = dict(manifest["counts"])
    line = f"{counted(counts.pop('texts'), 'texts')} indexed"
    more = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in counts.items())
    lines = [f"{line}; {more}" if more else line]
    if not options.check:
        return IndexFolder(options.output, lines)
    recall = _recall(options.output, options, {})
    return IndexFolder(options.output, [*lines, recall.summary], recall=recall)


def _set(options: IndexOptions, names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(options, name)]


def _changed(options: IndexOptions) -> IndexFolder:
    from retrievalkit.indexing.change import change_index

    if storage.store_of(options.source):
        msg = f"'{options.source}' is in a store, where indexes cannot be changed. Change a local copy, or index again."
        raise ArtifactError(msg)
    others = ["indexer", "output", "overwrite", "shards", "indexer_options", "check"]
    others += ["check_queries", "check_count", "check_k", *([] if options.add is not None else ["model", "precision"])]
    if unused := _set(options, others):
        msg = f"{unused[0]} does not apply to changes of the index '{options.source}'. Leave it out."
        raise OptionError(msg)
    outcome = change_index(
        options.source,
        add=options.add,
        delete=options.delete,
        id_files=True,
        mirror=options.mirror,
        compact=options.compact,
        model=options.model,
        precision=options.precision,
    )
    return IndexFolder(options.source, [outcome.summary], outcome=outcome)


def _recall(folder: Place, options: IndexOptions, indexer_options: Mapping[str, Any]) -> Recall:
    from retrievalkit.indexing import recall

    return recall.check_index(
        str(folder),
        queries=options.check_queries,
        count=options.check_count or recall.QUERIES,
        k=options.check_k or recall.DEPTH,
        options=indexer_options,
        model=options.model,
        precision=options.precision,
    )
