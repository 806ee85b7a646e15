"""A tiny model, a tiny collection and the conformance kit, for the tests of plugin authors and our own.

    from retrievalkit_testing import conformance

    test_conforms = conformance("max_pooling")

This line creates a named test for each property of the component: requirements for every component of a kind, whatever
its method. Padding, batch order and batch size change nothing; saving and loading give equal vectors; gradients reach
the encoder; an index finds the same as brute force. A failure names the property, the numbers, and the file and line to
look at. `rkit plugins check NAME` prints the same as a table.

Modules that need torch are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from retrievalkit_testing.conforming import check as check
    from retrievalkit_testing.conforming import conformance as conformance
    from retrievalkit_testing.properties import PropertyError as PropertyError
    from retrievalkit_testing.samples import ARCHITECTURES as ARCHITECTURES
    from retrievalkit_testing.samples import Collection as Collection
    from retrievalkit_testing.samples import tiny_collection as tiny_collection
    from retrievalkit_testing.samples import tiny_model as tiny_model

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "conforming": ["check", "conformance"],
        "properties": ["PropertyError"],
        "samples": ["ARCHITECTURES", "Collection", "tiny_collection", "tiny_model"],
    },
)
