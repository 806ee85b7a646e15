"""Every built-in component has the properties of its kind."""

from __future__ import annotations

import pytest
from retrievalkit_testing.conforming import kit_of
from retrievalkit_testing.drawing import LEAST

from retrievalkit import registry
from retrievalkit.errors import UnsupportedError

FAST = {("fusion", "rrf"), ("metric", "P"), ("filter", "rank"), ("source", "jsonl")}
BUILT_IN = [
    pytest.param(kind, name, marks=[] if (kind, name) in FAST else [pytest.mark.slow])
    for kind in registry.HOOKS
    if kit_of(kind).properties
    for name in registry.names(kind)
    if registry.component(kind, name).distribution == "retrievalkit"
]


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_it_keeps_the_contract(kind, name):
    kit = kit_of(kind)
    # A new process takes seconds, and other kinds use no hashes.
    without = [] if kind in {"encoder", "indexer", "reranker"} else ["other_process"]
    try:
        report = kit.report(name, examples=LEAST, without=[each for each in without if each in kit.properties])
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert not [str(failure) for failure in report.failures]
