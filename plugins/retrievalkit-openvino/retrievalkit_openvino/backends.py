"""The backends `openvino` and `onnx`. Importing this module does not import torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit.contracts import Backend, Function, Program, QueryEncoder
from retrievalkit.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from retrievalkit.contracts import Encoder
    from retrievalkit.contracts.commands import Retriever

_LEAST_TOKENS, _BATCHES = 128, 2  # per core
PACKAGES = {"openvino": ("openvino",), "onnx": ("onnx", "onnxscript", "onnxruntime")}


def require_packages(backend: str, needed_for: str) -> None:
    """Refuse a backend whose packages are not installed.

    Raises:
        MissingDependencyError: A package is missing.
    """
    for package in PACKAGES[backend]:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, needed_for, f"'retrievalkit[{backend}]'")


class _Processors(Backend):
    """A backend that computes graphs on processors; a model's graph is exported on first use, and cached."""

    def check(self, device: str) -> None:
        """Refuse GPUs, and missing packages."""
        if device != "cpu":
            msg = f"backend {self.name} computes on processors, and models run on a GPU here. Use torch, or auto."
            raise UnsupportedError(msg)
        require_packages(self.name, f"backend {self.name}")

    def compile(self, function: Function) -> Program:
        """Return the graph of a function, which is exported on its first call."""
        from retrievalkit_openvino.graphs import OnnxGraph, OpenVinoGraph

        return OpenVinoGraph(function) if self.name == "openvino" else OnnxGraph(function)

    def encoder(self, kind: type[Encoder], model: str | Path, **options: Any) -> Encoder:
        """Create an encoder, whose layers a graph computes if it is `transformer`."""
        from retrievalkit.contracts.commands import get
        from retrievalkit_openvino.encoder import create_encoder

        if kind is not get("encoder", "transformer"):  # even a subclass may compute other states
            return super().encoder(kind, model, **options)

        return create_encoder(self, kind, model, options)


class OpenVino(_Processors):
    """OpenVINO on a processor, with several threads that each compute a batch."""

    automatic = True
    precisions = ("fp32", "bf16", "int8")

    def threads(self) -> int:
        """Return the number of cores: each thread computes a batch on its own core."""
        import torch

        return torch.get_num_threads()

    def batch_tokens(self, lengths: Sequence[int]) -> int:
        """Return fewer tokens for some texts than for many, so that each core has a few batches to balance."""
        tokens, cores, most = sum(lengths), self.threads(), super().batch_tokens(lengths)
        if cores == 1 or tokens <= cores * _LEAST_TOKENS:  # a single batch is computed by all cores
            return most
        return min(most, max(_LEAST_TOKENS, tokens // (cores * _BATCHES)))

    def open_queries(self, model: str, identity: object, load: Callable[[], Retriever]) -> QueryEncoder | None:
        """Open the graphs of a retriever, exported on first use, for queries without torch."""
        from retrievalkit_openvino.queries import open_compiled

        return open_compiled(model, identity, load)


class OnnxRuntime(_Processors):
    """ONNX Runtime on a processor, in fp32."""
