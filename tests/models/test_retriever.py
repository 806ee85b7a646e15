"""Retrievers: created, saved, loaded, and encoding with equal vectors in any batch."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from device_memory import DeviceMemory
from retrievalkit.errors import ArtifactError, InputError
from retrievalkit.models.checkpoint import checkpoint_fingerprint
from retrievalkit.models.retriever import Retriever

TEXTS = [
    ("", "what is the capital of france"),
    ("Peru", "The seat of government is the city of Lima."),
    ("", "rome"),
    ("Chile", "People pay with the peso, and the language that is spoken most is Spanish. " * 4),
]

PLUGIN = """
import torch
from retrievalkit import hookimpl
from retrievalkit.contracts import Needs, Pooler, Representation

@hookimpl
def register_poolers(register):
    register("lexical", "own_poolers:Lexical")
    register("both_layers_in_training", "own_poolers:Moody")

class Lexical(Pooler):
    def __init__(self, info):
        super().__init__()
    def forward(self, states, side):
        return Representation(weights=states.last[:, 0].relu())

class Moody(Lexical):
    @property
    def needs(self):
        return Needs(layers=(1, 2) if self.training else (2,))
    def forward(self, states, side):
        return Representation(torch.stack([layer[:, 0] for layer in states.layers.values()], dim=1))
"""
LINEAR = {"pooler": "projected", "pooler_options": {"pooling": ("cls",), "dimensions": (5,)}}


@pytest.fixture
def plugin(tmp_path, monkeypatch, fresh_registry):
    """Local plugin with two poolers; its value is a function that uninstalls it."""
    path = tmp_path / "own_poolers.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(path))

    def uninstall():
        monkeypatch.delenv("RKIT_PLUGIN_FILES")
        fresh_registry()

    return uninstall


def flat(representation):
    """Return all values except those of padding."""
    parts = []
    if representation.vectors is not None:
        mask = representation.vector_mask
        parts.append(representation.vectors if mask is None else representation.vectors[mask])
    if representation.weights is not None:
        parts.append(representation.weights)
    return torch.cat([part.reshape(-1) for part in parts])


def encoded(retriever, side="document", **options):
    return retriever.encode(TEXTS, side, precision="fp32", **options)


@pytest.mark.parametrize("model", ["tiny_model", "tiny_t5"])
@pytest.mark.parametrize("pooler", ["mean", "colbert", "lexical"])
def test_batch_size_and_order_change_nothing(request, plugin, model, pooler):
    retriever = Retriever.create(request.getfixturevalue(model), pooler=pooler).eval()
    whole = encoded(retriever)
    assert len(whole) == len(TEXTS)
    for row, text in enumerate(TEXTS):
        alone = retriever.encode([text], "document", precision="fp32")
        torch.testing.assert_close(flat(whole.rows(slice(row, row + 1))), flat(alone), rtol=1e-4, atol=1e-5)
    for budget in (1, 30, 100_000):
        torch.testing.assert_close(flat(encoded(retriever, batch_tokens=budget)), flat(whole), rtol=1e-4, atol=1e-5)
    backwards = retriever.encode(TEXTS[::-1], "document", precision="fp32")
    order = torch.arange(len(TEXTS)).flip(0)
    torch.testing.assert_close(flat(backwards.rows(order)), flat(whole), rtol=1e-4, atol=1e-5)


def test_encoding_uses_eval_mode_and_restores_the_mode(tiny_model):
    retriever = Retriever.create(tiny_model, encoder_options={"dropout": 0.5}).train()
    assert torch.equal(encoded(retriever).vectors, encoded(retriever).vectors)
    assert retriever.training
    assert not retriever.eval().encode(TEXTS, "query").vectors.requires_grad
    assert not retriever.training


def test_separate_towers_start_with_equal_weights(tiny_model):
    shared, separate = (Retriever.create(tiny_model, separate_towers=choice) for choice in (False, True))
    assert shared.tower("query") is shared.tower("document")
    assert separate.tower("query") is not separate.tower("document")
    assert torch.equal(encoded(separate, "query").vectors, encoded(shared, "query").vectors)
    single, double = (sum(weight.numel() for weight in model.parameters()) for model in (shared, separate))
    assert double == 2 * single


def test_new_weights_depend_on_the_seed(tiny_model):
    """Processes that encode documents and queries with an untrained model must agree."""
    state = torch.get_rng_state()
    first, same, other = (Retriever.create(tiny_model, **LINEAR, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state), "the caller's random state has changed"
    assert torch.equal(first.pooler.layers[0].weight, same.pooler.layers[0].weight)
    assert not torch.equal(first.pooler.layers[0].weight, other.pooler.layers[0].weight)


def test_the_fingerprint_depends_on_model_and_options(tiny_model, tiny_t5):
    created = [
        Retriever.create(tiny_model),
        Retriever.create(tiny_model, pooler="mean"),
        Retriever.create(tiny_model, pooler_options={"normalize": True}),
        Retriever.create(tiny_model, encoder_options={"query_length": 10}),
        Retriever.create(tiny_model, separate_towers=True),
        Retriever.create(tiny_t5),
    ]
    assert len({retriever.fingerprint for retriever in created}) == len(created)
    assert Retriever.create(tiny_model).fingerprint == created[0].fingerprint


def with_other_weights(retriever):
    """Change all weights, differently in each tower."""
    with torch.no_grad():
        for number, parameter in enumerate(retriever.parameters()):
            parameter += (
                0.01 * (number % 7) * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            )
    return retriever.eval()


@pytest.mark.parametrize("model", ["tiny_model", "tiny_t5"])
@pytest.mark.parametrize("separate", [False, True])
def test_a_loaded_checkpoint_has_equal_vectors(request, tmp_path, model, separate):
    created = Retriever.create(
        request.getfixturevalue(model),
        **LINEAR,
        encoder_options={"query_length": 7, "document_length": 20, "query_prefix": "what is ", "title": "space"},
        separate_towers=separate,
    )
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with_other_weights(created).save(folder)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == (
        {"query", "document"} if separate else {"encoder"}
    )
    loaded = Retriever.load(folder)
    assert not loaded.training
    for side in ("query", "document"):
        assert torch.equal(encoded(loaded, side).vectors, encoded(created, side).vectors)
    assert loaded.tower("query").lengths == {"query": 7, "document": 20}


def test_the_fingerprint_covers_weights_and_configuration(tiny_model, tmp_path):
    Retriever.create(tiny_model).save(tmp_path)
    first = checkpoint_fingerprint(tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("training.jsonl", "selection.json", "README.md", "logs/events"):
        (tmp_path / name).write_text("anything")
    assert checkpoint_fingerprint(tmp_path) == first == Retriever.load(tmp_path).fingerprint
    Retriever.create(tiny_model, pooler="mean").save(tmp_path)
    assert checkpoint_fingerprint(tmp_path) != first


def test_an_untrained_retriever_is_restored_from_its_description(tiny_model):
    created = Retriever.create(
        tiny_model, **LINEAR, encoder_options={"query_prefix": "what is "}, separate_towers=True
    ).eval()
    described = json.loads(json.dumps(created.description))
    again = Retriever.from_description(described)
    assert not again.training
    assert again.fingerprint == created.fingerprint
    assert again.description == created.description
    for side in ("query", "document"):
        assert torch.equal(encoded(again, side).vectors, encoded(created, side).vectors)


def test_a_missing_plugin_is_reported_with_its_distribution(tiny_model, tmp_path, plugin):
    created = Retriever.create(tiny_model, pooler="lexical")
    (tmp_path / "checkpoint").mkdir()
    created.save(tmp_path / "checkpoint")
    plugin()
    message = r"the pooler 'lexical' of the file '(.*own_poolers\.py)'.* export RKIT_PLUGIN_FILES=\1$"
    with pytest.raises(ArtifactError, match=message):
        Retriever.load(tmp_path / "checkpoint")
    with pytest.raises(ArtifactError, match=message):
        Retriever.from_description(created.description)
    description = json.loads(json.dumps(created.description))
    description["pooler"] |= {"distribution": "retrievalkit-lexical", "version": "1.2"}
    with pytest.raises(ArtifactError, match=r"pip install retrievalkit-lexical==1\.2$"):
        Retriever.from_description(description)


WEIGHTS, DESCRIPTION = "pooler.safetensors", "retrievalkit.json"


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        (WEIGHTS, Path.unlink),
        (WEIGHTS, lambda path: path.write_bytes(path.read_bytes()[:50])),
        (DESCRIPTION, Path.unlink),
        (DESCRIPTION, lambda path: path.write_text(path.read_text()[:50])),
        (DESCRIPTION, lambda path: path.write_text(path.read_text().replace("  5\n", "  4\n"))),
        ("encoder", shutil.rmtree),
    ],
)
def test_a_damaged_checkpoint_is_refused(tiny_model, tmp_path, part, damage):
    Retriever.create(tiny_model, **LINEAR).save(tmp_path)
    damage(tmp_path / part)
    with pytest.raises(InputError, match=str(tmp_path)) as caught:
        Retriever.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["encoder/model.safetensors", "pooler.safetensors"])
@pytest.mark.parametrize(("value", "backend"), [(math.nan, None), (math.inf, "torch")])
def test_weights_with_nan_or_infinity_are_refused(tiny_model, tmp_path, file, value, backend):
    Retriever.create(tiny_model, **LINEAR).save(tmp_path)
    weights = load_file(tmp_path / file)
    name = max(weights)
    weights[name].view(-1)[-1] = value
    save_file(weights, tmp_path / file, metadata={"format": "pt"})
    part = "towers" if file.startswith("encoder") else "pooler"
    with pytest.raises(ArtifactError, match=f"{tmp_path}'.*'{part}.* holds NaN or infinite"):
        Retriever.load(tmp_path, backend=backend)
    if part == "towers":
        with pytest.raises(ArtifactError, match=f"{tmp_path / 'encoder'}'.*'towers.* holds NaN or infinite"):
            Retriever.create(tmp_path / "encoder", backend=backend)


def test_a_checkpoints_remote_code_needs_the_users_permission(tiny_model, tmp_path, monkeypatch):
    with monkeypatch.context() as environment:
        environment.setenv("RKIT_TRUST_REMOTE_CODE", "1")
        Retriever.create(tiny_model, encoder_options={"trust_remote_code": True}).save(tmp_path)
    with pytest.raises(InputError, match=r"needs Python code that came with it.*RKIT_TRUST_REMOTE_CODE=1"):
        Retriever.load(tmp_path)
    monkeypatch.setenv("RKIT_TRUST_REMOTE_CODE", "1")
    assert Retriever.load(tmp_path)


def test_a_pooler_may_change_its_needs_with_the_mode(tiny_model, plugin):
    retriever = Retriever.create(tiny_model, pooler="both_layers_in_training")
    tower = retriever.tower("query")
    batch = tower.collate(tower.tokenize(TEXTS, "query"), "query")
    assert retriever.train()(batch, "query").vectors.shape[1] == 2
    assert retriever.eval()(batch, "query").vectors.shape[1] == 1


def test_smaller_batches_have_equal_vectors_when_memory_runs_out(tiny_model, capsys):
    """Later batches stay within the size."""
    retriever = Retriever.create(tiny_model, pooler="mean")
    expected = retriever.encode(TEXTS * 9, "document").vectors
    memory = DeviceMemory(100)
    memory.limit(retriever.tower("document").model)
    torch.testing.assert_close(retriever.encode(TEXTS * 9, "document").vectors, expected)
    assert retriever.limit.entries() == {"batch_tokens": retriever.limit.reduced}
    assert "ran out of memory" in capsys.readouterr().err
    retriever.encode(TEXTS * 9, "document")
    assert capsys.readouterr().err == ""
    assert max(memory.sizes) <= 100
