"""ONNX graphs of ours in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit.contracts import Batch


def session(path: Path) -> Any:
    """The graph in onnxruntime, on the processor."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def run(opened: Any, batch: Batch) -> np.ndarray:
    """The graph's output (batch, dimension)."""
    inputs = {"input_ids": batch.input_ids.cpu().numpy(), "attention_mask": batch.attention_mask.cpu().numpy()}
    output: np.ndarray = opened.run(None, inputs)[0]
    return output
