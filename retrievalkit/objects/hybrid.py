"""Hybrid search over several indexes."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from retrievalkit import storage
from retrievalkit.contracts.declarations import Reads, method
from retrievalkit.data import inputs
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.errors import InputError
from retrievalkit.evaluation.run import Run
from retrievalkit.indexing.open_indexes import OpenRun, Source
from retrievalkit.indexing.query_encoders import JoinedEncoders
from retrievalkit.objects.index import Index
from retrievalkit.reporting import notices
from retrievalkit.search.fusion import Fusion
from retrievalkit.search.options import METRIC, HybridOptions
from retrievalkit.search.searcher import HITS, Searcher
from retrievalkit.search.searching import Searching

if TYPE_CHECKING:
    from retrievalkit.search.fusion_tuning import Tuned


@dataclass(frozen=True)
class FusedOptions(HybridOptions):
    """Options of `Hybrid`.

    Args:
        indexes: Open indexes or index folders; runs or run files.
        corpus: Corpus with the texts of hits; by default the indexed corpus.
    """

    indexes: Annotated[Sequence[Any], Reads(storage.indexes_of)]
    _: KW_ONLY
    corpus: Annotated[Any, Reads(inputs.passages)] = None


class Hybrid(Searching):
    """Indexes and runs whose hits are fused. The indexes stay open, and may be searched on their own too.

    After `add`, `delete` or `compact` on one of the indexes, the hybrid searches its new state.

    Attributes:
        parts: The indexes and runs.
        tuned: The result of `tune`, if the fusion was tuned.

    Raises:
        InputError: A part is neither an index nor a run, or an option is invalid.
    """

    @method(FusedOptions)
    def __init__(self, options: FusedOptions) -> None:
        """Open and join the indexes."""
        if len(options.indexes) < 2:
            msg = f"fusion needs two or more indexes, not {len(options.indexes)}. For one index, use rk.Index.open."
            raise InputError(msg)
        self.parts = [_part(index) for index in options.indexes]
        self.tuned: Tuned | None = None
        self._options = options
        options.fused(len(self.parts))
        self._joining, self._sources = threading.Lock(), self._open_now()
        searcher = _joined(self.parts)
        fusion = options.fused(len(self.parts), searcher.identities)
        corpora = (part.corpus for part in self.parts if isinstance(part, Index) and part.corpus is not None)
        texts = next(corpora, None) if options.corpus is None else options.corpus
        name = "+".join(searcher.labels)
        super().__init__(name, searcher, fusion=fusion, depth=options.depth, corpus=texts)

    @property
    def searcher(self) -> Searcher:
        """The searcher over all parts, rebuilt after an index has changed."""
        with self._joining:
            searcher, now = super().searcher, self._open_now()
            # The searcher of an index that was closed stays open here.
            if now != self._sources and None not in now:
                searcher = self._searcher = _joined(self.parts)
                self._sources = now
            return searcher

    def __getstate__(self) -> dict[str, Any]:
        """Return the parts and the fusion; the indexes are opened again."""
        names = ("name", "fusion", "depth", "corpus", "parts", "tuned")
        options = replace(self._options, indexes=())
        return {name: getattr(self, name) for name in names} | {"_options": options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Join the parts."""
        self.__dict__ |= state
        self._joining, self._reading, self._texts = threading.Lock(), threading.Lock(), None
        self._sources, self._searcher = self._open_now(), _joined(self.parts)

    def _open_now(self) -> list[Searcher | None]:
        return [part._searcher for part in self.parts if isinstance(part, Index)]

    def tune(self, qrels: Any, queries: Any = None, metric: str = METRIC, k: int = HITS) -> Hybrid:
        """Return a copy with the best weights (and normalisation) by judgements.

        Args:
            qrels: Judgements of queries other than the test queries: a file, a dict or a table.
            queries: Their texts; None = the queries of the runs, if only runs are fused.
            metric: The metric to maximise.
            k: Hits per query that the metric is computed on.

        Raises:
            InputError: No query is judged, or there is nothing to tune.
        """
        from retrievalkit.search.fusion_tuning import tune

        judged, searcher = read_qrels(inputs.judgements(qrels), "dev"), self.searcher
        dev_queries = searcher.queries_of_runs() if queries is None else read_queries(inputs.queries(queries))
        options = replace(self._options, fusion=self._options.fusion or "linear")
        fixed = options.fused(len(self.parts), searcher.identities)
        assert fixed is not None
        hybrid = copy.copy(self)
        hybrid.tuned = tune(searcher, dev_queries, judged, fixed, metric=metric, k=k, depth=self.depth)
        hybrid.fusion = hybrid.tuned.best.fusion
        return hybrid

    def save_weights(self, path: str | os.PathLike[str]) -> None:
        """Write the tuned weights, for `rkit search --weights` and `Hybrid(..., weights=path)`.

        Raises:
            InputError: The weights were not tuned.
        """
        if self.tuned is None:
            msg = "there are no tuned weights to write. Tune them first: hybrid.tune(qrels, queries)."
            raise InputError(msg)
        storage.write_json(os.fspath(path), self.tuned.to_json())

    @property
    def options(self) -> dict[str, Any]:
        """The options of the fusion."""
        named = {"method": "fusion"}
        values = asdict(self.fusion or Fusion())
        return {named.get(name, name): value for name, value in values.items() if value is not None}

    def mining_options(self) -> dict[str, Any]:
        """Return options of `rk.mine_negatives` for mining the hybrid's hits."""
        opened = self.options | {"source": self.parts}
        for part in self.parts:
            opened |= part.mining_options() if isinstance(part, Index) else {}
        return opened

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Hybrid([{', '.join(map(repr, self.parts))}]{options})"


def _part(index: Any) -> Index | Run:
    if isinstance(index, Index | Run):
        return index
    if not isinstance(index, str | os.PathLike):
        msg = f"an object of type {type(index).__name__} cannot be searched. Give open indexes, runs, or their paths."
        raise InputError(msg)
    if not os.path.exists(index):
        msg = f"'{os.fspath(index)}' does not exist. Give index folders and run files."
        raise InputError(msg)
    return Run.load(index) if os.path.isfile(index) else Index.open(index)


def _joined(parts: Sequence[Index | Run]) -> Searcher:
    """Join all parts in a searcher; parts that share a name are labelled by path."""
    names = [part.name for part in parts]
    sources: list[Source] = []
    for number, part in enumerate(parts, 1):
        alone = names.count(part.name) == 1
        if isinstance(part, Index):
            (source,) = part.searcher.indexes
            source = copy.copy(source)
            source.label = part.name if alone else str(part.folder)
            sources.append(source)
        else:
            place = part.path or (part.name if alone else f"{part.name} {number}")
            sources.append(OpenRun(Path(place), part, part.name if alone else place))
    encoders = JoinedEncoders([part.searcher.encoders for part in parts if isinstance(part, Index)])
    return Searcher.of(sources, encoders, notices.note)
