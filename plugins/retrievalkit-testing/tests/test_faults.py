"""Each fault is detected by its property; components without a fault pass all properties."""

from __future__ import annotations

from pathlib import Path

import faults
import numpy as np
import pytest
import torch
from retrievalkit_testing import PropertyError, check
from retrievalkit_testing.conforming import kit_of
from retrievalkit_testing.drawing import LEAST, for_all, sizes
from retrievalkit_testing.properties import expect_same
from retrievalkit_testing.samples import kit_models

from retrievalkit import registry

SLOW = ("other_process",)
PAGE = Path(__file__).parents[3] / "docs/reference/testing.md"
KINDS = ("encoder", "pooler", "compressor", "loss", "pretrainer", "indexer", "source", "filter", "fusion", "metric",
         "reranker", "recipe", "command", "package")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Register the faulty components."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RKIT_PLUGIN_FILES", str(faults.__file__))
        registry.default_registry.cache_clear()
        yield
    registry.default_registry.cache_clear()


def settings(kind):
    """Use a single tiny model, which suffices for the faults."""
    return {"model": kit_models()["bert"]} if kind in ("encoder", "pooler", "pretrainer") else {}


@pytest.mark.parametrize(
    ("kind", "name", "found_by"),
    [
        pytest.param(kind, name, found_by, id=f"{kind}-{name}", marks=[pytest.mark.slow] if found_by in SLOW else [])
        for kind, rows in faults.FAULTS.items() for name, found_by, *_ in rows
    ],
)  # fmt: skip
def test_a_fault_is_found_by_its_property_with_the_line_to_look_at(kind, name, found_by):
    (failure,) = kit_of(kind).report(name, only=[found_by], examples=LEAST, **settings(kind)).failures
    assert failure.property == found_by, str(failure)
    assert f"{kind} '{name}'" in str(failure)
    assert Path(failure.place.file).read_text().splitlines()[failure.place.line - 1].strip(), str(failure)


@pytest.mark.parametrize(
    ("kind", "sound"),
    [
        pytest.param(kind, sound, marks=[pytest.mark.slow] if kind in ("encoder", "indexer") else [])
        for kind, some in faults.SOUND.items() for sound in some
    ],
)  # fmt: skip
def test_sound_components_pass(kind, sound):
    """No false alarm. Built-in components are checked in tests/registry/test_conformance.py."""
    name = "sound_texts" if sound is faults.SoundTexts else "sound"
    report = kit_of(kind).report(name, examples=LEAST, without=SLOW, **settings(kind))
    assert not [str(failure) for failure in report.failures]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_the_kit_states_every_property(kind):
    page = PAGE.read_text()
    for tested in kit_of(kind).properties.values():
        assert f"| `{tested.name}` | {tested.statement} |" in page


def test_a_kind_without_properties_says_so():
    kit = kit_of("workers")
    assert not kit.properties
    assert kit.unchecked


def test_options_are_handed_on(tiny_model):
    only = ["form"]
    check("encoder", "transformer", model=tiny_model, document_length=20, title="space", only=only)
    check("pooler", "mean", model=tiny_model, normalize=True, layer=1, only=only)
    check("loss", "contrastive", temperature=0.5, only=only)


@pytest.mark.parametrize("loss", ["distill_kl", "margin_mse"])
def test_a_loss_with_a_teacher_may_have_other_terms(loss):
    check("loss", loss, contrastive=1, only=["form", "teacher_missing", "falls_under_training"])


def test_an_approximate_indexer_states_its_recall():
    """With signs only, and as many candidates as hits, some of the best texts are missing."""
    options = {"kind": "binary", "rescored": 1, "only": ["brute_force"], "examples": LEAST}
    kit = kit_of("indexer")
    assert kit.report("small", **options).failures
    assert kit.report("small", recall=0.99, **options).failures
    assert not kit.report("small", recall=0.1, **options).failures


def test_drawn_values_are_the_same_at_every_run_and_begin_with_both_ends():
    seen = []
    for _ in range(2):
        some = []
        for_all({"size": sizes(1, 300), "side": "qd"}, some.append, name="drawn", examples=9, reduce=False)
        seen.append(some)
    assert seen[0] == seen[1]
    assert seen[0][:2] == [{"size": 1, "side": "q"}, {"size": 300, "side": "d"}]
    assert len({drawn["size"] for drawn in seen[0]}) > 4


def test_a_failure_is_reduced_to_the_smallest_values():
    def check(drawn):
        assert drawn["size"] <= 16

    with pytest.raises(AssertionError) as failed:
        for_all({"seed": range(100), "size": sizes(1, 300)}, check, name="any", examples=9, reduce=True)
    assert failed.value.drawn == "seed=0, size=17"


def test_equally_large_numbers_may_be_exchanged_where_numbers_are_selected_by_size():
    """Rounding decides between equal magnitudes; a sign that is always wrong is still a difference."""
    vector = torch.linspace(0.1, 1, 100)
    signs, moved = vector.clone(), vector.clone()
    signs[3] *= -1
    moved[[5, 7]] = moved[[7, 5]]
    for other in (signs, moved):
        expect_same("", other, vector, selected=True)
        with pytest.raises(PropertyError):
            expect_same("", other, vector)
    for other in (-vector, vector.flip(0), torch.where(torch.arange(100) == 3, 0.0, vector)):
        with pytest.raises(PropertyError):
            expect_same("", other, vector, rtol=1e-4, selected=True)
    with pytest.raises(PropertyError):
        expect_same("", np.ones(3), np.zeros(3), selected=True)
