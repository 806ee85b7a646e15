"""Each architecture through train, save, load and encode, with the pooler that suits it."""

from __future__ import annotations

import retrievalkit_testing as testing
import torch

from retrievalkit.models.retriever import Retriever
from retrievalkit.training.train import train

TEXTS = [("Peru", "The seat of government is the city of Lima."), ("", "rome")]
POOLERS = {"llama": "last", "t5": "mean"}


def trained(architecture, folder, collection, **encoder_options):
    """A checkpoint after six steps, and the model it started from."""
    model = testing.tiny_model(folder / "model", architecture=architecture, layers=3)
    output = folder / "checkpoint"
    train(
        model,
        collection.folder,
        corpus=collection.corpus,
        output=output,
        pooler=POOLERS.get(architecture, "cls"),
        encoder_options=encoder_options,
        epochs=1,
        limit=48,
        batch_size=8,
        learning_rate=1e-2,
        precision="fp32",
    )
    return output, model


def test_a_decoder_with_adapters_and_end_token(tmp_path, tiny_collection):
    output, model = trained("llama", tmp_path, tiny_collection, lora_rank=4, end_token=True)
    loaded = Retriever.load(output, device="cpu")
    tower = loaded.tower("document")
    assert all(ids[-1] == tower.tokenizer.eos_token_id for ids in tower.tokenize(TEXTS, "document"))
    plain = Retriever.create(model, pooler="last", encoder_options={"end_token": True}).eval()
    names = dict(plain.tower("document").named_parameters())
    kept = {name.replace(".base_layer", ""): one for name, one in tower.named_parameters() if "lora_" not in name}
    assert kept.keys() == names.keys()
    assert all(torch.equal(kept[name], names[name]) for name in names)
    moved = loaded.encode(TEXTS, "document", precision="fp32").vectors
    assert not torch.allclose(moved, plain.encode(TEXTS, "document", precision="fp32").vectors, atol=1e-3)
