"""An index: built, opened and searched."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from retrievalkit import artifacts
from retrievalkit.api import notebook
from retrievalkit.api.building import Material, added
from retrievalkit.api.options import call, options_of, settled
from retrievalkit.api.searching import Searching
from retrievalkit.cli.cluster import taken_cluster
from retrievalkit.cli.options import parse
from retrievalkit.data import inputs as given
from retrievalkit.data.sources import InMemory
from retrievalkit.declarations import Place, Reads, method
from retrievalkit.errors import InputError, OptionError
from retrievalkit.index import build_index
from retrievalkit.report.counts import counted
from retrievalkit.search.options import OpenOptions
from retrievalkit.search.program import opened
from retrievalkit.search.searcher import Searcher
from retrievalkit.search.sources import open_recorded_corpus

if TYPE_CHECKING:
    from retrievalkit.api.retriever import Retriever

_CHECK = ("check", "check_queries", "check_count", "check_k")
_CHANGE = ("add", "delete", "compact")
_CLUSTER = ("ray", "ray_workers", "ray_cpus", "ray_gpus")
_BUILDING = ("source", "indexer", "output", "overwrite", "set", "shards", *_CLUSTER, *_CHECK, *_CHANGE)


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
    @options_of("index", without=("source", *_CHECK, *_CHANGE, "model", "precision"))
    def build(
        cls,
        texts: Any = None,
        model: str | os.PathLike[str] | Retriever | None = None,
        output: str | os.PathLike[str] | None = None,
        *,
        vectors: Any = None,
        ids: Iterable[Any] | None = None,
        **options: Any,
    ) -> Index:
        """Encode passages and index their vectors, index their words, or index vectors that were made elsewhere.

        Interrupted and called again it goes on.

        Args:
            texts: Passages: a list of texts or of dicts with `title` and `text`, a dict by id, a table, a data set,
                the address of a corpus; or a vectors folder. Passages in memory are kept in the index.
            model: A loaded retriever, or the folder or name of a model. None = `texts` are indexed as they are.
            output: The index folder to write.
            vectors: Vectors that were made elsewhere, as `Vectors.of` takes them: then `texts` may be left out, and
                `model` is what encodes queries, if not they are given as vectors. Or a path, where to keep the vectors
                that the model makes, for other indexes of them; None = they are removed.
            ids: The ids of vectors that were made elsewhere; None = those of the texts, or their numbers from 0.
            **options: Of `rkit index`; with a model also `encoder` and `pooler`, and of `rkit encode`
                `precision`, `batch_tokens`, `dimensions` and `stored`.

        Raises:
            InputError: A text is damaged, or an option does not fit.
        """
        if output is None:
            msg = "index needs 'output', the folder to write, and it was not given."
            raise OptionError(msg)
        output = given.place(output, "the output")
        settings = dict(options.pop("set", None) or {})
        source = Material.of(texts, vectors, ids, model, options, settings)
        words = {"source": source.texts or output, "output": output, "set": settings or None} | options
        with settled("index", words) as values, _writing(output):
            artifacts.check_output(Path(output), overwrite=values["overwrite"])
            named = parse(values["settings"])
            source.check(values["indexer"])
            with source.folder(Path(output)) as place:
                build_index(
                    place,
                    indexer=values["indexer"],
                    output=output,
                    options=named.pop("indexer", {}) | named,
                    overwrite=values["overwrite"],
                    texts=source.texts if isinstance(source.texts, InMemory) else None,
                    parts=values["shards"],
                    cluster=taken_cluster(values),
                )
        return cls.open(output, model=source.retriever)

    @classmethod
    @method(OpenIndexOptions)
    def open(cls, options: OpenIndexOptions) -> Index:
        """Open an index.

        Raises:
            InputError: There is no such index, it is damaged, or another model made it.
        """
        folder = Path(options.folder)
        if not folder.is_dir():
            msg = f"'{folder}' is not a folder. Give an index that rk.Index.build wrote."
            raise InputError(msg)
        index = cls(folder, partial(opened, [folder], options), options)
        return index.warm() if options.encoder else index

    @options_of("index", without=("source", "indexer", "output", "overwrite", "shards", *_CLUSTER, *_CHECK, *_CHANGE))
    def check(self, queries: Any = None, count: int | None = None, k: int | None = None, **options: Any) -> Any:
        """Compare the index with brute force, and write the result into its manifest.

        Args:
            queries: Queries to compare by; None = texts of the index.
            count: How many queries at most; None = 100.
            k: Hits per query; None = 10.
            **options: Of `rkit index`: `precision` of the queries, `set`.

        Returns:
            The recall, and whether the index is exact, as a dict.

        Raises:
            InputError: It is an index of texts, or its vectors are gone.
        """
        words = {"check_queries": None if queries is None else given.queries(queries), "check_count": count}
        return call("index", {"source": str(self.folder), "check": True, **words, "check_k": k, **options})

    @options_of("index", without=_BUILDING)
    def add(
        self,
        texts: Any = None,
        *,
        vectors: Any = None,
        ids: Iterable[Any] | None = None,
        model: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> dict[str, int]:
        """Add passages, or vectors, to the index; only new texts and changed ones are encoded.

        A text of an id that the index has takes its place; a document that comes in passages ID#1 to ID#3 loses its
        other passages. The index searches the new state at once, and so does a hybrid that was made of it; a service
        does when it reloads.

        Args:
            texts: Passages with ids, as `Index.build` takes them; or vectors, or a vectors folder of the same model.
            vectors: Vectors that were made elsewhere; then `texts` may be left out, and their texts are not known.
            ids: The ids of these vectors; None = their own, or those of the texts.
            model: Where the model is that encodes the passages, if it is not where the index knows it.
            **options: Of `rkit index --add`: `precision` to encode in; None = as before.

        Returns:
            What was done: `added`, `changed`, `unchanged`, `deleted`, `compacted`; `texts` and `segments` from now on.

        Raises:
            InputError: A text has no id or is damaged, the vectors do not fit, or the indexer cannot add.
        """
        place = self.moved_model if model is None else given.place(model, "the model")
        with added(texts, vectors, ids, self.folder) as coming:
            return self._change({"add": coming, "model": place, **options})

    @options_of("index", without=(*_BUILDING, "model", "precision"))
    def delete(self, ids: str | Iterable[Any], **options: Any) -> dict[str, int]:
        """Delete texts: neither this index nor one that is opened from now on finds them.

        Args:
            ids: Their ids, or one; the id of a document deletes its passages ID#1, ID#2 ...
            **options: Of `rkit index --delete`.

        Returns:
            What was done, as of `add`.

        Raises:
            InputError: An id is unknown, or no text would be left; nothing is changed.
        """
        gone = [ids] if isinstance(ids, str) else [str(one) for one in ids]
        if not gone:
            msg = "there are no ids to delete. Give at least one."
            raise OptionError(msg)
        return self._change({"delete": gone, **options})

    @options_of("index", without=(*_BUILDING, "model", "precision"))
    def compact(self, **options: Any) -> dict[str, int]:
        """Make one segment of the index, as if it was built anew of what it holds.

        Args:
            **options: Of `rkit index --compact`.

        Returns:
            What was done, as of `add`.

        Raises:
            UnsupportedError: It holds no vectors to make one index of.
        """
        return self._change({"compact": True, **options})

    def _change(self, words: dict[str, Any]) -> dict[str, int]:
        """Change the folder, and search what it became; models that are loaded stay."""
        from retrievalkit import change

        with self._changing, settled("index", {"source": self.folder, **words}) as values:
            before = self.searcher
            wanted = {name: values[name] for name in ("add", "delete", "compact", "model", "precision")}
            outcome = change.change_index(self.folder, **wanted)
            after = self._opened()
            after.encoders.adopt(before.encoders)
            with self._reading:
                self._searcher, self._reader = after, None
                self.manifest = after.indexes[0].manifest
        return change.as_json(outcome)

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


@contextmanager
def _writing(output: str | os.PathLike[str]) -> Iterator[None]:
    with artifacts.held(Path(output)):
        artifacts.restore(Path(output))
        yield
