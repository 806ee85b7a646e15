"""The encoder `my_name`: from texts to token states."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from retrievalkit.contracts import Batch, Encoder, EncoderInfo, Side, Text, TokenStates
from retrievalkit.errors import UnsupportedError


class MyName(Encoder):
    """A Hugging Face encoder, such as BERT, with its tokenizer.

    Args:
        query_length: Maximum number of tokens per query, special tokens included.
        document_length: Maximum number of tokens per document.
    """

    # `--query-length` and `--document-length` set the options with these names; keep them if you can.
    def __init__(self, model: str | Path, *, query_length: int = 64, document_length: int = 256) -> None:
        super().__init__()
        # No progress bar and no report of weights that an encoder does not use, at every start.
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self.model = transformers.AutoModel.from_pretrained(model, dtype=torch.float32)
        self.model.pooler = None  # BERT's own pooler, which is not used here
        config = self.model.config
        if config.is_encoder_decoder:
            msg = f"'{model}' is an encoder with a decoder. This encoder takes models such as BERT."
            raise UnsupportedError(msg)
        self.info = EncoderInfo(config.hidden_size, config.num_hidden_layers, config.vocab_size)
        self.lengths = {"query": query_length, "document": document_length}

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """The token ids of each text, truncated to the side's maximum length."""
        joined = [f"{text.title} {text.body}".strip() for text in texts]  # a query's title is ""
        ids: list[list[int]] = self.tokenizer(joined, truncation=True, max_length=self.lengths[side])["input_ids"]
        return ids

    def collate(self, token_ids: Sequence[Sequence[int] | np.ndarray], side: Side) -> Batch:
        """Pad tokenised texts to the longest of them."""
        width = max([1, *map(len, token_ids)])  # a decoder has no token for an empty text
        # A decoder has no padding token either; the mask hides padding.
        input_ids = torch.full((len(token_ids), width), self.tokenizer.pad_token_id or 0)
        mask = torch.zeros_like(input_ids)
        for row, ids in enumerate(token_ids):
            input_ids[row, : len(ids)] = torch.as_tensor(ids)
            mask[row, : len(ids)] = 1
        # [CLS]- and [SEP]-like tokens; unknown words still count as words.
        words = {self.tokenizer.unk_token_id, self.tokenizer.mask_token_id}
        special = torch.tensor([one for one in self.tokenizer.all_special_ids if one not in words])
        return Batch(input_ids, mask, torch.isin(input_ids, special) & mask.bool())

    def forward(self, batch: Batch, layers: Sequence[int]) -> TokenStates:
        """The hidden states (batch, tokens, width) of these layers."""
        output = self.model(batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True)
        states = {layer: output.hidden_states[layer] for layer in layers}
        return TokenStates(states, batch.attention_mask, batch.input_ids, batch.special_mask)

    def save(self, folder: Path) -> None:
        """Write the files that the constructor reads."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
