"""Any Hugging Face encoder as the source of token states: BERT, RoBERTa, DistilBERT, MPNet, ModernBERT, T5's encoder.

Texts are cut to the side's maximum length; a passage with a title is encoded as a pair, [CLS] title [SEP] text [SEP],
with token types 0 throughout, as DPR and MLR do. Only the layers that are asked for are handed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn

from retrievalkit.artifacts import locate_model
from retrievalkit.contracts import Batch, Encoder, EncoderInfo, Needs, Side, Text, TokenStates
from retrievalkit.encoders.dropout import use_fast_dropout
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.quiet import quiet

_LIKE_ROBERTA = ("roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "longformer", "xmod")
# Whatever transformers raises at a model that is not there, is damaged, or needs a package that is not installed.
_LOADING_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    ImportError,
    SafetensorError,
)


class Transformer(Encoder):
    """A Hugging Face transformer with its tokenizer.

    Args:
        query_length: Most tokens of a query, special tokens included; None = 64, or the model's limit if that is less.
        document_length: Most tokens of a document, special tokens included; None = 256, or the model's limit.
        query_prefix: Put in front of every query, such as "query: ".
        document_prefix: Put in front of every document.
        title: How a passage's title goes in: first of a "pair" of texts, joined by a "space", or "none" (left out).
        dropout: Dropout probability while training; None = as the model's own configuration has it.
        attention: Attention implementation of transformers ("sdpa", "eager", "flash_attention_2"); None = its choice.
        revision: Branch, tag or commit of a model on the hub.
        trust_remote_code: Run Python code that comes with the model. Only for models you trust.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        query_length: int | None = None,
        document_length: int | None = None,
        query_prefix: str = "",
        document_prefix: str = "",
        title: Literal["pair", "space", "none"] = "pair",
        dropout: float | None = None,
        attention: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__()
        self.source = locate_model(model)
        self.prefixes = {"query": query_prefix, "document": document_prefix}
        self.title = title
        self.loading: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        if revision:
            self.loading["revision"] = revision
        with _loading(self.source):
            self.config = transformers.AutoConfig.from_pretrained(self.source, **self.loading)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.source, **self.loading)
        if attention:
            self.loading["attn_implementation"] = attention
        if dropout is not None:
            _set_dropout(self.config, dropout)
        self.info = EncoderInfo(self.config.hidden_size, self.config.num_hidden_layers, self.config.vocab_size)
        self._check_tokenizer()
        limit = _longest_input(self.config)
        self.lengths = {
            "query": min(64, limit) if query_length is None else query_length,
            "document": min(256, limit) if document_length is None else document_length,
        }
        self._check_lengths(limit)
        self.backbone: nn.Module | None = None

    def prepare(self, needs: Needs) -> None:
        """Load the weights, in float32."""
        super().prepare(needs)
        with _loading(self.source):
            self.backbone, report = _model_class(self.config).from_pretrained(
                self.source, config=self.config, dtype=torch.float32, output_loading_info=True, **self.loading
            )
        # The pooler of BERT-like models is not used here, and often has no trained weights.
        if getattr(self.backbone, "pooler", None) is not None:
            self.backbone.pooler = None
        use_fast_dropout(self.backbone)
        missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
        if missing:
            msg = (
                f"the weights of '{self.source}' lack {len(missing)} tensors of its architecture "
                f"({self.config.model_type}), such as '{missing[0]}': they would be random. Check the model folder."
            )
            raise InputError(msg)

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """The token ids of each text, with special tokens and prefix, cut to the side's maximum length."""
        prefix = self.prefixes[side]
        options = {
            "truncation": True,
            "max_length": self.lengths[side],
            "return_attention_mask": False,
            "return_token_type_ids": False,
        }
        pairs = [row for row, (title, _) in enumerate(texts) if title and self.title == "pair"]
        plain = [row for row, (title, _) in enumerate(texts) if not (title and self.title == "pair")]
        ids: list[list[int]] = [[]] * len(texts)
        if pairs:
            firsts = [prefix + texts[row][0] for row in pairs]
            encoded = self.tokenizer(firsts, [texts[row][1] for row in pairs], **options)["input_ids"]
            for row, tokens in zip(pairs, encoded, strict=True):
                ids[row] = tokens
        if plain:
            joined = [prefix + self._joined(*texts[row]) for row in plain]
            for row, tokens in zip(plain, self.tokenizer(joined, **options)["input_ids"], strict=True):
                ids[row] = tokens
        return ids

    def _joined(self, title: str, text: str) -> str:
        return f"{title} {text}".strip() if title and self.title == "space" else text

    def collate(self, token_ids: Sequence[Sequence[int] | np.ndarray], side: Side) -> Batch:  # noqa: ARG002 - of the contract
        """Pad tokenised texts to the longest of them."""
        lengths = [len(ids) for ids in token_ids]
        # At least one column: a model without special tokens makes no token of an empty text.
        input_ids = np.full((len(token_ids), max([1, *lengths])), self._padding_id, dtype=np.int64)
        mask = np.zeros_like(input_ids)
        for row, ids in enumerate(token_ids):
            input_ids[row, : lengths[row]] = ids
            mask[row, : lengths[row]] = 1
        special = np.isin(input_ids, self._special_ids) & (mask == 1)
        return Batch(torch.from_numpy(input_ids), torch.from_numpy(mask), torch.from_numpy(special))

    def forward(self, batch: Batch, layers: Sequence[int]) -> TokenStates:
        """The hidden states of the layers asked for.

        Returns:
            States of (batch, tokens, width) for each of `layers`; the last layer is the model's output, so after the
            final normalisation where the architecture has one (T5, ModernBERT), and the others are as the blocks
            leave them.
        """
        assert self.backbone is not None, "prepare() comes first"
        inner = any(layer != self.info.layers for layer in layers)
        output = self.backbone(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=inner, return_dict=True
        )
        states: dict[int, Tensor] = {
            layer: output.last_hidden_state if layer == self.info.layers else output.hidden_states[layer]
            for layer in layers
        }
        return TokenStates(states, batch.attention_mask, batch.input_ids, batch.special_mask, batch.extra)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder: weights (safetensors), configuration, tokenizer."""
        assert isinstance(self.backbone, transformers.PreTrainedModel)
        if self.tokenizer.is_fast:
            # What the last call cut and padded to is no property of the tokenizer.
            self.tokenizer.backend_tokenizer.no_truncation()
            self.tokenizer.backend_tokenizer.no_padding()
        with quiet():
            self.backbone.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    @property
    def _padding_id(self) -> int:
        # Decoder-only models often have no padding token; the attention mask hides whatever stands there.
        padding = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if padding is None else padding)

    @property
    def _special_ids(self) -> list[int]:
        ordinary = {self.tokenizer.unk_token_id, self.tokenizer.mask_token_id}
        return [one for one in self.tokenizer.all_special_ids if one not in ordinary]

    def _check_tokenizer(self) -> None:
        # Models round their number of embeddings up, by little. A tokenizer whose files are missing is nearly empty.
        if not self.info.vocabulary_size / 2 <= len(self.tokenizer) <= self.info.vocabulary_size:
            msg = (
                f"the tokenizer of '{self.source}' has {len(self.tokenizer)} tokens and its model "
                f"{self.info.vocabulary_size} embeddings. They do not belong together."
            )
            raise InputError(msg)

    def _check_lengths(self, limit: int) -> None:
        for side, length in self.lengths.items():
            if not 3 <= length <= limit:
                msg = f"{side}_length is {length}, and '{self.source}' takes 3 to {limit} tokens. Set --{side}-length."
                raise UnsupportedError(msg)


@contextmanager
def _loading(source: str) -> Iterator[None]:
    """Quiet loading, and one clear message where a model cannot be loaded."""
    try:
        with quiet():
            yield
    except _LOADING_ERRORS as error:
        what = "the folder" if Path(source).exists() else "the hub or a local folder"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        msg = f"cannot load the model '{source}' from {what}: {reason}"
        raise InputError(msg) from error


def _model_class(config: Any) -> Any:
    # Encoder-decoder models (T5) have a class for the encoder alone; AutoModel would want the decoder too.
    encoders = transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    return transformers.AutoModelForTextEncoding if type(config) in encoders else transformers.AutoModel


def _set_dropout(config: Any, probability: float) -> None:
    names = [name for name in vars(config) if "dropout" in name and isinstance(getattr(config, name), int | float)]
    for name in names:
        setattr(config, name, probability)


def _longest_input(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None)
    # Relative positions (T5) have no limit.
    if limit is None or limit <= 0:
        return 1_000_000
    # These number positions from behind the padding id on, which MPNet takes to be 1 whatever it is.
    offsets = dict.fromkeys(_LIKE_ROBERTA, (config.pad_token_id or 0) + 1) | {"mpnet": 2}
    return int(limit) - offsets.get(config.model_type, 0)
