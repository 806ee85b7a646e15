"""A tiny model, a tiny collection and conformance checks: for the tests of plugin authors, and our own.

    from retrievalkit import testing

    def test_my_pooler_keeps_the_contract(tmp_path):
        testing.check_pooler("first_token", model=testing.tiny_model(tmp_path / "model"))

The checks ask what every component of a kind must do, whatever its method: padding, batch order and batch size change
nothing; saving and loading give equal vectors; gradients reach the encoder; an index finds what brute force finds.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievalkit import registry
from retrievalkit.contracts import LossValue, Needs, Pretrainer, Progress, Representation, Side, Text
from retrievalkit.data.corpus import Passage
from retrievalkit.data.spans import Document
from retrievalkit.errors import InputError, UnknownNameError, UnsupportedError
from retrievalkit.model.pretrained import quiet
from retrievalkit.score import scores
from retrievalkit.train.pretrain_tokens import Cutter

_CAPITALS = (
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

_WORDS = (
    "the seat of government is city people pay with and language that spoken most it number this list what capital "
    "which currency do use in"
)


@dataclass(frozen=True)
class Collection:
    """Where the parts of a collection in BEIR form lie."""

    folder: Path
    corpus: Path
    queries: Path
    qrels: Path


def tiny_collection(folder: str | Path) -> Collection:
    """Write a collection of 42 passages (countries) and 126 questions, in BEIR form.

    Two thirds of the questions are in `qrels/train.tsv`, the rest in `qrels/test.tsv`.
    """
    folder = Path(folder)
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    passages: list[dict[str, Any]] = []
    queries: list[dict[str, Any]] = []
    train: list[str] = []
    test: list[str] = []
    for row, line in enumerate(_CAPITALS.split("|")):
        country, capital, currency, language = (word.replace("-", " ") for word in line.split())
        text = (
            f"The seat of government is the city of {capital}. People pay with the {currency}, and the language that "
            f"is spoken most is {language}. It is number {row + 1} of this list."
        )
        passages.append({"_id": f"c{row}", "title": country, "text": text})
        asked = (
            f"what is the capital of {country}",
            f"which currency do people use in {country}",
            f"what language is spoken in {country}",
        )
        for number, question in enumerate(asked):
            queries.append(
                {"_id": f"q{row}-{number}", "text": question, "answers": [(capital, currency, language)[number]]}
            )
            (test if (row + number) % 3 == 0 else train).append(f"q{row}-{number}\tc{row}\t1")
    _write_jsonl(folder / "corpus.jsonl", passages)
    _write_jsonl(folder / "queries.jsonl", queries)
    for name, rows in (("train", train), ("test", test)):
        (folder / "qrels" / f"{name}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return Collection(folder, folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / "test.tsv")


def _write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def tiny_model(
    folder: str | Path, *, architecture: str = "bert", layers: int = 2, width: int = 32, seed: int = 0
) -> str:
    """Write a tiny random model with a tokenizer over the tiny collection's words; returns the folder.

    Args:
        folder: Where to write.
        architecture: "bert", "roberta", "distilbert", "mpnet" or "modernbert" (masked language models, with their
            vocabulary head), "t5" (an encoder-decoder) or "llama" (decoder-only, without [CLS] and [SEP]).
        layers: Number of layers.
        width: Hidden size, a multiple of 4.
        seed: Of the weights.

    Raises:
        UnknownNameError: There is no such architecture here.
    """
    import transformers

    if architecture not in ARCHITECTURES:
        raise UnknownNameError("architecture", architecture, ARCHITECTURES)
    folder = Path(folder)
    tokenizer = _tiny_tokenizer(architecture)
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


def _tiny_tokenizer(architecture: str) -> Any:
    import tokenizers
    import transformers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    text = f"{_WORDS} {_CAPITALS}".replace("|", " ").replace("-", " ")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"[unused{number}]" for number in range(16))]
    letters = [prefix + one for prefix in ("", "##") for one in "abcdefghijklmnopqrstuvwxyz0123456789"]
    known = [*special, *letters, ".", ",", *sorted(set(text.lower().split()))]
    vocabulary = {token: row for row, token in enumerate(dict.fromkeys(known))}
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


_TEXTS: tuple[Text, ...] = (
    ("", "what is the capital of france"),
    ("Peru", "The seat of government is the city of Lima."),
    ("", "rome"),
    ("", "which language is spoken in iceland and which currency do people use in the city"),
)


def check_pooler(name: str, *, model: str, **options: Any) -> None:
    """Check that a pooler keeps the contract, with a model that has what it needs.

    Raises:
        AssertionError: Says what it does wrong.
    """
    from retrievalkit.model.retriever import Retriever

    retriever = Retriever.create(model, pooler=name, pooler_options=options).to("cpu").eval()
    side: Side
    for side in ("query", "document"):
        whole = _encode(retriever, _TEXTS, side)
        assert len(whole) == len(_TEXTS), f"{side}: {len(whole)} rows for {len(_TEXTS)} texts"
        assert _values(whole).isfinite().all(), f"{side}: some values are not finite"
        backwards = _encode(retriever, _TEXTS[::-1], side)
        for row, text in enumerate(_TEXTS):
            one, mirrored = whole.rows(slice(row, row + 1)), len(_TEXTS) - 1 - row
            alone = _encode(retriever, [text], side)
            _assert_equal(one, alone, f"{side}: padding or batch size changes the vectors")
            same = backwards.rows(slice(mirrored, mirrored + 1))
            _assert_equal(one, same, f"{side}: the order of the batch changes the vectors")
    _check_saving(retriever)
    _check_gradient(retriever)


def _encode(retriever: Any, texts: Sequence[Text], side: Side) -> Representation:
    # In bf16 the rounding differs with the shape of a batch.
    representation: Representation = retriever.encode(texts, side, precision="fp32")
    return representation


def _check_saving(retriever: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # So that what is not stored is found missing: a loaded pooler may start as this one did.
        with torch.no_grad():
            for parameter in retriever.pooler.parameters():
                parameter += 1.0
        retriever.save(folder)
        loaded = type(retriever).load(folder, device="cpu")
    side: Side
    for side in ("query", "document"):
        before, after = _encode(retriever, _TEXTS, side), _encode(loaded, _TEXTS, side)
        _assert_equal(before, after, f"{side}: saving and loading change the vectors")


def _check_gradient(retriever: Any) -> None:
    retriever.train()
    tower = retriever.tower("document")
    side: Side
    total = torch.zeros(())
    for side in ("query", "document"):
        batch = tower.collate(tower.tokenize(_TEXTS, side), side)
        representation = retriever(batch, side)
        for tensor in (representation.vectors, representation.weights):
            if tensor is not None:
                total = total + tensor.float().sum()
    assert total.requires_grad, "no gradient reaches the encoder"
    torch.autograd.backward(total)
    reached = [parameter for parameter in tower.parameters() if parameter.grad is not None]
    assert reached, "no gradient reaches the encoder"
    retriever.zero_grad()
    retriever.eval()


def check_loss(name: str, *, kept: int | None = None, parts: Mapping[str, slice] | None = None, **options: Any) -> None:
    """Check that a loss keeps the contract on random representations of two vectors (of size 8) a document.

    One that needs a teacher is given its scores for each query's own passages.

    Args:
        name: Registered name of the loss.
        kept: `Representation.kept` of the documents, for a loss that wants it.
        parts: `Representation.parts` of both sides, for a loss that wants them.
        options: Of the loss.

    Raises:
        AssertionError: Says what it does wrong.
    """
    loss = registry.create("loss", name, **options)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 1, 8, generator=generator, requires_grad=True)
    documents = torch.randn(6, 2, 8, generator=generator, requires_grad=True)
    positives = torch.tensor([0, 2, 4])
    scored = _own_scores(positives, 6, generator) if loss.needs_teacher else None

    def value(order: Sequence[int] = (0, 1, 2), ignore: torch.Tensor | None = None, **changes: Any) -> torch.Tensor:
        rows = torch.tensor(order)
        compared = {"vectors": documents, "kept": kept, "parts": parts} | changes
        right = positives[rows] + compared.pop("moved", 0)
        asked = Representation(queries[rows], parts=parts)
        teacher = compared.pop("teacher", scored)
        teacher = teacher if teacher is None else teacher[rows]
        made = loss(asked, Representation(**compared), right, Progress(0, 0.0, 10), ignore, teacher)
        total: torch.Tensor = made.total
        return total

    total = value()
    assert total.dim() == 0, f"the total has shape {tuple(total.shape)}, and must be a scalar"
    assert torch.isfinite(total), f"the total is {total.item()}"
    torch.testing.assert_close(value([2, 0, 1]), total, msg="the order of queries changes the loss")
    if scored is None:
        assert value(moved=1) != total, "`positives` has no effect"
        ignore = torch.zeros(3, 6, dtype=torch.bool)
        ignore[0, 1] = True
        assert value(ignore=ignore) != total, "`ignore` has no effect"
    else:
        # It may learn from the teacher alone, who says which passages are good.
        assert value(teacher=scored * torch.tensor([1.0, 2.0]).repeat(3)) != total, "`teacher` has no effect"
        assert _refuses(lambda: value(teacher=None)), "without a teacher it does not say what is missing (InputError)"
    padded = torch.cat([documents, torch.full((6, 1, 8), 100.0)], dim=1)
    mask = torch.tensor([True, True, False]).expand(6, 3)
    masked = value(vectors=padded, vector_mask=mask)
    torch.testing.assert_close(masked, total, msg="vectors that are masked change the loss")
    assert total.requires_grad, "no gradient reaches the representations"
    torch.autograd.backward(total)
    assert queries.grad is not None, "no gradient reaches the queries"
    assert documents.grad is not None, "no gradient reaches the documents"


def _own_scores(positives: torch.Tensor, documents: int, generator: torch.Generator) -> torch.Tensor:
    """(Q, documents): a teacher's scores for each query's positive and for the document after it, otherwise NaN."""
    teacher = torch.full((len(positives), documents), float("nan"))
    own = torch.stack([positives, positives + 1], dim=1)
    return teacher.scatter(1, own, torch.randn(own.shape, generator=generator))


def _refuses(work: Callable[[], object]) -> bool:
    try:
        work()
    except InputError:
        return True
    return False


def check_indexer(name: str, folder: str | Path, **options: Any) -> None:
    """Check that an indexer of vectors finds what brute force finds, and scores given texts as it does.

    It is given one vector a text, or where it refuses that (UnsupportedError), weights, or both.

    Raises:
        AssertionError: Says what it does wrong.
    """
    refused = []
    for kind, (documents, queries) in _collections().items():
        try:
            _check_index(name, Path(folder) / kind, documents, queries, options)
        except UnsupportedError as error:
            refused.append(f"{kind}: {error}")
        else:
            return
    msg = f"it indexes neither vectors nor weights. {' '.join(refused)}"
    raise AssertionError(msg)


def _collections() -> dict[str, tuple[Representation, Representation]]:
    """50 documents and 4 queries each: vectors, weights, both.

    Weights are multiples of 1/255 and at most 1, so that an index that rounds them to 8 bits loses nothing.
    """
    random = np.random.default_rng(0)
    vectors = [torch.from_numpy(random.standard_normal((rows, 1, 16), dtype=np.float32)) for rows in (50, 4)]
    drawn = [random.integers(0, 256, (rows, 30)) for rows in (50, 4)]
    weights = [torch.from_numpy((one * (one > 127) / 255).astype(np.float32)) for one in drawn]
    return {
        "vectors": (Representation(vectors[0]), Representation(vectors[1])),
        "weights": (Representation(weights=weights[0]), Representation(weights=weights[1])),
        "both": (Representation(vectors[0], weights=weights[0]), Representation(vectors[1], weights=weights[1])),
    }


def _check_index(
    name: str, folder: Path, documents: Representation, queries: Representation, options: Mapping[str, Any]
) -> None:
    import scipy.sparse

    from retrievalkit.data.vectors import VectorStore, VectorWriter

    (folder / "vectors").mkdir(parents=True)
    (folder / "index").mkdir()
    writer = VectorWriter(folder / "vectors")
    names = [f"t{row}" for row in range(len(documents))]
    vectors = None if documents.vectors is None else documents.vectors.numpy()
    weights = None if documents.weights is None else scipy.sparse.csr_matrix(documents.weights.numpy())
    writer.write_shard(0, names, vectors, weights=weights)
    writer.finish()
    registry.create("indexer", name, **options).build(VectorStore(folder / "vectors"), folder / "index")
    indexer = registry.create("indexer", name, **options)
    indexer.open(folder / "index")
    ids, found = indexer.search(queries, 5)
    all_scores = scores(queries, documents)
    expected = all_scores.topk(5)
    for row, texts in enumerate(_rows(expected.indices)):
        assert list(ids[row]) == [names[text] for text in texts], f"query {row}: {ids[row]} is not the exact top 5"
        np.testing.assert_allclose(found[row], expected.values[row].numpy(), rtol=1e-4, atol=1e-5)
    beyond, _ = indexer.search(queries, 2 * len(names))
    assert all(len(set(row)) == len(row) <= len(names) for row in beyond), "with a large k it finds a text twice"
    try:
        given = indexer.scores(queries, [[*names, "nobody"]] * len(queries))
    except UnsupportedError:
        return
    for row, values in enumerate(given):
        np.testing.assert_allclose(values[:-1], all_scores[row].numpy(), rtol=1e-4, atol=1e-5)
        assert np.isnan(values[-1]), "a text that is not in the index has a score, and should have NaN"


def check_pretrainer(name: str, *, model: str, max_length: int = 24, **options: Any) -> None:
    """Check that a pretrainer keeps the contract, on documents of some twenty sentences.

    Args:
        name: Registered name of the pretrainer.
        model: A model that has what it needs.
        max_length: Most tokens of a text.
        options: Of the pretrainer.

    Raises:
        AssertionError: Says what it does wrong.
    """
    needs = registry.get("pretrainer", name).needs  # type: ignore[attr-defined]
    encoder = registry.create("encoder", "transformer", model, document_length=max_length, new_vocabulary_head=True)
    encoder.prepare(needs)
    made: Pretrainer = registry.create("pretrainer", name, encoder, max_length, **options)
    places = _check_samples(made)

    def batch(count: int = 4) -> Mapping[str, Any]:
        source = random.Random(0)
        return made.collate([made.sample(*place, source) for place in places[:count]], source)

    def loss(values: Mapping[str, Any]) -> LossValue:
        torch.manual_seed(0)
        value: LossValue = made(values, Progress(0, 0.0, 10))
        return value

    first, again = batch(), batch()
    for one in first:
        assert hasattr(first[one], "to"), f"'{one}' of a batch is no tensor and no Batch"
        message = f"'{one}' of a batch differs with the same generator: draw from the one that is handed over"
        torch.testing.assert_close(_tensors(first[one]), _tensors(again[one]), msg=message)
    made.eval()
    value = loss(first)
    for term, number in {**value.terms, "total": value.total}.items():
        assert number.dim() == 0, f"the {term} has shape {tuple(number.shape)}, and must be a scalar"
        assert torch.isfinite(number), f"the {term} is {number.item()}"
    torch.testing.assert_close(loss(first).total, value.total, msg="the loss is another one the second time")
    assert torch.isfinite(loss(batch(1)).total), "the loss of a single sample is not finite"
    assert value.total.requires_grad, "no gradient reaches the encoder"
    torch.autograd.backward(value.total)
    assert any(one.grad is not None for one in encoder.parameters()), "no gradient reaches the encoder"
    _check_saved_encoder(made, needs)


def _check_samples(made: Pretrainer) -> list[tuple[Document, int]]:
    """The places of all samples of some documents."""
    countries = [line.replace("-", " ") for line in _CAPITALS.split("|")]
    passages = [
        Passage(str(row), "", " ".join(f"{one}. The city is {one}." for one in countries[row : row + 10]))
        for row in range(4)
    ]
    cutter = Cutter(made.vocabulary, made.max_length)
    documents = list(cutter.cut(0, passages))
    counts = [made.samples(document) for document in documents]
    assert counts == [made.samples(document) for document in documents], "the number of samples is not always the same"
    assert min(counts) > 0, "a document of twenty sentences gives no sample"
    (empty,) = cutter.cut(0, [Passage("empty", "", "")])
    assert made.samples(empty) == 0, "a document without text gives a sample"
    return [(document, number) for document, count in zip(documents, counts, strict=True) for number in range(count)]


def _check_saved_encoder(made: Pretrainer, needs: Needs) -> None:
    encoder = made.encoder.eval()
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder))
        # Without `new_vocabulary_head`: the head has to be there.
        loaded = registry.create("encoder", "transformer", folder)
        loaded.prepare(needs)
    batch = encoder.collate([made.vocabulary.wrap(made.vocabulary.ordinary[-8:])], "document")
    states = [one.eval()(batch, [one.info.layers]) for one in (encoder, loaded)]
    torch.testing.assert_close(*(one.last for one in states), msg="saving and loading change the encoder")
    if needs.vocabulary_head:
        logits = [one.head(one.last) for one in states]
        torch.testing.assert_close(*logits, msg="saving and loading change the vocabulary head")


def _tensors(value: Any) -> dict[str, torch.Tensor]:
    fields = {"": value} if isinstance(value, torch.Tensor) else vars(value)
    return {name: one for name, one in fields.items() if isinstance(one, torch.Tensor)}


def _rows(indices: torch.Tensor) -> Iterator[list[int]]:
    yield from indices.tolist()


def _values(representation: Representation) -> torch.Tensor:
    """All values, masked vectors left out."""
    vectors, mask, weights = representation.vectors, representation.vector_mask, representation.weights
    parts = [] if vectors is None else [vectors if mask is None else vectors[mask]]
    parts += [] if weights is None else [weights]
    return torch.cat([part.reshape(-1) for part in parts])


def _assert_equal(one: Representation, other: Representation, message: str) -> None:
    """Equal up to the rounding of another batch shape."""
    torch.testing.assert_close(_values(one), _values(other), rtol=1e-4, atol=1e-5, msg=message)
