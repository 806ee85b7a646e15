"""The kit of conformance finds nothing wrong with any component that retrievalkit brings."""

from __future__ import annotations

import pytest
from retrievalkit_testing.conforming import kit_of
from retrievalkit_testing.drawing import LEAST

from retrievalkit import registry
from retrievalkit.errors import UnsupportedError

FAST = {("fusion", "rrf"), ("metric", "P"), ("filter", "rank"), ("source", "jsonl"), ("recipe", "retrievalkit")}
BUILT_IN = [
    pytest.param(kind, name, marks=[] if (kind, name) in FAST else [pytest.mark.slow])
    for kind in registry.HOOKS
    if kit_of(kind).properties
    for name in registry.names(kind)
    if registry.component(kind, name).distribution == "retrievalkit"
]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_it_keeps_the_contract(kind, name):
    try:
        without = ["other_process"] if kind in {"source", "fusion"} else []
        report = kit_of(kind).report(name, examples=LEAST, without=without)
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert not [str(one) for one in report.failures]
