"""Inference on a processor by OpenVINO or ONNX Runtime instead of torch.

A module is exported as a graph on first use. The graph is compared with the module, and cached for later processes
(see `compiled`), as is the reason if that fails.
"""

from __future__ import annotations

import contextvars
import errno
import io
import logging
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from retrievalkit import storage
from retrievalkit.errors import InputError, MissingDependencyError, OptionError, UnsupportedError
from retrievalkit.models.compiled import GRAPH, OpenVinoProgram, import_openvino, read_cached, write_cached
from retrievalkit.models.precision import Precision
from retrievalkit.models.pretrained import model_file, model_fingerprint
from retrievalkit.registry.modules import module_spec
from retrievalkit.reporting.counts import counted
from retrievalkit.storage import Entry

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
    """A module cannot be exported, or its graph gives other outputs; `lasting` = in later processes too."""

    lasting = True


def runs_on_torch(source: str, error: ExportError) -> str:
    """Phrase the note that a model could not be exported, with its cost and remedy."""
    return (
        f"'{source}' runs on torch, which takes several times as long on some processors: {str(error).rstrip('.')}. "
        f"With --backend torch nothing is exported."
    )


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


def model_identity(source: str, options: object = None, *, revision: str | None = None) -> list[object] | None:
    """Return the identity of a model in the cache: its files (or hub commit) and options.

    None if the model has no configuration file.
    """
    config = model_file(source, "config.json", revision=revision)
    if config is None:
        return None
    return [source, model_fingerprint(source) if Path(source).is_dir() else config.parent.name, options]


class Graph:
    """A torch module computed by another runtime.

    Args:
        runtime: "openvino" or "onnx".
        network: Returns the module that holds the weights. Called only for the export.
        function: Maps named inputs to the outputs of the graph.
        examples: Returns named example inputs for a number of texts and a number of tokens.
        identity: What the outputs depend on, for the cache; None = the graph is exported by each process.
        quantised: A file with the same graph in int8; None = int8 needs `quantise`.
    """

    def __init__(
        self,
        runtime: Runtime,
        network: Callable[[], nn.Module],
        function: Callable[[dict[str, Tensor]], Sequence[Tensor]],
        examples: Callable[[int, int], dict[str, Tensor]],
        *,
        identity: object,
        quantised: Path | None = None,
    ) -> None:
        self.runtime, self.network, self.function, self.examples = runtime, network, function, examples
        self.identity = None if identity is None else ["graph", runtime, identity]
        self._scratch: Path | None = None
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
        if precision != "int8":
            return self._read(import_openvino().Core().read_model)
        if self._quantised is None:
            msg = "int8 is not calibrated here: rkit encode and rkit rerank apply do so. Use another --precision."
            raise UnsupportedError(msg)
        stored = isinstance(self._quantised, Path)
        return import_openvino().Core().read_model(self._quantised) if stored else self._quantised

    def file(self) -> Path:
        """Return the file of the graph, exported on first use.

        Raises:
            ExportError: The module cannot be exported, now or when an earlier process tried.
        """
        name = "graph.onnx" if self.runtime == "onnx" else GRAPH
        if self._scratch is not None:
            return self._scratch / name
        entry = None if self.identity is None else read_cached(self.identity, str)
        if entry is None:
            entry = self._export(name)
        elif entry.value:
            msg = f"{entry.value} (tried by an earlier command; to try again, empty '{entry.folder.parent}')"
            raise ExportError(msg)
        return entry.folder / name

    def _read(self, read: Callable[[Path], Any]) -> Any:
        """Read the file of the graph; once more if another process has deleted it meanwhile."""
        file = self.file()
        try:
            return read(file)
        except Exception:
            if file.exists():
                raise
            return read(self.file())

    def _compile(self, precision: Precision, *, parallel: bool) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
        if self.runtime == "onnx":
            return cast("_OnnxProgram", self._read(lambda file: _OnnxProgram(file, precision)))
        return _OpenVinoProgram(self.openvino_model(precision), precision, parallel=parallel)

    def _export(self, name: str) -> Entry[str]:
        """Export the graph to the cache, or to a temporary folder if the cache cannot be written."""

        def write(folder: Path) -> None:
            # A thread of its own has neither the caller's autocast, inference mode and default device, nor gradients.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(contextvars.copy_context().run, self._write, folder / name).result()

        entry = None
        try:
            if self.identity is not None:
                entry = write_cached(self.identity, "", write)
            if entry is None:
                scratch = Path(tempfile.mkdtemp(prefix="rkit-"))
                weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
                write(scratch)
                entry, self._scratch = Entry("", scratch), scratch
        except ExportError as error:
            if self.identity is not None and error.lasting:
                write_cached(self.identity, str(error))
            raise
        except OSError as error:
            raise self._failure(error) from error
        return entry

    def _write(self, file: Path) -> None:
        """Export the graph to a file, and compare it with the module."""
        network = self.network()
        with _neutral(network), _silenced(), torch.no_grad():
            example, other = self.examples(2, 9), self.examples(3, 17)
            module = _Module(network, self.function, list(example))
            try:
                with storage.full_disk_named(file.parent):
                    if self.runtime == "onnx":
                        _export_onnx(module, example, file)
                        program: Any = _OnnxProgram(file)
                    else:
                        model = _convert(module, example)
                        program = _OpenVinoProgram(model)
                    pairs = zip(program(other), module(*other.values()), strict=True)
                    _check_same(pairs, other.get("attention_mask"))
            except OSError:
                raise
            except Exception as error:
                raise self._failure(error) from error
            if self.runtime != "onnx":
                _save(model, file)

    def _failure(self, error: Exception) -> ExportError:
        failure = ExportError(f"the model cannot be exported to {self.runtime}: {' '.join(str(error).split())[:200]}")
        failure.lasting = not isinstance(error, OSError | MemoryError) and "memory" not in str(error)
        return failure


class _Module(nn.Module):
    """A function of named inputs as a module of inputs in order."""

    def __init__(self, network: nn.Module, function: Callable[..., Sequence[Tensor]], names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.function, self.names = network, function, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.function(dict(zip(self.names, inputs, strict=True))))


def _check_same(pairs: Iterable[tuple[Tensor, Tensor]], mask: Tensor | None) -> None:
    """Refuse outputs that are not the expected ones, ignoring padding."""
    for output, expected in pairs:
        if mask is not None and expected.shape[:2] == mask.shape:
            output, expected = output[mask.bool()], expected[mask.bool()]
        if not torch.allclose(output, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            msg = "the outputs of its graph are not torch's"
            raise ValueError(msg)


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


def _convert(module: nn.Module, example: Mapping[str, Tensor]) -> Any:
    """Convert a module to OpenVINO's model."""
    traced = torch.jit.trace(module, tuple(example.values()), check_trace=False)  # type: ignore[no-untyped-call]
    model = import_openvino().convert_model(traced, example_input=tuple(example.values()))
    for port, name in zip(model.inputs, example, strict=True):
        port.get_tensor().set_names({name})
    return model


def _save(model: Any, file: Path) -> None:
    """Save OpenVINO's model; its error for a full disk names neither."""
    openvino = import_openvino()
    try:
        openvino.save_model(model, file, compress_to_fp16=False)
        openvino.Core().read_model(file)
    except RuntimeError as error:
        raise OSError(errno.EIO, f"OpenVINO cannot write a graph ({error})", str(file)) from error


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
def _neutral(network: nn.Module) -> Iterator[None]:
    """Reset what changes a network's outputs in all threads: its training mode, and torch's global settings."""
    modes = [(module, module.training) for module in network.modules()]
    dtype, products = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    network.eval()
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(products)


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
