"""The two-tower retriever: turns queries and documents into representations that the scoring rule compares.

A checkpoint folder contains everything that encoding needs (encoder, pooler, lengths, prefixes, titles). Parts are
stored by name, options and the version of their distribution, never by import path.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from retrievalkit import registry, storage
from retrievalkit.contracts import SIDES, Batch, Encoder, Pooler, Representation, Side, Text, TokenStates
from retrievalkit.contracts.models import MisshapenError, to_cpu
from retrievalkit.errors import (
    ArtifactError,
    InputError,
    OptionError,
    RetrievalkitError,
    UnknownNameError,
    UnsupportedError,
)
from retrievalkit.models.backends import resolve_backend
from retrievalkit.models.batches import TokenLimit, in_threads, token_budget_batches
from retrievalkit.models.checkpoint import (
    CONFIGURATION,
    DO,
    POOLER_WEIGHTS,
    UNTRAINED,
    damage_explained,
    missing_plugins_explained,
    read_checkpoint,
    untrained_fingerprint,
)
from retrievalkit.models.precision import Precision, autocast, default_device, resolve_precision, shared_best
from retrievalkit.models.pretrained import check_finite, locate_model, model_fingerprint
from retrievalkit.models.published import WithoutEquivalentError, load_own_weights, own_settings
from retrievalkit.registry import describe
from retrievalkit.reporting import notices
from retrievalkit.reporting.terminal import counted
from retrievalkit.scoring.rule import scores

# On a CPU the hidden states of a batch should fit in its caches.
CPU_BATCH_TOKENS = 4_096

_DEFAULT_POOLER = "cls"
_PARTS = ("encoder", "pooler", "loss")
_PLUGINS = {"dense_sparse": "retrievalkit-cotmae"}


class Retriever(nn.Module):
    """A dual encoder (bi-encoder): a query tower, a document tower (optionally the same) and a pooler.

    Attributes:
        towers: {"shared": encoder} or {"query": encoder, "document": encoder}.
        pooler: Turns token states of either side into a Representation.
        description: Names, options and versions of the parts, as in `retrievalkit.json`. Without a checkpoint, also
            "model", and "pooling" (a phrase to display) if no pooler was named.
        fingerprint: Identifies the weights and the options.
        changed: Options of the encoder that differ from the fingerprint's, such as a length.
        dimensions: Size to which `encode` truncates vectors; None = full size. Vectors of length 1 keep this length.
        limit: Number of tokens to encode at a time.
    """

    def __init__(self, towers: Mapping[str, Encoder], pooler: Pooler, description: dict[str, Any]) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(towers)
        self.pooler = pooler
        self.description = description
        self.fingerprint = ""
        self.changed: dict[str, Any] = {}
        self.dimensions: int | None = None
        self.limit = TokenLimit(self.tower("document").info.width)
        self._sizes: dict[tuple[str, bool], int] = {}

    @classmethod
    def create(
        cls,
        model: str | Path,
        *,
        encoder: str = "transformer",
        pooler: str | None = None,
        encoder_options: Mapping[str, Any] | None = None,
        pooler_options: Mapping[str, Any] | None = None,
        separate_towers: bool = False,
        seed: int = 0,
        backend: str | None = None,
    ) -> Retriever:
        """Create a retriever from a pretrained model.

        Args:
            model: Name or folder of a model that the encoder can load.
            encoder: Registered name of the encoder.
            pooler: Registered name of the pooler; None = the model's own pooling, prompts, lengths and titles if it is
                a model of sentence-transformers, PyLate or ColBERT (options passed here override them), else "cls".
            encoder_options: Options of the encoder.
            pooler_options: Options of the pooler.
            separate_towers: Use separate encoders for queries and documents, both started from `model`.
            seed: Seed of the weights that are not pretrained, such as a pooler's projection.
            backend: Backend for encoding, without training or saving; None = torch, for any use.
        """
        named, source = pooler is not None, model_fingerprint(str(model))
        own = None
        if encoder == "transformer":
            try:
                own = own_settings(model, revision=(encoder_options or {}).get("revision"))
            except WithoutEquivalentError:
                if not named:
                    raise
        if own is not None and not named:
            settled = {**(encoder_options or {}), **(pooler_options or {})}
            notices.note(*(sentence for option, sentence in own.notes.items() if option not in settled))
            pooler = own.pooler
            encoder_options = {**own.encoder_options, **(encoder_options or {})}
            pooler_options = {**own.pooler_options, **(pooler_options or {})}
        pooler = pooler or _DEFAULT_POOLER
        try:
            described = describe("pooler", pooler, pooler_options or {})
        except UnknownNameError as error:
            if own is None or own.pooler != pooler or error.kind != "pooler":
                raise
            problem = f"the model '{model}' ({own.source}) needs the pooler '{pooler}', which is not installed"
            msg = f"{problem}. Install its plugin: pip install {_PLUGINS.get(pooler, 'retrievalkit')}"
            raise UnsupportedError(msg) from error
        description = {
            "separate_towers": separate_towers,
            "encoder": describe("encoder", encoder, encoder_options or {}),
            "pooler": described,
        }
        folders = {side: str(model) for side in (SIDES if separate_towers else ("shared",))}
        with _drawn_with(seed):
            retriever = cls._assemble(folders, description, backend)
        if own is not None and own.pooler == pooler:
            load_own_weights(own, retriever.pooler, named=named)
        check_finite(retriever, locate_model(model))
        # Before the path is added: a moved model is the same model.
        retriever.fingerprint = storage.fingerprint_value([description, source])
        # Absolute, to recreate the retriever from any working directory.
        retriever.description["model"] = os.path.abspath(model) if os.path.isdir(model) else str(model)
        if not named:
            normalised = ", normalised" if described["options"].get("normalize") else ""
            origin = "the default" if own is None else f"from {own.source}"
            retriever.description["pooling"] = f"{described['name']} pooling{normalised}, {origin}"
        return retriever

    @classmethod
    def _assemble(
        cls, folders: Mapping[str, str | Path], description: dict[str, Any], backend: str | None
    ) -> Retriever:
        encoder, pooler = description["encoder"], description["pooler"]
        kind: Any = registry.get("encoder", encoder["name"])
        options = registry.check_options(f"encoder '{encoder['name']}'", kind, encoder["options"])
        runtime = None if backend is None else resolve_backend(backend, default_device().type)
        create = kind if runtime is None else partial(runtime.encoder, kind)
        towers = {name: create(folder, **options) for name, folder in folders.items()}
        first = next(iter(towers.values()))
        module = registry.create("pooler", pooler["name"], first.info, **pooler["options"])
        for tower in towers.values():
            tower.prepare(module.needs)
        module.bind(first)
        return cls(towers, module, description)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: torch.device | str | None = None,
        *,
        backend: str | None = None,
        encoder_options: Mapping[str, Any] | None = None,
        separate_towers: bool = False,
        seed: int = 0,
    ) -> Retriever:
        """Load a checkpoint folder in eval mode, on the GPU if available.

        `encoder_options` override the checkpoint's options; `separate_towers` splits a shared encoder into an encoder
        for each side; `backend` and `seed` are as for `create`.
        """
        folder = Path(folder)
        stored, fingerprint = read_checkpoint(folder)
        separate = stored["separate_towers"] or separate_towers
        towers = SIDES if separate else ("shared",)
        folders = {tower: folder / (tower if stored["separate_towers"] else "encoder") for tower in towers}
        description = {**stored, "separate_towers": separate}
        with missing_plugins_explained(description, folder), _drawn_with(seed):
            name, before = stored["encoder"]["name"], stored["encoder"]["options"]
            values = registry.check_options(f"encoder '{name}'", registry.get("encoder", name), encoder_options or {})
            changed = {key: value for key, value in values.items() if key not in before or before[key] != value}
            description["encoder"] = {**stored["encoder"], "options": {**before, **changed}}
            try:
                retriever = cls._assemble(folders, description, backend)
            except OptionError as error:
                msg = f"'{folder / CONFIGURATION}' is damaged: {error} {DO}"
                raise ArtifactError(msg) from error
        with damage_explained(folder):
            retriever.pooler.load_state_dict(load_file(folder / POOLER_WEIGHTS))
        check_finite(retriever, str(folder))
        retriever.fingerprint, retriever.changed = fingerprint, changed
        return retriever.to(device or default_device()).eval()

    @classmethod
    def from_description(
        cls,
        description: dict[str, Any],
        device: torch.device | str | None = None,
        *,
        backend: str | None = None,
        encoder_options: Mapping[str, Any] | None = None,
    ) -> Retriever:
        """Recreate an untrained retriever from the `description` of a retriever from `create`.

        The fingerprint identifies the description, without the `encoder_options`.
        """
        model, encoder, pooler = description["model"], description["encoder"], description["pooler"]
        with missing_plugins_explained(description, model):
            retriever = cls.create(
                model,
                encoder=encoder["name"],
                pooler=pooler["name"],
                encoder_options={**encoder["options"], **(encoder_options or {})},
                pooler_options=pooler["options"],
                separate_towers=description["separate_towers"],
                backend=backend,
            )
            if encoder_options:
                own = {**retriever.description, "encoder": describe("encoder", encoder["name"], encoder["options"])}
                retriever.fingerprint = untrained_fingerprint(own, model)
        return retriever.to(device or default_device()).eval()

    def save(self, folder: str | Path) -> None:
        """Write the encoders, the pooler and `retrievalkit.json` into an existing folder."""
        folder = Path(folder)
        for side in SIDES if "query" in self.towers else SIDES[:1]:
            target = folder / (side if "query" in self.towers else "encoder")
            target.mkdir(exist_ok=True)
            self.tower(side).save(target)
        state = {name: tensor.contiguous().cpu() for name, tensor in self.pooler.state_dict().items()}
        save_file(state, folder / POOLER_WEIGHTS)
        description = {key: value for key, value in self.description.items() if key not in UNTRAINED}
        # A branch or tag is of the model that training started from, not of this folder.
        options = {name: value for name, value in description["encoder"]["options"].items() if name != "revision"}
        description["encoder"] = description["encoder"] | {"options": options}
        storage.write_json(folder / CONFIGURATION, description)

    @property
    def device(self) -> torch.device:
        """The device of the weights; the CPU if another runtime has them."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    @property
    def backend(self) -> str:
        """The name of the backend that computes the layers of the encoders."""
        backend = self.tower("document").backend
        return "torch" if backend is None else backend.name

    def tower(self, side: Side) -> Encoder:
        """Return the encoder of a side."""
        encoder: Encoder = self.towers["shared" if "shared" in self.towers else side]  # type: ignore[assignment]
        return encoder

    def forward(self, batch: Batch, side: Side) -> Representation:
        """Compute the representation of a batch of tokenised texts of a side."""
        return self.pool(token_states(self, batch, side), side)

    def pool(self, states: TokenStates, side: Side) -> Representation:
        """Pool token states; refuse a pooler that does not return a Representation of their texts."""
        try:
            pooled: Representation = self.pooler(states, side)
            problem = wrong_representation(pooled, len(states.input_ids))
        except MisshapenError as error:
            problem = str(error)
        if not problem:
            parts = ("vectors", pooled.vectors), ("weights", pooled.weights)
            sizes = {name: tensor.shape[-1] for name, tensor in parts if tensor is not None}
            # Of all batches of both sides; the loss's input may have other sizes.
            for name, size in sizes.items():
                if (first := self._sizes.setdefault((name, self.pooler.training), size)) != size:
                    problem = f"its {name} have {size} columns, and had {first} for other texts"
        if problem:
            raise registry.wrong_result("pooler", self.pooler, problem)
        return pooled

    def encode(
        self,
        texts: Sequence[Text],
        side: Side,
        *,
        batch_tokens: int | None = None,
        precision: Precision = "fp32",
    ) -> Representation:
        """Return the representation of texts for indexing: float32, on the CPU, in their order.

        In fp32 a text's representation does not depend on its batch, except for rounding in the last digits. In bf16
        the third digit of a score may differ with the batch, in int8 it differs from fp32. `batch_tokens` limits a
        batch, padding included; None = chosen by device.
        """
        if not texts:
            msg = "there are no texts to encode. Name at least one."
            raise InputError(msg)
        token_ids = tokenize(self, texts, side)
        parts, order = [], []
        for positions, part in self.encode_tokens(token_ids, side, batch_tokens=batch_tokens, precision=precision):
            parts.append(part)
            order.extend(positions)
        encoded = Representation.concatenate(parts)
        return encoded if len(order) == 1 else encoded.rows(torch.from_numpy(np.argsort(order)))

    def calibrate(self, texts: Sequence[Text], side: Side) -> float:
        """Calibrate a side's encoder for int8 on every other text, and test it on the rest.

        Returns the share of each text's ten nearest texts in fp32 that are among its ten nearest in int8.

        Raises:
            InputError: There are fewer than 40 texts.
            UnsupportedError: The encoder does not support int8.
        """
        encoder = self.tower(side)
        layers = self.pooler.needs.layers_of(side, encoder.info)
        token_ids = tokenize(self, texts[::2], side)
        batches = token_budget_batches([len(ids) for ids in token_ids], CPU_BATCH_TOKENS // 4)
        encoder.calibrate([encoder.collate([token_ids[row] for row in rows], side) for rows in batches], layers)

        def similarities(precision: Precision) -> np.ndarray:
            encoded = self.encode(texts[1::2] or texts, side, precision=precision)
            return scores(encoded, encoded).fill_diagonal_(-torch.inf).numpy()

        return shared_best(similarities("fp32"), similarities("int8"))

    def encode_tokens(
        self,
        token_ids: Sequence[Sequence[int] | np.ndarray],
        side: Side,
        *,
        batch_tokens: int | None = None,
        precision: Precision = "fp32",
    ) -> Iterator[tuple[list[int], Representation]]:
        """Encode tokenised texts in batches of similar length; yields their positions and their representation."""
        encoder, device = self.tower(side), self.device
        definite = resolve_precision(precision, device, half=encoder.half_only, among=encoder.precisions)
        lengths = [len(ids) for ids in token_ids]
        if batch_tokens is None:
            on_cpu = CPU_BATCH_TOKENS if encoder.backend is None else encoder.backend.batch_tokens(lengths)
            batch_tokens = self.limit.budget(device, on_cpu)
        # `eval` and `train` visit all modules, which takes a tenth of the time of a single query.
        was_training = self.training
        if was_training:
            self.eval()
        batches = token_budget_batches(lengths, batch_tokens)
        threads = min(encoder.backend.threads() if encoder.backend else 1, len(batches))

        def encoded(positions: list[int]) -> Callable[[], tuple[list[int], Representation]]:
            batch = encoder.collate([token_ids[position] for position in positions], side).to(device)
            if len(batch) != len(positions):
                problem = f"collate() of {counted(len(positions), 'texts')} returns a Batch of {len(batch)}"
                raise registry.wrong_result("encoder", encoder, problem)
            batch.precision, batch.parallel = definite, threads > 1
            with torch.inference_mode(), autocast(definite, device):
                arriving = to_cpu(self(batch, side))

            def arrived() -> tuple[list[int], Representation]:
                representation = arriving().float()
                mask, weights = representation.vector_mask, representation.weights
                if mask is not None and not mask.any(dim=1).all():
                    raise registry.wrong_result("pooler", self.pooler, "a text has no vector, and needs at least one")
                if weights is not None and weights.min() < 0:
                    raise registry.wrong_result("pooler", self.pooler, "a weight is negative, and should be 0 or above")
                if self.dimensions is not None:
                    normalize = bool(getattr(self.pooler, "normalize", False))
                    representation = representation.cut(self.dimensions, normalize=normalize)
                return positions, representation

            return arrived

        # A GPU computes a batch while the one before it is used here.
        ahead, started = int(device.type == "cuda"), deque[Callable[[], tuple[list[int], Representation]]]()
        try:
            for parts in in_threads(partial(self.limit.compute, encoded, lengths), batches, threads):
                started.extend(parts)
                while len(started) > ahead:
                    yield started.popleft()()
            while started:
                yield started.popleft()()
        finally:
            if was_training:
                self.train()


def tokenize(retriever: Retriever, texts: Sequence[Text], side: Side) -> list[list[int]]:
    """Return each text's token ids; refuse an encoder that returns another number of texts."""
    encoder = retriever.tower(side)
    token_ids = encoder.tokenize(texts, side)
    if not isinstance(token_ids, Sequence) or len(token_ids) != len(texts):
        size = len(token_ids) if isinstance(token_ids, Sequence) else type(token_ids).__name__
        problem = f"tokenize() of {counted(len(texts), 'texts')} returns {size}, and should return a list for each"
        raise registry.wrong_result("encoder", encoder, problem)
    return token_ids


def token_states(retriever: Retriever, batch: Batch, side: Side) -> TokenStates:
    """Compute the token states that the pooler needs; refuse an encoder that returns others."""
    encoder = retriever.tower(side)
    layers = retriever.pooler.needs.layers_of(side, encoder.info)
    states: TokenStates = encoder(batch, layers)
    if problem := _wrong_states(states, len(batch), layers, encoder.info.width):
        raise registry.wrong_result("encoder", encoder, problem)
    return states


def _wrong_states(states: object, texts: int, layers: Sequence[int], width: int) -> str:
    """Return the problem of an encoder's result; "" if it has the states of these layers."""
    if not isinstance(states, TokenStates):
        return f"it returned a {type(states).__name__}, and must return TokenStates"
    if not isinstance(states.layers, Mapping):
        return f"the layers of its TokenStates are a {type(states.layers).__name__}, and should be a mapping by number"
    wanted = (texts, *states.attention_mask.shape[1:], width)
    for layer in layers:
        state = states.layers.get(layer)
        form = tuple(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
        if layer not in states.layers:
            return f"its TokenStates lack layer {layer}, and have the layers {sorted(states.layers)}"
        if form != wanted:
            return f"its states of layer {layer} are {form}, and should be a tensor {wanted} (batch, tokens, width)"
    return ""


def wrong_representation(pooled: object, texts: int) -> str:
    """Return the problem of a pooler's or a compressor's result; "" if it fits the number of texts."""
    if not isinstance(pooled, Representation):
        return f"it returned a {type(pooled).__name__}, and must return a Representation of {counted(texts, 'texts')}"
    vectors, weights = pooled.vectors, pooled.weights
    for name, tensor in (("vectors", vectors), ("weights", weights), *pooled.extras.items()):
        if tensor is not None and len(tensor) != texts:
            wanted = f"must return a Representation of {texts} texts"
            return f"it returned a Representation of {len(tensor)}, and {wanted}; its {name} are {tuple(tensor.shape)}"
    for name, tensor in (("vectors", vectors), ("weights", weights)):
        if tensor is not None and (not tensor.is_floating_point() or 0 in tensor.shape):
            form = f"{tuple(tensor.shape)} of {tensor.dtype}"
            return f"its {name} are {form}, and should be floating-point numbers, at least one in each row"
    per_vector = () if vectors is None else tuple(vectors.shape[:2])
    for name, tensor, dtype in (("vector_mask", pooled.vector_mask, torch.bool), ("keys", pooled.keys, torch.long)):
        if tensor is not None and (tuple(tensor.shape) != per_vector or tensor.dtype != dtype):
            form = f"{tuple(tensor.shape)} of {tensor.dtype}"
            return f"its {name} is {form}, and should be {per_vector} of {dtype}, one for each vector"
    if pooled.kept is not None and per_vector and not 0 <= pooled.kept < per_vector[1]:
        return f"its kept is {pooled.kept}, and should be the number of one of {counted(per_vector[1], 'vectors')}"
    return ""


@contextmanager
def blamed(
    described: Mapping[str, Any],
    parts: Mapping[str, nn.Module],
    *,
    when: str = "on the first examples",
    certain: bool = False,
) -> Iterator[None]:
    """Turn an error into a message that names the component in whose file it was raised, else the last component.

    With `certain`, an error that was raised elsewhere, or in a component of our own, keeps its traceback.
    """
    try:
        yield
    except (RetrievalkitError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        files = {
            getattr(sys.modules.get(type(part).__module__), "__file__", ""): kind
            for kind, part in reversed([*parts.items()])
        }
        frames = reversed(traceback.extract_tb(error.__traceback__))
        raised = next((frame for frame in frames if frame.filename in files), None)
        kind = list(parts)[-1] if raised is None else files[raised.filename]
        if certain and (raised is None or type(parts[kind]).__module__.startswith("retrievalkit.")):
            raise
        place = "" if raised is None else f" ({Path(raised.filename).name}:{raised.lineno})"
        names = ", ".join(f"{part} '{described[part]['name']}'" for part in _PARTS if part in described)
        reason = f"{type(error).__name__}{place}: {' '.join(str(error).split()) or 'no message'}"
        remedy = f"Its options or sizes may not fit the other parts ({names}); or its plugin has a bug."
        msg = f"{kind} '{described[kind]['name']}' fails {when}: {reason}. {remedy}"
        raise UnsupportedError(msg) from error


@contextmanager
def _drawn_with(seed: int) -> Iterator[None]:
    """Draw random weights from a seed, without changing the caller's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
