"""The pytest plugin: parametrizes tests of `retrievalkit_testing.conformance` with their properties at collection."""

from __future__ import annotations

from typing import Any


def pytest_generate_tests(metafunc: Any) -> None:
    """Create a test for each property."""
    if "conforms_to" in metafunc.fixturenames and hasattr(metafunc.function, "properties"):
        properties = metafunc.function.properties()
        ids = [f"{label.replace(chr(39), '')}: {name}" for label, name in properties]
        metafunc.parametrize("conforms_to", properties, ids=ids)
