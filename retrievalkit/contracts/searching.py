"""The contracts of fusion methods, metrics and re-rankers, and of what fusion methods and metrics see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from retrievalkit.registry.component_options import check_options, read_call

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from retrievalkit.contracts.models import Text
    from retrievalkit.models.precision import Precision


@dataclass
class Candidates:
    """The hits of several runs for one query.

    Attributes:
        ids: The documents that any run found.
        scores: (documents, runs) float64, NaN if a run did not find a document (and its score was not computed).
        ranks: (documents, runs) int32 from 1; 0 if a run did not find a document.
    """

    ids: list[str]
    scores: NDArray[np.float64]
    ranks: NDArray[np.int32]

    def missing(self, run: int) -> list[str]:
        """The documents without a score of a run."""
        import numpy as np

        return [self.ids[row] for row in np.flatnonzero(np.isnan(self.scores[:, run])).tolist()]

    def fill(self, run: int, scores: NDArray[Any]) -> None:
        """Set the scores of the documents that `missing` named."""
        import numpy as np

        self.scores[np.isnan(self.scores[:, run]), run] = scores


class FusionMethod(ABC):
    """Fuses the hits of several runs: a document's score is the weighted sum of what each run contributes.

    Options are keyword-only arguments of the constructor: `--fusion "NAME(option=value)"`. Options called
    `normalization`, `missing` and `rrf_k` are set by the flags of these names.

    Attributes:
        uses_scores: Whether scores are looked at, rather than ranks alone. If so, indexes that can compute the scores
            of documents which only others found do so.
        weighted: Whether `--weights` has an effect.
    """

    uses_scores: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    @abstractmethod
    def parts(self, found: Candidates) -> NDArray[np.float64]:
        """(documents, runs) float64: each run's contribution to each document, before weighting; all finite."""


class Judged(NamedTuple):
    """What a metric sees of a query.

    Attributes:
        found: The grades of the documents found, best first, as many as the metric's cutoff; None = not judged.
        grades: The grades of all judged documents, found or not, in any order.
    """

    found: Sequence[int | None]
    grades: Sequence[int]


class Metric(ABC):
    """A figure for each judged query; the higher, the better.

    Options are keyword-only arguments of the constructor: `NAME(option=value)@10`.

    Attributes:
        cutoff: The number after the @: documents at later ranks are not seen. None = all are.
    """

    cutoff: int | None = None

    @classmethod
    def of(cls, text: str) -> Metric:
        """The metric that users name by `NAME`, `NAME@10` or `NAME(option=value)@10`.

        Raises:
            OptionError: The text is not of this form, or has an option that the metric lacks.
        """
        name, options, cutoff = read_call(text)
        metric = cls(**check_options(f"metric '{name}'", cls, options))
        metric.cutoff = cutoff
        return metric

    @abstractmethod
    def value(self, query: Judged) -> float:
        """The value for a query; `found` is empty if the run lacks the query. Must be finite."""

    def mean(self, values: Sequence[float]) -> float:
        """The value for a run, from those of its queries; 0 if there are none."""
        return sum(values) / len(values) if values else 0.0


class Reranker(ABC):
    """Scores pairs of a query and a passage: `rkit rerank apply NAME:MODEL`, where NAME is what it is registered by.

    Attributes:
        fingerprint: Any text that changes whenever the model does: scores that a killed command left are used again
            if it is the same.
        max_length: Most tokens of a pair; None if there is no limit.
    """

    fingerprint: str
    max_length: int | None = None

    @classmethod
    @abstractmethod
    def load(cls, source: str, *, max_length: int | None = None) -> Self:
        """A re-ranker that is ready to score.

        Args:
            source: What follows `NAME:`, such as a folder.
            max_length: Most tokens of a pair; None = its own limit.

        Raises:
            InputError: There is no such model, or it takes no max_length.
        """

    def tokenize(self, queries: Sequence[str], passages: Sequence[Text]) -> Sequence[Any]:
        """What `score` takes of each pair; called in another thread while earlier pairs are scored.

        Args:
            queries: The text of each pair's query.
            passages: The (title, text) of each pair's passage, as many.
        """
        return list(zip(queries, passages, strict=True))

    @abstractmethod
    def score(
        self,
        pairs: Sequence[Any],
        *,
        batch_tokens: int | None = None,
        precision: Precision = "fp32",
        advance: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """(pairs,) float32: the score of each pair, whatever it is batched with; finite, the higher the more relevant.

        Args:
            pairs: What `tokenize` made.
            batch_tokens: Most tokens of a batch, padding included; None = what suits the device.
            precision: The number format to compute in: "fp32", "bf16" or "fp16".
            advance: Called after each batch with its number of pairs.
        """
