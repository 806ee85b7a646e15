"""A one-line test of all properties of a component, or of the package, by name.

test_conforms = conformance("max_pooling")
"""

from __future__ import annotations

import faulthandler
import importlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from retrievalkit import registry
from retrievalkit.errors import UnknownNameError, UnsupportedError
from retrievalkit_testing.packages import PACKAGES, same_name
from retrievalkit_testing.properties import Kit, Outcome

_KITS = {
    "encoder": "encoders",
    "pooler": "poolers",
    "compressor": "compressors",
    "loss": "losses",
    "indexer": "indexers",
    "pretrainer": "pretrainers",
    "source": "sources",
    "filter": "filters",
    "fusion": "fusions",
    "metric": "metrics",
    "reranker": "rerankers",
    "recipe": "recipes",
    "command": "recipes",
    "package": "packages",
}
"""Kind -> module of its kit."""
_PLURAL = {"loss": "LOSSES"}
_WITH_MODEL = ("encoder", "pooler", "pretrainer", "reranker")


@dataclass(frozen=True)
class Tried:
    """A kit, and the component or distribution to test with it."""

    kit: Kit[Any]
    name: str
    settings: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Kind and name."""
        return f"{self.kit.kind} '{self.name}'"


def kit_of(kind: str) -> Kit[Any]:
    """The kit of a kind of component, or of "package"; one without properties if nothing of the kind is checked."""
    if kind not in _KITS:
        return Kit(
            kind, lambda _: (), unchecked=f"anything: there are no properties of the kind {kind}; test it yourself"
        )
    module = importlib.import_module(f"retrievalkit_testing.{_KITS[kind]}")
    kit: Kit[Any] = getattr(module, _PLURAL.get(kind, f"{kind.upper()}S"))
    return kit


def tried_with(name: str, *, model: str | None = None, options: Mapping[str, Any] | None = None) -> list[Tried]:
    """Kits to run: for a component of this name and its package, or for everything in a distribution."""
    registered = [component for plugin in registry.plugins() for component in plugin.components]
    named = [one for one in registered if one.name == name]
    found = named or [one for one in registered if same_name(one.distribution, name)]
    packages = dict.fromkeys(one.distribution for one in found)
    if not found:
        # A distribution that could not be loaded has no component, but is tested all the same.
        packages = dict.fromkeys(one.distribution for one in registry.plugins() if same_name(one.distribution, name))
    if not packages:
        known = dict.fromkeys((*(one.name for one in registered), *(one.distribution for one in registry.plugins())))
        raise UnknownNameError("component", name, known, hint="See rkit plugins list.")
    # The core is not a plugin package.
    tried = [] if named and set(packages) == {"retrievalkit"} else [Tried(PACKAGES, one, {}) for one in packages]
    options = options or {}
    by_kind = set(options) <= {one.kind for one in found}
    for kind, of_kind in dict.fromkeys((one.kind, one.name) for one in found):
        own = options.get(kind, {}) if by_kind else options
        with_model = {"model": model} if model and kind in _WITH_MODEL else {}
        tried.append(Tried(kit_of(kind), of_kind, {**with_model, **own}))
    return tried


class Conformance:
    """The tests created by `conformance`."""

    def __init__(self, name: str, model: str | None, options: dict[str, Any]) -> None:
        self.name, self.model, self.options = name, model, options
        self._cases: dict[str, Any] = {}

    @cached_property
    def tried(self) -> dict[str, Tried]:
        """The kits, by label."""
        found = tried_with(self.name, model=self.model, options=self.options)
        return {one.label: one for one in found}

    def properties(self) -> list[tuple[str, str]]:
        """Label and property name of all properties."""
        return [(label, name) for label, one in self.tried.items() for name in one.kit.properties]

    def check(self, label: str, name: str) -> None:
        """Test one property."""
        one = self.tried[label]
        if label not in self._cases:
            # State shared by properties, such as an index, is created once. A failure is reported by the report itself.
            try:
                self._cases[label] = list(one.kit.cases(one.name, **one.settings))
            except Exception:  # noqa: BLE001 - a component may raise anything
                self._cases[label] = None
        report = one.kit.report(one.name, only=[name], cases=self._cases[label], **one.settings)
        report.check()


def conformance(name: str, *, model: str | None = None, **options: Any) -> Callable[[tuple[str, str]], None]:
    """Create a test for each property of a component, and of its package.

    Assign it to a name that begins with `test`: `test_conforms = conformance("max_pooling")`. Each property is a
    separate test, such as `test_conforms[pooler max_pooling: order_of_batch]`; inapplicable properties are skipped.
    The pytest plugin of this distribution finds the properties when tests are collected.

    Args:
        name: Name of a component or of a distribution.
        model: For encoders, poolers and pretrainers: a model to test them with instead of tiny models.
        options: Options of the component.
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


def check(
    name: str, *, model: str | None, options: Mapping[str, Any], properties: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    """The rows of `rkit plugins check`: one per property, for each component and package that a name stands for."""
    rows: list[dict[str, Any]] = []
    for one in tried_with(name, model=model, options=options):
        only = [other for other in properties if other in one.kit.properties]
        if properties and not only:
            continue
        row: dict[str, Any] = {"checked": one.label, "properties": [], "not_checked": one.kit.unchecked}
        # Native code cannot be interrupted; on a timeout, this prints the stack and ends the process.
        faulthandler.dump_traceback_later(10 * seconds, exit=True, file=2)
        try:
            report = one.kit.report(one.name, only=only or None, seconds=seconds, **one.settings)
        except UnsupportedError as error:
            row["left_out"] = str(error)
        else:
            row["properties"] = [_row(outcome) for outcome in report.outcomes]
        finally:
            faulthandler.cancel_dump_traceback_later()
        rows.append(row)
    return rows


def _row(outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    row: dict[str, Any] = {
        "property": outcome.property,
        "states": outcome.statement,
        "result": "failed" if failure else "left out" if outcome.left_out else "passed",
        "measured": outcome.measured or outcome.left_out,
    }
    if failure is not None:
        place = failure.place
        row |= {
            "problem": failure.problem,
            "measured": failure.numbers,
            "case": failure.case,
            "file": place.file if place else None,
            "line": place.line if place else None,
        }
    return row


def table(checked: Sequence[dict[str, Any]], width: int) -> str:
    """Render the rows of everything checked; failures with problem, numbers and place."""
    lines: list[str] = []
    for one in checked:
        rows = one["properties"]
        counts = {result: sum(row["result"] == result for row in rows) for result in ("passed", "failed", "left out")}
        told = ", ".join(f"{count} {result}" for result, count in counts.items() if count) or one.get("left_out", "")
        lines.append(f"{one['checked']}: {told}".rstrip(": "))
        wide = max((len(row["property"]) for row in rows), default=0)
        for row in rows:
            start = f"  {row['property']:<{wide}}  {row['result']:<8}  "
            texts = [row["measured"]]
            if row["result"] == "failed":
                numbers = f": {row['measured']}" if row["measured"] else ""
                texts = [f"{row['problem']} [{row['case']}]{numbers}.", row["states"]]
                texts += [f"look at {row['file']}:{row['line']}"] if row["file"] else []
            for text in texts:
                for line in textwrap.wrap(text, max(40, width - len(start)), break_long_words=False) or [""]:
                    lines.append(start + line)
                    start = " " * len(start)
        if one["not_checked"]:
            lines += textwrap.wrap(
                f"not checked: {one['not_checked']}", width, initial_indent="  ", subsequent_indent="  "
            )
    return "\n".join(lines)
