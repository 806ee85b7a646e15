"""The contract of indexers; without torch, which an index of texts needs nowhere and which takes seconds to import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from retrievalkit.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np


class Allowed(Collection[str]):
    """The texts that a filtered search may find.

    Attributes:
        ids: Their ids, in the order of the index.
        texts: The number of texts of the index, allowed or not.
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
        """(ids,) bool: which of the texts of an index are allowed; kept for the next search of the index."""
        import numpy as np

        if id(ids) not in self._masks:
            mask = np.fromiter((name in self._set for name in ids), dtype=bool, count=len(ids))
            self._masks[id(ids)] = ids, mask
        return self._masks[id(ids)][1]

    def without(self, ids: frozenset[str]) -> Allowed:
        """The same texts but these."""
        if not ids:
            return self
        if ids not in self._without:
            self._without[ids] = Allowed([name for name in self.ids if name not in ids], self.texts)
        return self._without[ids]


class Indexer(ABC):
    """Builds an index folder, opens it and searches it.

    Of equal scores, the text that comes first in the index ranks first. The folder may be moved after `build`.
    """

    indexes: ClassVar[Literal["vectors", "texts"]]
    """"vectors": the source is a vectors/ folder and queries are a Representation; "texts": a corpus, and strings."""

    view: Literal["all", "vectors", "weights"] = "all"
    """Which part of texts with vectors and weights it compares; the other part is ignored."""

    segmented: bool = True
    """For an index of vectors: whether what is added later may be an index of its own, searched beside the first with
    scores on the same scale."""

    reads_texts: bool = False
    """For an index of vectors: whether a search wants the queries' texts too (`Representation.texts`)."""

    from_files: frozenset[str] = frozenset()
    """The options whose values come from a manifest or a recipe, and not from the user: the program sets it before
    `build` and `open`. An address among them may be a stranger's, so it gets no credentials."""

    @abstractmethod
    def build(self, source: Any, index_dir: Path) -> Mapping[str, float]:
        """Write the index of a `VectorStore` or a `Corpus` into an empty folder.

        Returns:
            Counts and measures for the folder's manifest, such as {"texts": 1000}, which `rkit index` prints.
        """

    @abstractmethod
    def open(self, index_dir: Path) -> None:
        """Make a built index ready to search."""

    def open_joined(self, read: Callable[[], Any]) -> bool:  # noqa: ARG002 - of the contract
        """Make ready to search several segments of an index of vectors as one, without an index of its own.

        Args:
            read: Gives a `VectorStore` of all texts of the segments' `vectors/`, without those that were deleted.

        Returns:
            Whether it is ready; False, which is the default, lets each segment be opened and searched by itself.
        """
        return False

    def changed(
        self, index_dir: Path, target: Path, *, deleted: Collection[str], added: Any, compact: bool
    ) -> Mapping[str, float]:
        """Write what an index of texts becomes by a change into another folder, and leave the index as it is.

        Args:
            index_dir: A built index.
            target: An empty folder on the same file system.
            deleted: The ids of the texts that go.
            added: A `Corpus` of texts that come, none of which the index has afterwards but once; None = none.
            compact: Whether to make one piece of what earlier changes left in several.

        Returns:
            Counts, as those of `build`.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        del index_dir, target, deleted, added, compact
        msg = f"{type(self).__name__} builds indexes and does not change them. Index the whole corpus again."
        raise UnsupportedError(msg)

    def join(self, parts: Sequence[Path], target: Path) -> None:
        """Write one index of the texts of several into another folder: `rkit index CORPUS --shards N`.

        An indexer of vectors need not implement it: its shards are searched as one.

        Args:
            parts: Built indexes of different texts.
            target: A folder on the same file system, which holds none of the indexer's files.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        del parts, target
        msg = f"{type(self).__name__} does not join indexes. Index the whole corpus at once, without --shards."
        raise UnsupportedError(msg)

    @abstractmethod
    def search(self, queries: Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """For each query, the ids of the best texts (at most k, best first) and their scores (float32).

        Args:
            queries: A `Representation` on the CPU where `indexes` is "vectors", strings where it is "texts".
            k: Maximum number of texts for a query.
        """

    def search_among(self, queries: Any, k: int, allowed: Allowed) -> tuple[list[list[str]], list[np.ndarray]]:
        """As `search`, among some texts only: for `--filter`. The scores are those of `search`.

        By default, more and more hits are searched for until k of them are allowed, and where that takes more hits
        than there are allowed texts, `rank` ranks all of these. Override either where the index can do better.

        Args:
            queries: As for `search`.
            k: Maximum number of texts for a query.
            allowed: The texts that may be found; the index need not hold all of them.
        """
        wanted = 2 * k * max(1, allowed.texts // max(1, len(allowed)))
        while wanted < len(allowed):
            ids, scores = self.search(queries, wanted)
            hits, enough = kept_hits(ids, scores, allowed.__contains__, k, wanted)
            # An approximate index may have no more hits, though there are more texts.
            if enough and (self._compares_terms(queries) or all(len(names) == k for names in hits[0])):
                return hits
            if enough:
                break
            wanted *= 4
        return self.rank(queries, k, allowed)

    def rank(self, queries: Any, k: int, allowed: Allowed) -> tuple[list[list[str]], list[np.ndarray]]:
        """The best of a few allowed texts, for which all scores are computed; see `search_among`.

        By default by `scores`, or by a search for all texts where that is not supported.
        """
        import numpy as np

        ids: list[list[str]] = []
        scores: list[np.ndarray] = []
        try:
            every = self.scores(queries, [allowed.ids] * len(queries))
        except UnsupportedError:
            found = self.search(queries, allowed.texts)
            return kept_hits(*found, allowed.__contains__, k, allowed.texts)[0]
        # A text that shares no term with the query is not a hit where only terms are compared.
        least = 0 if self._compares_terms(queries) else -np.inf
        for values in every:
            rows = np.flatnonzero(values > least)
            rows = rows[np.argsort(-values[rows], kind="stable")[:k]]
            ids.append([allowed.ids[row] for row in rows.tolist()])
            scores.append(values[rows])
        return ids, scores

    def _compares_terms(self, queries: Any) -> bool:
        return self.view == "weights" or getattr(queries, "vectors", None) is None

    def scores(self, queries: Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:  # noqa: ARG002 - of the contract
        """The scores of given texts, on the scale of `search`; fusion needs those of texts that another index found.

        Args:
            queries: As for `search`.
            ids: For each query, ids of texts.

        Returns:
            For each query (texts,) float32 scores in the order of its ids; 0 for a text that shares no term with the
            query if only terms are compared, NaN for a text that is not in the index.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        msg = f"{type(self).__name__} finds texts, and does not score given ones."
        raise UnsupportedError(msg)

    def contributions(self, query: Any, ids: Sequence[str]) -> list[dict[str, float]]:
        """The contribution of each term of a query to the scores of given texts, shown by `rkit search --query`.

        An indexer of vectors need not implement it: its hits are explained by encoding them.

        Args:
            query: A query, as `search` takes it.
            ids: Ids of texts.

        Returns:
            For each text, term -> its contribution to the score, the greatest first; empty for a text not in the index.

        Raises:
            UnsupportedError: This indexer does not support it, which is the default.
        """
        del query, ids
        msg = f"{type(self).__name__} does not say what the terms of a query add to a score."
        raise UnsupportedError(msg)


def kept_hits(
    ids: Sequence[Sequence[str]], scores: Sequence[Any], keep: Callable[[str], bool], k: int, wanted: int
) -> tuple[tuple[list[list[str]], list[np.ndarray]], bool]:
    """The first k hits of each query that are kept, of a search for `wanted`; and whether a longer search has no more.

    Of an index with fewer hits than were wanted, there are no more.
    """
    import numpy as np

    kept = [[row for row, name in enumerate(some) if keep(name)] for some in ids]
    enough = all(len(rows) >= k or len(some) < wanted for rows, some in zip(kept, ids, strict=True))
    names = [[some[row] for row in rows[:k]] for some, rows in zip(ids, kept, strict=True)]
    return (names, [np.asarray(some)[rows[:k]] for some, rows in zip(scores, kept, strict=True)]), enough
