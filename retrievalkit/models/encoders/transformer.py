"""Token states from any Hugging Face model: BERT-like encoders, T5's encoder, decoder-only models.

Texts are truncated to the side's maximum length. A passage with a title is encoded as a pair, [CLS] title [SEP] text
[SEP], whose token types are all 0, as in DPR and MLR. Only the layers that the pooler needs are returned.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from retrievalkit.contracts import SIDES, Batch, Encoder, EncoderInfo, LayerShape, Needs, Side, Text, TokenStates
from retrievalkit.contracts.backends import model_input
from retrievalkit.data.tokenized_text import Pieces, Vocabulary
from retrievalkit.data.truncation import count_cut
from retrievalkit.errors import InputError, LengthError, UnsupportedError
from retrievalkit.models.architectures import (
    embed,
    first_position,
    layer_shape,
    longest_input,
    model_class,
    set_dropout,
    vocabulary_head,
)
from retrievalkit.models.encoders.attention import use_fast_attention
from retrievalkit.models.encoders.dropout import use_fast_dropout
from retrievalkit.models.encoders.extra_tokens import WEIGHTS, ExtraTokenRows
from retrievalkit.models.encoders.lora import add_adapters, four_bits, save_adapters
from retrievalkit.models.encoders.narrow_norms import use_narrow_norms
from retrievalkit.models.pretrained import (
    check_attention,
    check_missing,
    check_source,
    code_refused,
    load_pretrained,
    locate_model,
    model_file,
    save_pretrained,
)
from retrievalkit.models.published import note_promises, note_unread_weights
from retrievalkit.registry.trust import code_allowed

_MOST_RANK = 1 << 14
# Marks of tokens that begin a word, in tokenizers that do not split texts into words first.
_BEGINNINGS = ("\u2581", "\u0120")


class Transformer(Encoder):
    """A Hugging Face transformer with its tokenizer: BERT-like encoders, T5's encoder, decoder-only models.

        rkit train --model MODEL --query-length 32 --document-length 256 --set encoder.query_prefix="query: " ...

    On a CPU, attention and dropout have faster implementations.

    Args:
        query_length: Maximum tokens per query, with special tokens; None = 64, or the model's limit if lower.
        document_length: Maximum tokens per document, with special tokens; None = 256, or the model's limit if lower.
        query_prefix: Text in front of every query, such as "query: ".
        document_prefix: Text in front of every document.
        title: Encoding of a passage's title: as the first text of a "pair", joined to the text by a "space", or "none".
        end_token: Append the tokenizer's end token to every text that the tokenizer does not end with a special token:
            for the pooler `last` with decoder-only models, whose tokenizers rarely add it. None = as the tokenizer.
        new_vocabulary_head: If the pooler needs a vocabulary head and the weights lack it, start with a random head
            (projection tied to the word embeddings).
        new_head_bias: Initial bias of a new vocabulary head, the same for all tokens. Training on masked words keeps
            its level, which softmax ignores and ReLU does not: sparse representations (SPLADE, CoT-MAE) need most
            logits below 0, as in BERT. No effect if the weights have a head.
        lora_rank: Rank of adapters added to all linear layers (LoRA); other weights are frozen, on a GPU in bf16. 0 =
            no adapters: all weights are trained.
        lora_alpha: Scale of the adapters' output, divided by lora_rank.
        lora_dropout: Dropout probability in front of the adapters.
        quantize: Number format of the weights that LoRA freezes; "4bit" is NF4 (QLoRA).
        dropout: Dropout probability in training; None = as in the model's configuration.
        attention: Attention implementation of transformers ("sdpa", "eager", "flash_attention_2"); None = its default.
            With flash attention, queries too are encoded in bf16 or fp16.
        checkpoint_activations: In training, keep only the inputs of the layers, and compute their other values again
            for the gradients (activation checkpointing): less memory, equal gradients, more time.
        revision: Branch, tag or commit of a model on the hub.
        trust_remote_code: The model needs its own Python code. Not a permission: true is refused unless the environment
            variable RKIT_TRUST_REMOTE_CODE is 1.
    """

    offers = frozenset({"vocabulary_head", "extra_tokens", "mask_filled"})
    # The other options shape the weights (LoRA), or do not apply to our folders (a revision).
    adjustable = frozenset({
        "query_length", "document_length", "query_prefix", "document_prefix", "title", "end_token", "dropout",
        "lora_dropout", "attention", "checkpoint_activations",
    })  # fmt: skip

    def __init__(
        self,
        model: str | Path,
        *,
        query_length: int | None = None,
        document_length: int | None = None,
        query_prefix: str = "",
        document_prefix: str = "",
        title: Literal["pair", "space", "none"] = "pair",
        end_token: bool | None = None,
        new_vocabulary_head: bool = False,
        new_head_bias: float = 0.0,
        lora_rank: Annotated[int, Field(ge=0, le=_MOST_RANK)] = 0,
        lora_alpha: float = 16.0,
        lora_dropout: float = 0.0,
        quantize: Literal["4bit"] | None = None,
        dropout: float | None = None,
        attention: str | None = None,
        checkpoint_activations: bool = False,
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__()
        self.source = locate_model(model)
        check_source(self.source)
        self.prefixes = {"query": query_prefix, "document": document_prefix}
        self.title = title
        if trust_remote_code and not code_allowed():
            raise code_refused(str(model))
        self.loading: dict[str, Any] = {}
        if revision:
            self.loading["revision"] = revision
        self.config, self.tokenizer = self.load_configuration()
        if attention:
            check_attention(attention, self.source)
            self.loading["attn_implementation"] = attention
        if quantize is not None and not hasattr(self.config, "quantization_config"):  # as a checkpoint's has
            self.loading["quantization_config"] = four_bits(lora_rank)
        if dropout is not None:
            set_dropout(self.config, dropout)
        self.info = EncoderInfo(self.config.hidden_size, self.config.num_hidden_layers, self.config.vocab_size)
        # Models round the number of embeddings up a little; a tokenizer with missing files is nearly empty.
        if not self.info.vocabulary_size / 2 <= len(self.tokenizer) <= self.info.vocabulary_size:
            sizes = f"{len(self.tokenizer)} tokens and its model {self.info.vocabulary_size} embeddings"
            msg = f"the tokenizer of '{self.source}' has {sizes}. They do not belong together. Check the model folder."
            raise InputError(msg)
        limit = longest_input(self.config)
        self.lengths = {
            "query": min(64, limit) if query_length is None else query_length,
            "document": min(256, limit) if document_length is None else document_length,
        }
        for side, length in self.lengths.items():
            if not 3 <= length <= limit:
                option = f"{side}_length"
                raise LengthError(option, length, str(self.source), 3, limit)
        if end_token and self.tokenizer.eos_token_id is None:
            msg = f"end_token is set, and the tokenizer of '{self.source}' has no end token. Leave it out."
            raise UnsupportedError(msg)
        self.end = [self.tokenizer.eos_token_id] if end_token and not self._specials[1] else []
        note_promises(self.file("tokenizer_config.json"), self.tokenizer, self._specials, end_token)
        self.new_vocabulary_head, self.new_head_bias = new_vocabulary_head, new_head_bias
        self.lora = {"r": lora_rank, "lora_alpha": lora_alpha, "lora_dropout": lora_dropout} if lora_rank else {}
        self.checkpoint_activations = checkpoint_activations
        self.model: Any = None

    def prepare(self, needs: Needs) -> None:
        """Load the weights, in float32 unless they are frozen, with everything that the pooler needs."""
        super().prepare(needs)
        self.needs = needs
        new = any(tokens.source == "new" for tokens in needs.extra_tokens.values())
        self.prepare_network(drawn=new and not (Path(self.source) / WEIGHTS).is_file())
        vocabulary, width = {}, self.info.width
        if needs.extra_tokens:
            vocabulary, width = self.tokenizer.get_vocab(), self.embeddings.embedding_dim
        self.extra = ExtraTokenRows(needs.extra_tokens, self.info.vocabulary_size, width, vocabulary)
        self.extra.load(Path(self.source))
        self._check_needs()

    def prepare_network(self, *, drawn: bool) -> None:
        """Load the model, before extra tokens are `drawn` at random."""
        del drawn
        self.model = self.load_network(self.needs)

    @property
    def network(self) -> Any:
        """The model."""
        return self.model

    @property
    def half_only(self) -> bool:  # type: ignore[override]
        """True with flash attention, and with frozen weights in bf16."""
        attention = getattr(getattr(self.model, "config", None), "_attn_implementation", None)
        return "flash" in str(attention) or getattr(self.model, "dtype", None) == torch.bfloat16

    def load_configuration(self) -> tuple[Any, Any]:
        """Load the configuration and the tokenizer of the model."""
        import transformers

        config = load_pretrained(transformers.AutoConfig, self.source, **self.loading)
        if config.model_type == "dpr" and not config.projection_dim:
            # Loaded as a BERT: transformers' DPR class is for the question encoder and returns no hidden states.
            values = {name: value for name, value in config.to_dict().items() if name != "model_type"}
            config = transformers.BertConfig(**values)
        return config, load_pretrained(transformers.AutoTokenizer, self.source, **self.loading)

    def load_network(self, needs: Needs) -> Any:
        """Load the model, with its adapters and the faster layers."""
        model = self._load_weights(needs)
        if self.lora:
            add_adapters(model, self.lora, Path(self.source))
        if self.checkpoint_activations:
            # Earlier releases of transformers have only the second name.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            try:
                enable({"use_reentrant": False})
            except ValueError as error:
                msg = f"checkpoint_activations is set, and '{self.source}' does not support it. Leave it out."
                raise UnsupportedError(msg) from error
        use_fast_dropout(model)
        use_fast_attention(model)
        use_narrow_norms(model)
        return model

    def _load_weights(self, needs: Needs) -> Any:
        kind = model_class(self.config, vocabulary_head=needs.vocabulary_head)
        # Weights that are not trained take half of the memory of a GPU.
        dtype = torch.bfloat16 if self.lora and torch.cuda.is_available() else torch.float32
        options = {"config": self.config, "dtype": dtype, "output_loading_info": True, **self.loading}
        model, report = load_pretrained(kind, self.source, **options)
        # A method's checkpoint may contain the model as a part, whose names have a prefix.
        prefixes = {
            name.removesuffix(missing)
            for missing in report["missing_keys"]
            for name in report["unexpected_keys"]
            if name.endswith(f".{missing}")
        }
        if len(prefixes) == 1:
            renamed = {f"^{re.escape(prefixes.pop())}": ""}
            model, report = load_pretrained(kind, self.source, key_mapping=renamed, **options)
        missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
        inside = f"{model.base_model_prefix}." if needs.vocabulary_head else ""
        of_head = [name for name in missing if not name.startswith(inside)]
        if of_head and not self.new_vocabulary_head:
            msg = (
                f"the pooler needs a vocabulary head, and the weights of '{self.source}' lack it ('{of_head[0]}'). "
                f"Train it (rkit pretrain --pretrainer mlm), or start at random: --set encoder.new_vocabulary_head=true"
            )
            raise InputError(msg)
        check_missing([name for name in missing if name not in of_head], self.source)
        if self.new_head_bias and of_head:
            if (bias := model.get_output_embeddings().bias) is None:
                msg = f"new_head_bias is {self.new_head_bias}, and the new head of '{self.source}' has no bias."
                raise UnsupportedError(msg)
            nn.init.constant_(bias, self.new_head_bias)
        note_unread_weights(self.source, report["unexpected_keys"])
        # The pooler of BERT-like models is unused here, and often untrained.
        if getattr(model, "pooler", None) is not None:
            model.pooler = None
        return model

    def token_ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of tokens in the vocabulary, at the beginning of a word and within a word."""
        vocabulary = self.tokenizer.get_vocab()
        pieces = self.tokenizer(list(tokens), add_special_tokens=False)["input_ids"] if tokens else []
        known = [vocabulary[token] for token in tokens if token in vocabulary]
        return sorted({*known, *(ids[-1] for ids in pieces if ids and ids[-1] != self.tokenizer.unk_token_id)})

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token, without the mark of a word's beginning; later pieces may start with "##"."""
        known = len(self.tokenizer)
        names = [self.tokenizer.decode([token]).strip() if token < known else "" for token in ids]
        return [name or f"[{token}]" for name, token in zip(names, ids, strict=True)]

    def file(self, name: str) -> Path | None:
        """Return a file of the model, in its folder or on the hub; None if it does not exist."""
        return model_file(self.source, name, revision=self.loading.get("revision"))

    def vocabulary(self) -> Vocabulary:
        """Return the tokenizer's vocabulary for pre-training."""
        return vocabulary_of(self.tokenizer)

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """Tokenise texts with prefix, special and extra tokens, truncated to the side's maximum length."""
        prefix, starts_special = self.prefixes[side], self._specials[0]
        room = self.extra.room(side, starts_special=starts_special) + len(self.end)
        options = {
            "truncation": True,
            "max_length": self.lengths[side] - room,
            "return_attention_mask": False,
            "return_token_type_ids": False,
        }
        ids: list[list[int]] = [[]] * len(texts)
        inputs: list[Any] = [model_input(text, prefix, self.title) for text in texts]
        for paired in (True, False):
            rows = [row for row, value in enumerate(inputs) if isinstance(value, tuple) == paired]
            if not rows:
                continue
            some = [inputs[row] for row in rows]
            parts = list(map(list, zip(*some, strict=True))) if paired else [some]
            encoded = self.tokenizer(*parts, **options)
            count_cut(self.tokenizer, encoded, *parts, kind=f"{side} texts", limit=self.lengths[side])
            for row, tokens in zip(rows, encoded["input_ids"], strict=True):
                ids[row] = tokens
        if self.extra.ids[side] or self.end:
            return [self.extra.insert(row, side, starts_special=starts_special) + self.end for row in ids]
        return ids

    @property
    def padding_id(self) -> int:
        """The padding token of batches."""
        # Decoder-only models often lack a padding token; the attention mask hides padding in any case.
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
        return next((int(token) for token in known if token is not None), 0)

    def collate(self, token_ids: Sequence[Sequence[int] | np.ndarray], side: Side) -> Batch:
        """Pad tokenised texts to the longest text, or to the maximum length with [MASK] if the pooler needs it."""
        lengths = [len(ids) for ids in token_ids]
        fill, width = self.padding_id, max([1, *lengths])
        if side in self.needs.mask_filled:
            fill, width = self.tokenizer.mask_token_id, self.lengths[side]
        # At least one column: an empty text without special tokens has no tokens.
        input_ids = np.full((len(token_ids), width), fill, dtype=np.int64)
        mask = np.zeros_like(input_ids)
        for row, ids in enumerate(token_ids):
            input_ids[row, : lengths[row]] = ids
            mask[row, : lengths[row]] = 1
        if side in self.needs.mask_filled and self.needs.fill_attended:
            mask[:] = 1
        special = np.isin(input_ids, [*self._special_ids, *self.extra.ids[side]]) & (mask == 1)
        tensors = torch.from_numpy(input_ids), torch.from_numpy(mask), torch.from_numpy(special)
        batch = Batch(*tensors, padded=not mask.all())
        if (extra := self.extra.where(side, starts_special=self._specials[0])) is not None:
            batch.extra = extra.repeat(len(token_ids), 1)
            positions = self.extra.position_ids(batch.input_ids, batch.extra, side)
            batch.position_ids = None if positions is None else positions + first_position(self.config)
        return batch

    def forward(self, batch: Batch, layers: Sequence[int]) -> TokenStates:
        """Compute the hidden states (batch, tokens, width) of `layers`.

        The last layer is the model's output, after the final normalisation if the architecture has one (T5,
        ModernBERT); other layers are outputs of the blocks.
        """
        states = self.compute(batch, layers)
        head = vocabulary_head(self.network, self.config.model_type) if self.needs.vocabulary_head else None
        return TokenStates(states, batch.attention_mask, batch.input_ids, batch.special_mask, batch.extra, head)

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the arguments of the model."""
        inputs: dict[str, Tensor] = {"input_ids": batch.input_ids}
        if batch.extra is not None and self.extra.new is not None:
            inputs = {"inputs_embeds": self.extra.embed(batch.input_ids, self.embeddings)}
        if batch.position_ids is not None:
            inputs["position_ids"] = batch.position_ids
        # Without a mask a GPU has a faster attention; the models themselves would read the mask, and wait.
        whole = not batch.padded and batch.input_ids.device.type == "cuda"
        return inputs if whole else {**inputs, "attention_mask": batch.attention_mask}

    def compute(self, batch: Batch, layers: Sequence[int]) -> Mapping[int, Tensor]:
        """Compute the hidden states of `layers` for a batch."""
        return self.states(self.inputs(batch), layers)

    def states(self, inputs: Mapping[str, Tensor], layers: Sequence[int]) -> dict[int, Tensor]:
        """Compute the hidden states (batch, tokens, width) of `layers`."""
        # Decoder-only models have a cache.
        cache = {"use_cache": False} if "use_cache" in self._arguments else {}
        hidden = any(layer != self.info.layers for layer in layers)
        output = self._backbone(**inputs, **cache, output_hidden_states=hidden, return_dict=True)
        states: dict[int, Tensor] = {}
        for layer in layers:
            state = output.last_hidden_state if layer == self.info.layers else output.hidden_states[layer]
            # Narrow norms return bf16; poolers should normalise and sum in float32.
            states[layer] = state.float() if state.dtype == torch.bfloat16 else state
        return states

    def embed(self, batch: Batch) -> Tensor:
        """Return the embeddings (batch, tokens, width), layer 0, without computing the layers."""
        return embed(self._backbone, batch)

    def word_embeddings(self) -> Tensor:
        """Return the input embeddings of the tokens, (vocabulary, width)."""
        weight = self.embeddings.weight
        if weight.shape[1] != self.info.width:
            problem = f"are {weight.shape[1]} wide, but should be as wide as the hidden states ({self.info.width})"
            msg = f"the word embeddings of '{self.source}' {problem}. Choose another model."
            raise UnsupportedError(msg)
        return weight

    def layer_shape(self) -> LayerShape:
        """Return the shape and dropout of the model's layers."""
        return layer_shape(self.config)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder (weights as safetensors), with adapters and extra tokens if there are any."""
        model: Any = self.model
        state = save_adapters(model, folder) if self.lora else None
        if self.lora:
            model.hf_quantizer = None  # would write weights by other names
        save_pretrained(model, self.tokenizer, folder, state_dict=state)
        self.extra.save(folder)

    @property
    def _backbone(self) -> nn.Module:
        """The model without its head."""
        network = self.network
        backbone: nn.Module = network.base_model if self.needs.vocabulary_head else network
        return backbone

    @property
    def embeddings(self) -> nn.Embedding:
        """The input embeddings."""
        embeddings: nn.Embedding = self.network.get_input_embeddings()
        return embeddings

    @cached_property
    def _specials(self) -> tuple[bool, bool]:
        """True if the tokenizer starts a text with a [CLS]-like token, and if it ends a text with a special token."""
        ids, bare = self.tokenizer("a")["input_ids"], self.tokenizer("a", add_special_tokens=False)["input_ids"]
        return bool(ids) and ids[0] in self._special_ids, ids[-1:] != bare[-1:]

    @property
    def _special_ids(self) -> list[int]:
        ordinary = {self.tokenizer.unk_token_id, self.tokenizer.mask_token_id}
        return [token for token in self.tokenizer.all_special_ids if token not in ordinary]

    def _check_needs(self) -> None:
        """Refuse a pooler whose needs the tokenizer or the architecture cannot meet."""
        limit = longest_input(self.config)
        for side in SIDES:
            if not (count := len(self.extra.ids[side])):
                continue
            room = self.lengths[side] - self.extra.room(side, starts_special=self._specials[0]) - len(self.end)
            # At least one word in addition to the special tokens.
            if room < 3:
                problem = f"{count} extra tokens leave no room for a text in {side}_length={self.lengths[side]}"
                msg = f"{problem}. Use fewer, or a longer --{side}-length."
                raise UnsupportedError(msg)
            position, known = self.needs.extra_tokens[side].position, f"has the positions 0 to {limit - 1}"
            if "position_ids" not in self._arguments:
                limit, known = 0, f"('{self.config.model_type}') takes no position numbers"
            if position is not None and not 0 <= position < limit:
                problem = f"the pooler puts extra tokens at position {position}, and '{self.source}' {known}"
                msg = f"{problem}. Set the pooler's position=null, or another position."
                raise UnsupportedError(msg)
        if self.needs.mask_filled and self.tokenizer.mask_token_id is None:
            msg = f"the pooler pads texts with mask tokens, and the tokenizer of '{self.source}' has none."
            raise UnsupportedError(msg)

    @cached_property
    def _arguments(self) -> frozenset[str]:
        """The argument names of the architecture's forward."""
        return frozenset(inspect.signature(self._backbone.forward).parameters)


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a fast tokenizer of transformers."""
    if not tokenizer.is_fast:
        name = type(tokenizer).__name__
        msg = f"pre-training needs a fast tokenizer, not a {name}. Convert it to a tokenizer.json in the model folder."
        raise UnsupportedError(msg)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    probe: list[int] = tokenizer("a")["input_ids"]
    text = [position for position, token in enumerate(probe) if token not in special]
    before, after = probe[: text[0]], probe[text[-1] + 1 :]
    ordinary = sorted(set(tokenizer.get_vocab().values()) - special)
    backend = tokenizer.backend_tokenizer

    def split(texts: Sequence[str]) -> list[tuple[Pieces, list[int]]]:
        backend.no_truncation()
        backend.no_padding()
        documents = []
        for encoding in backend.encode_batch(texts, add_special_tokens=False):
            words = encoding.word_ids
            if backend.pre_tokenizer is None:
                starts = [token.startswith(_BEGINNINGS) for token in encoding.tokens]
            else:
                starts = [word != previous for previous, word in zip([-1, *words], words, strict=False)]
            # Drop special tokens in the text itself, as in the documentation of tokenizers.
            kept = [position for position, token in enumerate(encoding.ids) if token not in special]
            ids, ends = [encoding.ids[at] for at in kept], [encoding.offsets[at][1] for at in kept]
            documents.append((Pieces(ids, [starts[at] for at in kept]), ends))
        return documents

    return Vocabulary(split, before, after, tokenizer.mask_token_id, ordinary)
