"""Counts of the views that answer queries, and a line for each query vector."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from torch import Tensor
from torch.nn import functional

from retrievalkit.errors import OptionError
from retrievalkit_mvr.analyse_views.figures import Analysis, View, local_variation, mean, perplexity
from retrievalkit_mvr.analyse_views.judged import Judged, Pair

Scores = Literal["cosine", "softmax", "raw"]


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of the scores that Local Variation is computed on."""

    scores: Scores
    temperature: float | None

    @classmethod
    def of(cls, scores: Scores, temperature: float | None) -> Normalisation:
        """Return the normalisation for these options; refuse a temperature that would have no effect."""
        if temperature is not None and scores != "softmax":
            msg = f"temperature {temperature} has no effect on {scores} scores. Leave it out, or set scores to softmax."
            raise OptionError(msg)
        return cls(scores, (temperature or 1.0) if scores == "softmax" else None)

    def __call__(self, queries: Tensor, views: Tensor, products: Tensor) -> Tensor:
        """Return (n, m) scores of n query vectors (n, dim) and m views (m, dim), from their inner products (n, m)."""
        if self.temperature is not None:
            return (products / self.temperature).softmax(dim=-1)
        if self.scores == "cosine":
            return functional.normalize(queries, dim=-1) @ functional.normalize(views, dim=-1).T
        return products


@dataclass
class Compared:
    """A document, its vectors, and the vectors of the queries it answers.

    Attributes:
        document_id: The document.
        rows: For each query vector, the query's id, and the vector's number if the query has several.
        numbers: (m,) positions of the document's vectors among the pooler's vectors.
        queries: (n, dim) query vectors.
        views: (m, dim) vectors of the document.
        products: (n, m) their inner products.
    """

    document_id: str
    rows: list[tuple[str, int | None]]
    numbers: Tensor
    queries: Tensor
    views: Tensor
    products: Tensor


class Tally:
    """Counts of an analysis."""

    def __init__(self, names: Callable[[int], list[str]], normalise: Normalisation) -> None:
        self.names = names
        self.normalise = normalise
        self.answered: Counter[int] = Counter()
        self.offered: Counter[int] = Counter()
        self.sums: Counter[int] = Counter()
        self.local_variations: list[float] = []
        self.perplexities: list[float] = []
        self.bounds: list[int] = []
        self.pairs: set[Pair] = set()

    def add(self, document: Compared, stream: TextIO) -> None:
        """Count a document and write its lines."""
        if not document.rows:
            return
        best = document.products.argmax(dim=1)  # the first in a tie
        views = document.numbers[best].tolist()
        numbers = document.numbers.tolist()
        variations: list[float | None] = [None] * len(views)
        if len(numbers) > 1:
            scores = self.normalise(document.queries, document.views, document.products)
            variations = local_variation(scores).tolist()
        self.answered.update(views)
        for number, total in zip(numbers, document.products.double().sum(dim=0).tolist(), strict=True):
            self.offered[number] += len(views)
            self.sums[number] += total
        self.local_variations += [value for value in variations if value is not None]
        self.perplexities.append(perplexity(views))
        self.bounds.append(min(len(views), len(numbers)))
        self.pairs.update((query_id, document.document_id) for query_id, _ in document.rows)
        self._write(document, views, variations, stream)

    def _write(self, document: Compared, views: list[int], variations: list[float | None], stream: TextIO) -> None:
        numbers = document.numbers.tolist()
        names = self.names(max(numbers) + 1)
        labels = [names[number] for number in numbers]
        for (query_id, vector), view, variation, products in zip(
            document.rows, views, variations, document.products.tolist(), strict=True
        ):
            line: dict[str, Any] = {"query_id": query_id, "document_id": document.document_id}
            if vector is not None:
                line["query_vector"] = vector
            line |= {"view": view, "label": names[view]}
            line["local_variation"] = None if variation is None else round(variation, 6)
            line["scores"] = {label: round(value, 6) for label, value in zip(labels, products, strict=True)}
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")

    def analysis(self, judged: Judged, options: dict[str, Any]) -> Analysis:
        """Return the figures of these counts."""
        compared = self.answered.total()
        names = self.names(max(self.offered) + 1)
        views = [
            View(
                number,
                names[number],
                offered,
                self.answered[number],
                self.answered[number] / compared,
                self.sums[number] / offered,
            )
            for number, offered in sorted(self.offered.items())
        ]
        return Analysis(
            views=views,
            pairs=len(self.pairs),
            queries=len({query_id for query_id, _ in self.pairs}),
            documents=len(self.perplexities),
            compared=compared,
            local_variation=mean(self.local_variations) if self.local_variations else None,
            perplexity=mean(self.perplexities),
            perplexity_bound=mean(self.bounds),
            perplexity_pooled=perplexity(self.answered.elements()),
            local_variations=self.local_variations,
            perplexities=self.perplexities,
            options=options,
            notes=judged.notes,
        )
