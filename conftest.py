"""What the suites of the core and of the plugins share: garbage is looked for among new objects alone."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _imported_modules_are_no_garbage() -> None:
    """Each training ends with a full collection, most of its time, which need not go through all of torch again."""
    gc.collect()
    gc.freeze()
