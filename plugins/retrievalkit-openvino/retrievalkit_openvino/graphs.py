"""Graphs that OpenVINO or ONNX Runtime compute instead of torch.

A module is exported as a graph on first use. The graph is compared with the module, and cached for later processes
(see `runtime`), as is the reason if that fails.
"""

from __future__ import annotations

import contextvars
import importlib.util
import shutil
import tempfile
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from retrievalkit.contracts import ExportError, Function, Program
from retrievalkit.contracts.backends import Entry, Precision, full_disk_named
from retrievalkit.errors import InputError, MissingDependencyError, UnsupportedError
from retrievalkit_openvino.onnx import open_session, silenced, write_onnx
from retrievalkit_openvino.runtime import (
    GRAPH,
    QUANTISED,
    OpenVinoProgram,
    import_openvino,
    read_cached,
    save_model,
    write_cached,
)

Compute = Callable[[Mapping[str, Tensor]], list[Tensor]]

_TOLERANCE = 1e-3
_LEAST_CALIBRATION = 20  # texts


class GraphError(ExportError):
    """A module cannot be exported, or its graph gives other outputs; `lasting` = in later processes too."""

    lasting = True


class Graph(Program):
    """A torch module computed by another runtime, through a file."""

    name: str
    """The backend."""
    file_name: str

    def __init__(self, function: Function) -> None:
        self.network, self.function, self.examples = function.network, function.compute, function.examples
        self.identity = None if function.identity is None else ["graph", self.name, function.identity]
        self._scratch: Path | None = None
        self._programs: dict[tuple[Precision, bool], Compute] = {}
        self._lock = threading.Lock()

    def __call__(self, inputs: Mapping[str, Tensor], precision: Precision, *, parallel: bool) -> list[Tensor]:
        """Compute the module's outputs; see `Program`."""
        with self._lock:
            if (precision, parallel) not in self._programs:
                self._programs[precision, parallel] = self._compile(precision, parallel=parallel)
        return self._programs[precision, parallel](inputs)

    def file(self) -> Path:
        """Return the file of the graph, exported on first use.

        Raises:
            GraphError: The module cannot be exported, now or when an earlier process tried.
        """
        if self._scratch is not None:
            return self._scratch / self.file_name
        entry = None if self.identity is None else read_cached(self.identity, str)
        if entry is None:
            entry = self._export()
        elif entry.value:
            msg = f"{entry.value} (tried by an earlier command; to try again, empty '{entry.folder.parent}')"
            raise GraphError(msg)
        return entry.folder / self.file_name

    @abstractmethod
    def _compile(self, precision: Precision, *, parallel: bool) -> Compute: ...

    @abstractmethod
    def _write_graph(self, module: nn.Module, example: dict[str, Tensor], file: Path) -> Compute:
        """Export a module to a file, and return its program."""

    def _read(self, read: Callable[[Path], Any]) -> Any:
        """Read the file of the graph; once more if another process has deleted it meanwhile."""
        file = self.file()
        try:
            return read(file)
        except Exception:
            if file.exists():
                raise
            return read(self.file())

    def _export(self) -> Entry[str]:
        """Export the graph to the cache, or to a temporary folder if the cache cannot be written."""

        def write(folder: Path) -> None:
            # A thread of its own has neither the caller's autocast, inference mode and default device, nor gradients.
            with ThreadPoolExecutor(1) as thread:
                thread.submit(contextvars.copy_context().run, self._write, folder / self.file_name).result()

        entry = None
        try:
            if self.identity is not None:
                entry = write_cached(self.identity, "", write)
            if entry is None:
                scratch = Path(tempfile.mkdtemp(prefix="rkit-"))
                weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
                write(scratch)
                entry, self._scratch = Entry("", scratch), scratch
        except GraphError as error:
            if self.identity is not None and error.lasting:
                write_cached(self.identity, str(error))
            raise
        except OSError as error:
            raise self._failure(error) from error
        return entry

    def _write(self, file: Path) -> None:
        """Export the graph to a file, and compare it with the module."""
        network = self.network()
        with _neutral(network), silenced(), torch.no_grad():
            example, other = self.examples(2, 9), self.examples(3, 17)
            module = _Module(network, self.function, list(example))
            try:
                with full_disk_named(file.parent):
                    program = self._write_graph(module, example, file)
                    pairs = zip(program(other), module(*other.values()), strict=True)
                    _check_same(pairs, other.get("attention_mask"))
            except OSError:
                raise
            except Exception as error:
                raise self._failure(error) from error

    def _failure(self, error: Exception) -> GraphError:
        failure = GraphError(f"the model cannot be exported to {self.name}: {' '.join(str(error).split())[:200]}")
        failure.lasting = not isinstance(error, OSError | MemoryError) and "memory" not in str(error)
        return failure


class OpenVinoGraph(Graph):
    """A graph that OpenVINO computes, in int8 once calibrated or if the model's folder has it."""

    name, file_name = "openvino", GRAPH

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        file = None if function.folder is None else function.folder / QUANTISED
        self._quantised: Any = file if file is not None and file.is_file() else None

    def quantise(self, batches: Sequence[Mapping[str, Tensor]]) -> None:
        """Quantise the graph to int8 for this process, calibrated on batches of inputs; not if a file has it.

        Raises:
            InputError: The batches have fewer than 20 texts.
            GraphError: The module cannot be exported.
        """
        if isinstance(self._quantised, Path):
            return
        if importlib.util.find_spec("nncf") is None:
            package = "nncf"
            raise MissingDependencyError(package, "precision int8", "'retrievalkit[openvino]'")
        inputs = [{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches]
        if (texts := sum(len(next(iter(batch.values()))) for batch in inputs)) < _LEAST_CALIBRATION:
            sample = f"half of the sample, which is {texts} text{'s' * (texts != 1)} here"
            msg = f"int8 is calibrated on {sample}: fewer than the {_LEAST_CALIBRATION} that it needs."
            msg += " Use --precision fp32."
            raise InputError(msg)
        model = self.model("fp32")
        with silenced():
            import nncf

            options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(inputs)}
            self._quantised = nncf.quantize(model, nncf.Dataset(inputs), **options)
        self._programs = {key: program for key, program in self._programs.items() if key[0] != "int8"}

    def model(self, precision: Precision) -> Any:
        """Return the graph as OpenVINO's model: in int8 as quantised, else in fp32."""
        if precision != "int8":
            return self._read(import_openvino().Core().read_model)
        if self._quantised is None:
            msg = "int8 is not calibrated here: rkit encode and rkit rerank apply do so. Use another --precision."
            raise UnsupportedError(msg)
        stored = isinstance(self._quantised, Path)
        return import_openvino().Core().read_model(self._quantised) if stored else self._quantised

    def _compile(self, precision: Precision, *, parallel: bool) -> Compute:
        return _OpenVinoTensors(self.model(precision), precision, parallel=parallel)

    def _write_graph(self, module: nn.Module, example: dict[str, Tensor], file: Path) -> Compute:
        model = _convert(module, example)
        save_model(model, file)
        return _OpenVinoTensors(model)


class OnnxGraph(Graph):
    """A graph that ONNX Runtime computes, in float32."""

    name, file_name = "onnx", "graph.onnx"

    def _compile(self, precision: Precision, *, parallel: bool) -> Compute:
        del precision, parallel
        return cast("Compute", self._read(_OnnxTensors))

    def _write_graph(self, module: nn.Module, example: dict[str, Tensor], file: Path) -> Compute:
        sizes = {0: "texts", 1: "tokens"}
        write_onnx(module, example, file, shapes={"inputs": (sizes,) * len(example)})
        return _OnnxTensors(file)


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


class _OpenVinoTensors(OpenVinoProgram):
    """A graph compiled by OpenVINO, from tensors to tensors."""

    def __init__(self, model: Any, precision: str = "fp32", *, parallel: bool = False) -> None:
        super().__init__(model, precision, parallel=parallel)
        # OpenVINO prepares the graph for each new length, which takes a fifth of a query's time in int8.
        by_token = len(model.outputs[0].get_partial_shape()) == 3
        self._multiple = 8 if precision == "int8" and not parallel and by_token else 1

    def __call__(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:  # type: ignore[override]
        tokens = next(iter(inputs.values())).shape[1]
        if added := -tokens % self._multiple:  # the attention mask excludes them
            inputs = {name: _lengthened(values, added) for name, values in inputs.items()}
        arrays = {name: tensor.contiguous().numpy() for name, tensor in inputs.items()}
        outputs = [torch.from_numpy(result) for result in super().__call__(arrays)]
        return [output[:, :tokens] for output in outputs] if added else outputs


def _lengthened(values: Tensor, tokens: int) -> Tensor:
    """Append zeros (texts, tokens, ...) to inputs."""
    return torch.cat([values, values.new_zeros(values.shape[0], tokens, *values.shape[2:])], dim=1)


class _OnnxTensors:
    """A graph that ONNX Runtime computes, from tensors to tensors."""

    def __init__(self, file: Path) -> None:
        self._session = open_session(file, threads=torch.get_num_threads())

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
