"""LoRA adapters: no effect at first, the only trained weights, stored next to the unchanged model."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
import transformers

from retrievalkit import registry
from retrievalkit.contracts import Needs
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.models.pretrained import quiet
from retrievalkit.models.retriever import Retriever
from retrievalkit.training.train import train

TEXTS = [("", "what is the capital of france"), ("", "rome")]


@pytest.fixture(scope="module", params=["llama", "bert"])
def model(request, tmp_path_factory):
    """The folder of a tiny model."""
    return testing.tiny_model(tmp_path_factory.mktemp(request.param), architecture=request.param)


def prepared(model, needs=Needs(), **options):  # noqa: B008 - frozen
    encoder = registry.create("encoder", "transformer", model, **options)
    encoder.prepare(needs)
    return encoder.eval()


def states_of(encoder):
    return encoder(encoder.collate(encoder.tokenize(TEXTS, "document"), "document"), [2]).last


def changed(encoder):
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter += 0.1
    return encoder


def test_new_adapters_change_nothing(model):
    torch.testing.assert_close(states_of(prepared(model, lora_rank=2)), states_of(prepared(model)))


def test_only_adapters_are_trained(model):
    encoder = prepared(model, lora_rank=2)
    trained = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert not torch.equal(states_of(changed(encoder)), states_of(prepared(model)))


def test_saved_adapters_have_equal_states_and_leave_the_model_unchanged(model, tmp_path):
    encoder = changed(prepared(model, lora_rank=2, lora_alpha=8.0))
    before = states_of(encoder)
    encoder.save(tmp_path)
    assert torch.equal(states_of(prepared(str(tmp_path), lora_rank=2, lora_alpha=8.0)), before)
    assert not torch.equal(states_of(prepared(str(tmp_path), lora_rank=2, lora_alpha=16.0)), before)
    with quiet():
        plain = transformers.AutoModel.from_pretrained(tmp_path).state_dict()
        original = transformers.AutoModel.from_pretrained(model).state_dict()
    assert plain.keys() == original.keys()
    assert all(torch.equal(plain[name], original[name]) for name in plain if "pooler" not in name)
    with pytest.raises(InputError, match=r"not of rank 4. Set encoder.lora_rank"):
        prepared(str(tmp_path), lora_rank=4)


def test_frozen_weights_are_bf16_on_a_gpu(model, tmp_path, monkeypatch):
    """Adapters train in float32; queries are encoded in half precision, on a CPU in float32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    retriever = Retriever.create(model, pooler="mean", encoder_options={"lora_rank": 2}).eval()
    assert not prepared(model).half_only
    kinds = {("lora_" in name, weight.dtype) for name, weight in retriever.tower("query").named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    training = retriever(retriever.tower("query").collate([[5, 6]], "query"), "query")
    training.vectors.sum().backward()
    assert any(weight.grad is not None for weight in retriever.parameters())
    vectors = retriever.encode(TEXTS, "query").vectors
    retriever.save(tmp_path)
    monkeypatch.undo()
    encoder = prepared(tmp_path / "encoder", lora_rank=2)
    assert {weight.dtype for weight in encoder.parameters()} == {torch.float32}
    loaded = Retriever({"shared": encoder}, retriever.pooler, {}).encode(TEXTS, "query").vectors
    torch.testing.assert_close(vectors, loaded, rtol=0.05, atol=0.02)


def test_training_a_decoder_changes_only_its_adapters(tmp_path, tiny_collection):
    options = {"lora_rank": 4, "end_token": True}
    model = testing.tiny_model(tmp_path / "model", architecture="llama", layers=3)
    output = tmp_path / "checkpoint"
    how = {"epochs": 1, "limit": 48, "batch_size": 8, "learning_rate": 1e-2, "precision": "fp32"}
    data = {"corpus": tiny_collection.corpus, "output": output}
    train(model, tiny_collection.folder, pooler="last", encoder_options=options, **data, **how)
    loaded = Retriever.load(output, device="cpu")
    tower = loaded.tower("document")
    assert all(ids[-1] == tower.tokenizer.eos_token_id for ids in tower.tokenize(TEXTS, "document"))
    plain = Retriever.create(model, pooler="last", encoder_options={"end_token": True}).eval()
    names = dict(plain.tower("document").named_parameters())
    kept = {name.replace(".base_layer", ""): weight for name, weight in tower.named_parameters() if "lora_" not in name}
    assert kept.keys() == names.keys()
    assert all(torch.equal(kept[name], names[name]) for name in names)
    moved = loaded.encode(TEXTS, "document", precision="fp32").vectors
    assert not torch.allclose(moved, plain.encode(TEXTS, "document", precision="fp32").vectors, atol=1e-3)


def test_four_bit_weights_are_loaded_and_saved_with_trained_adapters(tmp_path, tiny_collection):
    pytest.importorskip("bitsandbytes")
    model, output = testing.tiny_model(tmp_path / "model", architecture="llama", width=64), tmp_path / "checkpoint"
    options = {"lora_rank": 4, "quantize": "4bit"}
    how = {"epochs": 1, "limit": 16, "batch_size": 8, "learning_rate": 1e-2, "precision": "fp32", "held_out": 0.0}
    data = {"corpus": tiny_collection.corpus, "output": output}
    train(model, tiny_collection.folder, pooler="last", encoder_options=options, **data, **how)
    untrained = Retriever.create(model, pooler="last", encoder_options=options).eval()
    loaded = Retriever.load(output, device="cpu")
    for retriever in (untrained, loaded):
        kinds = {
            ("lora_" in name, weight.dtype)
            for name, weight in retriever.tower("query").named_parameters()
            if weight.dim() > 1
        }
        assert {(False, torch.uint8), (True, torch.float32)} <= kinds
    full, before, after = (
        retriever.encode(TEXTS, "document").vectors
        for retriever in (Retriever.create(model, pooler="last").eval(), untrained, loaded)
    )
    assert 0.9 < torch.nn.functional.cosine_similarity(full.flatten(), before.flatten(), dim=0) < 1
    assert not torch.allclose(after, before, atol=1e-3)


def test_four_bit_weights_need_adapters(model):
    with pytest.raises(UnsupportedError, match="Set lora_rank too"):
        prepared(model, quantize="4bit")
