"""The kit of conformance finds nothing wrong with any component that retrievalkit brings."""

from __future__ import annotations

import pytest
from retrievalkit_testing.conforming import kit_of

from retrievalkit import registry

BUILT_IN = [
    (kind, name)
    for kind in registry.HOOKS
    if kit_of(kind) is not None
    for name in registry.names(kind)
    if registry.component(kind, name).distribution == "retrievalkit"
]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_it_keeps_the_contract(kind, name):
    assert not [str(one) for one in kit_of(kind).report(name).failures]
