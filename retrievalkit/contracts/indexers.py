"""The contract of indexers. It does not import torch, which an index of texts does not need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from retrievalkit.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np


class Allowed(Collection[str]):
    """The texts that a filtered search may return.

    Attributes:
        ids: Their ids, in the order of the index.
        texts: The number of texts in the index, allowed or not.
    """

    def __init__(self, ids: Sequence[str], texts: int) -> None:
        self.ids, self.texts = ids, texts
        self._set = frozenset(ids)
        self._masks: dict[int, tuple[Sequence[str], np.ndarray]] = {}
        self._without: dict[Collection[str], Allowed] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Allowed, (self.ids, self.texts)

    def __contains__(self, name: object) -> bool:
        return name in self._set

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self, ids: Sequence[str]) -> np.ndarray:
        """Return (ids,) bool, True for the allowed texts of an index; cached for the next search."""
        import numpy as np

        if id(ids) not in self._masks:
            mask = np.fromiter((name in self._set for name in ids), dtype=bool, count=len(ids))
            self._masks[id(ids)] = ids, mask
        return self._masks[id(ids)][1]

    def without(self, ids: frozenset[str]) -> Allowed:
        """Return the allowed texts without `ids`."""
        if not ids:
            return self
        if ids not in self._without:
            self._without[ids] = Allowed([name for name in self.ids if name not in ids], self.texts)
        return self._without[ids]


class Indexer(ABC):
    """Base class of indexers, which build an index folder, open it and search it.

    Ties are ranked in the order of the index, and then by id in a search of rkit. The folder may be moved after
    `build`. Several threads may search an open index: `search`, `search_among`, `rank`, `scores` and `contributions`
    store nothing between calls.
    """

    indexes: ClassVar[Literal["vectors", "texts"]]
    """"vectors": the source is a vectors/ folder and queries are a Representation; "texts": a corpus, and strings."""

    view: Literal["all", "vectors", "weights"] = "all"
    """The part of texts with vectors and weights that is searched; the other part is ignored."""

    compares_keys: ClassVar[bool] = False
    """For an index of vectors: True if it compares only vectors of equal key (`Representation.keys`); otherwise it
    refuses vectors with keys."""

    segmented: bool = True
    """For an index of vectors: True if additions may be a separate index that is searched together with the first,
    with scores on the same scale."""

    reads_texts: bool = False
    """For an index of vectors: True if a search needs the queries' texts too (`Representation.texts`)."""

    array_size: int = 0
    """For an open index of vectors: the size of a query's vector if `search` also takes the vector of a single query as
    an array (1, size); 0, the default, if it takes a `Representation` only."""

    from_files: frozenset[str] = frozenset()
    """Options whose values come from a manifest or a recipe, not from the user; set before `build` and `open`. An
    address among them may belong to a stranger, so it gets no credentials."""

    @abstractmethod
    def build(self, source: Any, index_dir: Path) -> Mapping[str, float]:
        """Write the index of a `VectorStore` or a `Corpus` into an empty folder.

        Returns:
            Counts and measures for the folder's manifest, such as {"texts": 1000}, which `rkit index` prints.
        """

    def options_for(self, source: Any) -> Mapping[str, Any]:  # noqa: ARG002 - by contract
        """Return options that depend on the source, such as its language, to build with and to record."""
        return {}

    @abstractmethod
    def open(self, index_dir: Path) -> None:
        """Open a built index for searching, with all its files: the folder may be replaced or removed afterwards."""

    def open_joined(self, read: Callable[[], Any]) -> bool:  # noqa: ARG002 - by contract
        """Prepare to search several segments of an index of vectors as one, without building an index.

        Args:
            read: Returns a `VectorStore` of all texts in the segments' `vectors/`, except deleted texts; call it now.

        Returns:
            True if it is ready; False, the default, to open and search each segment separately.
        """
        return False

    def changed(
        self, index_dir: Path, target: Path, *, deleted: Collection[str], added: Any, compact: bool
    ) -> Mapping[str, float]:
        """Write a changed copy of an index of texts into another folder; the index itself is unchanged.

        Args:
            index_dir: A built index.
            target: An empty folder on the same file system.
            deleted: The ids of the texts to delete.
            added: A `Corpus` of texts to add; the new index must contain each only once; None = none.
            compact: Merge the pieces that earlier changes left.

        Returns:
            Counts, as from `build`.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        del index_dir, target, deleted, added, compact
        msg = f"{type(self).__name__} does not support changes. Index the whole corpus again."
        raise UnsupportedError(msg)

    def join(self, parts: Sequence[Path], target: Path) -> None:
        """Merge the indexes of several shards into another folder: `rkit index CORPUS --shards N`.

        An indexer of vectors need not implement it: its shards are searched as one index.

        Args:
            parts: Built indexes of different texts.
            target: A folder on the same file system, without files of the indexer.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        del parts, target
        msg = f"{type(self).__name__} does not join indexes. Index the whole corpus without --shards."
        raise UnsupportedError(msg)

    @abstractmethod
    def search(self, queries: Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """Return the ids of each query's best texts (at most k, best first) and their scores (float32).

        Args:
            queries: A `Representation`, float32 and on the CPU, if `indexes` is "vectors", strings if it is "texts".
                Must not be changed.
            k: Maximum number of texts per query.
        """

    def search_among(self, queries: Any, k: int, allowed: Allowed) -> tuple[list[list[str]], list[np.ndarray]]:
        """Search among the allowed texts only, for `--filter`; scores as from `search`.

        By default, repeats the search for more hits until k of them are allowed; if that takes more hits than there are
        allowed texts, `rank` ranks all allowed texts. Override either method if the index can do better.

        Args:
            queries: As for `search`.
            k: Maximum number of texts per query.
            allowed: The texts that may be returned; the index need not contain all of them.
        """
        wanted = 2 * k * max(1, allowed.texts // max(1, len(allowed)))
        while wanted < len(allowed):
            ids, scores = self.search(queries, wanted)
            hits, enough = kept_hits(ids, scores, allowed.__contains__, k, wanted)
            # An approximate index may return no more hits although there are more texts.
            if enough and (self._compares_terms(queries) or all(len(names) == k for names in hits[0])):
                return hits
            if enough:
                break
            wanted *= 4
        return self.rank(queries, k, allowed)

    def rank(self, queries: Any, k: int, allowed: Allowed) -> tuple[list[list[str]], list[np.ndarray]]:
        """Return the best of a few allowed texts by their scores; see `search_among`.

        Uses `scores` by default, or a search for all texts if `scores` is not supported.
        """
        import numpy as np

        ids: list[list[str]] = []
        scores: list[np.ndarray] = []
        try:
            every = self.scores(queries, [allowed.ids] * len(queries))
        except UnsupportedError:
            hits = self.search(queries, allowed.texts)
            return kept_hits(*hits, allowed.__contains__, k, allowed.texts)[0]
        # If only terms are compared, a text that shares no term with the query is not a hit.
        least = 0 if self._compares_terms(queries) else -np.inf
        for values in every:
            rows = np.flatnonzero(values > least)
            rows = rows[np.argsort(-values[rows], kind="stable")[:k]]
            ids.append([allowed.ids[row] for row in rows.tolist()])
            scores.append(values[rows])
        return ids, scores

    def _compares_terms(self, queries: Any) -> bool:
        return self.view == "weights" or getattr(queries, "vectors", None) is None

    def scores(self, queries: Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:  # noqa: ARG002 - by contract
        """Return the scores of specific texts, on the scale of `search`; used by fusion for the hits of other indexes.

        Args:
            queries: As for `search`.
            ids: For each query, ids of texts.

        Returns:
            For each query (texts,) float32 scores in the order of its ids; 0 for a text that shares no term with the
            query if only terms are compared, NaN for a text that is not in the index.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        msg = f"{type(self).__name__} cannot score specific texts."
        raise UnsupportedError(msg)

    def contributions(self, query: Any, ids: Sequence[str]) -> list[dict[str, float]]:
        """Return each query term's contribution to the scores of some texts, shown by `rkit search --query`.

        An indexer of vectors need not implement it: hits are explained by encoding them.

        Args:
            query: A query, as for `search`.
            ids: Ids of texts.

        Returns:
            For each text, term -> contribution to the score, largest first; empty for a text not in the index.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        del query, ids
        msg = f"{type(self).__name__} does not report the contributions of terms."
        raise UnsupportedError(msg)


def kept_hits(
    ids: Sequence[Sequence[str]], scores: Sequence[Any], keep: Callable[[str], bool], k: int, wanted: int
) -> tuple[tuple[list[list[str]], list[np.ndarray]], bool]:
    """Return each query's first k kept hits of a search for `wanted`, and True if a longer search cannot add any.

    An index that returns fewer hits than `wanted` has no more.
    """
    import numpy as np

    kept = [[row for row, name in enumerate(some) if keep(name)] for some in ids]
    enough = all(len(rows) >= k or len(some) < wanted for rows, some in zip(kept, ids, strict=True))
    names = [[some[row] for row in rows[:k]] for some, rows in zip(ids, kept, strict=True)]
    return (names, [np.asarray(some)[rows[:k]] for some, rows in zip(scores, kept, strict=True)]), enough
