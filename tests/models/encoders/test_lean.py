"""The encoder without transformers: it gives what the usual one gives, and only for models of which all is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from retrievalkit.contracts import ExtraTokens, Needs
from retrievalkit.errors import ArtifactError, InputError, UnsupportedError
from retrievalkit.models.encoders.lean import LeanTransformer
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.models.precision import autocast
from retrievalkit.models.retriever import Retriever
from retrievalkit.reporting import notices

TEXTS = [
    ("", "what is the capital of france"),
    ("France", "The seat of government is Paris."),
    ("", ""),
    ("", "Élan VITAL, naïve [SEP] [MASK] 東京 \u200b\u0000 ²"),
    ("list of " * 40, "number " * 400),
    ("", "x" * 300),
]
CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"


@pytest.fixture
def model(model_of, tmp_path):
    """A copy of a tiny BERT with its vocabulary head, to be altered."""
    shutil.copytree(model_of("bert"), tmp_path / "model")
    return tmp_path / "model"


def alter(file, change):
    """Apply a function to the value in a JSON file."""
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def pair(model, needs=None, **options):
    """The lean encoder and the usual one."""
    made = Transformer.lean(model, **options), Transformer(model, **options)
    for encoder in made:
        torch.manual_seed(0)
        encoder.prepare(needs or Needs())
        encoder.eval()
    return made


def states(encoder, side, precision):
    batch = encoder.collate(encoder.tokenize(TEXTS, side), side)
    with torch.inference_mode(), autocast(precision, CPU):
        return encoder(batch, range(encoder.info.layers + 1)).layers


def assert_close(found, expected, precision="fp32"):
    """The operations are the same; where memory lies may decide the last bit of a product on some processors."""
    tolerance = 1e-6 if precision == "fp32" else 0.02
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def assert_equal(lean, usual, precision="fp32"):
    assert isinstance(lean, LeanTransformer)
    for side in ("query", "document"):
        assert lean.tokenize(TEXTS, side) == usual.tokenize(TEXTS, side)
        found, expected = states(lean, side, precision), states(usual, side, precision)
        assert found.keys() == expected.keys()
        for layer in expected:
            assert_close(found[layer], expected[layer], precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("title", ["pair", "space"])
def test_tokens_and_states_of_all_layers_are_those_of_transformers(model, precision, title):
    assert_equal(*pair(model, title=title, query_prefix="query: "), precision)


def test_a_trained_checkpoint_is_lean(model, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    Retriever.create(model, pooler="mean", separate_towers=True).save(folder)
    lean, usual = Retriever.load(folder, "cpu", lean=True), Retriever.load(folder, "cpu")
    for side in ("query", "document"):
        assert type(lean.tower(side)) is LeanTransformer
        assert type(usual.tower(side)) is Transformer
        assert_close(lean.encode(TEXTS, side).vectors, usual.encode(TEXTS, side).vectors)
    assert (lean.fingerprint, lean.description) == (usual.fingerprint, usual.description)


def test_cut_texts_are_counted_alike(model, capsys):
    told = []
    for encoder in pair(model):
        with notices.collected():
            encoder.tokenize(TEXTS, "document")
        told.append(capsys.readouterr().err)
    assert told[0] == told[1]
    assert "1 document text had more than" in told[0]


@pytest.mark.parametrize("source", ["new", "unused"])
def test_extra_tokens_are_seen_alike(model, tmp_path, source):
    needs = Needs(extra_tokens={"document": ExtraTokens(3, source=source), "query": ExtraTokens(2, source=source)})
    trained, saved = Transformer(model), tmp_path / "saved"
    trained.prepare(needs)
    trained.save(saved)
    lean, usual = pair(saved, needs)
    assert not isinstance(lean.model, type(usual.model))
    assert_equal(lean, usual)


def test_random_embeddings_of_extra_tokens_are_those_of_the_usual_encoder(model):
    """They depend on what was drawn before: an index of an untrained model must be searched with the same."""
    lean, usual = pair(model, Needs(extra_tokens={"document": ExtraTokens(3)}))
    assert torch.equal(lean.extra.new, usual.extra.new)


def test_names_of_tokens_are_alike(model):
    lean, usual = pair(model)
    ids = range(len(usual.tokenizer) + 2)
    assert lean.tokens(ids) == usual.tokens(ids)
    assert lean.token_ids(["paris", ".", "zzz"]) == usual.token_ids(["paris", ".", "zzz"])


def test_a_vocabulary_head_is_left_to_transformers(model):
    lean, usual = pair(model, Needs(vocabulary_head=True))
    batch = usual.collate(usual.tokenize(TEXTS, "query"), "query")
    heads = [one(batch, [2]) for one in (lean, usual)]
    assert_close(*(found.head(found.last) for found in heads))


def test_cased_text_is_kept_where_all_files_say_so(model):
    alter(model / "tokenizer.json", lambda value: value["normalizer"].update(lowercase=False))
    assert type(Transformer.lean(model)) is Transformer, "tokenizer_config.json does not say so"
    alter(model / "tokenizer_config.json", lambda value: value.update(do_lower_case=False))
    assert_equal(*pair(model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_weights_are_widened(model, dtype):
    weights = {name: tensor.to(dtype) for name, tensor in load_file(model / WEIGHTS).items()}
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    assert_equal(*pair(model))


def test_weights_under_the_names_of_tensorflow_are_found(model):
    """As in the files of BERT itself, whose norms have "gamma" and "beta"."""
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = {}
    for number, (name, tensor) in enumerate(load_file(model / WEIGHTS).items()):
        for new, before in old.items():
            name = name.replace(new, before)
        weights[name] = tensor + 0.01 * number if "LayerNorm" in name else tensor
    assert any(name.endswith("gamma") for name in weights)
    save_file(weights, model / WEIGHTS, {"format": "pt"})
    assert_equal(*pair(model))


def entry(file, **entries):
    return lambda folder: alter(folder / file, lambda value: value.update(entries))


def tokenizer_part(part, **entries):
    return lambda folder: alter(folder / "tokenizer.json", lambda value: value[part].update(entries))


def renamed(old, new):
    def change(folder):
        weights = {name.replace(old, new): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
        save_file(weights, folder / WEIGHTS, {"format": "pt"})

    return change


UNKNOWN = {
    "size": entry("config.json", intermediate_size=32),
    "activation": entry("config.json", hidden_act="relu"),
    "entry": entry("config.json", something_new=1),
    "type": entry("config.json", layer_norm_eps=1),
    "tokenizer's entry": entry("tokenizer_config.json", something_new=1),
    "tokenizer's side": entry("tokenizer_config.json", truncation_side="left"),
    "tokenizer's class": entry("tokenizer_config.json", tokenizer_class="RobertaTokenizer"),
    "more special tokens": entry("tokenizer_config.json", additional_special_tokens=["[unused3]"]),
    "normalizer": tokenizer_part("normalizer", strip_accents=True),
    "longest word": tokenizer_part("model", max_input_chars_per_word=8),
    "added tokens": lambda folder: (folder / "added_tokens.json").write_text("{}"),
    "adapters": lambda folder: (folder / "adapter_config.json").write_text("{}"),
    "names of norms": renamed("LayerNorm.weight", "LayerNorm.gamma"),
    "prefix of names": renamed("bert.", "model.bert."),
}


@pytest.mark.parametrize("change", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_what_is_not_known_is_left_to_transformers(model, change):
    change(model)
    try:
        made = Transformer.lean(model)
    except InputError:
        return  # of transformers
    assert type(made) is Transformer


def test_other_models_options_and_kinds_are_left_to_transformers(model, model_of):
    for architecture in ("roberta", "distilbert", "mpnet", "t5", "llama"):
        assert type(Transformer.lean(model_of(architecture))) is Transformer
    for options in ({"lora_rank": 2}, {"dropout": 0.0}, {"attention": "eager"}):
        assert type(Transformer.lean(model, **options)) is Transformer

    class Own(Transformer):
        pass

    assert type(Own.lean(model)) is Own


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", WEIGHTS])
def test_damage_is_told_as_ever(model, file):
    (model / file).write_bytes((model / file).read_bytes()[:-40])
    messages = []
    for make in (Transformer, Transformer.lean):
        with pytest.raises((InputError, ArtifactError)) as caught:
            make(model).prepare(Needs())
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_it_is_not_saved(model, tmp_path):
    lean, _ = pair(model)
    with pytest.raises(UnsupportedError, match="loaded to encode only"):
        lean.save(tmp_path)
    assert not list(Path(tmp_path).glob("*.safetensors"))
