"""What an index is built of: texts, passages that a model encodes, or vectors that were made elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from retrievalkit import artifacts, registry
from retrievalkit.cluster import RayOptions
from retrievalkit.data import inputs as given
from retrievalkit.data.corpus import Corpus, open_corpus, write_corpus
from retrievalkit.data.sources import InMemory, fingerprint
from retrievalkit.declarations import Named, Place, ReadingOptions, Reads
from retrievalkit.errors import InputError, OptionError
from retrievalkit.indexing.options import Count, ModelOptions, VectorOptions

if TYPE_CHECKING:
    from retrievalkit.api.retriever import Retriever
    from retrievalkit.api.vectors import Vectors


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
        artifacts.place_of(given.place(values["output"], "the output"))
        return dict(values)


@dataclass
class Material:
    """The arguments of `Index.build` that say what is indexed.

    Attributes:
        texts: The address of the passages, or of a vectors folder; None = there are only vectors.
        vectors: Vectors that were made elsewhere; or a path, where those that the model makes are kept; or None.
        ids: The ids of vectors that were made elsewhere.
        model: The model that encodes; None = `texts` are indexed as they are, and queries of vectors are vectors.
        encoding: The options of `VectorOptions` that were given.
        named: The options of `ModelOptions` that were given, for a model that is not loaded.
    """

    texts: str | None
    vectors: Any
    ids: Iterable[Any] | None
    model: Any = None
    encoding: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: BuildOptions) -> Material:
        """The material of a build.

        Raises:
            InputError: There is nothing to index, or an option has nothing to apply to.
        """
        texts, vectors, ids, model = options.texts, options.vectors, options.ids, options.model
        encoding, named = (
            {one.name: value for one in fields(kind) if (value := getattr(options, one.name)) != one.default}
            for kind in (VectorOptions, ModelOptions)
        )
        ready = vectors is not None and not isinstance(vectors, str | os.PathLike)
        if texts is None and not ready:
            msg = "there is nothing to index. Give passages, or vectors that were made elsewhere: vectors=..., ids=..."
            raise InputError(msg)
        if ids is not None and not ready:
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
        return cls(address, vectors, ids, model, encoding, named)

    @cached_property
    def retriever(self) -> Retriever | None:
        """The model, loaded.

        Raises:
            OptionError: Parts were named for a model that is loaded already.
        """
        if self.model is None:
            return None
        from retrievalkit.api.retriever import Retriever

        if not isinstance(self.model, Retriever):
            return Retriever.load(self.model, **self.named)
        if self.named:
            what, source = ", ".join(self.named), self.model.source
            msg = f"{what} goes with the name of a model, and '{source}' is loaded already."
            raise OptionError(msg)
        return self.model

    def check(self, indexer: str | None) -> None:
        """Refuse an indexer of vectors without any, and one of texts with a model or vectors.

        Raises:
            OptionError: Says what to give.
        """
        if indexer is None:
            return
        wanted = registry.get("indexer", indexer).indexes  # type: ignore[attr-defined]
        if wanted == "texts" and (self.model is not None or self.vectors is not None):
            msg = f"indexer '{indexer}' indexes texts as they are. Leave out model=... and vectors=..."
            raise OptionError(msg)
        encoded = self.model is not None or self.vectors is not None or artifacts.kind_of(self.texts or "") == "vectors"
        if wanted == "vectors" and not encoded:
            msg = f"indexer '{indexer}' indexes vectors. Give the model that encodes the texts: model=..."
            raise OptionError(msg)

    def folder(self, output: Path) -> AbstractContextManager[str]:
        """What the indexer reads: the texts, or a folder of vectors beside the output while the block lasts."""
        if self.vectors is not None and not isinstance(self.vectors, str | os.PathLike):
            return self._written(output)
        assert self.texts is not None
        return nullcontext(self.texts) if self.retriever is None else self._encoded(self.retriever, self.texts, output)

    @contextmanager
    def _encoded(self, model: Retriever, texts: str, output: Path) -> Iterator[str]:
        if self.vectors is not None:
            model.encode_documents(texts, output=self.vectors, **self.encoding)
            yield os.fspath(self.vectors)
            return
        with _beside(output) as work:
            identity = [model.model.fingerprint, model.model.changed, fingerprint(texts), dict(self.encoding)]
            folder = work / f"vectors-{artifacts.fingerprint_value(identity)[:12]}"
            if not folder.exists():
                model.encode_documents(texts, output=folder, **self.encoding)
            yield str(folder)

    @contextmanager
    def _written(self, output: Path) -> Iterator[str]:
        # torch takes seconds to import.
        from retrievalkit.api.arrays import as_vectors
        from retrievalkit.model.retriever import describe_retriever

        entries: dict[str, Any] = {}
        if self.texts is None:
            made = as_vectors(self.vectors, self.ids)
        else:
            corpus = open_corpus(self.texts)
            made = _of_passages(self.vectors, self.ids, corpus)
            described = artifacts.describe_input(self.texts, corpus.fingerprint())
            entries["inputs"] = {"texts": described}
            entries["corpus"] = {"source": described["path"], "fingerprint": corpus.fingerprint()}
        if self.retriever is not None:
            with self.retriever.lock:
                # It may have encoded other texts since.
                self.retriever.model.dimensions = made.dimensions
                entries["checkpoint"] = describe_retriever(self.retriever.source, self.retriever.model)
        with _beside(output) as work:
            folder = work / "vectors"
            with artifacts.write_folder(folder, overwrite=True) as staging:
                made.write(staging, **entries)
            yield str(folder)


@contextmanager
def added(texts: Any, vectors: Any, ids: Iterable[Any] | None, index: Path) -> Iterator[str]:
    """What a change of an index reads while the block lasts: passages, or a folder of vectors.

    Raises:
        InputError: There is nothing to add, or the vectors have no ids.
    """
    if vectors is None and texts is not None and given.are_vectors(texts):
        texts, vectors = None, texts
    known = ids is not None or texts is not None or hasattr(vectors, "representation") or hasattr(vectors, "columns")
    if vectors is None and texts is None:
        msg = "there is nothing to add. Give passages, or vectors with ids=..."
        raise InputError(msg)
    if not known:
        msg = "the vectors have no ids, and would take the places of texts with their numbers. Give ids=..."
        raise InputError(msg)
    address = None if texts is None else given.passages(texts, numbered=False)
    with artifacts.scratch() as work:
        if vectors is not None and isinstance(address, InMemory):
            # The change looks its texts up by the address in the folder of vectors.
            kept = work / "texts.jsonl"
            write_corpus(kept, open_corpus(address))
            address = str(kept)
        with Material(address, vectors, ids).folder(index) as place:
            yield place


def _of_passages(vectors: Any, ids: Iterable[Any] | None, corpus: Corpus) -> Vectors:
    """Vectors with their own ids, or else with those of the passages."""
    from retrievalkit.api.arrays import as_vectors
    from retrievalkit.api.vectors import Vectors

    named = ids is not None or isinstance(vectors, Vectors) or hasattr(vectors, "columns")
    made = as_vectors(vectors, ids if named else corpus.ids())
    if lacking := corpus.missing(made.ids):
        first = next(one for one in made.ids if one in lacking)
        msg = f"there is a vector of '{first}', and no passage with this id. Give the passages of the vectors."
        raise InputError(msg)
    return made


@contextmanager
def _beside(output: Path) -> Iterator[Path]:
    """A hidden folder beside the output, which stays after an interruption."""
    place = artifacts.place_of(output)
    with artifacts.work_folder(place.with_name(f".{place.name}.building")) as work:
        yield work
