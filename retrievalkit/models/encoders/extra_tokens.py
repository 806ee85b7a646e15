"""Tokens that a pooler needs in front of every text, such as MVR's viewers: their ids, embeddings and positions.

New tokens have ids after the vocabulary and their own embeddings, so that the vocabulary and the vocabulary head are
unchanged. Their embeddings are stored next to the model, in `extra_tokens.safetensors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from retrievalkit.contracts import SIDES, ExtraTokens, Side
from retrievalkit.errors import InputError, UnsupportedError

WEIGHTS = "extra_tokens.safetensors"


class ExtraTokenRows(nn.Module):
    """The ids of each side's extra tokens, and the embeddings of new tokens.

    Args:
        wanted: The pooler's needs, by side. Unused rows of the vocabulary are assigned in this order.
        vocabulary_size: The id of the first new token.
        width: Width of an embedding.
        vocabulary: Token -> id.
    """

    def __init__(
        self, wanted: Mapping[str, ExtraTokens], vocabulary_size: int, width: int, vocabulary: Mapping[str, int]
    ) -> None:
        super().__init__()
        self.wanted = dict(wanted)
        self.vocabulary_size = vocabulary_size
        self.ids: dict[str, list[int]] = {side: [] for side in SIDES}
        rows: list[Tensor] = []
        # [unused0], [unused1], ... in numerical order.
        names = (name for name in vocabulary if name.lower().startswith("[unused"))
        unused = left = [vocabulary[name] for name in sorted(names, key=lambda name: (len(name), name))]
        for side, tokens in wanted.items():
            if tokens.source == "unused":
                self.ids[side], left = left[: tokens.count], left[tokens.count :]
                if len(self.ids[side]) < tokens.count:
                    problem = f"the pooler needs {tokens.count} unused tokens, and the vocabulary has {len(unused)}"
                    msg = f"{problem}. Use new embeddings instead (source=new), or fewer tokens."
                    raise UnsupportedError(msg)
            elif tokens.source == "named":
                if lacking := [name for name in tokens.names if name not in vocabulary]:
                    msg = f"the pooler needs the token '{lacking[0]}', and the vocabulary lacks it. Name another."
                    raise UnsupportedError(msg)
                self.ids[side] = [vocabulary[name] for name in tokens.names]
            else:
                first = vocabulary_size + sum(map(len, rows))
                self.ids[side] = list(range(first, first + tokens.count))
                rows.append(torch.randn(tokens.count, width) * tokens.standard_deviation)
        self.new = nn.Parameter(torch.cat(rows)) if rows else None

    def insert(self, token_ids: Sequence[int], side: Side, *, starts_special: bool) -> list[int]:
        """Insert the side's extra tokens into a tokenised text, in place of its first token or after it."""
        extra = self.ids[side]
        if not extra or not starts_special:
            return [*extra, *token_ids]
        first = [] if self.wanted[side].replace_first else list(token_ids[:1])
        return [*first, *extra, *token_ids[1:]]

    def room(self, side: Side, *, starts_special: bool) -> int:
        """Return the number of tokens that `insert` adds to a text."""
        replaced = bool(self.ids[side]) and starts_special and self.wanted[side].replace_first
        return len(self.ids[side]) - int(replaced)

    def where(self, side: Side, *, starts_special: bool) -> Tensor | None:
        """Return the positions (n,) of the side's extra tokens in a text; None if the side has none."""
        if not self.ids[side]:
            return None
        first = int(starts_special and not self.wanted[side].replace_first)
        return torch.arange(first, first + len(self.ids[side]))

    def embed(self, input_ids: Tensor, embeddings: nn.Module) -> Tensor:
        """Return the embeddings of all tokens, ordinary and new: (batch, tokens, width)."""
        assert self.new is not None
        is_new = input_ids >= self.vocabulary_size
        known: Tensor = embeddings(input_ids.masked_fill(is_new, 0))
        own = self.new[(input_ids - self.vocabulary_size).clamp(min=0)]
        return torch.where(is_new[:, :, None], own.to(known.dtype), known)

    def position_ids(self, input_ids: Tensor, extra: Tensor, side: Side) -> Tensor | None:
        """Return position numbers (batch, tokens) from 0: the same for all extra tokens, unchanged for the text.

        None if the side's extra tokens, at the positions `extra` (batch, n), are numbered like ordinary tokens.
        """
        tokens = self.wanted[side]
        if tokens.position is None:
            return None
        is_extra = torch.zeros_like(input_ids, dtype=torch.bool).scatter(1, extra, value=True)
        ordinary = (~is_extra).long().cumsum(dim=1) - 1 + int(tokens.replace_first)
        return ordinary.masked_fill(is_extra, tokens.position)

    def save(self, folder: Path) -> None:
        """Write the embeddings of new tokens, if there are any."""
        if self.new is not None:
            save_file({"new": self.new.detach().cpu().contiguous()}, folder / WEIGHTS)

    def load(self, folder: Path) -> None:
        """Read the file of `save`, if it exists."""
        if self.new is None or not (folder / WEIGHTS).is_file():
            return
        stored = load_file(folder / WEIGHTS)["new"]
        if stored.shape != self.new.shape:
            shapes = f"{tuple(stored.shape)} of extra tokens, and the pooler needs {tuple(self.new.shape)}"
            msg = f"'{folder}' has embeddings {shapes}. Set the trained model's number of tokens."
            raise InputError(msg)
        with torch.no_grad():
            self.new.copy_(stored)
