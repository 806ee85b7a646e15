"""OpenVINO's runtime without torch, and the cache of graphs and of what else a model needs."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from retrievalkit.contracts.backends import Entry, read_entry, write_entry

_VERSIONED = ("retrievalkit", "retrievalkit-openvino", "torch", "transformers", "tokenizers", "openvino", "onnxruntime")
GRAPH = "graph.xml"
"""OpenVINO's file in a graph's entry of the cache."""

QUANTISED = Path("openvino", "openvino_model_qint8_quantized.xml")
"""The int8 graph in a model's folder, where `rkit export --to openvino` and sentence-transformers write it."""

CACHE = "graphs"
_MOST_ENTRIES = 80  # four entries of a retriever that searches without torch
_FIRST_USE = threading.Lock()

Form = TypeVar("Form")


def read_cached(identity: object, form: type[Form]) -> Entry[Form] | None:
    """Return an entry of the cache for an identity and the versions of packages; see `read_entry`."""
    return read_entry(CACHE, [identity, _versions()], form)


def write_cached(identity: object, value: object, write: Callable[[Path], None] | None = None) -> Entry[Any] | None:
    """Write an entry of the cache for an identity and the versions of packages; see `write_entry`."""
    return write_entry(CACHE, [identity, _versions()], value, write, most=_MOST_ENTRIES)


@cache
def _versions() -> tuple[str | None, ...]:
    discover = importlib.metadata.Distribution.discover
    return tuple(next((package.version for package in discover(name=name)), None) for name in _VERSIONED)


class OpenVinoProgram:
    """A graph compiled by OpenVINO, from arrays to arrays, with a request for each thread that calls it."""

    def __init__(self, model: Any, precision: str = "fp32", *, parallel: bool = False) -> None:
        limit = os.environ.get("OMP_NUM_THREADS", "")
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else int(limit) if limit.isdecimal() else 0  # 0: OpenVINO chooses
        options = {
            "PERFORMANCE_HINT": "THROUGHPUT" if parallel else "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        }
        # In int8, the rest of the graph is computed as OpenVINO chooses, so that an exported graph has equal outputs.
        if precision != "int8":
            options["INFERENCE_PRECISION_HINT"] = "bf16" if precision == "bf16" else "f32"
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
    # Its first conversion of an array fills C++ statics, and may let another thread run meanwhile. If that converts an
    # array too, it waits for the statics with Python's lock, which the first thread needs: a deadlock.
    with _FIRST_USE:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        import openvino

        _ = openvino.Tensor(np.zeros(1, dtype=np.int64)).data
    return openvino


def save_model(model: Any, file: Path) -> None:
    """Save OpenVINO's model; its error for a full disk names neither."""
    openvino = import_openvino()
    try:
        openvino.save_model(model, file, compress_to_fp16=False)
        openvino.Core().read_model(file)
    except RuntimeError as error:
        raise OSError(errno.EIO, f"OpenVINO cannot write a graph ({error})", str(file)) from error
