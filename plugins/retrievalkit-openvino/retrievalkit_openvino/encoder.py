"""The encoder `transformer` for inference only, with its layers computed by a backend.

Weights are loaded only for parts that the backend lacks, such as the vocabulary head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from retrievalkit.contracts import Backend, Batch, Encoder, ExportError, Function, Program
from retrievalkit.contracts.backends import Precision
from retrievalkit.contracts.commands import check_finite, model_identity
from retrievalkit.errors import UnsupportedError
from retrievalkit_openvino.configuration import load_configuration

if TYPE_CHECKING:
    from retrievalkit.models.encoders.transformer import Transformer
else:
    Transformer = object  # the core hands the class over


def create_encoder(backend: Backend, kind: type[Encoder], model: str | Path, options: Mapping[str, Any]) -> Encoder:
    """Create the encoder `transformer` (`kind`) whose layers a backend computes by programs of `Backend.compile`."""
    encoder: Encoder = _compiled(kind)(backend, model, **options)
    return encoder


@cache
def _compiled(kind: type[Encoder]) -> Any:
    return type(f"Compiled{kind.__name__}", (CompiledEncoder, kind), {})


class CompiledEncoder(Transformer):
    """`Transformer` for inference with a backend.

    Args:
        backend: The backend.
        model: Name or folder of the model.
        options: Options of `Transformer`.
    """

    def __init__(self, backend: Backend, model: str | Path, **options: Any) -> None:
        self.backend, self._compiler, self._options = backend, backend, options
        super().__init__(model, **options)
        self._programs: dict[tuple[object, ...], Program] = {}

    @property
    def precisions(self) -> Collection[Precision]:  # type: ignore[override]
        """The number formats of the backend."""
        return Encoder.precisions if self.backend is None else self.backend.precisions

    def calibrate(self, batches: Sequence[Batch], layers: Sequence[int]) -> None:
        """Calibrate int8 on batches like those to encode."""
        if "int8" not in self.precisions:
            super().calibrate(batches, layers)
        inputs = [self.inputs(batch) for batch in batches]
        self.program(layers, tuple(inputs[0])).quantise(inputs)

    def program(self, layers: Sequence[int], names: Sequence[str] = ("input_ids", "attention_mask")) -> Program:
        """Return the backend's program from named arguments of the model to the hidden states of `layers`."""
        key = (*names, *layers)
        if key not in self._programs:
            states, usual = super().states, key == ("input_ids", "attention_mask", self.info.layers)
            function = Function(
                lambda: self.network,
                lambda inputs: list(states(inputs, layers).values()),
                lambda texts, tokens: self._example(names, texts, tokens),
                identity=None if self._identity is None else [self._identity, key],
                folder=Path(self.source) if usual else None,
            )
            # Another thread may have been first: one program, one export.
            self._programs.setdefault(key, self._compiler.compile(function))
        return self._programs[key]

    def compute(self, batch: Batch, layers: Sequence[int]) -> Mapping[int, Tensor]:
        """Compute the hidden states of `layers` for a batch, with torch if the backend cannot."""
        if self.backend is None:
            return super().compute(batch, layers)
        inputs = self.inputs(batch)
        try:
            outputs = self.program(layers, tuple(inputs))(inputs, batch.precision, parallel=batch.parallel)
        except ExportError as error:
            error.note(self.source)
            self.backend = None
            return super().states(inputs, layers)
        return dict(zip(layers, outputs, strict=True))

    def save(self, folder: Path) -> None:
        """Refuse to save."""
        msg = f"'{self.source}' was loaded to encode only, so it cannot be written to '{folder}'."
        raise UnsupportedError(msg)

    def load_configuration(self) -> tuple[Any, Any]:
        """Load the configuration and the tokenizer, from the cache if possible."""
        self._identity: list[object] | None = None
        if not self._options.get("trust_remote_code"):
            # Other options, such as lengths and prefixes, do not change the layers.
            options = {name: self._options.get(name) for name in ("attention", "lora_rank")}
            self._identity = model_identity(self.source, options, revision=self._options.get("revision"))
        return load_configuration(self._identity, super().load_configuration)

    def prepare_network(self, *, drawn: bool) -> None:
        """Load the model for its head, or before extra tokens are drawn: random weights depend on the earlier draws."""
        if self.needs.vocabulary_head or drawn:
            _ = self.network

    @cached_property
    def network(self) -> Any:  # type: ignore[override]
        """The model, loaded on first use."""
        if isinstance(self.config, SimpleNamespace):
            self.config, _ = super().load_configuration()
        with torch.inference_mode(mode=False):  # may be called within inference mode
            model = self.load_network(self.needs).eval().requires_grad_(requires_grad=False)
        check_finite(model, self.source)
        return model

    def _example(self, names: Sequence[str], texts: int, tokens: int) -> dict[str, Tensor]:
        ids = torch.arange(texts * tokens).view(texts, tokens) % self.info.vocabulary_size
        mask = torch.ones_like(ids)
        mask[0, tokens // 2 :] = 0
        inputs = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in names:
            inputs["position_ids"] = torch.arange(tokens).expand(texts, tokens)
        if "inputs_embeds" in names:
            inputs["inputs_embeds"] = self.embeddings(ids)
        return {name: inputs[name].contiguous() for name in names}
