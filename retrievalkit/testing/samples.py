"""Texts and queries that indexers are tried with: vectors, weights or both, drawn at random, and countries as texts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from retrievalkit.contracts import Representation
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.score import scores
from retrievalkit.testing.collection import COUNTRIES

DIM, TERMS = 16, 30

Form = Literal["vectors", "several", "weights", "both", "texts"]
"""What texts are: one vector, one to three vectors, weights, a vector and weights, or words."""

ODD_IDS = (
    "with space", "a/b/../c", "..", "\u00fcn\u00efc\u00f6d\u00e9", "\u6f22\u5b57", "\U0001f642", "-1", "007", "7",
    "'quoted'", '"quoted"', "a,b;c", "null", "x" * 300, "%20", "back\\nslash", "[1]", "*", "\uff21", "\u00e9",
    "e\u0301", "a\u00a0b", "Id", "ID",
)  # fmt: skip
"""Ids that a store or a query language may take for something else; two of them look the same."""


@dataclass
class Sample:
    """Texts to index and queries to search them with.

    Attributes:
        form: What the texts are.
        ids: Their ids.
        texts: A Representation on the CPU; (title, text) of each where the form is "texts".
        queries: A Representation, or strings.
        cuts: Rows at which a new shard begins.
    """

    form: Form
    ids: list[str]
    texts: Any
    queries: Any
    cuts: Sequence[int] = field(default_factory=tuple)

    def __len__(self) -> int:
        return len(self.ids)

    def asked(self, rows: slice) -> Any:
        """Some of the queries."""
        return self.queries[rows] if self.form == "texts" else self.queries.rows(rows)

    def first(self, count: int) -> Sample:
        """The same with the first texts alone."""
        texts = self.texts[:count] if self.form == "texts" else self.texts.rows(slice(0, count))
        return replace(self, ids=self.ids[:count], texts=texts)

    def truth(self, view: str = "all") -> np.ndarray:
        """(queries, texts) float32: the scores of all texts by the scoring rule."""
        queries, texts = self.queries, self.texts
        if view != "all":
            queries, texts = (replace(one, **{_OTHER[view]: None}) for one in (queries, texts))
        return scores(queries, texts).numpy()

    def write(self, folder: Path) -> Path:
        """Write what an indexer is given, into a new folder: a vectors/ folder or a corpus file; returns its path."""
        folder.mkdir(parents=True)
        if self.form == "texts":
            rows = zip(self.ids, self.texts, strict=True)
            lines = [json.dumps({"_id": one, "title": title, "text": text}) + "\n" for one, (title, text) in rows]
            (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
            return folder / "corpus.jsonl"
        writer = VectorWriter(folder)
        edges = [0, *self.cuts, len(self.ids)]
        for shard, (start, end) in enumerate(itertools.pairwise(edges)):
            part = self.texts.rows(slice(start, end))
            writer.write_shard(shard, self.ids[start:end], **_arrays(part))
        writer.finish()
        return folder


_OTHER = {"vectors": "weights", "weights": "vectors"}


def opened_source(path: Path) -> Any:
    """The `VectorStore` or `Corpus` of what `Sample.write` wrote."""
    return VectorStore(path) if path.is_dir() else open_corpus(path)


def _arrays(part: Representation) -> dict[str, Any]:
    import scipy.sparse

    made: dict[str, Any] = {"vectors": None}
    if part.vectors is not None and part.vector_mask is not None:
        made = {"vectors": part.vectors[part.vector_mask].numpy(), "counts": part.vector_mask.sum(1).numpy()}
    elif part.vectors is not None:
        made = {"vectors": part.vectors.numpy()}
    if part.weights is not None:
        made["weights"] = scipy.sparse.csr_matrix(part.weights.numpy())
    return made


def drawn(form: Form, count: int, *, queries: int = 8, seed: int = 0) -> Sample:
    """Texts `t0`, `t1` ... and queries at random: no two scores of a query are equal.

    Weights are multiples of 1/255 and at most 1, so that an index that rounds them to 8 bits loses nothing.
    """
    random = np.random.default_rng(seed)
    names = [f"t{row}" for row in range(count)]
    sides = []
    for rows, most in ((count, 3 if form == "several" else 1), (queries, 2 if form == "several" else 1)):
        made: dict[str, Any] = {}
        if form != "weights":
            made["vectors"] = torch.from_numpy(random.standard_normal((rows, most, DIM), dtype=np.float32))
        if form == "several":
            many = torch.from_numpy(random.integers(1, most + 1, rows))
            many[0] = most
            made["vector_mask"] = torch.arange(most) < many[:, None]
        if form in ("weights", "both"):
            levels = random.integers(0, 256, (rows, TERMS))
            made["weights"] = torch.from_numpy((levels * (levels > 127) / 255).astype(np.float32))
        sides.append(Representation(**made))
    return Sample(form, names, sides[0], sides[1])


def tied(form: Form) -> Sample:
    """Twelve texts, each equal to three others, whose ids are not in the order of the texts; sums are exact.

    To the first query all are equal.
    """
    kinds = torch.tensor([2, 0, 1] * 4)
    # Of zeros and ones, so that rounding to a few bits makes no two kinds equal either.
    numbers = torch.tensor([[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    asked = torch.tensor([[1.0, 1.0, 1.0, 1.0], [2.0, 1.0, 0.0, 1.0]])

    def side(rows: torch.Tensor) -> Representation:
        made: dict[str, Any] = {} if form == "weights" else {"vectors": _padded(rows, DIM)[:, None]}
        if form in ("weights", "both"):
            made["weights"] = _padded(rows, TERMS)
        return Representation(**made)

    ids = [f"t{number}" for number in (7, 3, 11, 0, 9, 4, 1, 10, 6, 2, 8, 5)]
    return Sample(form, ids, side(numbers[kinds]), side(asked))


def _padded(numbers: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(numbers, (0, width - numbers.shape[1]))


def countries(count: int = 42) -> Sample:
    """A passage about each country; the queries ask for capitals and currencies, in words that a passage has."""
    rows = [[word.replace("-", " ") for word in line.split()] for line in COUNTRIES.split("|")]
    texts = [
        (country, f"The seat of government is {capital}, people pay with the {currency}, and speak {language}.")
        for country, capital, currency, language in rows
    ]
    queries = [f"which country has its government in {capital}" for _, capital, _, _ in rows[: min(count, 12)]]
    sample = Sample("texts", [f"c{row}" for row in range(len(rows))], texts, queries)
    return sample.first(count)
