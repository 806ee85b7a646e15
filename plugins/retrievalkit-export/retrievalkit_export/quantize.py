"""8-bit integer weights for ONNX graphs, with their loss: cosines, and metrics of an exact search."""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
    """Write NAME.int8.onnx next to each graph, and measure its loss on the texts that the options name.

    Returns:
        The minimum and mean cosine of quantised and original vectors; with queries, "fp32 -> int8" of each metric.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    shared = (folder / "model.onnx").exists()
    graphs: dict[Side, str] = {side: "model" if shared else side for side in SIDES}
    for name in sorted(set(graphs.values())):
        source, target = (str(folder / f"{name}{suffix}.onnx") for suffix in ("", ".int8"))
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)  # its advice to prepare the graph: torch's exporter has done so
        try:
            quantize_dynamic(source, target, weight_type=QuantType.QInt8)
        finally:
            logging.disable(disabled)
    passages = list(islice(open_corpus(texts), _MOST_TEXTS))
    pairs = [passage.content for passage in passages]
    forms = ("", ".int8")
    documents = [_encode(retriever, folder / f"{graphs['document']}{form}.onnx", pairs, "document") for form in forms]
    norms = np.prod([np.linalg.norm(vectors, axis=1) for vectors in documents], axis=0)
    cosines = (documents[0] * documents[1]).sum(axis=1) / np.maximum(norms, 1e-12)
    figures: dict[str, Any] = {
        "texts": len(pairs),
        "int8 cosine with fp32, mean": round(float(cosines.mean()), 6),
        "int8 cosine with fp32, least": round(float(cosines.min()), 6),
    }
    if queries is None or qrels is None:
        return figures
    dev = read_queries(queries)
    query_texts = [query.content for query in dev]
    metrics = []
    for form, stored in zip(forms, documents, strict=True):
        encoded = _encode(retriever, folder / f"{graphs['query']}{form}.onnx", query_texts, "query")
        run = rk.Run()
        for query, vector in zip(dev, encoded, strict=True):
            scores = stored @ vector
            best = np.argsort(-scores, kind="stable")[:_DEPTH]
            run[query.id] = [(passages[row].id, float(scores[row])) for row in best]
        metrics.append(run.evaluate(qrels, _METRICS))
    before, after = metrics
    return figures | {f"{name}, fp32 -> int8": f"{before[name]:.4f} -> {after[name]:.4f}" for name in before}


def _encode(retriever: Retriever, path: Path, texts: Sequence[Text], side: Side) -> np.ndarray:
    tower, opened = retriever.tower(side), session(path)
    token_ids = tower.tokenize(texts, side)
    vectors: dict[int, np.ndarray] = {}
    by_length = sorted(range(len(texts)), key=lambda row: len(token_ids[row]))
    for start in range(0, len(texts), _BATCH):
        positions = by_length[start : start + _BATCH]
        batch = run(opened, tower.collate([token_ids[row] for row in positions], side))
        vectors.update(zip(positions, batch, strict=True))
    return np.stack([vectors[row] for row in range(len(texts))])
