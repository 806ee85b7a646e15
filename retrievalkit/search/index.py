"""An index: built, opened and searched."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from retrievalkit import registry, storage
from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Named, Place, ReadingOptions, Reads, method
from retrievalkit.data import inputs as given
from retrievalkit.data.corpus import open_corpus, write_corpus
from retrievalkit.data.fields import FIELDS, write_fields
from retrievalkit.data.sources import InMemory, fingerprint
from retrievalkit.errors import InputError, OptionError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.open_indexes import open_recorded_corpus
from retrievalkit.indexing.options import Count, ModelOptions, Precision, VectorOptions
from retrievalkit.reporting import notebook
from retrievalkit.reporting.counts import counted
from retrievalkit.search.options import OpenOptions
from retrievalkit.search.searchable import Searching
from retrievalkit.search.searcher import Searcher, opened

if TYPE_CHECKING:
    from retrievalkit.indexing.retriever import Retriever


@dataclass(frozen=True)
class BuildOptions(ModelOptions, VectorOptions, RayOptions, ReadingOptions):
    """Options of `Index.build`; those of encoding go with a model.

    Args:
        texts: Passages: a list of texts or of dicts with `title` and `text`, a dict by id, a table, a data set, the
            address of a corpus; or a vectors folder. Passages in memory are kept in the index.
        model: A loaded retriever, or the folder or name of a model. None = `texts` are indexed as they are.
        output: The index folder to write.
        vectors: Vectors that were made elsewhere, as `Vectors.of` takes them: then `texts` may be left out, and `model`
            is what encodes queries, if not they are given as vectors. Or a path, where to keep the vectors that the
            model makes, for other indexes of them; None = they are removed.
        ids: The ids of vectors that were made elsewhere; None = those of the texts, or their numbers from 0.
        indexer: Indexer (rkit plugins list); by default flat for vectors, bm25 for texts.
        indexer_options: Options of the indexer.
        shards: Build the index in so many parts.
        overwrite: Replace an existing output folder.
    """

    texts: Annotated[Any, Reads()] = None
    model: Any = None
    output: Place | None = None
    _: KW_ONLY
    vectors: Any = None
    ids: Any = None
    indexer: Annotated[str | None, Named("indexer")] = None
    indexer_options: Mapping[str, Any] = field(default_factory=dict)
    shards: Count | None = None
    overwrite: bool = False

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, with an output that is a folder of this machine."""
        if values.get("output") is None:
            msg = "index needs 'output', the folder to write, and it was not given."
            raise OptionError(msg)
        storage.place_of(given.place(values["output"], "the output"))
        return dict(values)


@contextmanager
def _source(
    texts: str | None,
    vectors: Any,
    ids: Iterable[Any] | None,
    output: Path,
    model: Retriever | None = None,
    encoding: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """The address that the indexer reads while the block lasts: the texts, or a folder of their vectors.

    Vectors go into a hidden folder beside the output, which stays after an interruption.
    """
    place, encoding = storage.place_of(output), encoding or {}
    beside = place.with_name(f".{place.name}.building")
    if vectors is not None and not isinstance(vectors, str | os.PathLike):
        with storage.work_folder(beside) as work:
            folder = work / "vectors"
            with storage.write_folder(folder, overwrite=True) as staging:
                _write_vectors(staging, texts, vectors, ids, model)
            yield str(folder)
        return
    assert texts is not None
    if model is None:
        yield texts
    elif vectors is not None:
        model.encode_documents(texts, output=vectors, **encoding)
        yield os.fspath(vectors)
    else:
        with storage.work_folder(beside) as work:
            identity = [model.model.fingerprint, model.model.changed, fingerprint(texts), dict(encoding)]
            folder = work / f"vectors-{storage.fingerprint_value(identity)[:12]}"
            if not folder.exists():
                model.encode_documents(texts, output=folder, **encoding)
            yield str(folder)


def _write_vectors(
    folder: Path, texts: str | None, vectors: Any, ids: Iterable[Any] | None, model: Retriever | None
) -> None:
    """Write vectors that were made elsewhere, with the passages that they are of and the model that encodes queries."""
    # torch takes seconds to import.
    from retrievalkit.indexing.vectors import Vectors
    from retrievalkit.models.retriever import describe_retriever

    entries: dict[str, Any] = {}
    corpus = None if texts is None else open_corpus(texts)
    own_ids = ids is not None or isinstance(vectors, Vectors) or hasattr(vectors, "columns")
    made = Vectors.of(vectors, ids if own_ids or corpus is None else corpus.ids())
    if texts is not None and corpus is not None:
        if lacking := corpus.missing(made.ids):
            first = next(one for one in made.ids if one in lacking)
            msg = f"there is a vector of '{first}', and no passage with this id. Give the passages of the vectors."
            raise InputError(msg)
        described = storage.describe_input(texts, corpus.fingerprint())
        entries["inputs"] = {"texts": described}
        entries["corpus"] = {"source": described["path"], "fingerprint": corpus.fingerprint()}
    if model is not None:
        with model.lock:
            # It may have encoded other texts since.
            model.model.dimensions = made.dimensions
            entries["checkpoint"] = describe_retriever(model.source, model.model)
    made.write(folder, **entries)
    if corpus is not None and write_fields(folder / FIELDS, ((name, corpus.get(name).fields) for name in made.ids)):
        files = storage.read_manifest(folder)["files"] | {FIELDS: storage.describe_file(folder / FIELDS)}
        storage.add_to_manifest(folder, files=files)


@dataclass(frozen=True)
class CheckOptions(ReadingOptions):
    """Options of `Index.check`.

    Args:
        queries: Queries to compare by; None = texts of the index.
        count: Number of queries at most; None = 100.
        k: Hits per query; None = 10.
        model: The place of the model that encodes the queries, if it was moved.
        precision: Number format to encode the queries in; None = fp32.
        indexer_options: Options of the indexer that differ from those at indexing.
    """

    queries: Annotated[Any, Reads(given.queries)] = None
    count: Count | None = None
    k: Count | None = None
    _: KW_ONLY
    model: Annotated[Any, Reads(given.model)] = None
    precision: Precision | None = None
    indexer_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AddOptions(ReadingOptions):
    """Options of `Index.add`.

    Args:
        texts: Passages with ids, as `Index.build` takes them; or vectors, or a vectors folder of the same model.
        vectors: Vectors that were made elsewhere; then `texts` may be left out, and their texts are not known.
        ids: The ids of these vectors; None = their own, or those of the texts.
        model: The place of the model that encodes the passages, if it is not where the index knows it.
        precision: Number format to encode in; None = as before.
    """

    texts: Annotated[Any, Reads()] = None
    _: KW_ONLY
    vectors: Any = None
    ids: Any = None
    model: Annotated[Any, Reads(given.model)] = None
    precision: Precision | None = None


@dataclass(frozen=True)
class DeleteOptions(ReadingOptions):
    """Options of `Index.delete`.

    Args:
        ids: The ids of the texts, or one; the id of a document deletes its passages ID#1, ID#2 ...
    """

    ids: Any


@dataclass(frozen=True)
class OpenIndexOptions(OpenOptions):
    """Options of `Index.open`.

    Args:
        folder: A folder that `Index.build` or `rkit index` wrote.
        encoder: Load the model that encodes queries, and all else that the first query would load; see `warm`.
    """

    folder: Annotated[Place, Reads()]
    _: KW_ONLY
    encoder: bool = False


class Index(Searching):
    """An open index; `Index.build` and `Index.open` make it. Several threads may search it at once.

    Attributes:
        folder: Its folder.
        manifest: What made it: the indexer with its options, inputs, counts, versions.
        model: The model that was given to encode queries; None = the one that made the index.
        settings: How it was opened: `precision`, `indexer_options` and `encoder_options`, where they were given.
    """

    def __init__(self, folder: Path, opened: Callable[[], Searcher], options: OpenOptions) -> None:
        searcher = opened()
        super().__init__(folder.name, searcher, corpus=options.corpus)
        self.folder = folder
        self.manifest = searcher.indexes[0].manifest
        self.model: str | None = getattr(options.model, "source", options.model)
        named = ("precision", "indexer_options", "encoder_options")
        self.settings = {name: value for name in named if (value := getattr(options, name))}
        self._opened = opened
        self._changing = threading.Lock()

    @classmethod
    @method(BuildOptions)
    def build(cls, options: BuildOptions) -> Index:
        """Encode passages and index their vectors, index their words, or index vectors that were made elsewhere.

        Interrupted and called again, it continues.

        Raises:
            InputError: A text is damaged, or an option does not fit.
        """
        output = Path(options.output or "")
        storage.check_output(output, overwrite=options.overwrite)
        texts, vectors, model = options.texts, options.vectors, options.model
        encoding, named = (
            {one.name: value for one in fields(kind) if (value := getattr(options, one.name)) != one.default}
            for kind in (VectorOptions, ModelOptions)
        )
        ready = vectors is not None and not isinstance(vectors, str | os.PathLike)
        if texts is None and not ready:
            msg = "there is nothing to index. Give passages, or vectors that were made elsewhere: vectors=..., ids=..."
            raise InputError(msg)
        if options.ids is not None and not ready:
            msg = "ids are for vectors that were made elsewhere. Give passages with ids as dicts with 'id' and 'text'."
            raise OptionError(msg)
        if ready and encoding:
            msg = f"{', '.join(encoding)} has no effect on vectors that were made elsewhere. Leave it out."
            raise OptionError(msg)
        if model is None and (named or encoding or (vectors is not None and not ready)):
            what = ", ".join([*named, *encoding]) or "vectors"
            msg = f"{what} goes with a model to encode with, and there is none. Give it."
            raise OptionError(msg)
        address = None if texts is None else given.passages(texts)
        encoded = model is not None or vectors is not None or storage.kind_of(address or "") == "vectors"
        wanted = options.indexer and registry.get("indexer", options.indexer).indexes  # type: ignore[attr-defined]
        if wanted == "texts" and (model is not None or vectors is not None):
            msg = f"indexer '{options.indexer}' indexes texts as they are. Leave out model=... and vectors=..."
            raise OptionError(msg)
        if wanted == "vectors" and not encoded:
            msg = f"indexer '{options.indexer}' indexes vectors. Give the model that encodes the texts: model=..."
            raise OptionError(msg)
        if model is not None and not hasattr(model, "encode_documents"):
            from retrievalkit.indexing.retriever import Retriever

            model = Retriever.load(model, **named)
        elif named:
            msg = f"{', '.join(named)} goes with the name of a model, and '{model.source}' is loaded already."
            raise OptionError(msg)
        with _source(address, vectors, options.ids, output, model, encoding) as place:
            build_index(
                place,
                indexer=options.indexer,
                output=output,
                options=options.indexer_options,
                overwrite=options.overwrite,
                texts=address if isinstance(address, InMemory) else None,
                parts=options.shards,
                cluster=options.cluster,
            )
        return cls.open(output, model=model)

    @classmethod
    @method(OpenIndexOptions)
    def open(cls, options: OpenIndexOptions) -> Index:
        """Open an index.

        Raises:
            InputError: There is no such index, it is damaged, or another model made it.
        """
        indexes = storage.indexes_of(options.folder)
        if len(indexes) > 1:
            place = os.fspath(options.folder)
            msg = f"'{place}' holds {len(indexes)} indexes. Open all: rk.Hybrid('{place}'), or one: '{indexes[0]}'."
            raise InputError(msg)
        folder = Path(indexes[0])
        if not folder.is_dir():
            msg = f"'{folder}' is not a folder. Give an index that rk.Index.build wrote."
            raise InputError(msg)
        index = cls(folder, partial(opened, [folder], options), options)
        return index.warm() if options.encoder else index

    @method(CheckOptions)
    def check(self, options: CheckOptions) -> dict[str, Any]:
        """Compare the index with brute force, and write the result into its manifest.

        Returns:
            The recall, and whether the index is exact.

        Raises:
            InputError: It is an index of texts, or its vectors are gone.
        """
        from retrievalkit.indexing import recall

        return recall.check_index(
            self.folder,
            queries=options.queries,
            count=options.count or recall.QUERIES,
            k=options.k or recall.DEPTH,
            options=options.indexer_options,
            model=options.model,
            precision=options.precision,
        ).as_json()

    @method(AddOptions)
    def add(self, options: AddOptions) -> dict[str, int]:
        """Add passages, or vectors, to the index; only new texts and changed ones are encoded.

        A text of an id that the index has takes its place; a document that comes in passages ID#1 to ID#3 loses its
        other passages. The index searches the new state at once, and so does a hybrid that was made of it; a service
        does when it reloads.

        Returns:
            The counts `added`, `changed`, `unchanged`, `deleted`, `encoded`, `compacted`; `texts` and `segments` from
            now on.

        Raises:
            InputError: A text has no id or is damaged, the vectors do not fit, or the indexer cannot add.
        """
        place = self.moved_model if options.model is None else options.model
        texts, vectors, ids = options.texts, options.vectors, options.ids
        if vectors is None and texts is not None and given.are_vectors(texts):
            texts, vectors = None, texts
        if vectors is None and texts is None:
            msg = "there is nothing to add. Give passages, or vectors with ids=..."
            raise InputError(msg)
        named = hasattr(vectors, "representation") or hasattr(vectors, "columns")
        if ids is None and texts is None and not named:
            msg = "the vectors have no ids, and would take the places of texts with their numbers. Give ids=..."
            raise InputError(msg)
        address = None if texts is None else given.passages(texts, numbered=False)
        with storage.scratch() as work:
            if vectors is not None and isinstance(address, InMemory):
                # The change looks its texts up by the address in the folder of vectors.
                kept = work / "texts.jsonl"
                write_corpus(kept, open_corpus(address))
                address = str(kept)
            with _source(address, vectors, ids, self.folder) as coming:
                return self._change(add=coming, model=place, precision=options.precision)

    @method(DeleteOptions)
    def delete(self, options: DeleteOptions) -> dict[str, int]:
        """Delete texts: neither this index nor one that is opened from now on finds them.

        Returns:
            The counts, as of `add`.

        Raises:
            InputError: An id is unknown, or no text would be left; nothing is changed.
        """
        gone = [options.ids] if isinstance(options.ids, str) else [str(one) for one in options.ids]
        if not gone:
            msg = "there are no ids to delete. Give at least one."
            raise OptionError(msg)
        return self._change(delete=gone)

    @method(ReadingOptions)
    def compact(self, options: ReadingOptions) -> dict[str, int]:
        """Make one segment of the index, as a new build of its texts would.

        Returns:
            The counts, as of `add`.

        Raises:
            UnsupportedError: It holds no vectors to make one index of.
        """
        del options
        return self._change(compact=True)

    def _change(self, **change: Any) -> dict[str, int]:
        """Change the folder, and search its new state; models that are loaded stay."""
        from retrievalkit.indexing.change import change_index

        with self._changing:
            before = self.searcher
            outcome = change_index(self.folder, **change)
            after = self._opened()
            after.encoders.adopt(before.encoders)
            with self._reading:
                self._searcher = after
                self.manifest = after.indexes[0].manifest
        return outcome.as_json()

    def __len__(self) -> int:
        return int(self.manifest["counts"]["texts"])

    @property
    def texts_address(self) -> str | None:
        """The address of the passages that were indexed; None if the index does not know it."""
        entry = self.manifest.get("corpus")
        if self.corpus is not None or entry is None:
            return self.corpus
        return open_recorded_corpus(entry, self.folder).source

    @property
    def moved_model(self) -> str | None:
        """Where the model that encodes queries is, if it is not where the index knows it."""
        known = self.manifest.get("checkpoint", {}).get("path")
        return None if self.model is None or known == os.path.abspath(self.model) else self.model

    def mining_options(self) -> dict[str, Any]:
        """The options of `rk.mine_negatives`, which opens the folder again, that find what the index finds."""
        if others := [name for name in self.settings if name != "precision"]:
            msg = (
                f"'{self.name}' was opened with {others[0]}={self.settings[others[0]]!r}, which mining does not take. "
                "Give hits: rk.mine_negatives(index.search(queries, k=200), examples, corpus=...)."
            )
            raise OptionError(msg)
        return self.settings | ({} if self.moved_model is None else {"model": self.moved_model})

    @property
    def indexer(self) -> str:
        """The name of its indexer."""
        return str(self.manifest["indexer"]["name"])

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {self.indexer}, {counted(len(self), 'texts')})"

    def _repr_html_(self) -> str:
        made_by = self.manifest.get("checkpoint", {}).get("path")
        counts = ", ".join(f"{name.replace('_', ' ')}: {value:,}" for name, value in self.manifest["counts"].items())
        lines = [f"indexer {self.indexer}; {counts}", *([f"encoded by {made_by}"] if made_by else [])]
        return notebook.lines(f"Index {self.folder}", lines)
