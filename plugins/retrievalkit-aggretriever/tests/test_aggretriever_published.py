"""Checkpoints in the two published layouts, made here: loaded whole, and equal to what their own code computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from retrievalkit.errors import ArtifactError, InputError, OptionError, UnsupportedError
from retrievalkit.models.retriever import Retriever

pytestmark = pytest.mark.precision

OPTIONS = {"cls_dim": 6, "agg_dim": 16, "term_weight": "signed", "padding": "released", "remainder": "drop"}
TEXTS = [("", "what is the capital of france"), ("", "rome"), ("", "the language of iceland and its currency")]


def projections():
    generator = torch.Generator().manual_seed(1)
    shapes = {"cls_proj.weight": (6, 32), "cls_proj.bias": (6,), "tok_proj.weight": (1, 32), "tok_proj.bias": (1,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def hub_layout(folder, model, *, form="model.safetensors", prefix="encoder.", changes=None):
    """castorini/aggretriever-*: the masked language model within another module, with two projections."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    # What is tied is in a .bin file twice.
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    whole = {prefix + name: tensor for name, tensor in weights.items()} | projections() | (changes or {})
    whole = {name: tensor for name, tensor in whole.items() if tensor is not None}
    if form == "model.safetensors":
        save_file(whole, folder / form, metadata={"format": "pt"})
    else:
        torch.save(whole, folder / form)
    configuration = json.loads((folder / "config.json").read_text()) | {"architectures": ["BERTAggretrieverEncoder"]}
    (folder / "config.json").write_text(json.dumps(configuration))
    return folder


def trained_layout(folder, model, *, tied=True):
    """castorini/dhr: an ordinary folder of transformers, with a file for each projection."""
    shutil.copytree(model, folder)
    for name, file in (("cls_proj", "pooler"), ("tok_proj", "TermWeightTrans")):
        weight, bias = projections()[f"{name}.weight"], projections()[f"{name}.bias"]
        both = {"linear_q.weight": weight, "linear_q.bias": bias, "linear_p.bias": bias}
        both["linear_p.weight"] = weight if tied else weight + 1
        torch.save(both, folder / f"{file}.pt")
        sizes = {"input_dim": weight.shape[1], "output_dim": weight.shape[0], "tied": tied}
        (folder / f"{file}_config.json").write_text(json.dumps(sizes))
    return folder


LAYOUTS = {
    "safetensors": lambda folder, model: hub_layout(folder, model),
    "bin": lambda folder, model: hub_layout(folder, model, form="pytorch_model.bin"),
    "dhr": trained_layout,
}


def create(folder, **options):
    return Retriever.create(folder, pooler="aggretriever", pooler_options=OPTIONS | options).to("cpu").eval()


def expected_vectors(model, texts):
    """What the released code computes of a padded batch: raw weights, zeros at padding, the first ids dropped."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    network = transformers.AutoModelForMaskedLM.from_pretrained(model).eval()
    with torch.no_grad():
        output = network(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
        )
    layers = projections()
    hidden = output.hidden_states[-1]
    weights = hidden[:, 1:] @ layers["tok_proj.weight"].T + layers["tok_proj.bias"]
    values = output.logits[:, 1:].softmax(-1) * weights * batch["attention_mask"][:, 1:, None]
    v = values.amax(1)
    rest = v[:, v.shape[1] % 32 :].reshape(len(v), -1, 32).amax(1)
    positive, negative = rest[:, 0::2], rest[:, 1::2]
    agg = positive * (positive > negative) - negative * (positive <= negative)
    return torch.cat([hidden[:, 0] @ layers["cls_proj.weight"].T + layers["cls_proj.bias"], agg], dim=1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_are_those_of_the_released_code(layout, tiny_model, tmp_path):
    """One batch, so that padding counts as it does there; saved, without the folder that they came from too."""
    retriever = create(folder := LAYOUTS[layout](tmp_path / "published", tiny_model))
    representation = retriever.encode(TEXTS, "document", precision="fp32")
    expected = expected_vectors(tiny_model, [text for _, text in TEXTS])
    torch.testing.assert_close(representation.vectors[:, 0], expected, rtol=1e-4, atol=1e-6)
    assert representation.parts == {"cls": slice(0, 6), "agg": slice(6, 22)}
    (tmp_path / "saved").mkdir()
    retriever.save(tmp_path / "saved")
    shutil.rmtree(folder)
    loaded = Retriever.load(tmp_path / "saved", device="cpu")
    torch.testing.assert_close(loaded.encode(TEXTS, "document", precision="fp32").vectors, representation.vectors)


def test_projections_new(tiny_model, tmp_path):
    retriever = create(hub_layout(tmp_path / "published", tiny_model), projections="new", cls_dim=5)
    assert retriever.pooler.cls_projection.weight.shape == (5, 32)
    assert not torch.equal(retriever.pooler.term_projection.weight, projections()["tok_proj.weight"])


def test_projections_of_unused_parts_are_ignored(tiny_model, tmp_path):
    folder = hub_layout(tmp_path / "published", tiny_model)
    assert create(folder, cls_dim=0).pooler.cls_projection is None
    retriever = create(folder, term_weight="none", padding="masked")
    assert torch.equal(retriever.pooler.cls_projection.weight, projections()["cls_proj.weight"])


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"cls_dim": 128}, r"of \[CLS\] has the shape \(6, 32\) instead of \(128, 32\)\. Set cls_dim=6"),
        ({"cls_proj.weight": None, "cls_proj.bias": None}, {}, r"without a projection of \[CLS\]\. Set cls_dim=0"),
        ({"tok_proj.weight": torch.ones(2, 32)}, {}, r"to token weights has the shape \(2, 32\).*projections=new"),
    ],
)
def test_projections_that_do_not_fit(changes, options, message, tiny_model, tmp_path):
    folder = hub_layout(tmp_path / "published", tiny_model, changes=changes)
    with pytest.raises(OptionError, match=message):
        create(folder, **options)


def test_an_untied_checkpoint_is_refused(tiny_model, tmp_path):
    with pytest.raises(UnsupportedError, match=r"one for both\. Use a checkpoint of a tied encoder"):
        create(trained_layout(tmp_path / "published", tiny_model, tied=False))


class Unsafe:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))

    def __init__(self, path):
        self.path = str(path)


@pytest.mark.parametrize("damage", ["rubbish", "empty", "code", "list"])
def test_a_damaged_file_is_refused_with_a_message(damage, tiny_model, tmp_path):
    """Nothing but tensors is unpickled."""
    folder = trained_layout(tmp_path / "published", tiny_model)
    file = folder / "TermWeightTrans.pt"
    if damage in ("rubbish", "empty"):
        file.write_bytes(b"rubbish" if damage == "rubbish" else b"")
    else:
        torch.save([1, 2] if damage == "list" else Unsafe(tmp_path / "was-run"), file)
    with pytest.raises(ArtifactError, match=r"'.*TermWeightTrans\.pt' is not a file of named tensors") as caught:
        create(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "was-run").exists()


def test_a_model_without_its_head_is_refused(tiny_model, tmp_path):
    folder = hub_layout(tmp_path / "published", tiny_model)
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if ".cls.predictions" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="vocabulary head"):
        create(folder)
    assert create(folder, vocabulary_head=False).pooler.term_projection is not None
