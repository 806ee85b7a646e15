"""Models computed by OpenVINO without torch, whose import takes longer than a search.

Torch exports graphs on first use, of an encoder's layers or of a pooler. They are cached:

    ~/.cache/retrievalkit/graphs/MODEL/       encoder.json; NAME.xml and NAME.bin, or NAME.onnx: layers
    ~/.cache/retrievalkit/graphs/RETRIEVER/   retriever.json; query.xml, document.xml or both.xml: the pooler
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from retrievalkit import storage
from retrievalkit.data.truncation import count_cut
from retrievalkit.registry.modules import module_spec

if TYPE_CHECKING:
    from retrievalkit.contracts import Side, Text
    from retrievalkit.models.retriever import Retriever

_VERSIONED = ("retrievalkit", "torch", "transformers", "tokenizers", "openvino", "onnxruntime")
_KEPT_FOLDERS = 20
_BATCH = 32  # texts


def cached_folder(identity: object) -> Path | None:
    """Return the cache folder of graphs for an identity and the versions of packages; None if it is not writable.

    The least recently used of more than twenty is deleted.
    """
    discover = importlib.metadata.Distribution.discover
    versions = [next((package.version for package in discover(name=name)), None) for name in _VERSIONED]
    home = storage.cache_folder("graphs")
    folder = home / storage.fingerprint_value([identity, versions])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return None
    for old in sorted(home.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT_FOLDERS]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


class OpenVinoProgram:
    """A graph compiled by OpenVINO, from arrays to arrays, with a request for each thread that calls it."""

    def __init__(self, model: Any, precision: str = "fp32", *, parallel: bool = False) -> None:
        limit = os.environ.get("OMP_NUM_THREADS", "")
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else int(limit) if limit.isdecimal() else 0  # 0: OpenVINO chooses
        options = {
            "PERFORMANCE_HINT": "THROUGHPUT" if parallel else "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            "INFERENCE_NUM_THREADS": threads,
        }
        self._compiled = import_openvino().Core().compile_model(model, "CPU", options)
        self._requests = threading.local()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Compute the outputs for contiguous input arrays."""
        if not hasattr(self._requests, "own"):
            self._requests.own = self._compiled.create_infer_request()
        results = self._requests.own.infer(inputs, share_inputs=True)
        return [results[number] for number in range(len(results))]


def import_openvino() -> Any:
    """Import openvino with its telemetry disabled; otherwise each import sends a report."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    return openvino


def model_input(text: Text, prefix: str, title: str) -> str | tuple[str, str]:
    """Return a text with its prefix as a model reads it: a pair of title and body, or one string; see `Transformer`."""
    heading, body, *_ = text
    if heading and title == "pair":
        return prefix + heading, body
    return prefix + (f"{heading} {body}".strip() if heading and title == "space" else body)


class CompiledRetriever:
    """A dual encoder with one vector per text, for a few texts at a time.

    Args:
        sides: Settings of the tokenizer by side, with the files of the encoder's and the pooler's graphs.
    """

    def __init__(self, sides: Mapping[str, Any]) -> None:
        self._sides, self._program, self._tokenizer = sides, cache(_program), cache(Tokenizer.from_str)
        self._tokenizing = threading.Lock()

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """Tokenise texts with prefix and special tokens, as the encoder `transformer` does."""
        settings = self._sides[side]
        length, end = settings["length"], settings["end"]
        rows: Any = [model_input(text, settings["prefix"], settings["title"]) for text in texts]
        with self._tokenizing:
            tokenizer = self._tokenizer(settings["tokenizer"])
            tokenizer.no_padding()
            tokenizer.enable_truncation(length - len(end), direction=settings["truncation_side"])
            encodings = tokenizer.encode_batch(rows)
        if side == "query":
            count_cut(None, SimpleNamespace(encodings=encodings), rows, kind="query texts", limit=length)
        return [encoding.ids + end for encoding in encodings]

    def encode(self, texts: Sequence[Text], side: Side) -> np.ndarray:
        """Return the vectors (texts, dim) of texts, in float32."""
        settings, token_ids = self._sides[side], self.tokenize(texts, side)
        program = self._program(settings["encoder"], settings["pooler"])
        order, parts = sorted(range(len(texts)), key=lambda row: len(token_ids[row])), list[np.ndarray]()
        for start in range(0, len(order), _BATCH):
            rows = [token_ids[row] for row in order[start : start + _BATCH]]
            ids = np.full((len(rows), max(1, len(rows[-1]))), settings["padding"], dtype=np.int64)
            mask = np.zeros_like(ids)
            for row, tokens in enumerate(rows):
                ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
            parts += program({"input_ids": ids, "attention_mask": mask})
        vectors: np.ndarray = np.concatenate(parts)[np.argsort(order), 0]
        return vectors


def _program(encoder: str, pooler: str) -> OpenVinoProgram:
    """Compile the graphs of an encoder and a pooler as a single graph, from token ids to vectors."""
    openvino = import_openvino()
    layers, pooling = (openvino.Core().read_model(file) for file in (encoder, pooler))
    sources = {f"layer{number}": result.input_value(0) for number, result in enumerate(layers.get_results())}
    sources["attention_mask"] = layers.input("attention_mask")
    for port in pooling.inputs:
        for reader in port.get_target_inputs():
            reader.replace_source_output(sources[port.get_any_name()])
    return OpenVinoProgram(openvino.Model(pooling.get_results(), layers.get_parameters()))


def open_compiled(
    model: str, identity: object, backend: str, load: Callable[[], Retriever]
) -> CompiledRetriever | None:
    """Open the compiled form of a retriever, exported on first use; None if only torch encodes its texts here.

    `identity` is the fingerprint and options of the retriever; `load` loads it for the export.
    """
    backend = os.environ.get("RKIT_BACKEND", "auto") if backend == "auto" else backend
    selected = backend in ("auto", "openvino") and module_spec("openvino") is not None
    # The fingerprint of a model on a hub does not cover its weights.
    folder = cached_folder(identity) if selected and os.path.isdir(model) else None
    if folder is None:
        return None
    file = folder / "retriever.json"
    sides: Any = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    if sides is None or not all(os.path.exists(settings["encoder"]) for settings in sides.values()):
        retriever = load()
        if retriever.backend != "openvino":  # on a GPU
            return None
        sides = _exported(retriever, folder)
        storage.write_json(file, sides)
    return CompiledRetriever(sides) if sides else None


def _exported(retriever: Retriever, folder: Path) -> dict[str, Any]:
    """Export the settings and graphs of a `CompiledRetriever`; {} if vectors need more than these."""
    from retrievalkit.contracts import SIDES
    from retrievalkit.models.graphs import ExportError

    towers: Any = {side: retriever.tower(side) for side in SIDES}
    if not all(hasattr(tower, "export") for tower in towers.values()):
        return {}
    try:
        return {side: tower.export(retriever.pooler, side, folder) for side, tower in towers.items()}
    except ExportError:
        return {}
