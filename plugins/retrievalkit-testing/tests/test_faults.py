"""Each fault is found by the property that names it; what ships, and what is sound, has every property."""

from __future__ import annotations

import re
from pathlib import Path

import faults
import pytest
from retrievalkit_testing import check_encoder, check_loss, check_pooler
from retrievalkit_testing.conforming import kit_of
from retrievalkit_testing.samples import kit_models

from retrievalkit import registry

SLOW = ("other_process", "killed_build")
PAGE = Path(__file__).parents[3] / "docs/reference/testing.md"
SHIPPED = {
    "encoder": ("transformer",),
    "pooler": ("mean", "projected"),
    "loss": ("contrastive", "distill_kl"),
    "pretrainer": ("mlm",),
    "indexer": ("flat", "faiss", "sparse", "small", "dense_sparse"),
}
SHIPPED_SLOW = {
    "pooler": ("cls", "colbert", "last", "max"),
    "loss": ("margin_mse", "matryoshka"),
    "pretrainer": ("retromae",),
}


def named(names, *marks):
    return [pytest.param(kind, name, marks=marks) for kind, some in names.items() for name in some]


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The faulty components are registered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RKIT_PLUGIN_FILES", str(faults.__file__))
        registry.default_registry.cache_clear()
        yield
    registry.default_registry.cache_clear()


@pytest.mark.parametrize(
    ("kind", "name", "found_by", "says"),
    [
        pytest.param(kind, name, found_by, *says or [""], id=f"{kind}-{name}",
                     marks=[pytest.mark.slow] if found_by in SLOW else [])
        for kind, rows in faults.FAULTS.items() for name, found_by, _, _, *says in rows
    ],
)  # fmt: skip
def test_a_fault_is_found_by_its_property_with_the_line_to_look_at(kind, name, found_by, says):
    """Those that the property rests on hold; its failure says what is wrong, and leads to the component's source."""
    # A single encoder, which is enough for each of these.
    settings = {"model": kit_models()["bert"]} if kind in ("encoder", "pooler", "pretrainer") else {}
    kit = kit_of(kind)
    tried = [found_by]
    for one in tried:
        tried += [other for other in kit.properties[one].after if other not in tried]
    (failure,) = kit.report(name, only=tried, first=True, **settings).failures
    message = str(failure)
    assert failure.property == found_by, message
    assert f"{kind} '{name}' lacks the property '{found_by}'" in message
    assert re.search(says, message), message
    assert failure.statement in message
    assert "faults.py:" in message
    assert Path(failure.place.file).read_text().splitlines()[failure.place.line - 1].strip(), message


@pytest.mark.parametrize(
    ("kind", "name"),
    [("encoder", "sound"), ("indexer", "sound"), ("indexer", "sound_texts"),
     *named(SHIPPED), *named(SHIPPED_SLOW, pytest.mark.slow)],
)  # fmt: skip
def test_what_keeps_the_contract_passes(kind, name):
    """No false alarm. Plugins are checked as they are installed: tests/cli/test_plugin_installation.py."""
    without = SLOW if kind == "indexer" else ()
    assert not [str(one) for one in kit_of(kind).report(name, without=without).failures]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED["indexer"])
def test_the_indexers_that_ship_pass_in_several_processes_too(name):
    kit_of("indexer").check(name, only=[*SLOW, "build_open_search"])


@pytest.mark.parametrize("kind", SHIPPED_SLOW)
def test_every_component_that_ships_is_listed_here(kind):
    registered = [component for plugin in registry.plugins() for component in plugin.components]
    shipped = {one.name for one in registered if one.kind == kind and one.distribution == "retrievalkit"}
    assert shipped <= {*SHIPPED[kind], *SHIPPED_SLOW[kind]}


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_page_of_the_kit_states_every_property(kind):
    page = PAGE.read_text()
    for one in kit_of(kind).properties.values():
        assert f"| `{one.name}` | {one.statement} |" in page


def test_options_are_handed_on(tiny_model):
    check_encoder("transformer", model=tiny_model, document_length=20, title="space")
    check_pooler("mean", model=tiny_model, normalize=True, layer=1)
    check_loss("contrastive", temperature=0.5)


@pytest.mark.parametrize("loss", ["distill_kl", "margin_mse"])
def test_a_loss_with_a_teacher_may_have_other_terms(loss):
    check_loss(loss, contrastive=1)


def test_an_approximate_indexer_states_its_recall():
    """Signs alone, with no more candidates than hits, find some of the best and not all."""
    options = {"kind": "binary", "rescored": 1, "only": ["brute_force"]}
    kit = kit_of("indexer")
    assert "see `recall`" in str(kit.report("small", **options).failures[0])
    assert "expected 0.99" in str(kit.report("small", recall=0.99, **options).failures[0])
    (outcome,) = kit.report("small", recall=0.1, **options).outcomes
    assert "recall@10 0." in outcome.measured
