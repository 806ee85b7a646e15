"""A loss may be a sum of several, each with options of its own."""

from __future__ import annotations

import json

import pytest
import torch

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import OptionError, UnknownNameError
from retrievalkit.training.objective import LossSum, create_loss, describe_loss
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


def test_the_total_is_the_sum_and_each_loss_gets_all_inputs():
    alone = {name: create_loss(name, {}) for name in ("contrastive", "distill_kl")}
    both = create_loss("contrastive+distill_kl", {})
    assert (both.needs_teacher, alone["contrastive"].needs_teacher) == (True, False)
    expected = sum(value(loss, IGNORE, TEACHER).total for loss in alone.values())
    torch.testing.assert_close(value(both, IGNORE, TEACHER).total, expected)
    assert value(both, None, TEACHER).total != expected


def test_terms_with_equal_names_are_prefixed_with_their_loss():
    summed = LossSum({"one": Size(shared=1, own=2), "other": Size(shared=3, another=4)})
    assert value(summed).terms == {"one.shared": 1, "own": 2, "other.shared": 3, "another": 4}


# --- names and options ---------------------------------------------------------------------------------------------


def test_each_loss_of_a_sum_has_its_own_options():
    assert create_loss("contrastive", {"temperature": 2}).temperature == 2
    assert describe_loss("contrastive", {"temperature": 2})["options"] == {"temperature": 2.0}
    options = {"contrastive": {"temperature": 2}, "distill_kl": {"temperature": 3}}
    one, other = create_loss("contrastive + distill_kl", options).losses
    assert (one.temperature, other.temperature) == (2, 3)
    described = describe_loss("contrastive+distill_kl", options)
    assert described["name"] == "contrastive+distill_kl"
    assert described["options"]["contrastive"] == {"temperature": 2.0}
    assert described["options"]["distill_kl"]["temperature"] == 3.0
    assert described["distribution"] == {"contrastive": "retrievalkit", "distill_kl": "retrievalkit"}
    json.dumps(described)


@pytest.mark.parametrize("name", ["contrastive", "distill_kl", "margin_mse"])
def test_the_default_temperature_depends_on_the_scores(name):
    for cosine, expected in ((False, 1.0), (True, 0.05)):
        assert create_loss(name, {}, cosine=cosine).temperature == expected
        assert describe_loss(name, {"temperature": None}, cosine=cosine)["options"]["temperature"] == expected
        assert create_loss(name, {"temperature": 3}, cosine=cosine).temperature == 3
        inner = create_loss(f"matryoshka({name})", {"matryoshka": {"dimensions": [4]}}, cosine=cosine).inner
        assert inner.temperature == expected


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("contrastiv+margin_mse", {}, UnknownNameError, "did you mean 'contrastive'"),
        ("contrastive+", {}, OptionError, "a name or a parenthesis is missing"),
        ("", {}, UnknownNameError, "unknown loss ''"),
        ("contrastive+contrastive", {}, OptionError, "names 'contrastive' twice"),
        ("contrastive+margin_mse", {"margin_ms": {"temperature": 1}}, OptionError, "did you mean 'margin_mse'"),
        ("contrastive+margin_mse", {"flops": {"flops_query": 1}}, OptionError, "loss.flops does not name a loss"),
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


PLUGIN = """
from retrievalkit import hookimpl
from retrievalkit.contracts import Loss, LossValue

@hookimpl
def register_losses(register):
    register("size", "local_size:Size")

class Size(Loss):
    def __init__(self, *, weight: float = 1.0):
        super().__init__()
        self.weight = weight
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        size = documents.vectors.square().mean()
        return LossValue(self.weight * size, {"size": size.detach()})
"""


def test_the_temperature_is_recorded(programs, tmp_path):
    for normalize, expected in ((False, 1.0), (True, 0.05)):
        manifest = programs["train"](tmp_path / str(normalize), pooler_options={"normalize": normalize}, epochs=0)
        assert manifest["options"]["loss"]["options"] == {"temperature": expected}


def test_a_sum_is_trained_logged_and_described(programs, tmp_path, monkeypatch, fresh_registry):
    (tmp_path / "local_size.py").write_text(PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "local_size.py"))
    sizes = {}
    for weight in (0.0, 3.0):
        output, options = tmp_path / str(weight), {"size": {"weight": weight}}
        manifest = programs["train"](output, loss="contrastive+size", loss_options=options, logging_steps=1)
        for line in (lines := log_of(output)):
            assert line["loss"] == pytest.approx(line["contrastive"] + weight * line["size"], rel=1e-5)
        sizes[weight] = [line["size"] for line in lines]
    assert sizes[0.0][0] == sizes[3.0][0]
    assert sizes[0.0][-1] > sizes[3.0][-1]
    assert manifest["options"]["loss"]["options"]["size"] == {"weight": 3.0}
    card = (output / "README.md").read_text()
    assert "| loss | contrastive+size {'contrastive': {'temperature': 1.0}, 'size': {'weight': 3.0}} |" in card
