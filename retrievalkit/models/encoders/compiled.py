"""The encoder `transformer` for inference only, with its layers computed by a backend.

Weights are loaded only for parts that the backend lacks, such as the vocabulary head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from retrievalkit.contracts import Batch
from retrievalkit.contracts.backends import Backend, ExportError, Function, Precision, Program
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.architectures import first_position
from retrievalkit.models.backends import note_torch
from retrievalkit.models.encoders import extra_tokens
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.models.pretrained import check_finite, check_source, model_identity


class CompiledTransformer(Transformer):
    """`Transformer` for inference with a backend.

    Args:
        backend: The backend.
        model: Name or folder of the model.
        options: Options of `Transformer`.
    """

    def __init__(self, backend: Backend, model: str | Path, **options: Any) -> None:
        self.backend, self._options = backend, options
        super().__init__(model, **options)
        self._programs: dict[tuple[object, ...], Program] = {}

    @property
    def precisions(self) -> Collection[Precision]:  # type: ignore[override]
        """The number formats of the backend."""
        return Transformer.precisions if self.backend is None else self.backend.precisions

    def calibrate(self, batches: Sequence[Batch], layers: Sequence[int]) -> None:
        """Calibrate int8 on batches like those to encode."""
        if "int8" not in self.precisions:
            super().calibrate(batches, layers)
        inputs = [self._inputs(batch) for batch in batches]
        self.program(layers, tuple(inputs[0])).quantise(inputs)

    def program(self, layers: Sequence[int], names: Sequence[str] = ("input_ids", "attention_mask")) -> Program:
        """Return the backend's program from named arguments of the model to the hidden states of `layers`."""
        key = (*names, *layers)
        if key not in self._programs:
            assert self.backend is not None
            states, usual = super()._states, key == ("input_ids", "attention_mask", self.info.layers)
            function = Function(
                lambda: self._network,
                lambda inputs: list(states(inputs, layers).values()),
                lambda texts, tokens: self._example(names, texts, tokens),
                identity=None if self._identity is None else [self._identity, key],
                folder=Path(self.source) if usual else None,
            )
            # Another thread may have been first: one program, one export.
            self._programs.setdefault(key, self.backend.compile(function))
        return self._programs[key]

    def save(self, folder: Path) -> None:
        """Refuse to save."""
        msg = f"'{self.source}' was loaded to encode only, so it cannot be written to '{folder}'."
        raise UnsupportedError(msg)

    def _load_configuration(self) -> tuple[Any, Any]:
        """The configuration and the tokenizer, which the backend may have without transformers."""
        check_source(self.source)
        self._identity: list[object] | None = None
        if not self._options.get("trust_remote_code"):
            # Other options, such as lengths and prefixes, do not change the layers.
            options = {name: self._options.get(name) for name in ("attention", "lora_rank")}
            self._identity = model_identity(self.source, options, revision=self._options.get("revision"))
        assert self.backend is not None
        return self.backend.load_configuration(self._identity, super()._load_configuration)

    def _prepare_model(self) -> None:
        new = any(tokens.source == "new" for tokens in self.needs.extra_tokens.values())
        drawn = new and not (Path(self.source) / extra_tokens.WEIGHTS).is_file()
        if self.needs.vocabulary_head or drawn:
            _ = self._network  # random weights depend on the draws before them

    @cached_property
    def _network(self) -> Any:
        if isinstance(self.config, SimpleNamespace):
            self.config, _ = super()._load_configuration()
        with torch.inference_mode(mode=False):  # may be called within inference mode
            model = self._load_model(self.needs).eval().requires_grad_(requires_grad=False)
        check_finite(model, self.source)
        return model

    def _encoded(self, batch: Batch, layers: Sequence[int]) -> Mapping[int, Tensor]:
        if self.backend is None:
            return super()._encoded(batch, layers)
        inputs = self._inputs(batch)
        try:
            outputs = self.program(layers, tuple(inputs))(inputs, batch.precision, parallel=batch.parallel)
        except ExportError as error:
            note_torch(self.source, error)
            self.backend = None
            return super()._states(inputs, layers)
        return dict(zip(layers, outputs, strict=True))

    def _example(self, names: Sequence[str], texts: int, tokens: int) -> dict[str, Tensor]:
        ids = torch.arange(texts * tokens).view(texts, tokens) % self.info.vocabulary_size
        mask = torch.ones_like(ids)
        mask[0, tokens // 2 :] = 0
        made = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in names:
            made["position_ids"] = torch.arange(tokens).expand(texts, tokens) + first_position(self.config)
        if "inputs_embeds" in names:
            made["inputs_embeds"] = self._embeddings(ids)
        return {name: made[name].contiguous() for name in names}
