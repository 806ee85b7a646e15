"""The backends `openvino` and `onnx`. Importing this module does not import torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from retrievalkit.contracts import Backend, Function, Program, QueryEncoder
from retrievalkit.errors import MissingDependencyError, UnsupportedError

if TYPE_CHECKING:
    from retrievalkit.contracts.commands import Retriever

PACKAGES = {"openvino": ("openvino",), "onnx": ("onnx", "onnxscript", "onnxruntime")}


class _Processors(Backend):
    """A backend that computes graphs on processors; a model's graph is exported on first use, and cached."""

    def check(self, device: str) -> None:
        """Refuse GPUs, and missing packages."""
        if device != "cpu":
            msg = f"backend {self.name} computes on processors, and models run on a GPU here. Use torch, or auto."
            raise UnsupportedError(msg)
        for package in PACKAGES[self.name]:
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError(package, f"backend {self.name}", f"'retrievalkit[{self.name}]'")

    def compile(self, function: Function) -> Program:
        """Return the graph of a function, which is exported on its first call."""
        from retrievalkit_openvino.graphs import OnnxGraph, OpenVinoGraph

        return OpenVinoGraph(function) if self.name == "openvino" else OnnxGraph(function)

    def load_configuration(self, identity: object, load: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return the configuration and the tokenizer, from the cache if possible."""
        from retrievalkit_openvino.configuration import load_configuration

        return load_configuration(identity, load)


class OpenVino(_Processors):
    """OpenVINO on a processor, with several threads that each compute a batch."""

    automatic = True
    parallel = True
    precisions = ("fp32", "bf16", "int8")

    def open_queries(self, model: str, identity: object, load: Callable[[], Retriever]) -> QueryEncoder | None:
        """Open the graphs of a retriever, exported on first use, for queries without torch."""
        from retrievalkit_openvino.queries import open_compiled

        return open_compiled(model, identity, load)


class OnnxRuntime(_Processors):
    """ONNX Runtime on a processor, in fp32."""
