"""BERT for inference, on torch alone: transformers takes several times as long to import as a query takes to encode.

Modules and weights have the names that transformers gives them, and the arithmetic is that of its `BertModel` with
torch's fused attention, operation for operation. There is no dropout and no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from retrievalkit.models.encoders.attention import attention
from retrievalkit.models.encoders.int8 import same_tokens


@dataclass(frozen=True)
class BertConfig:
    """The entries of config.json that count here, with the defaults of transformers."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    model_type: str = "bert"


class Output(NamedTuple):
    """(batch, tokens, width): the last hidden states; and those of all layers, the embeddings first, if wanted."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None


class Bert(nn.Module):
    """The model without a head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = _Layers(config)

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool = False,
        return_dict: bool = True,
    ) -> Output:
        """The hidden states.

        Args:
            input_ids: (batch, tokens); or instead
            inputs_embeds: (batch, tokens, width) embeddings of the tokens.
            attention_mask: (batch, tokens), 1 where there is a token; None = everywhere.
            position_ids: (batch, tokens); None = 0, 1, 2 ...
            output_hidden_states: Whether to return those of all layers.
            return_dict: Always true.
        """
        del return_dict
        states = self.embeddings(input_ids, inputs_embeds=inputs_embeds, position_ids=position_ids)
        mask = None
        if attention_mask is not None and not attention_mask.all():
            rows, tokens = attention_mask.shape
            mask = attention_mask.bool()[:, None, None, :].expand(rows, 1, tokens, tokens)
        every = [states]
        for layer in self.encoder.layer:
            states = layer(states, mask)
            if output_hidden_states:
                every.append(states)
        return Output(states, tuple(every) if output_hidden_states else None)


def _embedding(rows: int, config: BertConfig) -> nn.Embedding:
    # With weights given. On the device "meta", to initialise them would import torch's compiler.
    return nn.Embedding(rows, config.hidden_size, _weight=torch.empty(rows, config.hidden_size))


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = _embedding(config.vocab_size, config)
        self.position_embeddings = _embedding(config.max_position_embeddings, config)
        self.token_type_embeddings = _embedding(config.type_vocab_size, config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, input_ids: Tensor | None, *, inputs_embeds: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        words: Tensor = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = torch.arange(words.shape[1], device=words.device)
        states = words + self.token_type_embeddings.weight[0] + self.position_embeddings(position_ids)
        normed: Tensor = self.LayerNorm(states)
        return normed


class _Layers(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList([_Layer(config) for _ in range(config.num_hidden_layers)])


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.intermediate = _Intermediate(config)
        self.output = _Output(config, config.intermediate_size)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        attended = self.attention(states, mask)
        after: Tensor = self.output(self.intermediate(attended), attended)
        return after


class _Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = _SelfAttention(config)
        self.output = _Output(config, config.hidden_size)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        after: Tensor = self.output(self.self(states, mask), states)
        return after


class _SelfAttention(nn.Module):
    fused = True
    """For `attention`: torch's own, without what transformers does for other architectures."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads, self.scale = config.num_attention_heads, (width // config.num_attention_heads) ** -0.5
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        rows, tokens, width = states.shape
        shape = (rows, tokens, self.heads, width // self.heads)
        with same_tokens():
            projected = [one(states) for one in (self.query, self.key, self.value)]
        query, key, value = (one.view(shape).transpose(1, 2) for one in projected)
        found, _ = attention(self, query, key, value, mask, scaling=self.scale)  # (rows, tokens, heads, head's width)
        return found.reshape(rows, tokens, width)


class _Intermediate(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = nn.GELU()

    def forward(self, states: Tensor) -> Tensor:
        after: Tensor = self.intermediate_act_fn(self.dense(states))
        return after


class _Output(nn.Module):
    def __init__(self, config: BertConfig, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, before: Tensor) -> Tensor:
        normed: Tensor = self.LayerNorm(self.dense(states) + before)
        return normed
