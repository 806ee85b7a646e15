"""8-bit integer weights for ONNX graphs, with what they cost: cosines, and metrics of an exact search."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit.contracts import SIDES, Side, Text
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.evaluate.measures import mean
from retrievalkit.evaluate.metrics import per_query
from retrievalkit.export.onnx import run, session
from retrievalkit.export.targets import ExportOptions
from retrievalkit.model.batches import token_budget_batches
from retrievalkit.model.retriever import Retriever

_METRICS = "nDCG@10 R@100"
_DEPTH = 100
_MOST_TEXTS = 100_000
_BATCH_TOKENS = 4_096


def quantize(retriever: Retriever, folder: Path, options: ExportOptions) -> dict[str, Any]:
    """Write NAME.int8.onnx beside each graph, and state its loss on the texts that the options name.

    Args:
        retriever: The checkpoint, for its tokens.
        folder: The folder of the graphs.
        options: `texts`, and perhaps `queries` and `qrels`.

    Returns:
        The least and the mean cosine of quantised and unquantised vectors; with queries, "fp32 -> int8" of each metric.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    assert options.texts is not None
    one_graph = (folder / "model.onnx").exists()
    graphs: dict[Side, str] = {side: "model" if one_graph else side for side in SIDES}
    for name in sorted(set(graphs.values())):
        source, target = (str(folder / f"{name}{suffix}.onnx") for suffix in ("", ".int8"))
        with _without_advice():
            quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    passages = list(islice(open_corpus(options.texts), _MOST_TEXTS))
    texts = [(one.title, one.text) for one in passages]
    documents = _both(retriever, folder, graphs["document"], texts, "document")
    cosines = _cosines(*documents)
    figures: dict[str, Any] = {
        "texts": len(texts),
        "int8 cosine with fp32, mean": round(float(cosines.mean()), 6),
        "int8 cosine with fp32, least": round(float(cosines.min()), 6),
    }
    if options.queries is None or options.qrels is None:
        return figures
    qrels, queries = read_qrels(options.qrels), read_queries(options.queries)
    asked = _both(retriever, folder, graphs["query"], [("", one.text) for one in queries], "query")
    names = [one.id for one in queries], [one.id for one in passages]
    values = [
        {name: mean(name, by_query) for name, by_query in per_query(_search(*pair, *names), qrels, _METRICS).items()}
        for pair in zip(asked, documents, strict=True)
    ]
    return figures | {f"{name}, fp32 -> int8": f"{values[0][name]:.4f} -> {values[1][name]:.4f}" for name in values[0]}


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
    for positions in token_budget_batches([len(ids) for ids in token_ids], _BATCH_TOKENS):
        rows = run(opened, tower.collate([token_ids[one] for one in positions], side))
        found.update(zip(positions, rows, strict=True))
    return np.stack([found[row] for row in range(len(texts))])


def _cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: np.ndarray = (one * other).sum(axis=1) / np.maximum(norms, 1e-12)
    return cosines


def _search(
    queries: np.ndarray, documents: np.ndarray, query_ids: Sequence[str], ids: Sequence[str]
) -> dict[str, list[tuple[str, float]]]:
    """The best documents of each query, by inner products."""
    found = {}
    for query, vector in zip(query_ids, queries, strict=True):
        scores = documents @ vector
        best = np.argsort(-scores, kind="stable")[:_DEPTH]
        found[query] = [(ids[row], float(scores[row])) for row in best]
    return found
