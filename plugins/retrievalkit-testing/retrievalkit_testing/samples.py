"""A tiny collection, and tiny random models of several architectures with its vocabulary."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retrievalkit import registry
from retrievalkit.errors import check_choice

if TYPE_CHECKING:
    from retrievalkit.contracts import Encoder, Needs

COUNTRIES = (
    "Argentina Buenos-Aires peso Spanish|Australia Canberra dollar English|Austria Vienna euro German|"
    "Bolivia Sucre boliviano Spanish|Brazil Brasilia real Portuguese|Bulgaria Sofia euro Bulgarian|"
    "Cambodia Phnom-Penh riel Khmer|Canada Ottawa dollar English|Chile Santiago peso Spanish|"
    "China Beijing yuan Mandarin|Croatia Zagreb euro Croatian|Cuba Havana peso Spanish|"
    "Denmark Copenhagen krone Danish|Egypt Cairo pound Arabic|Ethiopia Addis-Ababa birr Amharic|"
    "Finland Helsinki euro Finnish|France Paris euro French|Germany Berlin euro German|"
    "Ghana Accra cedi English|Greece Athens euro Greek|Hungary Budapest forint Hungarian|"
    "Iceland Reykjavik krona Icelandic|India New-Delhi rupee Hindi|Ireland Dublin euro Irish|"
    "Italy Rome euro Italian|Japan Tokyo yen Japanese|Kenya Nairobi shilling Swahili|"
    "Latvia Riga euro Latvian|Mexico Mexico-City peso Spanish|Mongolia Ulaanbaatar tugrik Mongolian|"
    "Morocco Rabat dirham Arabic|Nepal Kathmandu rupee Nepali|Norway Oslo krone Norwegian|"
    "Peru Lima sol Spanish|Poland Warsaw zloty Polish|Portugal Lisbon euro Portuguese|"
    "Romania Bucharest leu Romanian|Senegal Dakar franc French|Sweden Stockholm krona Swedish|"
    "Thailand Bangkok baht Thai|Turkey Ankara lira Turkish|Vietnam Hanoi dong Vietnamese"
)
"""Country, capital, currency and language, for each passage; "-" stands for a space."""


@dataclass(frozen=True)
class Collection:
    """The paths of a collection in BEIR format."""

    folder: Path
    corpus: Path
    queries: Path
    qrels: Path


def tiny_collection(folder: str | Path) -> Collection:
    """Write a collection of 42 passages (countries) and 126 questions, in BEIR format.

    Two thirds of the questions are in `qrels/train.tsv`, the rest in `qrels/test.tsv`.
    """
    folder = Path(folder)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    passages: list[dict[str, Any]] = []
    queries: list[dict[str, Any]] = []
    train, test = list[str](), list[str]()
    for row, line in enumerate(COUNTRIES.split("|")):
        country, capital, currency, language = (word.replace("-", " ") for word in line.split())
        text = (
            f"The seat of government is the city of {capital}. People pay with the {currency}, and the language that "
            f"is spoken most is {language}. It is number {row + 1} of this list."
        )
        passages.append({"_id": f"c{row}", "title": country, "text": text})
        questions = {f"what is the capital of {country}": capital}
        questions |= {f"which currency do people use in {country}": currency}
        questions |= {f"what language is spoken in {country}": language}
        for number, (question, answer) in enumerate(questions.items()):
            queries.append({"_id": f"q{row}-{number}", "text": question, "answers": [answer]})
            (test if (row + number) % 3 == 0 else train).append(f"q{row}-{number}\tc{row}\t1")
    for name, records in (("corpus", passages), ("queries", queries)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    for name, rows in (("train", train), ("test", test)):
        (folder / "qrels" / f"{name}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return Collection(folder, folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv")


WORDS = (
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
    """Write a tiny random model with a tokenizer for the tiny collection's words; returns the folder.

    Args:
        folder: The folder to write.
        architecture: "bert", "roberta", "distilbert", "mpnet" or "modernbert" (masked language models, with their
            vocabulary head), "t5" (an encoder-decoder) or "llama" (decoder-only, without [CLS] and [SEP]).
        layers: Number of layers.
        width: Hidden size, a multiple of 4.
        seed: Seed of the weights.
        vocabulary: Minimum vocabulary size; tokens beyond the collection's words occur in no text.

    Raises:
        UnknownNameError: The architecture is unknown.
    """
    import transformers

    check_choice("architecture", architecture, ARCHITECTURES)
    folder = Path(folder)
    tokenizer = tiny_tokenizer(architecture, vocabulary)
    name, build_config = ARCHITECTURES[architecture]
    prefix = name.removesuffix("ForMaskedLM").removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    config = getattr(transformers, f"{prefix}Config")(**build_config(tokenizer, layers, width))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = getattr(transformers, name)(config)
    _save(model, tokenizer, folder)
    return str(folder)


def _save(model: Any, tokenizer: Any, folder: str | Path) -> None:
    """Write a model and its tokenizer, without a progress bar."""
    import transformers

    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if shown:
        transformers.utils.logging.enable_progress_bar()


def _named(names: str) -> Callable[[Any, int, int], dict[str, Any]]:
    """Return a function that creates a configuration with these names of sizes."""

    def config(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
        sizes = (len(tokenizer), width, layers, 2, 2 * width, tokenizer.pad_token_id, 128)
        return dict(zip(names.split(), sizes, strict=False))

    return config


_bert_like = _named(
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size pad_token_id "
    "max_position_embeddings"
)


def _modernbert(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    ends = {"cls_token_id": tokenizer.cls_token_id, "bos_token_id": tokenizer.cls_token_id}
    ends |= {"sep_token_id": tokenizer.sep_token_id, "eos_token_id": tokenizer.sep_token_id}
    return _bert_like(tokenizer, layers, width) | ends | {"global_attn_every_n_layers": 2, "local_attention": 16}


def _t5(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    ends = {"eos_token_id": tokenizer.sep_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    sizes = _named("vocab_size d_model num_layers num_heads d_ff pad_token_id")(tokenizer, layers, width)
    return sizes | ends | {"d_kv": width // 2}


def _llama(tokenizer: Any, layers: int, width: int) -> dict[str, Any]:
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "num_key_value_heads": 1}
    return _bert_like(tokenizer, layers, width) | ends


ARCHITECTURES: dict[str, tuple[str, Callable[[Any, int, int], dict[str, Any]]]] = {
    "bert": ("BertForMaskedLM", _bert_like),
    "roberta": ("RobertaForMaskedLM", _bert_like),
    "distilbert": (
        "DistilBertForMaskedLM",
        _named("vocab_size dim n_layers n_heads hidden_dim pad_token_id max_position_embeddings"),
    ),
    "mpnet": ("MPNetForMaskedLM", _bert_like),
    "modernbert": ("ModernBertForMaskedLM", _modernbert),
    "t5": ("T5ForConditionalGeneration", _t5),
    "llama": ("LlamaForCausalLM", _llama),
}
"""Architectures of `tiny_model`: the class of transformers, and a function that creates its configuration."""


def tiny_tokenizer(architecture: str, least: int = 0) -> Any:
    """Create a WordPiece tokenizer for the tiny collection's words, with the special tokens of an architecture."""
    import tokenizers
    import transformers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    text = f"{WORDS} {COUNTRIES}".replace("|", " ").replace("-", " ")
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


def temporary_folder() -> str:
    """Create a folder that is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="retrievalkit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def kit_models() -> dict[str, str]:
    """Return the tiny models that components are tested on, architecture -> folder: a BERT, a T5 and a decoder.

    Created once per process. Their vocabulary is larger than the part that poolers keep of it by default, and a prime,
    so that nothing divides it.
    """
    folder = temporary_folder()
    names = ("bert", "t5", "llama")
    return {name: tiny_model(f"{folder}/{name}", architecture=name, width=16, vocabulary=1409) for name in names}


@cache
def kit_reranker() -> str:
    """Return the folder of a tiny random cross-encoder; created once per process."""
    import transformers

    folder = temporary_folder()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        config = transformers.AutoConfig.from_pretrained(kit_models()["bert"], num_labels=1)
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    _save(model, transformers.AutoTokenizer.from_pretrained(kit_models()["bert"]), folder)
    return folder


def kit_encoder(model: str, needs: Needs | None = None, **options: Any) -> Encoder:
    """Return an encoder of a model, prepared for needs; created once per process."""
    key = (model, repr(needs), repr(options))
    if key not in _ENCODERS:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            encoder: Encoder = registry.create("encoder", "transformer", model, **options)
            if needs is not None:
                encoder.prepare(needs)
        _ENCODERS[key] = encoder.eval()
    return _ENCODERS[key]


_ENCODERS: dict[tuple[str, str, str], Encoder] = {}
