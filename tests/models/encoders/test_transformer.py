"""The encoder `transformer`: token ids, lengths, titles, prefixes, layers, saving and loading."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from retrievalkit import registry
from retrievalkit.contracts import Needs
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.models.pretrained import quiet
from retrievalkit.models.retriever import Retriever

LAYERS = 2
TEXTS = [("", "what is the capital of france"), ("Peru", "The seat of government is the city of Lima."), ("", "rome")]
EVERY = ("bert", "t5", "distilbert", "llama", "roberta", "mpnet", "modernbert")


@pytest.fixture
def encoder_of(tiny_model):
    """Function that returns an encoder, prepared for a pooler, in eval mode."""

    def make(model=tiny_model, needs=None, **options):
        encoder = registry.create("encoder", "transformer", model, **options)
        encoder.prepare(needs or Needs())
        return encoder.eval()

    return make


def words(encoder, ids):
    return encoder.tokenizer.convert_ids_to_tokens(list(ids))


@pytest.mark.parametrize("architecture", EVERY)
def test_layers_are_numbered_like_the_models_hidden_states(model_of, encoder_of, architecture):
    """0 = embeddings, L = the output of the model."""
    encoder = encoder_of(model_of(architecture))
    assert (encoder.info.width, encoder.info.layers) == (32, LAYERS)
    batch = encoder.collate(encoder.tokenize(TEXTS, "document"), "document")
    with torch.inference_mode():
        states = encoder(batch, range(LAYERS + 1))
        model_class = transformers.T5EncoderModel if architecture == "t5" else transformers.AutoModel
        with quiet():
            model = model_class.from_pretrained(model_of(architecture)).eval()
        expected = model(batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True)
    real = batch.attention_mask.bool()
    assert len(expected.hidden_states) == LAYERS + 1
    for layer in range(LAYERS):
        torch.testing.assert_close(states.layers[layer][real], expected.hidden_states[layer][real])
    torch.testing.assert_close(states.last[real], expected.last_hidden_state[real])
    assert states.last.shape == (3, batch.input_ids.shape[1], 32)


@pytest.mark.parametrize("architecture", EVERY)
def test_the_longest_supported_text_is_encoded(model_of, encoder_of, architecture):
    """RoBERTa's and MPNet's limits are lower than configured: their positions start after the padding id."""
    limit = {"t5": 200, "roberta": 127, "mpnet": 126}.get(architecture, 128)
    encoder = encoder_of(model_of(architecture), document_length=limit)
    (ids,) = encoder.tokenize([("", "city " * 300)], "document")
    assert len(ids) == limit
    assert encoder(encoder.collate([ids], "document"), [LAYERS]).last.shape == (1, limit, 32)
    if architecture != "t5":
        with pytest.raises(UnsupportedError, match=rf"document_length is {limit + 1}, .* takes 3 to {limit} tokens"):
            encoder_of(model_of(architecture), document_length=limit + 1)


def test_weights_are_loaded_in_float32(encoder_of, tiny_model, tmp_path):
    with quiet():
        transformers.AutoModel.from_pretrained(tiny_model).bfloat16().save_pretrained(tmp_path)
        transformers.AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path)
    assert {parameter.dtype for parameter in encoder_of(tmp_path).parameters()} == {torch.float32}


def test_the_option_attention_selects_the_implementation(encoder_of):
    assert encoder_of(attention="eager").model.config._attn_implementation == "eager"
    assert encoder_of().model.config._attn_implementation != "eager"
    with pytest.raises(InputError, match="nonesuch"):
        encoder_of(attention="nonesuch")


@pytest.mark.parametrize(
    ("title", "expected"),
    [("pair", "[CLS] peru [SEP] lima [SEP]"), ("space", "[CLS] peru lima [SEP]"), ("none", "[CLS] lima [SEP]")],
)
def test_each_way_to_encode_a_title(encoder_of, title, expected):
    encoder = encoder_of(title=title)
    with_title, without = encoder.tokenize([("Peru", "Lima"), ("", "Lima")], "document")
    assert " ".join(words(encoder, with_title)) == expected
    assert " ".join(words(encoder, without)) == "[CLS] lima [SEP]"


def test_prefixes_of_each_side(encoder_of):
    encoder = encoder_of(query_prefix="what is ", document_prefix="this is ")
    (query,) = encoder.tokenize([("", "Lima")], "query")
    document, titled = encoder.tokenize([("", "Lima"), ("Peru", "Lima")], "document")
    assert words(encoder, query)[1:-1] == ["what", "is", "lima"]
    assert words(encoder, document)[1:-1] == ["this", "is", "lima"]
    assert words(encoder, titled)[1:-1] == ["this", "is", "peru", "[SEP]", "lima"]


def test_the_longer_of_title_and_text_is_truncated_first(encoder_of):
    encoder = encoder_of(document_length=7)
    (ids,) = encoder.tokenize([("city " * 20, "Lima")], "document")
    assert words(encoder, ids) == ["[CLS]", "city", "city", "city", "[SEP]", "lima", "[SEP]"]


def test_unknown_and_mask_tokens_are_not_special(encoder_of):
    encoder = encoder_of()
    ids = encoder.tokenizer.convert_tokens_to_ids(["[CLS]", "[UNK]", "[MASK]", "[SEP]"])
    batch = encoder.collate([ids, ids[:1]], "query")
    assert batch.special_mask.tolist() == [[True, False, False, True], [True, False, False, False]], "nor is padding"


def test_a_saved_encoder_does_not_depend_on_its_earlier_use(encoder_of, tmp_path):
    """Fast tokenizers would store the truncation of their last call."""
    for name, used in (("new", False), ("used", True)):
        encoder = encoder_of(query_length=5)
        if used:
            encoder.tokenize(TEXTS, "query")
        encoder.save(tmp_path / name)
    saved = [(tmp_path / name / "tokenizer.json").read_bytes() for name in ("new", "used")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("architecture", EVERY)
def test_a_saved_encoder_is_a_hugging_face_folder_with_equal_states(model_of, encoder_of, tmp_path, architecture):
    encoder = encoder_of(model_of(architecture))
    encoder.save(tmp_path)
    batch = encoder.collate(encoder.tokenize(TEXTS, "query"), "query")
    with torch.inference_mode():
        expected = encoder(batch, [LAYERS]).last
        assert torch.equal(encoder_of(tmp_path)(batch, [LAYERS]).last, expected)
        model_class = transformers.T5EncoderModel if architecture == "t5" else transformers.AutoModel
        with quiet():
            plain = model_class.from_pretrained(tmp_path).eval()
        states = plain(batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        torch.testing.assert_close(states[batch.attention_mask.bool()], expected[batch.attention_mask.bool()])
    assert "retrievalkit" not in (tmp_path / "config.json").read_text()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("lima")["input_ids"]


def copy_of(model, folder, without=(), **replaced):
    shutil.copytree(model, folder)
    for name in without:
        (folder / name).unlink()
    for name, content in replaced.items():
        (folder / name.replace("_json", ".json").replace("_safetensors", ".safetensors")).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"without": ["config.json"]},
        {"without": ["model.safetensors"]},
        {"config_json": b"{"},
        {"config_json": b"{}"},
        {"tokenizer_json": b"{"},
        {"model_safetensors": b"not weights"},
    ],
    ids=str,
)
def test_a_damaged_model_folder_is_reported_in_a_single_line(tiny_model, tmp_path, encoder_of, changes):
    folder = copy_of(tiny_model, tmp_path / "model", **changes)
    with pytest.raises(
        InputError, match=rf"cannot load the model '{folder}' from the folder: .|^'{folder}/config.json' is"
    ) as caught:
        encoder_of(folder)
    assert "\n" not in str(caught.value)


def test_weights_that_lack_tensors_are_refused(tiny_model, tmp_path, encoder_of):
    """Otherwise transformers would initialise them at random."""
    folder = copy_of(tiny_model, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lack 1 tensors .*'encoder\.layer\.1\.output\.dense\.weight'.*random"):
        encoder_of(folder)


@pytest.mark.parametrize(
    ("name", "noted"),
    [("embeddingHead.weight", True), ("norm.bias", True), ("cls.predictions.bias", False), ("linear.weight", False)],
)
def test_weights_that_no_layer_reads_are_noted(name, noted, tiny_model, tmp_path, encoder_of, capsys):
    """Such as the projection of ANCE; not the heads of pre-training."""
    folder = copy_of(tiny_model, tmp_path / "model")
    weights = load_file(folder / "model.safetensors") | {name: torch.ones(2)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    encoder_of(folder)
    assert (name in capsys.readouterr().err) == noted


@pytest.mark.parametrize("prefix", ["encoder.", "model.text.", "bert."])
def test_weights_with_a_prefix_in_their_names_are_loaded(prefix, tiny_model, tmp_path, encoder_of):
    """Checkpoints of methods often contain the model as a part."""
    folder = copy_of(tiny_model, tmp_path / "model")
    weights = {prefix + name: tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights["projection.weight"] = torch.ones(2, 2)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    expected = encoder_of(tiny_model).state_dict()
    loaded = encoder_of(folder).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_missing_tokenizer_is_refused(tiny_model, tmp_path, encoder_of):
    """Otherwise transformers would create an empty tokenizer, to which every word is unknown."""
    folder = copy_of(tiny_model, tmp_path / "model", without=["tokenizer.json", "tokenizer_config.json"])
    with pytest.raises(InputError, match=r"has 5 tokens and its model 2.. embeddings. They do not belong together"):
        encoder_of(folder)


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        *((name, {"dropout": 0.2}) for name in ("bert", "t5", "llama")),
        *((name, {"lora_rank": 2}) for name in EVERY if name != "mpnet"),
    ],
    ids=str,
)
def test_activation_checkpointing_has_equal_gradients(model_of, encoder_of, architecture, options):
    """With equal dropout in all layers, and less memory for activations."""
    gradients, kept = [], [0, 0]
    for checkpointed in (False, True):
        torch.manual_seed(0)
        encoder = encoder_of(model_of(architecture), checkpoint_activations=checkpointed, **options).train()

        def keep(value, place=int(checkpointed)):
            kept[place] += value.numel()
            return value

        batch = encoder.collate(encoder.tokenize(TEXTS, "document"), "document")
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            states = encoder(batch, [1, 2])
        sum((layer**2).sum() for layer in states.layers.values()).backward()
        gradients.append({name: weight.grad for name, weight in encoder.named_parameters() if weight.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])
    assert kept[1] < kept[0] / 2
    with torch.inference_mode():
        torch.testing.assert_close(
            encoder.eval()(batch, [2]).last, encoder_of(model_of(architecture), **options)(batch, [2]).last
        )


def test_activation_checkpointing_is_refused_for_unsupported_models(model_of, encoder_of):
    with pytest.raises(UnsupportedError, match="checkpoint_activations is set"):
        encoder_of(model_of("mpnet"), checkpoint_activations=True)


def test_flash_attention_encodes_queries_in_half_precision(tiny_model):
    """Its kernels refuse fp32; here another function has its name."""
    seen = []

    def attention(module, query, key, value, mask, **options):
        seen.append(query.dtype)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    transformers.AttentionInterface.register("flash_attention_test", attention)
    transformers.AttentionMaskInterface.register("flash_attention_test", sdpa_mask)
    retriever, plain = (Retriever.create(tiny_model, pooler="mean").eval() for _ in range(2))
    # If set at loading, transformers would look for the kernels.
    retriever.tower("query").model.config._attn_implementation = "flash_attention_test"
    vectors, expected = (model.encode(TEXTS, "query", precision="fp32").vectors for model in (retriever, plain))
    assert set(seen) == {torch.bfloat16}
    torch.testing.assert_close(vectors, expected, rtol=0.05, atol=0.02)
