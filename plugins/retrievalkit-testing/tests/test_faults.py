"""Each fault is found by the property that names it; what ships, and what is sound, has every property."""

from __future__ import annotations

from pathlib import Path

import faults
import pytest
from retrievalkit_testing import check_encoder, check_loss, check_pooler
from retrievalkit_testing.conforming import kit_of
from retrievalkit_testing.samples import kit_models

from retrievalkit import registry

SLOW = ("other_process",)
PAGE = Path(__file__).parents[3] / "docs/reference/testing.md"
KINDS = ("encoder", "pooler", "compressor", "loss", "pretrainer", "indexer", "source", "filter", "fusion", "metric",
         "reranker", "recipe", "command", "package")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The faulty components are registered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RKIT_PLUGIN_FILES", str(faults.__file__))
        registry.default_registry.cache_clear()
        yield
    registry.default_registry.cache_clear()


def settings(kind):
    """One tiny model, which is enough for the faults."""
    return {"model": kit_models()["bert"]} if kind in ("encoder", "pooler", "pretrainer") else {}


@pytest.mark.parametrize(
    ("kind", "name", "found_by"),
    [
        pytest.param(kind, name, found_by, id=f"{kind}-{name}", marks=[pytest.mark.slow] if found_by in SLOW else [])
        for kind, rows in faults.FAULTS.items() for name, found_by, *_ in rows
    ],
)  # fmt: skip
def test_a_fault_is_found_by_its_property_with_the_line_to_look_at(kind, name, found_by):
    (failure,) = kit_of(kind).report(name, only=[found_by], **settings(kind)).failures
    assert failure.property == found_by, str(failure)
    assert f"{kind} '{name}'" in str(failure)
    assert Path(failure.place.file).read_text().splitlines()[failure.place.line - 1].strip(), str(failure)


@pytest.mark.parametrize(("kind", "sound"), [(kind, one) for kind, some in faults.SOUND.items() for one in some])
def test_what_keeps_the_contract_passes(kind, sound):
    """No false alarm. What ships is checked in tests/registry/test_conformance.py, plugins as they are installed."""
    name = "sound_texts" if sound is faults.SoundTexts else "sound"
    kit = kit_of(kind)
    without = [one for one in SLOW if one in kit.properties]
    assert not [str(one) for one in kit.report(name, without=without, **settings(kind)).failures]


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_the_kit_states_every_property(kind):
    page = PAGE.read_text()
    for one in kit_of(kind).properties.values():
        assert f"| `{one.name}` | {one.statement} |" in page


def test_a_kind_without_properties_says_so():
    kit = kit_of("workers")
    assert not kit.properties
    assert kit.unchecked


def test_options_are_handed_on(tiny_model):
    only = ["form"]
    check_encoder("transformer", model=tiny_model, document_length=20, title="space", only=only)
    check_pooler("mean", model=tiny_model, normalize=True, layer=1, only=only)
    check_loss("contrastive", temperature=0.5, only=only)


@pytest.mark.parametrize("loss", ["distill_kl", "margin_mse"])
def test_a_loss_with_a_teacher_may_have_other_terms(loss):
    check_loss(loss, contrastive=1, only=["form", "teacher_missing", "falls_under_training"])


def test_an_approximate_indexer_states_its_recall():
    """Signs alone, with no more candidates than hits, find some of the best and not all."""
    options = {"kind": "binary", "rescored": 1, "only": ["brute_force"]}
    kit = kit_of("indexer")
    assert kit.report("small", **options).failures
    assert kit.report("small", recall=0.99, **options).failures
    assert not kit.report("small", recall=0.1, **options).failures
