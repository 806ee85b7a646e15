"""Tiny random models of several architectures, and a tokenizer that knows the words of the tiny collection."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from retrievalkit.errors import check_choice
from retrievalkit.model.pretrained import quiet
from retrievalkit.testing.collection import COUNTRIES

_WORDS = (
    "the seat of government is city people pay with and language that spoken most it number this list what capital "
    "which currency do use in"
)


def tiny_model(
    folder: str | Path,
    *,
    architecture: str = "bert",
    layers: int = 2,
    width: int = 32,
    seed: int = 0,
    vocabulary: int = 0,
) -> str:
    """Write a tiny random model with a tokenizer over the tiny collection's words; returns the folder.

    Args:
        folder: Where to write.
        architecture: "bert", "roberta", "distilbert", "mpnet" or "modernbert" (masked language models, with their
            vocabulary head), "t5" (an encoder-decoder) or "llama" (decoder-only, without [CLS] and [SEP]).
        layers: Number of layers.
        width: Hidden size, a multiple of 4.
        seed: Of the weights.
        vocabulary: How many tokens to know at least; those beyond the collection's words occur in no text.

    Raises:
        UnknownNameError: There is no such architecture here.
    """
    import transformers

    check_choice("architecture", architecture, ARCHITECTURES)
    folder = Path(folder)
    tokenizer = tiny_tokenizer(architecture, vocabulary)
    name, build_config = ARCHITECTURES[architecture]
    prefix = name.removesuffix("ForMaskedLM").removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    config = getattr(transformers, f"{prefix}Config")(**build_config(tokenizer, layers, width))
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = getattr(transformers, name)(config)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


def _bert_like(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 2 * width,
        "max_position_embeddings": 128,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _distilbert(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "dim": width,
        "n_layers": layers,
        "n_heads": 2,
        "hidden_dim": 2 * width,
        "max_position_embeddings": 128,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _modernbert(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    ends = {"cls_token_id": tokenizer.cls_token_id, "bos_token_id": tokenizer.cls_token_id}
    ends |= {"sep_token_id": tokenizer.sep_token_id, "eos_token_id": tokenizer.sep_token_id}
    return _bert_like(tokenizer, layers, width) | ends | {"global_attn_every_n_layers": 2, "local_attention": 16}


def _t5(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "d_model": width,
        "d_kv": width // 2,
        "d_ff": 2 * width,
        "num_layers": layers,
        "num_heads": 2,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "decoder_start_token_id": tokenizer.pad_token_id,
    }


def _llama(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "num_key_value_heads": 1}
    return _bert_like(tokenizer, layers, width) | ends


ARCHITECTURES: dict[str, tuple[str, Callable[[Any, int, int], dict[str, Any]]]] = {
    "bert": ("BertForMaskedLM", _bert_like),
    "roberta": ("RobertaForMaskedLM", _bert_like),
    "distilbert": ("DistilBertForMaskedLM", _distilbert),
    "mpnet": ("MPNetForMaskedLM", _bert_like),
    "modernbert": ("ModernBertForMaskedLM", _modernbert),
    "t5": ("T5ForConditionalGeneration", _t5),
    "llama": ("LlamaForCausalLM", _llama),
}
"""Architectures of `tiny_model`: the class of transformers, and what makes its configuration."""


def tiny_tokenizer(architecture: str, least: int = 0) -> Any:
    """A WordPiece tokenizer over the words of the tiny collection, with the special tokens of an architecture.

    Args:
        architecture: A key of `ARCHITECTURES`.
        least: How many tokens to have at least.
    """
    import tokenizers
    import transformers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    text = f"{_WORDS} {COUNTRIES}".replace("|", " ").replace("-", " ")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{number}]" for number in range(16))]
    letters = [prefix + letter for prefix in ("", "##") for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
    known = [*special, *letters, ".", ",", *sorted(set(text.lower().split()))]
    known = list(dict.fromkeys(known))
    known += [f"[filler{number}]" for number in range(least - len(known))]
    vocabulary = {token: row for row, token in enumerate(known)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    if architecture == "t5":
        backend.post_processor = processors.TemplateProcessing("$A [SEP]", "$A [SEP] $B:1 [SEP]:1", ends[1:])
    elif architecture != "llama":
        backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    if architecture == "llama":
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]"}
    elif architecture != "t5":
        names["cls_token"] = "[CLS]"
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=128, **names)


@cache
def kit_models() -> dict[str, str]:
    """The tiny models that components are tried on, architecture -> folder: a BERT, a T5 and a decoder.

    They are made once in a process. Their vocabulary is larger than what poolers keep of it by default, and a prime, so
    that nothing divides it.
    """
    folder = tempfile.mkdtemp(prefix="retrievalkit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {
        one: tiny_model(f"{folder}/{one}", architecture=one, width=16, vocabulary=1409)
        for one in ("bert", "t5", "llama")
    }
