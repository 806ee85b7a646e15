"""Inference on a processor by OpenVINO or ONNX Runtime instead of torch.

A module is exported as a graph on first use. The graph is compared with the module, and cached for later processes
(see `compiled`).
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from retrievalkit.errors import InputError, MissingDependencyError, OptionError, UnsupportedError
from retrievalkit.models.compiled import OpenVinoProgram, cached_folder, import_openvino
from retrievalkit.models.precision import Precision
from retrievalkit.models.pretrained import model_file, model_fingerprint
from retrievalkit.registry.modules import module_spec
from retrievalkit.reporting.counts import counted
from retrievalkit.scoring.bf16_filter import multiplies_bf16

Backend = Literal["auto", "torch", "openvino", "onnx"]
Runtime = Literal["torch", "openvino", "onnx"]

AUTO = "RKIT_BACKEND"
"""Environment variable: the backend that "auto" selects."""

_PACKAGES = {"openvino": ("openvino",), "onnx": ("onnx", "onnxscript", "onnxruntime")}
_TOLERANCE = 1e-3
_LEAST_CALIBRATION = 20  # texts

BATCH_TOKENS = 1_024
"""Tokens per batch: OpenVINO computes several batches at a time, each on its own core."""

_LEAST_TOKENS, _BATCHES = 128, 2  # per core

QUANTISED = Path("openvino", "openvino_model_qint8_quantized.xml")
"""The int8 graph in a model's folder, where `rkit export --to openvino` and sentence-transformers write it."""


class ExportError(UnsupportedError):
    """A module cannot be exported, or its graph gives other outputs."""


def resolve_backend(backend: Backend, device: torch.device) -> Runtime:
    """Return the runtime that computes an encoder's layers: OpenVINO on a processor if installed, else torch.

    Raises:
        MissingDependencyError: A package of the backend is not installed.
        OptionError: The environment variable RKIT_BACKEND has an unknown value.
        UnsupportedError: The backend is for processors, and models run on a GPU.
    """
    if backend == "auto":
        backend = cast("Backend", os.environ.get(AUTO, "auto"))
        if backend not in ("auto", "torch", *_PACKAGES):
            msg = f"{AUTO} is '{backend}'. Set it to torch, openvino or onnx."
            raise OptionError(msg)
    if backend == "auto":
        installed = module_spec("openvino") is not None
        return "openvino" if installed and device.type == "cpu" else "torch"
    if backend == "torch":
        return "torch"
    if device.type != "cpu":
        msg = f"backend {backend} computes on processors, and models run on a GPU here. Use torch, or auto."
        raise UnsupportedError(msg)
    for package in _PACKAGES[backend]:
        if module_spec(package) is None:
            raise MissingDependencyError(package, f"backend {backend}", f"'retrievalkit[{backend}]'")
    return backend


def parallel_batches(runtime: str) -> int:
    """Return the number of batches to compute at a time, each in its own thread."""
    return torch.get_num_threads() if runtime == "openvino" else 1


def balanced_tokens(runtime: str, lengths: Sequence[int]) -> int:
    """Return the tokens per batch of some texts: less than `BATCH_TOKENS` for a few batches per core to balance."""
    tokens, cores = sum(lengths), parallel_batches(runtime)
    if cores == 1 or tokens <= cores * _LEAST_TOKENS:  # a single batch is computed by all cores
        return BATCH_TOKENS
    return min(BATCH_TOKENS, max(_LEAST_TOKENS, tokens // (cores * _BATCHES)))


def graph_folder(source: str, options: object = None, *, revision: str | None = None) -> Path | None:
    """Return the cache folder of a model's graphs, keyed by its files (or hub commit), options and package versions.

    None if the model has no configuration file or the cache is not writable.
    """
    config = model_file(source, "config.json", revision=revision)
    if config is None:
        return None
    identity = model_fingerprint(source) if Path(source).is_dir() else config.parent.name
    return cached_folder([source, identity, options])


class Graph:
    """A torch module computed by another runtime.

    Args:
        runtime: "openvino" or "onnx".
        network: Returns the module that holds the weights. Called only for the export.
        function: Maps named inputs to the outputs of the graph.
        examples: Returns named example inputs for a number of texts and a number of tokens.
        folder: The cache folder of the graph; None = a temporary folder.
        name: File name of the graph, without suffix.
        quantised: A file with the same graph in int8; None = int8 needs `quantise`.
    """

    def __init__(
        self,
        runtime: Runtime,
        network: Callable[[], nn.Module],
        function: Callable[[dict[str, Tensor]], Sequence[Tensor]],
        examples: Callable[[int, int], dict[str, Tensor]],
        *,
        folder: Path | None,
        name: str,
        quantised: Path | None = None,
    ) -> None:
        self.runtime, self.network, self.function, self.examples, self.name = runtime, network, function, examples, name
        self._scratch = tempfile.TemporaryDirectory() if folder is None else None
        self._folder = Path(self._scratch.name) if self._scratch else cast("Path", folder)
        self._programs: dict[tuple[Precision, bool], Callable[[Mapping[str, Tensor]], list[Tensor]]] = {}
        self._quantised: Any = quantised
        self._lock = threading.Lock()

    def __call__(self, inputs: Mapping[str, Tensor], precision: Precision, *, parallel: bool) -> list[Tensor]:
        """Compute the module's outputs. With `parallel`, several threads call at a time, and each call uses one core.

        Raises:
            ExportError: The module cannot be exported.
            UnsupportedError: The runtime does not compute in this precision, or int8 was not calibrated.
        """
        with self._lock:
            if (precision, parallel) not in self._programs:
                self._programs[precision, parallel] = self._compile(precision, parallel=parallel)
        return self._programs[precision, parallel](inputs)

    def quantise(self, batches: Sequence[Mapping[str, Tensor]]) -> None:
        """Quantise the graph to int8 for this process, calibrated on batches of inputs; not if a file has it.

        Raises:
            InputError: The batches have fewer than 20 texts.
            UnsupportedError: The runtime does not compute in int8, or the module cannot be exported to it.
        """
        if self.runtime != "openvino":
            msg = f"backend {self.runtime} does not compute in int8 here. Use --backend openvino."
            raise UnsupportedError(msg)
        if isinstance(self._quantised, Path):
            return
        if module_spec("nncf") is None:
            package = "nncf"
            raise MissingDependencyError(package, "precision int8", "'retrievalkit[openvino]'")
        inputs = [{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches]
        if (texts := sum(len(next(iter(batch.values()))) for batch in inputs)) < _LEAST_CALIBRATION:
            msg = f"int8 is calibrated on half of the sample, which is {counted(texts, 'texts')} here: fewer than the "
            msg += f"{_LEAST_CALIBRATION} that it needs. Use --precision fp32."
            raise InputError(msg)
        model = self.openvino_model("fp32")
        with _silenced():
            import nncf

            options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(inputs)}
            self._quantised = nncf.quantize(model, nncf.Dataset(inputs), **options)
        self._programs = {key: program for key, program in self._programs.items() if key[0] != "int8"}

    def openvino_model(self, precision: Precision) -> Any:
        """Return the graph as OpenVINO's model: in int8 as quantised, else in fp32."""
        model = self._quantised if precision == "int8" else self._exported(".xml")
        if model is None:
            msg = "int8 is not calibrated here: rkit encode and rkit rerank apply do so. Use another --precision."
            raise UnsupportedError(msg)
        return import_openvino().Core().read_model(model) if isinstance(model, Path) else model

    def file(self) -> Path:
        """Return OpenVINO's file of the graph, exported on first use."""
        return self._exported(".xml")

    def _compile(self, precision: Precision, *, parallel: bool) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
        if self.runtime == "onnx":
            return _OnnxProgram(self._exported(".onnx"), precision)
        model = self.openvino_model(precision)
        if precision == "int8" and multiplies_bf16():
            precision = "bf16"  # of the rest of the graph
        return _OpenVinoProgram(model, precision, parallel=parallel)

    def _exported(self, suffix: str) -> Path:
        """Return the file of the graph; exports it if it does not exist."""
        file = self._folder / f"{self.name}{suffix}"
        if file.exists():
            return file
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            staging, example, other = Path(scratch) / file.name, self.examples(2, 9), self.examples(3, 17)
            module = _Module(self.network(), self.function, list(example))
            try:
                with _silenced(), torch.inference_mode(mode=False), torch.no_grad():
                    export = _export_onnx if suffix == ".onnx" else _export_openvino
                    export(module, example, staging)
                    program = _OnnxProgram(staging) if suffix == ".onnx" else _OpenVinoProgram(staging)
                    pairs = zip(program(other), module(*other.values()), strict=True)
                    same = all(_same(*pair, other.get("attention_mask")) for pair in pairs)
            except Exception as error:
                msg = f"the model cannot be exported to {self.runtime}: {' '.join(str(error).split())[:200]}"
                raise ExportError(msg) from error
            if not same:
                msg = f"the model cannot be exported to {self.runtime}: the outputs of its graph are not torch's"
                raise ExportError(msg)
            # The graph file comes last: if it exists, the export is complete.
            for part in sorted(Path(scratch).iterdir(), key=lambda path: path == staging):
                part.replace(self._folder / part.name)
        return file


class _Module(nn.Module):
    """A function of named inputs as a module of inputs in order."""

    def __init__(self, network: nn.Module, function: Callable[..., Sequence[Tensor]], names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.function, self.names = network, function, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.function(dict(zip(self.names, inputs, strict=True))))


def _same(output: Tensor, expected: Tensor, mask: Tensor | None) -> bool:
    """True if two outputs are equal, ignoring padding."""
    if mask is not None and expected.shape[:2] == mask.shape:
        output, expected = output[mask.bool()], expected[mask.bool()]
    return torch.allclose(output, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


class _OpenVinoProgram(OpenVinoProgram):
    """A graph compiled by OpenVINO, from tensors to tensors."""

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:  # type: ignore[override]
        arrays = {name: tensor.contiguous().numpy() for name, tensor in inputs.items()}
        return [torch.from_numpy(result) for result in super().__call__(arrays)]


class _OnnxProgram:
    """A graph that ONNX Runtime computes, in float32."""

    def __init__(self, file: Path, precision: Precision = "fp32") -> None:
        if precision != "fp32":
            msg = f"backend onnx computes in fp32, not in {precision}. Use --precision fp32, or --backend openvino."
            raise UnsupportedError(msg)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        results = self._session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return [torch.from_numpy(result) for result in results]


def _export_openvino(module: nn.Module, example: Mapping[str, Tensor], file: Path) -> None:
    openvino = import_openvino()
    traced = torch.jit.trace(module, tuple(example.values()), check_trace=False)  # type: ignore[no-untyped-call]
    model = openvino.convert_model(traced, example_input=tuple(example.values()))
    for port, name in zip(model.inputs, example, strict=True):
        port.get_tensor().set_names({name})
    openvino.save_model(model, file, compress_to_fp16=False)


def _export_onnx(module: nn.Module, example: Mapping[str, Tensor], file: Path) -> None:
    sizes = tuple({0: "texts", 1: "tokens"} for _ in example)
    torch.onnx.export(
        module,
        tuple(example.values()),
        file,
        input_names=list(example),
        dynamic_shapes={"inputs": sizes},
        dynamo=True,
        external_data=False,
        verbose=False,
    )


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppress the warnings and progress bars of exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
