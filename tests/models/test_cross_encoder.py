"""Cross-encoders: scores equal to those of transformers, new heads, labels, lengths, and refused models."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
import transformers
from safetensors.torch import load_file, save_file

from device_memory import DeviceMemory
from retrievalkit import storage
from retrievalkit.data.corpus import open_corpus
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.models.pretrained import quiet

ARCHITECTURES = ("bert", "roberta", "distilbert", "mpnet", "modernbert")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Architecture -> the folder of a tiny encoder; BERT's has token types, like the real BERT."""
    folders = {}
    for architecture in ARCHITECTURES:
        folders[architecture] = testing.tiny_model(tmp_path_factory.mktemp(architecture), architecture=architecture)
    edit(folders["bert"], "tokenizer_config.json", model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    return folders


def edit(folder, name, **changes):
    path = f"{folder}/{name}"
    with open(path) as stream:
        content = json.load(stream)
    with open(path, "w") as stream:
        json.dump(content | changes, stream)


@pytest.fixture(scope="module")
def rerankers(models, tmp_path_factory):
    """Architecture -> a re-ranker whose scores differ clearly."""
    folders = {}
    for architecture, folder in models.items():
        reranker = CrossEncoder.create(folder, max_length=40)
        with torch.no_grad():
            for name, parameter in reranker.named_parameters():
                if any(part in name for part in ("classifier", "pooler", "head")):
                    # Independent of other tests, which use torch's generator.
                    parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(7))
                elif parameter.dim() == 2:
                    # The output of a random model hardly depends on its input.
                    parameter.mul_(5)
        folders[architecture] = tmp_path_factory.mktemp(f"{architecture}-reranker")
        reranker.save(folders[architecture])
    return folders


@pytest.fixture(scope="module")
def texts(tiny_collection):
    """Queries and passages of many lengths, one without a title, some to be truncated."""
    passages = [(passage.title, passage.text) for passage in open_corpus(tiny_collection.corpus)][:14]
    passages = [(title, text[: 10 * (row + 1)]) for row, (title, text) in enumerate(passages)]
    passages[3] = ("", "lima")
    passages[5] = (passages[5][0], " ".join([passages[5][1]] * 4))
    queries = ["what is the capital of Peru " * (1 + row % 3) for row in range(len(passages))]
    return queries, passages


def plain_scores(folder, queries, passages):
    """Compute the logits with transformers, a pair at a time."""
    with quiet():
        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    logits = []
    for query, (title, text) in zip(queries, passages, strict=True):
        passage = f"{title} {text}" if title else text
        inputs = tokenizer(query, passage, truncation=True, max_length=40, return_tensors="pt")
        with torch.inference_mode():
            logits.append(model(**inputs).logits[0])
    return torch.stack(logits).numpy()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("batch_tokens", [60, 4096])
def test_scores_equal_those_of_transformers(rerankers, texts, architecture, batch_tokens):
    expected = plain_scores(rerankers[architecture], *texts)[:, 0]
    assert np.ptp(expected) > 0.01
    model = CrossEncoder.load(rerankers[architecture])
    scores = model.score(model.tokenize(*texts), batch_tokens=batch_tokens, precision="fp32")
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_the_new_head_depends_on_the_seed(models, architecture):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, other, again = (CrossEncoder.create(models[architecture], seed=seed).state_dict() for seed in (1, 2, 1))
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers stay as they are"
    differ = {name for name, tensor in first.items() if not torch.equal(tensor, other[name])}
    assert differ
    assert all("classifier" in name or "pooler" in name for name in differ)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


def two_labels(source, folder, names=None):
    """Write a cross-encoder with a label for each name."""
    with quiet():
        config = transformers.AutoConfig.from_pretrained(source, num_labels=len(names or "ab"))
        if names:
            config.id2label = dict(enumerate(names))
        torch.manual_seed(0)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(source, config=config)
        with torch.no_grad():
            model.classifier.weight.normal_()
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("names", [None, ["irrelevant", "Relevant"], ["no", "yes"]])
def test_the_second_of_two_labels_means_relevant(models, texts, tmp_path, names):
    folder = two_labels(models["bert"], tmp_path / "two", names)
    logits = plain_scores(folder, *texts)
    model = CrossEncoder.load(folder, max_length=40)
    scores = model.score(model.tokenize(*texts), precision="fp32")
    np.testing.assert_allclose(scores, logits[:, 1] - logits[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("names", [["entailment", "not_entailment"], ["a", "b", "c"]])
def test_other_labels_are_refused_by_name(models, tmp_path, names):
    folder = two_labels(models["bert"], tmp_path / "labels", names)
    with pytest.raises(UnsupportedError, match=rf"has {len(names)} labels \({', '.join(names)}\)"):
        CrossEncoder.load(folder)


def test_maximum_lengths(rerankers, models):
    assert CrossEncoder.load(rerankers["bert"]).max_length == 40
    assert CrossEncoder.create(models["bert"]).max_length == 128
    # RoBERTa's positions start after the padding id.
    assert CrossEncoder.create(models["roberta"]).max_length == 127
    with pytest.raises(UnsupportedError, match=r"max_length is 128, and .* takes 5 to 127 tokens"):
        CrossEncoder.create(models["roberta"], max_length=128)
    with pytest.raises(UnsupportedError, match="max_length is 4"):
        CrossEncoder.create(models["bert"], max_length=4)


LAYER = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("change", "make", "message"),
    [
        (lambda weights: weights.pop(LAYER), CrossEncoder.create, rf"lack 1 tensors .* '{LAYER}'"),
        (lambda weights: weights["classifier.bias"].fill_(math.nan), CrossEncoder.load, "'classifier.bias' holds NaN"),
        (lambda weights: weights.pop("classifier.bias"), CrossEncoder.load, "is not a re-ranker: its weights lack the"),
    ],
)
def test_damaged_weights_are_refused(rerankers, tmp_path, change, make, message):
    shutil.copytree(rerankers["bert"], tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=message):
        make(tmp_path / "model")


def test_a_model_with_too_few_embeddings_is_refused(models, tmp_path):
    shutil.copytree(models["bert"], tmp_path / "small")
    weights = load_file(tmp_path / "small" / "model.safetensors")
    weights = {name: tensor[:20].clone() if len(tensor) > 128 else tensor for name, tensor in weights.items()}
    save_file(weights, tmp_path / "small" / "model.safetensors", metadata={"format": "pt"})
    edit(tmp_path / "small", "config.json", vocab_size=20)
    with pytest.raises(InputError, match=r"produces token ids up to \d+, and the model has 20 embeddings"):
        CrossEncoder.create(tmp_path / "small")


@pytest.mark.parametrize("kind", ["checkpoint", "vectors", "index"])
@pytest.mark.parametrize("make", [CrossEncoder.create, CrossEncoder.load])
def test_folders_of_other_kinds_are_refused(tmp_path, make, kind):
    (tmp_path / "folder" / "encoder").mkdir(parents=True)
    storage.write_manifest(tmp_path / "folder", kind, command="train", options={})
    with pytest.raises(InputError, match="is a retriever" if kind == "checkpoint" else "not a model"):
        make(tmp_path / "folder")


def test_a_tokenizer_without_a_padding_token_is_refused(tmp_path):
    testing.tiny_model(tmp_path / "model")
    edit(tmp_path / "model", "tokenizer_config.json", pad_token=None)
    with pytest.raises(UnsupportedError, match=r"no padding token.*Choose another model"):
        CrossEncoder.create(tmp_path / "model")


def test_a_decoder_without_padding_token_uses_the_tokenizers(tmp_path):
    testing.tiny_model(tmp_path / "model", architecture="llama")
    edit(tmp_path / "model", "config.json", pad_token_id=None)
    reranker = CrossEncoder.create(tmp_path / "model")
    pairs = reranker.tokenize(["rome", "what is the capital of peru"], [("", "lima"), ("", "people pay with the peso")])
    alone = [reranker.score([pair])[0] for pair in pairs]
    np.testing.assert_allclose(reranker.score(pairs), alone, rtol=1e-4, atol=1e-5)


def test_smaller_batches_have_equal_scores_when_memory_runs_out(rerankers):
    reranker = CrossEncoder.load(rerankers["roberta"])
    pairs = reranker.tokenize(["what is the capital of peru"] * 20, [("Peru", "lima " * count) for count in range(20)])
    expected, memory, counted = reranker.score(pairs), DeviceMemory(100), []
    memory.limit(reranker.model)
    np.testing.assert_allclose(reranker.score(pairs, advance=counted.append), expected, rtol=1e-4, atol=1e-5)
    assert sum(counted) == len(pairs)
    assert reranker.limit.reduced <= 100
