"""The encoder `transformer` without the package transformers, for plain BERT models that only encode.

transformers takes twice as long to import as torch, and a search from the shell waits for it. Whatever is not known
here to the last entry (another architecture, an unusual tokenizer, weights in another form, damage) is left to
`Transformer`, which loads it, or says what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import nn

from retrievalkit.contracts import Needs
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.encoders import extra_tokens
from retrievalkit.models.encoders.bert import Bert, BertConfig
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.models.encoders.word_pieces import WordPieces, word_pieces
from retrievalkit.models.pretrained import check_source

WEIGHTS = "model.safetensors"

# Options that change how the model is loaded, and their values that do not.
_LOADING = {"lora_rank": 0, "dropout": None, "attention": None, "revision": None, "trust_remote_code": False}
# Files beside the weights that transformers would read too.
_UNKNOWN = ("adapter_config.json", "model.safetensors.index.json")

# Entries of config.json: those without effect on inference, and those that have none with these values.
_NEUTRAL = frozenset({
    "_name_or_path", "architectures", "bos_token_id", "classifier_dropout", "directionality", "dtype", "eos_token_id",
    "gradient_checkpointing", "id2label", "initializer_range", "label2id", "pooler_fc_size",
    "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
    "sep_token_id", "tie_word_embeddings", "torch_dtype",
    "transformers_version", "use_cache",
})  # fmt: skip
_WITHOUT_EFFECT: Mapping[str, Any] = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
}
_PREFIXES = ("", "bert.")


class Parts(NamedTuple):
    """What a folder was found to hold; `names` are the names of the weights in the file, by those in the model."""

    config: BertConfig
    tokenizer: WordPieces
    names: Mapping[str, str]


class LeanTransformer(Transformer):
    """`Transformer` for inference with a model of which `parts_of` knows all."""

    def __init__(self, parts: Parts, model: str | Path, **options: Any) -> None:
        self._parts = parts
        super().__init__(model, **options)

    def save(self, folder: Path) -> None:
        """Refused."""
        msg = f"'{self.source}' was loaded to encode only, so it cannot be written to '{folder}'. Load it without lean."
        raise UnsupportedError(msg)

    def _load_configuration(self) -> tuple[Any, Any]:
        return self._parts.config, self._parts.tokenizer

    def _load_model(self, needs: Needs) -> nn.Module:
        if needs.vocabulary_head or self._draws_rows(needs):
            self.config, self.tokenizer = super()._load_configuration()
            whole: nn.Module = super()._load_model(needs)
            return whole
        with torch.device("meta"):
            model = Bert(self._parts.config)
        with safe_open(Path(self.source) / WEIGHTS, framework="pt") as file:
            state = {name: file.get_tensor(stored).float() for name, stored in self._parts.names.items()}
        model.load_state_dict(state, assign=True)
        return model.requires_grad_(requires_grad=False)

    def _draws_rows(self, needs: Needs) -> bool:
        """Whether embeddings of extra tokens are random: they depend on what loading drew before them."""
        drawn = any(tokens.source == "new" for tokens in needs.extra_tokens.values())
        return drawn and not (Path(self.source) / extra_tokens.WEIGHTS).is_file()


def parts_of(source: str, options: Mapping[str, Any]) -> Parts | None:
    """The parts of a model's folder; None if anything about it, or an option of the encoder, is not known here."""
    folder = Path(source)
    if any(options.get(name, usual) != usual for name, usual in _LOADING.items()):
        return None
    if not (folder / WEIGHTS).is_file() or any((folder / name).exists() for name in _UNKNOWN):
        return None
    try:
        check_source(source)
        config = _configuration(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        names = None if config is None else _names(folder / WEIGHTS, config)
        tokenizer = None if names is None else word_pieces(folder)
    except Exception:  # noqa: BLE001 - whatever is wrong with the files, `Transformer` has the words for it
        return None
    return None if config is None or names is None or tokenizer is None else Parts(config, tokenizer, names)


def _configuration(entries: Mapping[str, Any]) -> BertConfig | None:
    defaults = {field.name: field.default for field in fields(BertConfig)}
    given = {name: value for name, value in entries.items() if name in defaults}
    others = {name: value for name, value in entries.items() if name not in defaults and name not in _NEUTRAL}
    if any(name not in _WITHOUT_EFFECT or value != _WITHOUT_EFFECT[name] for name, value in others.items()):
        return None
    if any(type(value) is not type(defaults[name]) for name, value in given.items()):
        return None
    config = BertConfig(**given)
    whole = config.hidden_size % config.num_attention_heads == 0
    plain = config.model_type == "bert" and config.hidden_act == "gelu"
    return config if "model_type" in given and plain and whole and config.type_vocab_size > 0 else None


def _names(file: Path, config: BertConfig) -> dict[str, str] | None:
    """The names of the weights in the file; None if one is missing or has another shape."""
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in Bert(config).state_dict().items()}
    with safe_open(file, framework="pt") as weights:
        stored = set(weights.keys())
        candidates = [
            {name: prefix + rename(name) for name in shapes} for prefix in _PREFIXES for rename in (str, _in_old_files)
        ]
        fitting = [names for names in candidates if stored.issuperset(names.values())]
        if len(fitting) != 1 or (weights.metadata() or {}).get("format") != "pt":
            return None
        names = fitting[0]
        slices = {name: weights.get_slice(inside) for name, inside in names.items()}
        same = all(one.get_shape() == shapes[name] for name, one in slices.items())
        known = same and {one.get_dtype() for one in slices.values()} <= {"F32", "F16", "BF16"}
    return names if known else None


def _in_old_files(name: str) -> str:
    """What a weight is called in files that were converted from TensorFlow, such as those of BERT itself."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
