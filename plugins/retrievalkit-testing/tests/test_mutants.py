"""Components with one fault each: the conformance kit finds every one, by the property that is broken."""

from __future__ import annotations

import re
from pathlib import Path

import mutants_losses
import mutants_poolers
import mutants_pretrainers
import pytest
from retrievalkit_testing.losses import LOSSES
from retrievalkit_testing.poolers import POOLERS
from retrievalkit_testing.pretrainers import PRETRAINERS
from retrievalkit_testing.samples import kit_models

_KITS = {mutants_poolers: POOLERS, mutants_losses: LOSSES, mutants_pretrainers: PRETRAINERS}
_MUTANTS = [
    pytest.param(module, name, kind, id=f"{kit.kind}-{name}")
    for module, kit in _KITS.items()
    for name, kind in module.MUTANTS.items()
]


def rested_on(kit, name):
    """A property, with those that it rests on."""
    names = [name]
    for one in names:
        names += [other for other in kit.properties[one].after if other not in names]
    return names


@pytest.fixture(scope="module", autouse=True)
def registered():
    """The faulty components are registered."""
    from retrievalkit import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RKIT_PLUGIN_FILES", ",".join(str(module.__file__) for module in _KITS))
        registry.default_registry.cache_clear()
        yield
    registry.default_registry.cache_clear()


@pytest.mark.parametrize(("module", "name", "kind"), _MUTANTS)
def test_a_fault_is_found_by_its_property_with_the_line_to_look_at(module, name, kind):
    """Those that the property rests on hold; its failure says what is wrong, and leads to the component's source."""
    # A single encoder, which is enough for each of these.
    settings = {} if module is mutants_losses else {"model": kit_models()["bert"]}
    kit = _KITS[module]
    tried = rested_on(kit, kind.found_by) if kind.found_by in kit.properties else None
    (failure,) = kit.report(name, only=tried, first=True, **settings).failures
    assert failure.property == kind.found_by, str(failure)
    assert re.search(getattr(kind, "says", ""), str(failure)), str(failure)
    assert f"{Path(module.__file__).name}:" in str(failure)
    assert failure.place is not None
    line = Path(failure.place.file).read_text().splitlines()[failure.place.line - 1]
    assert line.strip(), str(failure)
    assert failure.statement in str(failure)
