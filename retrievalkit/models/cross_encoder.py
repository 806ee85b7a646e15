"""The cross-encoder: a re-ranker that reads a query and a passage together and scores the pair.

It is a Hugging Face model for sequence classification with one label, or with two labels, the second "relevant".
`rkit rerank train` writes an ordinary Hugging Face folder, which sentence-transformers' CrossEncoder loads too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from retrievalkit import storage
from retrievalkit.contracts import Reranker
from retrievalkit.contracts.backends import Backend, ExportError, Function, Program
from retrievalkit.data.truncation import count_cut
from retrievalkit.errors import InputError, RetrievalkitError, UnsupportedError
from retrievalkit.models.architectures import longest_input
from retrievalkit.models.backends import resolve_backend
from retrievalkit.models.batches import TokenLimit, in_threads, token_budget_batches
from retrievalkit.models.precision import Precision, autocast, default_device, resolve_precision, shared_best
from retrievalkit.models.pretrained import (
    check_finite,
    check_missing,
    check_source,
    load_pretrained,
    locate_model,
    model_identity,
    save_pretrained,
)
from retrievalkit.storage import NOT_WEIGHTS

KIND = "reranker"
DEFAULT_LENGTH = 256
# On a CPU the hidden states of a batch should fit in its caches.
CPU_BATCH_TOKENS = 1_024
_RELEVANT = ("label_1", "relevant", "positive", "yes", "true", "1")
_LIKE_BERT = ("bert", "camembert", "electra", "roberta", "roberta-prelayernorm", "xlm-roberta")

Pair = tuple[np.ndarray, int]
"""The token ids of a query and a passage, and the position at which the passage begins."""


class CrossEncoder(nn.Module, Reranker):
    """Cross-encoder (monoBERT, Nogueira and Cho 2019): scores pairs of a query and a passage.

    Constructed by `create` (for training) or `load`.

        rkit rerank train --model bert-base-uncased --corpus CORPUS --examples TRAIN --output RERANKER
        rkit rerank apply RERANKER --run RUN --queries QUERIES --corpus CORPUS --output RERANKED

    Args:
        model: A model for sequence classification.
        tokenizer: Its tokenizer.
        max_length: Maximum tokens per pair, special tokens included; None = 256, or the model's limit if lower.
        source: Its name or folder, for error messages.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_length: int | None, source: str) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.source = source
        self.fingerprint = ""
        self.backend: Backend | None = None
        self.limit = TokenLimit(model.config.hidden_size)
        self._program: Program | None = None
        self._check_tokenizer()
        limit = _longest_input(model, tokenizer)
        self.max_length: int = min(DEFAULT_LENGTH, limit) if max_length is None else max_length
        least = tokenizer.num_special_tokens_to_add(pair=True) + 2
        if not least <= self.max_length <= limit:
            msg = f"max_length is {self.max_length}, and '{source}' takes {least} to {limit} tokens. Set --max-length."
            raise UnsupportedError(msg)
        self._typed = "token_type_ids" in tokenizer.model_input_names
        if model.config.pad_token_id is None:
            # Decoders look for the last token that is not padding.
            model.config.pad_token_id = tokenizer.pad_token_id

    @classmethod
    def create(cls, source: str | Path, *, max_length: int | None = None, seed: int = 0) -> CrossEncoder:
        """Create a re-ranker to train, from a pretrained encoder; a missing head is initialised from the seed."""
        located = locate_model(source)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model, report = _load(located, num_labels=1, ignore_mismatched_sizes=True)
        lacking = {*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])}
        # Pretrained encoders lack the weights outside the encoder, and BERT's pooler.
        inside = f"{model.base_model_prefix}."
        missing = [name for name in lacking if name.startswith(inside) and not name.startswith(f"{inside}pooler.")]
        check_missing(missing, located)
        tokenizer = load_pretrained(transformers.AutoTokenizer, located)
        return cls(model, tokenizer, max_length=max_length, source=str(source))

    @classmethod
    def load(
        cls, source: str | Path, *, max_length: int | None = None, device: torch.device | str | None = None
    ) -> CrossEncoder:
        """Load a trained re-ranker in eval mode: a folder written by `rkit rerank train`, or any cross-encoder.

        Args:
            source: Name or folder.
            max_length: Maximum tokens per pair, for a cross-encoder not trained here; None = 512, or its limit.
            device: The device; None = the GPU if available, else the CPU.
        """
        check_source(str(source))
        if storage.kind_of(source) == KIND and max_length is not None:
            msg = f"'{source}' was trained with a length of its own: drop --max-length."
            raise InputError(msg)
        located = locate_model(source)
        remedy = "Copy the re-ranker again, or train it again."
        fingerprint = located
        if Path(located).is_dir():
            fingerprint = storage.checked_fingerprint(located, KIND, skip=NOT_WEIGHTS, remedy=remedy)
        model, report = _load(located)
        if missing := sorted(report["missing_keys"]):
            msg = (
                f"'{source}' is not a re-ranker: its weights lack the head that scores pairs ('{missing[0]}'). "
                f"Train one from it: rkit rerank train --model {source}"
            )
            raise InputError(msg)
        names = [str(model.config.id2label[label]) for label in sorted(model.config.id2label)]
        if len(names) != 1 and (len(names) != 2 or names[1].lower() not in _RELEVANT):
            msg = (
                f"'{source}' has {len(names)} labels ({', '.join(names)}). A re-ranker has one label, or two whose "
                f"second is named {', '.join(_RELEVANT)}."
            )
            raise UnsupportedError(msg)
        tokenizer = load_pretrained(transformers.AutoTokenizer, located)
        length = max_length or min(_longest_input(model, tokenizer), 512)
        reranker = cls(model, tokenizer, max_length=length, source=str(source))
        reranker.fingerprint = fingerprint
        reranker.to(device or default_device()).eval()
        read_first_token_alone(model)
        return reranker

    def compile(self, backend: str) -> None:
        """Compute the layers with a backend, by its name."""
        self.backend = resolve_backend(backend, self.device.type)
        if self.backend is not None:
            identity = model_identity(locate_model(self.source), "logits")
            compute = lambda inputs: [self.model(**inputs).logits]  # noqa: E731 - one of three
            self._program = self.backend.compile(Function(lambda: self.model, compute, self._example, identity))

    def _example(self, pairs: int, tokens: int) -> dict[str, Tensor]:
        """Return example pairs; the first is padded."""
        size = self.model.config.vocab_size
        ids = [np.arange(count) % size for count in (tokens // 2, *[tokens] * (pairs - 1))]
        return self.collate([(row, 3) for row in ids])

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @property
    def precisions(self) -> Collection[Precision]:
        """The number formats that it computes in."""
        return ("fp32", "bf16", "fp16") if self.backend is None else self.backend.precisions

    def tokenize(self, queries: Sequence[str], passages: Sequence[tuple[str, str]]) -> list[Pair]:
        """Tokenise pairs; if a pair is too long, the longer of query and passage is truncated."""
        texts = [f"{title} {text}".strip() if title else text for title, text in passages]
        both = list(queries), texts
        encoded = self.tokenizer(
            *both,
            truncation="longest_first",
            max_length=self.max_length,
            return_attention_mask=False,
            return_token_type_ids=self._typed,
        )
        count_cut(self.tokenizer, encoded, *both, kind="pairs", limit=self.max_length)
        token_ids = [np.asarray(ids, dtype=np.int32) for ids in encoded["input_ids"]]
        if not self._typed:
            return [(ids, len(ids)) for ids in token_ids]
        # Type 1 marks the tokens of the passage.
        return [(ids, len(ids) - sum(types)) for ids, types in zip(token_ids, encoded["token_type_ids"], strict=True)]

    def collate(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Pad pairs to the longest pair."""
        lengths = np.array([len(ids) for ids, _ in pairs])
        columns = np.arange(max(1, lengths.max()))
        mask = columns < lengths[:, None]  # (pairs, tokens)
        input_ids = np.full(mask.shape, self.tokenizer.pad_token_id, dtype=np.int64)
        input_ids[mask] = np.concatenate([ids for ids, _ in pairs])
        batch = {"input_ids": input_ids, "attention_mask": mask.astype(np.int64)}
        if self._typed:
            starts = np.array([start for _, start in pairs])
            batch["token_type_ids"] = (mask & (columns >= starts[:, None])).astype(np.int64)
        return {name: torch.from_numpy(value) for name, value in batch.items()}

    def forward(self, batch: dict[str, Tensor], precision: Precision = "fp32", *, parallel: bool = False) -> Tensor:
        """Score a batch, (pairs,) float32: the logit, or with two logits "relevant" minus the other.

        Precision and `parallel` (several threads compute at a time) are for the backend.
        """
        logits = self._logits(batch, precision, parallel=parallel)  # (pairs, labels)
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]

    def _logits(self, batch: dict[str, Tensor], precision: Precision, *, parallel: bool) -> Tensor:
        if (program := self._program) is not None:
            try:
                return program(batch, precision, parallel=parallel)[0]
            except ExportError as error:
                error.note(self.source)
                self._program = self.backend = None
        logits: Tensor = self.model(**batch).logits.float()
        return logits

    def calibrate(self, lists: Sequence[Sequence[Pair]]) -> float:
        """Calibrate int8 on every other pair of each query, and test it on the rest; see `Reranker.calibrate`."""
        if self._program is None or self.backend is None or "int8" not in self.backend.precisions:
            return super().calibrate(lists)
        pairs = [pair for query in lists for pair in query[::2]]
        batches = token_budget_batches([len(ids) for ids, _ in pairs], CPU_BATCH_TOKENS)
        self._program.quantise([self.collate([pairs[row] for row in rows]) for rows in batches])
        tested = [query[1::2] or query for query in lists]
        ends = np.cumsum([len(query) for query in tested])[:-1]

        def scores(precision: Precision) -> list[np.ndarray]:
            return np.split(self.score([pair for query in tested for pair in query], precision=precision), ends)

        return shared_best(scores("fp32"), scores("int8"))

    def score(
        self,
        pairs: Sequence[Pair],
        *,
        batch_tokens: int | None = None,
        precision: Precision = "fp32",
        advance: Callable[[int], None] | None = None,
    ) -> np.ndarray:
        """Score tokenised pairs: float32, in their order.

        In fp32 a pair's score does not depend on its batch, except for rounding in the last digits. In bf16 its third
        digit may differ with the batch. `advance` is called after each batch with its number of pairs.
        """
        device, was_training, lengths = self.device, self.training, [len(ids) for ids, _ in pairs]
        definite = resolve_precision(precision, device, among=self.precisions)
        on_cpu = CPU_BATCH_TOKENS if self.backend is None else self.backend.batch_tokens(lengths)
        batches = token_budget_batches(lengths, batch_tokens or self.limit.budget(device, on_cpu))
        threads = min(self.backend.threads() if self.backend else 1, len(batches))
        self.eval()
        scores = np.empty(len(pairs), dtype=np.float32)
        # Copied at the end: copying makes the CPU wait for the GPU.
        pending: list[tuple[list[int], Tensor]] = []

        def scored(rows: list[int]) -> tuple[list[int], Tensor]:
            batch = to_device(self.collate([pairs[row] for row in rows]), device)
            with torch.inference_mode(), autocast(definite, device):
                return rows, self(batch, definite, parallel=threads > 1)

        try:
            for parts in in_threads(partial(self.limit.compute, scored, lengths), batches, threads):
                pending += parts
                if advance is not None:
                    advance(sum(len(rows) for rows, _ in parts))
        finally:
            self.train(was_training)
        for rows, values in pending:
            scores[rows] = values.cpu().numpy()
        if not np.isfinite(scores).all():
            msg = f"'{self.source}' computed an infinite score or NaN. Check the model, or use --precision fp32."
            raise RetrievalkitError(msg)
        return scores

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder; the tokenizer's `model_max_length` is the maximum length of a pair."""
        self.tokenizer.model_max_length = self.max_length
        save_pretrained(self.model, self.tokenizer, folder)

    def _check_tokenizer(self) -> None:
        if self.tokenizer.pad_token_id is None:
            msg = (
                f"the tokenizer of '{self.source}' has no padding token, which batches of pairs need. Choose another "
                f"model, or name a token that texts do not use in its tokenizer_config.json ('pad_token')."
            )
            raise UnsupportedError(msg)
        size, largest = self.model.config.vocab_size, max(self.tokenizer.get_vocab().values())
        if largest >= size:
            msg = (
                f"the tokenizer of '{self.source}' produces token ids up to {largest}, and the model has {size} "
                f"embeddings. Give the model its own tokenizer."
            )
            raise InputError(msg)


def to_device(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy a batch to another device."""
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def _load(located: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    load_pretrained(transformers.AutoConfig, located)  # refuses a model that names code
    loaded: tuple[Any, dict[str, Any]] = load_pretrained(
        transformers.AutoModelForSequenceClassification,
        located,
        dtype=torch.float32,
        output_loading_info=True,
        **options,
    )
    check_finite(loaded[0], located)
    return loaded


def _longest_input(model: Any, tokenizer: Any) -> int:
    return min(int(tokenizer.model_max_length), longest_input(model.config))


class FirstToken(nn.Module):
    """The last layer of a BERT for only the first token, the classifier's only input.

    This saves about a seventh of the work of a six-layer model, half of that with twelve layers.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """Compute the first token's state (batch, 1, width) from the states of all tokens (batch, tokens, width)."""
        layer: Any = self.layer
        attention, first = layer.attention.self, hidden[:, :1]
        query, key, value = (
            projection(states).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
            for projection, states in ((attention.query, first), (attention.key, hidden), (attention.value, hidden))
        )  # (batch, heads, 1 or tokens, head width)
        # (batch, 1, tokens or 1, tokens): a row for each query token, or a single row for all.
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        context = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        state: Tensor = layer.feed_forward_chunk(
            layer.attention.output(context.transpose(1, 2).flatten(2), first)  # (batch, 1, width)
        )
        return state


def read_first_token_alone(model: Any) -> bool:
    """Make a model compute its last layer for the first token only, if a trial gives equal scores; True if it does."""
    config = model.config
    if config.model_type not in _LIKE_BERT or getattr(config, "_attn_implementation", "") != "sdpa":
        return False
    layers = model.base_model.encoder.layer
    last, before = layers[-1], _trial(model)
    layers[-1] = FirstToken(last)
    try:
        after = _trial(model)
    except (AttributeError, RuntimeError, TypeError, IndexError):  # another release of transformers
        after = None
    if after is None or after.shape != before.shape or not torch.allclose(after, before, rtol=1e-3, atol=1e-4):
        layers[-1] = last
        return False
    return True


def _trial(model: Any) -> Tensor:
    """Compute the logits of two short texts, the second padded."""
    ids = torch.arange(2, device=model.device).add(1).clamp(max=model.config.vocab_size - 1).expand(2, 2)
    mask = torch.tensor([[1, 1], [1, 0]], device=model.device)
    with torch.inference_mode():
        logits: Tensor = model(input_ids=ids, attention_mask=mask).logits
    return logits
