"""The pytest plugin: parametrizes tests of `retrievalkit_testing.conformance` with their properties at collection."""

from __future__ import annotations

from typing import Any


def pytest_generate_tests(metafunc: Any) -> None:
    """Create a test for each property."""
    conformance = getattr(metafunc.function, "conformance", None)
    if conformance is None or "conforms_to" not in metafunc.fixturenames:
        return
    found = conformance.properties()
    ids = [f"{label.replace(chr(39), '')}: {name}" for label, name in found]
    metafunc.parametrize("conforms_to", found, ids=ids)
