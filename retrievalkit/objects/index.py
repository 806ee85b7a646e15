"""`Index`: build, open, search and update."""

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
from retrievalkit.data import inputs
from retrievalkit.data.corpus import Passage, open_corpus, write_corpus
from retrievalkit.data.passage_parts import write_tables
from retrievalkit.data.sources import InMemory, fingerprint
from retrievalkit.errors import ArtifactError, InputError, OptionError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.open_indexes import open_recorded_corpus, state_of
from retrievalkit.indexing.options import Count, ModelOptions, Precision, VectorOptions
from retrievalkit.reporting.terminal import counted
from retrievalkit.search.options import OpenOptions
from retrievalkit.search.searcher import Searcher, opened
from retrievalkit.search.searching import Searching

if TYPE_CHECKING:
    from retrievalkit.objects.retriever import Retriever


@dataclass(frozen=True)
class BuildOptions(ModelOptions, VectorOptions, RayOptions, ReadingOptions):
    """Options of `Index.build`; encoding options require a model.

    Args:
        texts: Passages: a list of texts or of dicts with `title` and `text`, a dict by id, a table, a data set or the
            address of a corpus; or a vectors folder. In-memory passages are stored in the index.
        model: A loaded retriever, or the folder or name of a model. None = `texts` are indexed without encoding.
        output: The index folder to write.
        vectors: Precomputed vectors, in a form that `Vectors.of` accepts: `texts` are then optional, and `model`
            encodes queries, unless they are vectors too. Or a path for the vectors that the model computes, to be
            reused for other indexes; None = they are removed.
        ids: Ids of precomputed vectors; None = the ids of the texts, or numbers from 0.
        indexer: Indexer (rkit plugins list); by default flat for vectors, bm25 for texts.
        indexer_options: Options of the indexer.
        shards: Number of parts to build the index in.
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
        """Return the arguments, after checking that the output is a local folder."""
        if values.get("output") is None:
            msg = "index needs 'output', the folder to write."
            raise OptionError(msg)
        storage.place_of(inputs.place(values["output"], "the output"))
        return dict(values)


def _reopened(folder: str, options: OpenOptions, state: str) -> Index:
    """Open the index of a pickled `Index`."""
    index = Index(Path(folder), partial(opened, [folder], options), options)
    if state_of(index.searcher.indexes[0]) != state:
        msg = f"'{folder}' has changed since the index was pickled. Open it again, and pickle that."
        raise ArtifactError(msg)
    return index


@contextmanager
def _source(
    texts: str | None,
    vectors: Any,
    ids: Iterable[Any] | None,
    output: Path,
    model: Retriever | None = None,
    encoding: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """Yield the address that the indexer reads: the texts, or a folder of their vectors.

    Vectors are written to a hidden folder next to the output, which remains after an interruption.
    """
    place, encoding = storage.place_of(output), encoding or {}
    work_place = place.with_name(f".{place.name}.building")
    if vectors is not None and not isinstance(vectors, str | os.PathLike):
        with storage.work_folder(work_place) as work:
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
        with storage.work_folder(work_place) as work:
            identity = [model.model.fingerprint, model.model.changed, fingerprint(texts), dict(encoding)]
            folder = work / f"vectors-{storage.fingerprint_value(identity)[:12]}"
            if not folder.exists():
                model.encode_documents(texts, output=folder, **encoding)
            yield str(folder)


def _write_vectors(
    folder: Path, texts: str | None, vectors: Any, ids: Iterable[Any] | None, model: Retriever | None
) -> None:
    """Write precomputed vectors, with their passages and the model that encodes queries."""
    # torch takes seconds to import.
    from retrievalkit.indexing.vectors import Vectors
    from retrievalkit.models.opening import describe_retriever

    entries: dict[str, Any] = {}
    corpus = None if texts is None else open_corpus(texts)
    own_ids = ids is not None or isinstance(vectors, Vectors) or hasattr(vectors, "columns")
    encoded = Vectors.of(vectors, ids if own_ids or corpus is None else corpus.ids())
    if texts is not None and corpus is not None:
        if lacking := corpus.missing(encoded.ids):
            first = next(name for name in encoded.ids if name in lacking)
            msg = f"'{first}' has a vector, but no passage. Give the passages that the vectors were computed from."
            raise InputError(msg)
        described = storage.describe_input(texts, corpus.fingerprint())
        entries["inputs"] = {"texts": described}
        entries["corpus"] = {"source": described["path"], "fingerprint": corpus.fingerprint()}
    if model is not None:
        with model.lock:
            # The model may have been used with other dimensions since.
            model.model.dimensions = encoded.dimensions
            entries["checkpoint"] = describe_retriever(model.source, model.model)
    encoded.write(folder, **entries)
    passages = (Passage(name, "", "") if corpus is None else corpus.get(name) for name in encoded.ids)
    tables, form = write_tables(folder, passages)
    storage.add_to_manifest(folder, files=storage.read_manifest(folder)["files"] | tables, **form)


@dataclass(frozen=True)
class CheckOptions(ReadingOptions):
    """Options of `Index.check`.

    Args:
        queries: Queries for the comparison; None = texts of the index.
        count: Maximum number of queries; None = 100.
        k: Hits per query; None = 10.
        model: Path of the model that encodes the queries, if it was moved.
        precision: Number format for encoding the queries; None = fp32.
        indexer_options: Indexer options that differ from the options at indexing.
    """

    queries: Annotated[Any, Reads(inputs.queries)] = None
    count: Count | None = None
    k: Count | None = None
    _: KW_ONLY
    model: Annotated[Any, Reads(inputs.model)] = None
    precision: Precision | None = None
    indexer_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AddOptions(ReadingOptions):
    """Options of `Index.add`.

    Args:
        texts: Passages with ids, in a form that `Index.build` accepts; or vectors or a vectors folder of the model.
        vectors: Precomputed vectors; `texts` are then optional, but the index has no texts to show without them.
        ids: Ids of the vectors; None = their own ids, or the ids of the texts.
        model: Path of the model that encodes the passages, if it is not the path that the index records.
        precision: Number format for encoding; None = as before.
    """

    texts: Annotated[Any, Reads()] = None
    _: KW_ONLY
    vectors: Any = None
    ids: Any = None
    model: Annotated[Any, Reads(inputs.model)] = None
    precision: Precision | None = None


@dataclass(frozen=True)
class DeleteOptions(ReadingOptions):
    """Options of `Index.delete`.

    Args:
        ids: Ids of texts, or a single id; the id of a document that rkit cut into passages deletes them all.
    """

    ids: Any


@dataclass(frozen=True)
class OpenIndexOptions(OpenOptions):
    """Options of `Index.open`.

    Args:
        folder: A folder that `Index.build` or `rkit index` wrote.
        encoder: Load the query encoder and everything else that the first query would load; see `warm`.
    """

    folder: Annotated[Place, Reads()]
    _: KW_ONLY
    encoder: bool = False


class Index(Searching):
    """An open index, returned by `Index.build` and `Index.open`. Several threads may search it concurrently.

    Attributes:
        folder: Its folder.
        manifest: The record of its build: indexer with options, inputs, counts and versions.
        model: The model passed for encoding queries; None = the index's own model.
        settings: The options it was opened with: `precision`, `indexer_options` and `encoder_options`, if set.
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
        self._options = options
        self._changing = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the folder again, and refuses another state.
        return _reopened, (os.path.abspath(self.folder), self._options, state_of(self.searcher.indexes[0]))

    @classmethod
    @method(BuildOptions)
    def build(cls, options: BuildOptions) -> Index:
        """Encode passages and index their vectors, index their words, or index precomputed vectors.

        An interrupted build resumes when it is called again.

        Raises:
            InputError: A text is damaged, or an option is invalid.
        """
        output = Path(options.output or "")
        storage.check_output(output, overwrite=options.overwrite)
        texts, vectors, model = options.texts, options.vectors, options.model
        encoding, named = (
            {entry.name: value for entry in fields(kind) if (value := getattr(options, entry.name)) != entry.default}
            for kind in (VectorOptions, ModelOptions)
        )
        ready = vectors is not None and not isinstance(vectors, str | os.PathLike)
        if texts is None and not ready:
            msg = "there is nothing to index. Give passages, or precomputed vectors: vectors=..., ids=..."
            raise InputError(msg)
        if options.ids is not None and not ready:
            msg = "ids only apply to precomputed vectors. Give passages with ids as dicts with 'id' and 'text'."
            raise OptionError(msg)
        if ready and encoding:
            msg = f"{', '.join(encoding)} has no effect on precomputed vectors. Leave it out."
            raise OptionError(msg)
        if model is None and (named or encoding or (vectors is not None and not ready)):
            names = ", ".join([*named, *encoding]) or "vectors"
            msg = f"{names} only applies to a model that encodes the texts. Give the model: model=..."
            raise OptionError(msg)
        address = None if texts is None else inputs.passages(texts)
        encoded = model is not None or vectors is not None or storage.kind_of(address or "") == "vectors"
        indexed = options.indexer and registry.get("indexer", options.indexer).indexes  # type: ignore[attr-defined]
        if indexed == "texts" and (model is not None or vectors is not None):
            msg = f"indexer '{options.indexer}' indexes texts as they are. Leave out model=... and vectors=..."
            raise OptionError(msg)
        if indexed == "vectors" and not encoded:
            msg = f"indexer '{options.indexer}' indexes vectors. Give the model that encodes the texts: model=..."
            raise OptionError(msg)
        if model is not None and not hasattr(model, "encode_documents"):
            from retrievalkit.objects.retriever import Retriever

            model = Retriever.load(model, **named)
        elif named:
            msg = f"{', '.join(named)} has no effect on the loaded model '{model.source}'. Give the model's name."
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
            InputError: The index does not exist, is damaged, or was built with another model.
        """
        indexes = storage.indexes_of(options.folder)
        if len(indexes) > 1:
            place = os.fspath(options.folder)
            msg = f"'{place}' has {len(indexes)} indexes. Open all: rk.Hybrid('{place}'), or a single: '{indexes[0]}'."
            raise InputError(msg)
        folder = Path(indexes[0])
        if folder.is_file():
            msg = f"'{folder}' is not a folder. Give an index that rk.Index.build wrote."
            raise InputError(msg)
        index = cls(folder, partial(opened, [folder], options), options)
        return index.warm() if options.encoder else index

    @method(CheckOptions)
    def check(self, options: CheckOptions) -> dict[str, Any]:
        """Compare the index with brute-force search, and write the result into its manifest.

        Returns:
            The recall, and whether the index is exact.

        Raises:
            InputError: It is a text index, or its vectors no longer exist.
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
        """Add passages or vectors to the index; only new and changed texts are encoded.

        A text whose id is already indexed replaces the old text; a document that rkit cut into fewer passages than
        before loses the others. The index and hybrids that contain it search the new state immediately, a service
        after a reload.

        Returns:
            The counts `added`, `changed`, `unchanged`, `deleted`, `encoded` and `compacted`, and the new totals `texts`
            and `segments`.

        Raises:
            InputError: A text has no id or is damaged, the vectors are incompatible, or the indexer cannot add.
        """
        place = self.moved_model if options.model is None else options.model
        texts, vectors, ids = options.texts, options.vectors, options.ids
        if vectors is None and texts is not None and inputs.are_vectors(texts):
            texts, vectors = None, texts
        if vectors is None and texts is None:
            msg = "there is nothing to add. Give passages, or vectors with ids=..."
            raise InputError(msg)
        named = hasattr(vectors, "representation") or hasattr(vectors, "columns")
        if ids is None and texts is None and not named:
            msg = "the vectors have no ids, and would replace the texts with the ids 0, 1, 2 ... Give ids=..."
            raise InputError(msg)
        address = None if texts is None else inputs.passages(texts, numbered=False)
        with storage.scratch() as work:
            if vectors is not None and isinstance(address, InMemory):
                # The update reads the texts at the address recorded in the vectors folder.
                file = work / "texts.jsonl"
                write_corpus(file, open_corpus(address))
                address = str(file)
            with _source(address, vectors, ids, self.folder) as coming:
                return self._change(add=coming, model=place, precision=options.precision)

    @method(DeleteOptions)
    def delete(self, options: DeleteOptions) -> dict[str, int]:
        """Delete texts from this index and its folder.

        Returns:
            The counts, as in `add`.

        Raises:
            InputError: An id is unknown, or no text would be left; nothing is changed.
        """
        ids = [options.ids] if isinstance(options.ids, str) else list(map(str, options.ids))
        if not ids:
            msg = "there are no ids to delete. Give at least one."
            raise OptionError(msg)
        return self._change(delete=ids)

    @method(ReadingOptions)
    def compact(self, options: ReadingOptions) -> dict[str, int]:
        """Merge the index into a single segment, as if its texts were built again.

        Returns:
            The counts, as in `add`.

        Raises:
            UnsupportedError: The index holds no vectors to merge.
        """
        del options
        return self._change(compact=True)

    def _change(self, **change: Any) -> dict[str, int]:
        """Change the folder, and switch to its new state; loaded models are kept."""
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
        """The address of the indexed passages; None if it is not recorded."""
        entry = self.manifest.get("corpus")
        if self.corpus is not None or entry is None:
            return self.corpus
        return open_recorded_corpus(entry, self.folder).source

    @property
    def moved_model(self) -> str | None:
        """The path of the query encoder, if it differs from the path that the index records."""
        known = self.manifest.get("checkpoint", {}).get("path")
        return None if self.model is None or known == os.path.abspath(self.model) else self.model

    def mining_options(self) -> dict[str, Any]:
        """Return options of `rk.mine_negatives`, which reopens the folder, for mining the index's hits."""
        if others := [name for name in self.settings if name != "precision"]:
            msg = (
                f"'{self.name}' was opened with {others[0]}={self.settings[others[0]]!r}, which mining cannot use. "
                "Give hits: rk.mine_negatives(index.search(queries, k=200), examples, corpus=...)."
            )
            raise OptionError(msg)
        return self.settings | ({} if self.moved_model is None else {"model": self.moved_model})

    @property
    def indexer(self) -> str:
        """The name of the indexer."""
        return str(self.manifest["indexer"]["name"])

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {self.indexer}, {counted(len(self), 'texts')})"
