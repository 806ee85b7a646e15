"""The conformance kit raises no false alarm: every pooler, loss and pretrainer of the core has every property.

Those of plugins, and their indexers, are held to it as they are installed, in tests/cli/test_plugin_installation.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from retrievalkit_testing.conforming import kit_of

from retrievalkit import registry

_QUICK = {
    "pooler": ("mean", "projected"),
    "loss": ("contrastive", "distill_kl"),
    "pretrainer": ("mlm",),
}
_SLOW = {
    "pooler": ("cls", "colbert", "last", "max"),
    "loss": ("margin_mse", "matryoshka"),
    "pretrainer": ("retromae",),
}
_PAGE = Path(__file__).parents[3] / "docs/reference/testing.md"


def _named(names, *marks):
    return [pytest.param(kind, name, marks=marks) for kind, some in names.items() for name in some]


@pytest.mark.parametrize(("kind", "name"), [*_named(_QUICK), *_named(_SLOW, pytest.mark.slow)])
def test_a_component_that_ships_has_every_property(kind, name):
    """The kit finds nothing wrong with it."""
    assert not [str(one) for one in kit_of(kind).report(name).failures]


@pytest.mark.parametrize("kind", _QUICK)
def test_every_component_that_ships_is_listed_here(kind):
    """None is left out."""
    shipped = {
        one.name
        for plugin in registry.plugins()
        for one in plugin.components
        if one.kind == kind and one.distribution == "retrievalkit"
    }
    assert shipped <= {*_QUICK[kind], *_SLOW[kind]}


@pytest.mark.parametrize("kind", _QUICK)
def test_the_page_of_the_kit_states_every_property(kind):
    """Each has a row with its name and what it states."""
    page = _PAGE.read_text()
    for one in kit_of(kind).properties.values():
        assert f"| `{one.name}` | {one.statement} |" in page
