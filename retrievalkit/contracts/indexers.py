"""The contract of indexers; without torch, which an index of texts needs nowhere and which takes seconds to import."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from retrievalkit.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np


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
