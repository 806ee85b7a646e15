"""One line in a package's tests: a test of each property of a component, or of the package, by name.

    test_conforms = testing.conformance("max_pooling")
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.kits import Tried, tried_with


class Conformance:
    """What a test of `conformance` tries; see there."""

    def __init__(self, name: str, model: str | None, options: dict[str, Any]) -> None:
        self.name, self.model, self.options = name, model, options
        self._cases: dict[str, Any] = {}

    @cached_property
    def tried(self) -> dict[str, Tried]:
        """The kits, by what they are tried with."""
        found = tried_with(self.name, model=self.model, options=self.options)
        return {one.label: one for one in found}

    def properties(self) -> list[tuple[str, str]]:
        """Label and property, of all properties."""
        return [(label, name) for label, one in self.tried.items() for name in one.kit.properties]

    def check(self, label: str, name: str) -> None:
        """Try one property.

        Raises:
            PropertyError: It does not hold.
            UnsupportedError: It cannot be tried.
        """
        one = self.tried[label]
        if label not in self._cases:
            # What properties share, such as an index, is made once. A failure is told of by the report itself.
            try:
                self._cases[label] = list(one.kit.cases(one.name, **one.settings))
            except Exception:  # noqa: BLE001 - a component may raise anything
                self._cases[label] = None
        report = one.kit.report(one.name, only=[name], cases=self._cases[label], **one.settings)
        report.check()


def conformance(name: str, *, model: str | None = None, **options: Any) -> Callable[[tuple[str, str]], None]:
    """A test function for each property of a component, and of the package that it comes with.

    Assign it to a name that begins with `test`: `test_conforms = testing.conformance("max_pooling")`. Each property is a
    test of its own, such as `test_conforms[pooler max_pooling: order_of_batch]`; one that cannot be tried is skipped.
    retrievalkit's pytest plugin, which is installed with it, finds the properties when tests are collected.

    Args:
        name: Name of a component or of a distribution.
        model: For encoders, poolers and pretrainers: a model to try them with instead of tiny ones.
        options: Of the component.
    """

    def test(conforms_to: tuple[str, str]) -> None:
        """The property holds."""
        import pytest

        __tracebackhide__ = True
        failure = ""
        try:
            tried.check(*conforms_to)
        except UnsupportedError as error:
            pytest.skip(str(error))
        except AssertionError as error:
            failure = str(error)
        if failure:
            pytest.fail(failure, pytrace=False)

    tried = Conformance(name, model, options)
    vars(test)["conformance"] = tried
    return test
