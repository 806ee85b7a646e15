"""Re-ranker scores of hits: computed, or read from a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from retrievalkit import storage
from retrievalkit.contracts import Found, PairScores
from retrievalkit.data.corpus import Passage
from retrievalkit.data.runs import check_run, open_run
from retrievalkit.data.sources import fingerprint
from retrievalkit.models.precision import Precision
from retrievalkit.models.rerankers import open_reranker, score_pairs

WINDOW = 4_096
_RANKINGS = 64
"""Rankings kept in memory; pairs are in the order of their questions."""


def open_scores(
    reranker: str | Path,
    passages: Callable[[str], Passage],
    *,
    precision: Precision = "fp32",
    backend: str = "auto",
) -> tuple[PairScores, str]:
    """Return a function that scores pairs, by a re-ranker or a run of its scores, and its fingerprint.

    In fp32 the scores equal `rkit rerank apply`'s.
    """
    if Path(reranker).is_file():
        return _run_scores(reranker), fingerprint(reranker)
    model = open_reranker(reranker, backend=backend)

    def scores(pairs: Sequence[tuple[Found, str]]) -> list[float | None]:
        values: list[float | None] = []
        for start in range(0, len(pairs), WINDOW):
            window = pairs[start : start + WINDOW]
            by_id = {document: passages(document) for _, document in window}
            texts = [(by_id[document].title, by_id[document].text) for _, document in window]
            tokens = model.tokenize([hits.question.query.text for hits, _ in window], texts)
            values += score_pairs(model, tokens, precision=precision).tolist()
        return values

    return scores, storage.fingerprint_value([model.fingerprint, model.max_length, precision])


def _run_scores(path: str | Path) -> PairScores:
    run = open_run(path)
    check_run(run)

    @lru_cache(_RANKINGS)
    def ranking(query: str) -> dict[str, float]:
        return dict(run[query])

    def scores(pairs: Sequence[tuple[Found, str]]) -> list[float | None]:
        values = []
        for hits, document in pairs:
            rankings = (ranking(name) for name in hits.question.ids if name in run)
            values.append(next((scores[document] for scores in rankings if document in scores), None))
        return values

    return scores
