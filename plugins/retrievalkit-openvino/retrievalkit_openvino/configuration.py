"""Cached configurations and tokenizers of models, without transformers, whose import takes longer than torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from tokenizers import Encoding, Tokenizer

from retrievalkit_openvino.runtime import read_cached, write_cached

_TOKENIZER = "tokenizer.json"
_TOKEN_IDS = ("unk_token_id", "sep_token_id", "pad_token_id", "cls_token_id", "mask_token_id", "eos_token_id")


def load_configuration(identity: object, load: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return a model's configuration and tokenizer from the cache; else those of `load`, which are cached if fast."""
    key = ["encoder", identity]
    entry = None if identity is None else read_cached(key, Description)
    if entry is not None:
        return SimpleNamespace(**entry.value.config), FastTokenizer(entry.value, entry.folder / _TOKENIZER)
    config, tokenizer = load()
    if identity is not None and tokenizer.is_fast:
        names = ("hidden_size", "num_hidden_layers", "vocab_size", "pad_token_id")  # some files use other names
        values = {**config.to_dict(), **{name: getattr(config, name, None) for name in names}}
        ids = {name: getattr(tokenizer, name) for name in _TOKEN_IDS}
        description = Description(values, tokenizer.truncation_side, tokenizer.all_special_ids, ids)

        def write(folder: Path) -> None:
            (folder / _TOKENIZER).write_text(tokenizer.backend_tokenizer.to_str(), encoding="utf-8")

        write_cached(key, asdict(description), write)
    return config, tokenizer


@dataclass(frozen=True)
class Description:
    """A model's configuration, and what its tokenizer's file lacks."""

    config: dict[str, Any]
    truncation_side: Literal["left", "right"]
    all_special_ids: list[int]
    token_ids: dict[str, int | None]


class Encoded(NamedTuple):
    """The tokens of some texts."""

    encodings: list[Encoding]

    def __getitem__(self, name: Any) -> Any:
        """The tokens of each text: their ids as "input_ids", their positions in the text as "offset_mapping"."""
        assert name in ("input_ids", "offset_mapping"), name
        return [encoding.ids if name == "input_ids" else encoding.offsets for encoding in self.encodings]


class FastTokenizer:
    """A fast tokenizer that works without transformers, from its file."""

    is_fast = True

    def __init__(self, description: Description, file: Path) -> None:
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
            return Encoded([self.backend_tokenizer.encode(texts[0], second, add_special_tokens=add_special_tokens)])
        rows = list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
        return Encoded(self.backend_tokenizer.encode_batch(rows, add_special_tokens=add_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        return self.backend_tokenizer.get_vocab()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return self.backend_tokenizer.decode(ids, skip_special_tokens=False)
