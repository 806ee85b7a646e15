"""Components with one fault each: the conformance kit finds every one, by the property that is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrievalkit.testing.losses import LOSSES
from retrievalkit.testing.models import kit_models
from retrievalkit.testing.poolers import POOLERS
from retrievalkit.testing.pretrainers import PRETRAINERS
from testing import mutants_losses, mutants_poolers, mutants_pretrainers

_KITS = {mutants_poolers: POOLERS, mutants_losses: LOSSES, mutants_pretrainers: PRETRAINERS}
_MUTANTS = [
    pytest.param(module, name, kind.found_by, id=f"{kit.kind}-{name}")
    for module, kit in _KITS.items()
    for name, kind in module.MUTANTS.items()
]


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The faulty components are registered."""
    from retrievalkit import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RKIT_PLUGIN_FILES", ",".join(str(module.__file__) for module in _KITS))
        registry.default_registry.cache_clear()
        yield
    registry.default_registry.cache_clear()


@pytest.mark.parametrize(("module", "name", "expected"), _MUTANTS)
def test_a_fault_is_found_by_its_property_with_the_line_to_look_at(module, name, expected):
    """The first failure is of the property that the fault breaks, and its message leads to the component's source."""
    # A single encoder, which is enough for each of these.
    settings = {} if module is mutants_losses else {"model": kit_models()["bert"]}
    (failure,) = _KITS[module].report(name, first=True, **settings).failures
    assert failure.property == expected, str(failure)
    assert f"{Path(module.__file__).name}:" in str(failure)
    assert failure.place is not None
    line = Path(failure.place.file).read_text().splitlines()[failure.place.line - 1]
    assert line.strip(), str(failure)
    assert failure.statement in str(failure)
