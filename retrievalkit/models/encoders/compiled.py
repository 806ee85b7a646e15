"""The encoder `transformer` for inference only, with its layers computed by OpenVINO or ONNX Runtime.

The cache of graphs also contains a model's configuration and tokenizer. Once they are cached, the model
loads without transformers, whose import takes twice as long as torch's. Weights are loaded only for parts that the
graph lacks, such as the vocabulary head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from retrievalkit.contracts import SIDES, Batch, Pooler, Side, TokenStates
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.architectures import first_position
from retrievalkit.models.compiled import SideSettings, read_cached, write_cached
from retrievalkit.models.encoders import extra_tokens
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.models.graphs import QUANTISED, ExportError, Graph, Runtime, model_identity, runs_on_torch
from retrievalkit.models.precision import Precision
from retrievalkit.models.pretrained import check_finite, check_source
from retrievalkit.reporting import notices

_TOKENIZER = "tokenizer.json"
_TOKEN_IDS = ("unk_token_id", "sep_token_id", "pad_token_id", "cls_token_id", "mask_token_id", "eos_token_id")
# The precision, and whether several threads compute at a time.
_COMPUTING: ContextVar[tuple[Precision, bool]] = ContextVar("computing", default=("fp32", False))


class CompiledTransformer(Transformer):
    """`Transformer` for inference on a processor.

    Args:
        backend: "openvino" or "onnx".
        model: Name or folder of the model.
        options: Options of `Transformer`.
    """

    def __init__(self, backend: str, model: str | Path, **options: Any) -> None:
        self.backend = backend
        self._identity: list[object] | None = None
        self._options = options
        super().__init__(model, **options)
        self._graphs: dict[tuple[object, ...], Graph] = {}

    @contextmanager
    def computing(self, precision: str, *, parallel: bool) -> Iterator[None]:
        """Set the precision for a block; `parallel` = several threads compute at the same time."""
        token = _COMPUTING.set((cast("Precision", precision), parallel))
        try:
            yield
        finally:
            _COMPUTING.reset(token)

    def calibrate(self, batches: Sequence[Batch], layers: Sequence[int]) -> None:
        """Calibrate int8 on batches like those to encode."""
        inputs = [self._inputs(batch) for batch in batches]
        self._graph(tuple(inputs[0]), layers).quantise(inputs)

    def openvino_model(self, layers: Sequence[int], precision: Precision) -> Any:
        """Return OpenVINO's model: `input_ids` and `attention_mask` -> the states of layers; int8 as calibrated."""
        return self._graph(("input_ids", "attention_mask"), layers).openvino_model(precision)

    def save(self, folder: Path) -> None:
        """Refuse to save."""
        msg = f"'{self.source}' was loaded to encode only, so it cannot be written to '{folder}'."
        raise UnsupportedError(msg)

    def export(self, pooler: Pooler, side: Side, identity: object) -> SideSettings:
        """Export the graphs of a retriever, and return the settings of a side, with the whole tokenizer.

        Raises:
            ExportError: The texts of the side need more than tokens, hidden states and one vector.
        """
        layers = pooler.needs.layers_of(side, self.info)
        names = {layer: f"layer{number}" for number, layer in enumerate(layers)}
        if (
            pooler.needs.extra_tokens
            or pooler.needs.mask_filled
            or self._identity is None
            or not self.tokenizer.is_fast
        ):
            msg = "the pooler needs other tokens than those of a text, or the tokenizer is slow"
            raise ExportError(msg)

        def pooled(inputs: Mapping[str, Tensor], side: Side = side) -> list[Tensor]:
            # A pooler that reads the tokens themselves raises an exception.
            tokens: Any = None
            states = {layer: inputs[name] for layer, name in names.items()}
            made = pooler(TokenStates(states, inputs["attention_mask"], tokens, tokens), side).float()
            values = {name for name, value in vars(made).items() if value is not None}
            if made.vectors.shape[1] != 1 or values - {"vectors", "kept", "parts", "extras"}:
                msg = "the pooler returns other values than a vector per text"
                raise ValueError(msg)
            return [made.vectors]

        def examples(texts: int, tokens: int) -> dict[str, Tensor]:
            states = torch.arange(texts * tokens * self.info.width).sin().view(texts, tokens, -1)
            example = self._example(("attention_mask",), texts, tokens)
            return {**example, **{name: states + layer for layer, name in names.items()}}

        name: str = side
        with suppress(Exception):  # the export reports it
            # A graph that both sides share is compiled once.
            name = "both" if torch.equal(*(pooled(examples(2, 9), each)[0] for each in SIDES)) else side
        encoder = self._graph(("input_ids", "attention_mask"), layers)
        graph = Graph("openvino", lambda: pooler, pooled, examples, identity=[identity, name])
        for each in (encoder, graph):
            each.file()
        return SideSettings(
            encoder=encoder.identity or [],
            pooler=graph.identity or [],
            tokenizer=self.tokenizer.backend_tokenizer.to_str(),
            truncation_side=self.tokenizer.truncation_side,
            prefix=self.prefixes[side],
            title=self.title,
            length=self.lengths[side],
            end=self.end,
            padding=self.padding_id,
        )

    def _load_configuration(self) -> tuple[Any, Any]:
        """The configuration and the tokenizer, from the cache if possible."""
        check_source(self.source)
        if not self._options.get("trust_remote_code"):
            # Other options, such as lengths and prefixes, do not change the graph.
            options = {name: self._options.get(name) for name in ("attention", "lora_rank")}
            self._identity = model_identity(self.source, options, revision=self._options.get("revision"))
        key = ["encoder", self._identity]
        entry = None if self._identity is None else read_cached(key, _Description)
        if entry is not None:
            return SimpleNamespace(**entry.value.config), _FastTokenizer(entry.value, entry.folder / _TOKENIZER)
        config, tokenizer = super()._load_configuration()
        if self._identity is not None and tokenizer.is_fast:
            names = ("hidden_size", "num_hidden_layers", "vocab_size", "pad_token_id")  # some files use other names
            values = {**config.to_dict(), **{name: getattr(config, name, None) for name in names}}
            ids = {name: getattr(tokenizer, name) for name in _TOKEN_IDS}
            description = _Description(values, tokenizer.truncation_side, tokenizer.all_special_ids, ids)

            def write(folder: Path) -> None:
                (folder / _TOKENIZER).write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")

            write_cached(key, asdict(description), write)
        return config, tokenizer

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

    def _states(self, inputs: Mapping[str, Tensor], layers: Sequence[int]) -> dict[int, Tensor]:
        if self.backend != "torch":
            precision, parallel = _COMPUTING.get()
            tokens = inputs["attention_mask"].shape[1]
            if precision == "int8" and not parallel:
                # OpenVINO prepares the graph for each new length, which takes a fifth of a query's time in int8.
                inputs = {name: _lengthened(values, -tokens % 8) for name, values in inputs.items()}
            try:
                outputs = self._graph(tuple(inputs), layers)(inputs, precision, parallel=parallel)
                return {layer: states[:, :tokens] for layer, states in zip(layers, outputs, strict=True)}
            except ExportError as error:
                notices.note(runs_on_torch(self.source, error))
                self.backend = "torch"
        return super()._states(inputs, layers)

    def _graph(self, names: tuple[str, ...], layers: Sequence[int]) -> Graph:
        key = (*names, *layers)
        if key not in self._graphs:
            states, file = super()._states, Path(self.source) / QUANTISED
            stored = file.is_file() and key == ("input_ids", "attention_mask", self.info.layers)
            graph = Graph(
                cast("Runtime", self.backend),
                lambda: self._network,
                lambda inputs: list(states(inputs, layers).values()),
                lambda texts, tokens: self._example(names, texts, tokens),
                identity=None if self._identity is None else [self._identity, key],
                quantised=file if stored else None,
            )
            self._graphs.setdefault(key, graph)  # another thread may have been first: one graph, one export
        return self._graphs[key]

    def _example(self, names: Sequence[str], texts: int, tokens: int) -> dict[str, Tensor]:
        """Example inputs of a graph; the first text is padded."""
        ids = torch.arange(texts * tokens).view(texts, tokens) % self.info.vocabulary_size
        mask = torch.ones_like(ids)
        mask[0, tokens // 2 :] = 0
        made = {"input_ids": ids, "attention_mask": mask}
        if "position_ids" in names:
            made["position_ids"] = torch.arange(tokens).expand(texts, tokens) + first_position(self.config)
        if "inputs_embeds" in names:
            made["inputs_embeds"] = self._embeddings(ids)
        return {name: made[name].contiguous() for name in names}


def _lengthened(values: Tensor, tokens: int) -> Tensor:
    """Append zeros (texts, tokens, ...) to inputs, which the attention mask excludes."""
    return torch.cat([values, values.new_zeros(values.shape[0], tokens, *values.shape[2:])], dim=1)


class _Encoded(NamedTuple):
    """The tokens of some texts."""

    encodings: list[Encoding]

    def __getitem__(self, name: Any) -> Any:
        """The ids of each text, as "input_ids"."""
        assert name == "input_ids", name
        return [encoding.ids for encoding in self.encodings]


@dataclass(frozen=True)
class _Description:
    """A model's configuration, and what its tokenizer's file lacks."""

    config: dict[str, Any]
    truncation_side: Literal["left", "right"]
    all_special_ids: list[int]
    token_ids: dict[str, int | None]


class _FastTokenizer:
    """A fast tokenizer that works without transformers, from its file."""

    is_fast = True

    def __init__(self, description: _Description, file: Path) -> None:
        self.backend_tokenizer = Tokenizer.from_file(str(file))
        self.backend_tokenizer.no_padding()
        self.truncation_side = description.truncation_side
        self.all_special_ids = description.all_special_ids
        for name in _TOKEN_IDS:
            setattr(self, name, description.token_ids[name])

    def __len__(self) -> int:
        """The number of tokens."""
        return self.backend_tokenizer.get_vocab_size()

    def __call__(
        self,
        texts: str | Sequence[str],
        seconds: Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: int = 0,
        **options: bool,
    ) -> Any:
        """Tokenise texts or pairs, truncated to `max_length` if `truncation` is set, the longer of a pair first."""
        del options  # other outputs than the ids
        if truncation:
            self.backend_tokenizer.enable_truncation(max_length, direction=self.truncation_side)
        else:
            self.backend_tokenizer.no_truncation()
        if isinstance(texts, str):
            return {"input_ids": self.backend_tokenizer.encode(texts, add_special_tokens=add_special_tokens).ids}
        if len(texts) == 1:  # a batch starts threads
            second = None if seconds is None else seconds[0]
            return _Encoded([self.backend_tokenizer.encode(texts[0], second, add_special_tokens=add_special_tokens)])
        rows = list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
        return _Encoded(self.backend_tokenizer.encode_batch(rows, add_special_tokens=add_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        return self.backend_tokenizer.get_vocab()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return self.backend_tokenizer.decode(ids, skip_special_tokens=False)
