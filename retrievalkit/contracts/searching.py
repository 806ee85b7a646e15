"""The contracts of fusion methods, metrics and re-rankers, and the inputs of fusion methods and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from retrievalkit.errors import UnsupportedError
from retrievalkit.registry.component_options import check_options, read_call

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from retrievalkit.contracts.encoding import Precision


@dataclass
class Candidates:
    """The hits of several runs for one query.

    Attributes:
        ids: The documents retrieved by any run.
        scores: (documents, runs) float64, NaN if a run did not retrieve a document (and its score was not computed).
        ranks: (documents, runs) int32 from 1; 0 if a run did not retrieve a document.
    """

    ids: list[str]
    scores: NDArray[np.float64]
    ranks: NDArray[np.int32]

    def missing(self, run: int) -> list[str]:
        """Return the documents without a score from a run."""
        import numpy as np

        return [self.ids[row] for row in np.flatnonzero(np.isnan(self.scores[:, run])).tolist()]

    def fill(self, run: int, scores: NDArray[Any]) -> None:
        """Set the scores of the documents that `missing` returned."""
        import numpy as np

        self.scores[np.isnan(self.scores[:, run]), run] = scores


class FusionMethod(ABC):
    """Base class of fusion methods: a document's score is the weighted sum of the contributions of each run.

    Options are keyword-only arguments of the constructor: `--fusion "NAME(option=value)"`. The options `normalization`,
    `missing` and `rrf_k` are set by the flags of the same names.

    Attributes:
        uses_scores: True if it uses scores, not only ranks. Indexes then score documents that only other indexes
            retrieved, if they can.
        weighted: True if `--weights` has an effect.
    """

    uses_scores: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    @abstractmethod
    def parts(self, found: Candidates) -> NDArray[np.float64]:
        """Return each run's unweighted contribution to each document: (documents, runs) float64, all finite."""


class Judged(NamedTuple):
    """Input of a metric: the grades of a query.

    Attributes:
        found: The grades of the retrieved documents, best first, up to the metric's cutoff; None = unjudged.
        grades: The grades of all judged documents, retrieved or not, in any order.
    """

    found: Sequence[int | None]
    grades: Sequence[int]


class Metric(ABC):
    """Base class of metrics, which compute a value for each judged query; higher is better.

    Options are keyword-only arguments of the constructor: `NAME(option=value)@10`.

    Attributes:
        cutoff: The number after the @: documents at later ranks are ignored. None = no cutoff.
    """

    cutoff: int | None = None

    @classmethod
    def of(cls, text: str) -> Metric:
        """Parse a metric such as `NAME`, `NAME@10` or `NAME(option=value)@10`.

        Raises:
            OptionError: The text has another form, or an option is unknown.
        """
        name, options, cutoff = read_call(text)
        metric = cls(**check_options(f"metric '{name}'", cls, options))
        metric.cutoff = cutoff
        return metric

    @abstractmethod
    def value(self, query: Judged) -> float:
        """Return the value for a query, which must be finite; `found` is empty if the run lacks the query."""

    def mean(self, values: Sequence[float]) -> float:
        """Return the value of a run from the values of its queries; 0 without queries."""
        return sum(values) / len(values) if values else 0.0


class Reranker(ABC):
    """Base class of re-rankers, which score pairs of a query and a passage: `rkit rerank apply NAME:MODEL`.

    Attributes:
        fingerprint: Any text that changes whenever the model does; scores of a killed command are reused if it is the
            same.
        max_length: Maximum number of tokens per pair; None = no limit.
    """

    fingerprint: str
    max_length: int | None = None

    @classmethod
    @abstractmethod
    def load(cls, source: str, *, max_length: int | None = None) -> Self:
        """Load a re-ranker, ready to score.

        Args:
            source: The text after `NAME:`, such as a folder.
            max_length: Maximum number of tokens per pair; None = its own limit.

        Raises:
            InputError: The model does not exist, or does not support max_length.
        """

    def tokenize(self, queries: Sequence[str], passages: Sequence[tuple[str, str]]) -> Sequence[Any]:
        """Prepare pairs for `score`; called in another thread while earlier pairs are scored.

        Args:
            queries: The text of each pair's query.
            passages: The (title, text) of each pair's passage.
        """
        return list(zip(queries, passages, strict=True))

    def calibrate(self, lists: Sequence[Sequence[Any]]) -> float:
        """Calibrate int8 on every other pair of each query, and test it on the rest; optional.

        Args:
            lists: The output of `tokenize` by query.

        Returns:
            The share of each query's ten best passages in fp32 that int8 ranks in the first ten too; of fewer than
            twenty, the better half.

        Raises:
            UnsupportedError: The re-ranker does not support int8.
        """
        del lists
        msg = f"{type(self).__name__} does not compute in int8 here; cross-encoders do with OpenVINO (pip install "
        msg += "'retrievalkit[openvino]'). Use another --precision."
        raise UnsupportedError(msg)

    @abstractmethod
    def score(
        self,
        pairs: Sequence[Any],
        *,
        batch_tokens: int | None = None,
        precision: Precision = "fp32",
        advance: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Return (pairs,) float32: finite scores that do not depend on the batch, higher for more relevant pairs.

        Args:
            pairs: The output of `tokenize`.
            batch_tokens: Maximum number of tokens in a batch, padding included; None = suitable for the device.
            precision: The number format to compute in: "fp32", "bf16", "fp16", or "int8" once calibrated.
            advance: Called after each batch with its number of pairs.
        """
