"""8-bit integer weights for ONNX graphs, with what they cost: cosines, and metrics of an exact search."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import retrievalkit as rk
from retrievalkit.contracts import SIDES, Side, Text
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit_export.onnx import run, session

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

_METRICS = "nDCG@10 R@100"
_DEPTH = 100
_MOST_TEXTS = 100_000
_BATCH = 32


def quantize(retriever: Retriever, folder: Path, texts: str, queries: str | None, qrels: str | None) -> dict[str, Any]:
    """Write NAME.int8.onnx beside each graph, and state its loss on the texts that the options name.

    Args:
        retriever: The checkpoint, for its tokens.
        folder: The folder of the graphs.
        texts: The corpus.
        queries: The queries whose metrics are compared, with `qrels`.
        qrels: Their judgements.

    Returns:
        The least and the mean cosine of quantised and unquantised vectors; with queries, "fp32 -> int8" of each metric.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    one_graph = (folder / "model.onnx").exists()
    graphs: dict[Side, str] = {side: "model" if one_graph else side for side in SIDES}
    for name in sorted(set(graphs.values())):
        source, target = (str(folder / f"{name}{suffix}.onnx") for suffix in ("", ".int8"))
        with _without_advice():
            quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    passages = list(islice(open_corpus(texts), _MOST_TEXTS))
    pairs = [(one.title, one.text) for one in passages]
    documents = _both(retriever, folder, graphs["document"], pairs, "document")
    cosines = _cosines(*documents)
    figures: dict[str, Any] = {
        "texts": len(pairs),
        "int8 cosine with fp32, mean": round(float(cosines.mean()), 6),
        "int8 cosine with fp32, least": round(float(cosines.min()), 6),
    }
    if queries is None or qrels is None:
        return figures
    asked = read_queries(queries)
    by_side = _both(retriever, folder, graphs["query"], [("", one.text) for one in asked], "query")
    metrics = []
    for found, stored in zip(by_side, documents, strict=True):
        run = rk.Run()
        for query, vector in zip(asked, found, strict=True):
            scores = stored @ vector
            best = np.argsort(-scores, kind="stable")[:_DEPTH]
            run[query.id] = [(passages[row].id, float(scores[row])) for row in best]
        metrics.append(run.evaluate(qrels, _METRICS))
    before, after = metrics
    return figures | {f"{name}, fp32 -> int8": f"{before[name]:.4f} -> {after[name]:.4f}" for name in before}


@contextmanager
def _without_advice() -> Iterator[None]:
    """Silences onnxruntime's advice to prepare the graph, which torch's exporter has done."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _both(
    retriever: Retriever, folder: Path, name: str, texts: Sequence[Text], side: Side
) -> tuple[np.ndarray, np.ndarray]:
    """The vectors (texts, dimension) by the graph, and by its quantised form."""
    first, second = (_encode(retriever, folder / f"{name}{suffix}.onnx", texts, side) for suffix in ("", ".int8"))
    return first, second


def _encode(retriever: Retriever, path: Path, texts: Sequence[Text], side: Side) -> np.ndarray:
    tower, opened = retriever.tower(side), session(path)
    token_ids = tower.tokenize(texts, side)
    found: dict[int, np.ndarray] = {}
    by_length = sorted(range(len(texts)), key=lambda row: len(token_ids[row]))
    for start in range(0, len(texts), _BATCH):
        positions = by_length[start : start + _BATCH]
        rows = run(opened, tower.collate([token_ids[one] for one in positions], side))
        found.update(zip(positions, rows, strict=True))
    return np.stack([found[row] for row in range(len(texts))])


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: np.ndarray = (one * other).sum(axis=1) / np.maximum(norms, 1e-12)
    return cosines
