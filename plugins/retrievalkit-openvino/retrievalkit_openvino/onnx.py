"""ONNX files: torch's exporter, quietly, and ONNX Runtime on a processor."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def write_onnx(
    module: nn.Module,
    example: Mapping[str, Tensor],
    file: Path,
    *,
    shapes: Mapping[str, Any],
    outputs: Sequence[str] | None = None,
    external_data: bool = False,
) -> None:
    """Export a module with its example inputs; `shapes` are torch's dynamic shapes, `outputs` names."""
    with silenced():
        torch.onnx.export(
            module,
            tuple(example.values()),
            file,
            input_names=list(example),
            output_names=outputs,
            dynamic_shapes=dict(shapes),
            dynamo=True,
            external_data=external_data,
            verbose=False,
        )


def open_session(file: Path, *, threads: int = 0) -> Any:
    """Open a graph in ONNX Runtime; 0 threads: it chooses."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


@contextmanager
def silenced() -> Iterator[None]:
    """Suppress the warnings and progress bars of exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
