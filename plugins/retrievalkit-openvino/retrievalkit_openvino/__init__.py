"""OpenVINO and ONNX Runtime for retrievalkit: backends that compute the layers of models on processors."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_backends(register: Register) -> None:
    """Register the backends."""
    register("onnx", "retrievalkit_openvino.backends:OnnxRuntime")
    register("openvino", "retrievalkit_openvino.backends:OpenVino")
