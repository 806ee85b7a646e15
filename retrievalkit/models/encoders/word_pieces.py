"""BERT's tokenizer by the `tokenizers` package alone, for folders whose files say that it is BERT's and nothing else.

It has those attributes of a tokenizer of transformers that the encoder uses. transformers builds its tokenizer of
several files, which may contradict each other; here they must all agree, or `word_pieces` gives None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

_SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
_MODEL = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
_CLASSES = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")

# Entries of tokenizer_config.json: those without effect on tokens, and those that have none with these values.
_NEUTRAL = frozenset({
    "name_or_path", "model_max_length", "clean_up_tokenization_spaces", "do_basic_tokenize", "is_local",
    "local_files_only", "max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id",
    "special_tokens_map_file", "tokenizer_file",
})  # fmt: skip
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "additional_special_tokens": (None, []),
    "backend": ("tokenizers",),
    "bos_token": (None,),
    "eos_token": (None,),
    "extra_special_tokens": (None, [], {}),
    "model_input_names": (["input_ids", "token_type_ids", "attention_mask"],),
    "never_split": (None,),
    "padding_side": ("right",),
    "tokenizer_class": _CLASSES,
    "truncation_side": ("right",),
}


class Encoded(NamedTuple):
    """The tokens of some texts."""

    encodings: list[Encoding]

    def __getitem__(self, name: Any) -> Any:
        """The ids of each text, as "input_ids"."""
        assert name == "input_ids", name
        return [one.ids for one in self.encodings]


class WordPieces:
    """A tokenizer: call it with texts, or with the first and the second texts of pairs."""

    is_fast = True
    eos_token_id = None

    def __init__(self, backend: Tokenizer) -> None:
        self.backend_tokenizer = backend
        backend.no_padding()
        ids = {name: backend.token_to_id(token) for name, token in _SPECIAL.items()}
        self.unk_token_id, self.pad_token_id = ids["unk_token"], ids["pad_token"]
        self.cls_token_id, self.sep_token_id = ids["cls_token"], ids["sep_token"]
        self.mask_token_id = ids["mask_token"]
        self.all_special_ids = list(ids.values())

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
        """The tokens of texts, cut to `max_length` if `truncation` says so, the longer of a pair first."""
        del options  # what to return beside the ids
        if truncation:
            self.backend_tokenizer.enable_truncation(max_length)
        else:
            self.backend_tokenizer.no_truncation()
        if isinstance(texts, str):
            return {"input_ids": self.backend_tokenizer.encode(texts, add_special_tokens=add_special_tokens).ids}
        rows = list(texts) if seconds is None else list(zip(texts, seconds, strict=True))
        return Encoded(self.backend_tokenizer.encode_batch(rows, add_special_tokens=add_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        """Token -> id."""
        return self.backend_tokenizer.get_vocab()

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str | None]:
        """The tokens of some ids."""
        return [self.backend_tokenizer.id_to_token(one) for one in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens."""
        return self.backend_tokenizer.decode(ids, skip_special_tokens=False)


def word_pieces(folder: Path) -> WordPieces | None:
    """The tokenizer of a model's folder; None if its files say anything that is not known here."""
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    described: dict[str, Any] = json.loads(text)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    names = folder / "special_tokens_map.json"
    known = (
        not (folder / "added_tokens.json").exists()
        and (not names.exists() or _names_special(json.loads(names.read_text(encoding="utf-8"))))
        and _settings_known(settings, described["model"]["vocab"])
        and described == _expected(described, settings)
    )
    return WordPieces(Tokenizer.from_str(text)) if known else None


def _names_special(tokens: Mapping[str, Any]) -> bool:
    """Whether these are BERT's special tokens, or some of them."""
    plain = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()}
    return plain.items() <= _SPECIAL.items()


def _settings_known(settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> bool:
    for name, value in settings.items():
        if name in _SPECIAL:
            known = _names_special({name: value})
        elif name in _WITHOUT_EFFECT:
            known = value in _WITHOUT_EFFECT[name]
        elif name == "added_tokens_decoder":
            known = value == {str(vocabulary[token]): {"content": token, **_FLAGS} for token in _SPECIAL.values()}
        else:
            known = name in _NEUTRAL or name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
        if not known:
            return False
    return settings.get("tokenizer_class") in _CLASSES


def _expected(described: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer.json as it is for BERT's tokenizer with this vocabulary and these settings."""
    vocabulary = described["model"]["vocab"]
    added = [{"id": vocabulary[token], "content": token, **_FLAGS} for token in _SPECIAL.values()]
    ends = {token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]} for token in ("[CLS]", "[SEP]")}
    first = [_special("[CLS]", 0), {"Sequence": {"id": "A", "type_id": 0}}, _special("[SEP]", 0)]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, _special("[SEP]", 1)]
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    return {
        "version": "1.0",
        # Set anew in every call.
        "truncation": described["truncation"],
        "padding": described["padding"],
        "added_tokens": sorted(added, key=lambda token: token["id"]),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": first, "pair": [*first, *second], "special_tokens": ends,
        },
        # Only single tokens are decoded, where it changes nothing.
        "decoder": None if described["decoder"] is None else decoder,
        "model": {**_MODEL, "vocab": vocabulary},
    }  # fmt: skip


def _special(token: str, side: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": side}}
