"""A loss may be a sum of several, each with options of its own."""

from __future__ import annotations

import json

import pytest
import torch

from retrievalkit import storage
from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import OptionError, UnknownNameError
from retrievalkit.training.objective import LossSum, create_loss, describe_loss
from retrievalkit.training.train import train
from trainings import log_of

QUERIES = Representation(torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(0)))
DOCUMENTS = Representation(torch.randn(6, 1, 8, generator=torch.Generator().manual_seed(1)))
POSITIVES = torch.tensor([0, 2, 4])
TEACHER = torch.arange(18.0).reshape(3, 6)
IGNORE = torch.zeros(3, 6, dtype=torch.bool)
IGNORE[0, 3] = True


def value(loss, ignore=None, teacher=None):
    return loss(QUERIES, DOCUMENTS, POSITIVES, Progress(0, 0.0, 1), ignore, teacher)


class Size(Loss):
    """Not a loss to retrieve with, but one that can be told apart."""

    def __init__(self, weight=1.0, **terms):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight))
        self.terms = terms

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(self.weight * documents.vectors.square().sum(), self.terms)


# --- the sum -------------------------------------------------------------------------------------------------------


def test_the_total_is_the_sum_and_all_are_given_everything():
    alone = {name: create_loss(name, {}) for name in ("contrastive", "distill_kl")}
    both = create_loss("contrastive+distill_kl", {})
    expected = sum(value(loss, IGNORE, TEACHER).total for loss in alone.values())
    torch.testing.assert_close(value(both, IGNORE, TEACHER).total, expected)
    assert value(both, None, TEACHER).total != expected


def test_terms_of_one_name_get_the_name_of_their_loss():
    summed = LossSum({"one": Size(shared=1, own=2), "other": Size(shared=3, another=4)})
    assert value(summed).terms == {"one.shared": 1, "own": 2, "other.shared": 3, "another": 4}


@pytest.mark.parametrize(("name", "needs"), [("contrastive", False), ("contrastive+margin_mse", True)])
def test_a_sum_needs_a_teacher_if_one_of_its_losses_does(name, needs):
    assert create_loss(name, {}).needs_teacher == needs


# --- names and options ---------------------------------------------------------------------------------------------


def test_one_loss_is_made_as_ever():
    loss = create_loss("contrastive", {"temperature": 2})
    assert type(loss).__name__ == "Contrastive"
    assert loss.temperature == 2
    assert describe_loss("contrastive", {"temperature": 2})["options"] == {"temperature": 2.0}


def test_each_loss_of_a_sum_has_its_own_options():
    options = {"contrastive": {"temperature": 2}, "distill_kl": {"temperature": 3}}
    one, other = create_loss("contrastive + distill_kl", options).losses
    assert (one.temperature, other.temperature) == (2, 3)
    described = describe_loss("contrastive+distill_kl", options)
    assert described["name"] == "contrastive+distill_kl"
    assert described["options"]["contrastive"] == {"temperature": 2.0}
    assert described["options"]["distill_kl"]["temperature"] == 3.0
    assert described["distribution"] == {"contrastive": "retrievalkit", "distill_kl": "retrievalkit"}
    json.dumps(described)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("contrastiv+margin_mse", {}, UnknownNameError, "did you mean 'contrastive'"),
        ("contrastive+", {}, OptionError, "a name or a parenthesis is missing"),
        ("", {}, UnknownNameError, "unknown loss ''"),
        ("contrastive+contrastive", {}, OptionError, "names 'contrastive' twice"),
        ("contrastive+margin_mse", {"margin_ms": {"temperature": 1}}, OptionError, "did you mean 'margin_mse'"),
        ("contrastive+margin_mse", {"flops": {"flops_query": 1}}, OptionError, "loss.flops does not name an option"),
        ("contrastive+margin_mse", {"contrastive": {"scale": 1}}, OptionError, "'contrastive' has no option 'scale'"),
        ("contrastive+margin_mse", {"contrastive": 1}, OptionError, "--set loss.contrastive.OPTION=VALUE"),
        ("contrastive+margin_mse", {"temperature": 1}, OptionError, "--set loss.contrastive.temperature=VALUE"),
        (
            "contrastive+margin_mse",
            {"teacher_temperature": 1},
            OptionError,
            "loss.margin_mse.teacher_temperature=VALUE",
        ),
        ("contrastive", {"contrastive": {"temperature": 1}}, OptionError, "has no option 'contrastive'"),
    ],
)
def test_wrong_names_and_options_are_refused(name, options, error, message):
    for make in (create_loss, describe_loss):
        with pytest.raises(error, match=message.replace(".", r"\.")):
            make(name, options)


# --- training ------------------------------------------------------------------------------------------------------


def trained(tiny_model, tiny_collection, output, **more):
    options = {"epochs": 1, "limit": 8, "batch_size": 4, "precision": "fp32", "logging_steps": 1, "learning_rate": 1e-2}
    folder = str(tiny_collection.folder)
    return train(tiny_model, folder, corpus=folder, output=output, pooler="mean", **options, **more).manifest


@pytest.fixture
def size_loss(tmp_path_factory, monkeypatch, fresh_registry):
    path = tmp_path_factory.mktemp("plugin") / "local_size.py"
    path.write_text(
        "from retrievalkit import hookimpl\n"
        "from retrievalkit.contracts import Loss, LossValue\n"
        "@hookimpl\n"
        "def register_losses(register):\n"
        "    register('size', 'local_size:Size')\n"
        "class Size(Loss):\n"
        "    def __init__(self, *, weight: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.weight = weight\n"
        "    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):\n"
        "        size = documents.vectors.square().mean()\n"
        "        return LossValue(self.weight * size, {'size': size.detach()})\n"
    )
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(path))


def test_a_sum_is_trained_logged_and_told(tiny_model, tiny_collection, tmp_path, size_loss):
    found = {}
    for weight in (0.0, 3.0):
        output = tmp_path / str(weight)
        options = {"size": {"weight": weight}}
        trained(tiny_model, tiny_collection, output, loss="contrastive+size", loss_options=options)
        lines = log_of(output)
        found[weight] = [line for line in lines if "loss" in line]
        for line in found[weight]:
            assert line["loss"] == pytest.approx(line["contrastive"] + weight * line["size"], rel=1e-5)
    assert found[0.0][0]["size"] == found[3.0][0]["size"]
    assert found[0.0][-1]["size"] > found[3.0][-1]["size"]
    manifest = storage.read_manifest(tmp_path / "3.0")
    assert manifest["options"]["loss"]["name"] == "contrastive+size"
    assert manifest["options"]["loss"]["options"]["size"] == {"weight": 3.0}
    card = (tmp_path / "3.0" / "README.md").read_text()
    assert "| loss | contrastive+size {'contrastive': {'temperature': 1.0}, 'size': {'weight': 3.0}} |" in card
