"""Graphs in int8 for ONNX Runtime and OpenVINO, with their loss: cosines, and metrics of an exact search."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from retrievalkit_openvino.onnx import open_session

import retrievalkit as rk
from retrievalkit.contracts import SIDES, Side, Text
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries
from retrievalkit_export import openvino
from retrievalkit_export.onnx import run

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

Form = Literal["fp32", "int8"]
Encode = Callable[[Form, Sequence[Text], Side], np.ndarray]

_FORMS: tuple[Form, Form] = ("fp32", "int8")
_METRICS = "nDCG@10 R@100"
_DEPTH = 100
_MOST_TEXTS = 100_000
_CALIBRATED = 512
_BATCH = 32


def quantize(retriever: Retriever, folder: Path, texts: str, queries: str | None, qrels: str | None) -> dict[str, Any]:
    """Write an int8 graph next to each graph of the folder, and measure its loss on texts.

    Returns:
        The minimum and mean cosine of quantised and original vectors, for OpenVINO also the share of the ten nearest
        texts that stay; with queries, "fp32 -> int8" of each metric.
    """
    passages = list(islice(open_corpus(texts), _MOST_TEXTS))
    pairs = [passage.content for passage in passages]
    figures: dict[str, Any] = {"texts": len(pairs)}
    if (folder / openvino.FOLDER).exists():
        shared = retriever.calibrate(pairs[:: -(-len(pairs) // _CALIBRATED)], "document")
        figures["int8: ten nearest texts as in fp32"] = f"{shared:.1%}"
        openvino.write_graph(retriever, folder, "int8")
        encode: Encode = partial(_by_openvino, retriever)
    else:
        encode = partial(_by_onnx, retriever, _quantized_onnx(folder))
    documents = [encode(form, pairs, "document") for form in _FORMS]
    norms = np.prod([np.linalg.norm(vectors, axis=1) for vectors in documents], axis=0)
    cosines = (documents[0] * documents[1]).sum(axis=1) / np.maximum(norms, 1e-12)
    figures["int8 cosine with fp32, mean"] = round(float(cosines.mean()), 6)
    figures["int8 cosine with fp32, least"] = round(float(cosines.min()), 6)
    if queries is None or qrels is None:
        return figures
    dev = read_queries(queries)
    query_texts = [query.content for query in dev]
    metrics = []
    for form, stored in zip(_FORMS, documents, strict=True):
        result = rk.Run()
        for query, vector in zip(dev, encode(form, query_texts, "query"), strict=True):
            scores = stored @ vector
            best = np.argsort(-scores, kind="stable")[:_DEPTH]
            result[query.id] = [(passages[row].id, float(scores[row])) for row in best]
        metrics.append(result.evaluate(qrels, _METRICS))
    before, after = metrics
    return figures | {f"{name}, fp32 -> int8": f"{before[name]:.4f} -> {after[name]:.4f}" for name in before}


def _by_openvino(retriever: Retriever, form: Form, texts: Sequence[Text], side: Side) -> np.ndarray:
    vectors = retriever.encode(texts, side, precision=form).vectors
    assert vectors is not None
    return vectors[:, 0].numpy()


def _quantized_onnx(folder: Path) -> dict[Side, dict[Form, Path]]:
    """Write NAME.int8.onnx next to each graph; returns the graphs of each side."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graphs: dict[Side, dict[Form, Path]] = {}
    for side in SIDES:
        name = "model" if (folder / "model.onnx").exists() else side
        graphs[side] = {"fp32": folder / f"{name}.onnx", "int8": folder / f"{name}.int8.onnx"}
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # its advice to prepare the graph: torch's exporter has done so
    try:
        for source, target in {(paths["fp32"], paths["int8"]) for paths in graphs.values()}:
            quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    finally:
        logging.disable(disabled)
    return graphs


def _by_onnx(
    retriever: Retriever, graphs: dict[Side, dict[Form, Path]], form: Form, texts: Sequence[Text], side: Side
) -> np.ndarray:
    tower, opened = retriever.tower(side), open_session(graphs[side][form])
    token_ids = tower.tokenize(texts, side)
    vectors: dict[int, np.ndarray] = {}
    by_length = sorted(range(len(texts)), key=lambda row: len(token_ids[row]))
    for start in range(0, len(texts), _BATCH):
        positions = by_length[start : start + _BATCH]
        batch = run(opened, tower.collate([token_ids[row] for row in positions], side))
        vectors.update(zip(positions, batch, strict=True))
    return np.stack([vectors[row] for row in range(len(texts))])
