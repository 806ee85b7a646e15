"""A one-line test of all properties of a component, or of the package, by name.

test_conforms = conformance("max_pooling")
"""

from __future__ import annotations

import faulthandler
import importlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from retrievalkit import registry
from retrievalkit.errors import UnknownNameError, UnsupportedError
from retrievalkit_testing.packages import PACKAGES, same_name
from retrievalkit_testing.properties import Kit, Outcome

_KITS = {
    "encoder": "encoders:ENCODERS", "pooler": "poolers:POOLERS",
    "compressor": "compressors:COMPRESSORS", "loss": "losses:LOSSES",
    "indexer": "indexers:INDEXERS", "pretrainer": "pretrainers:PRETRAINERS", "source": "sources:SOURCES",
    "filter": "searching:FILTERS", "fusion": "searching:FUSIONS", "metric": "searching:METRICS",
    "reranker": "searching:RERANKERS", "recipe": "recipes:RECIPES", "command": "recipes:COMMANDS",
    "package": "packages:PACKAGES",
}  # fmt: skip
"""Kind -> module and name of its kit."""
_WITH_MODEL = ("encoder", "pooler", "pretrainer", "reranker")


@dataclass(frozen=True)
class Target:
    """A kit, and the component or distribution to test with it."""

    kit: Kit[Any]
    name: str
    settings: Mapping[str, Any]

    @property
    def label(self) -> str:
        """Kind and name."""
        return f"{self.kit.kind} '{self.name}'"


def kit_of(kind: str) -> Kit[Any]:
    """Return the kit of a kind of component, or of "package"; an empty kit if there are no properties of the kind."""
    if kind not in _KITS:
        unchecked = f"anything: there are no properties of the kind {kind}; test it yourself"
        return Kit(kind, lambda _: (), unchecked=unchecked)
    module, _, name = _KITS[kind].partition(":")
    kit: Kit[Any] = getattr(importlib.import_module(f"retrievalkit_testing.{module}"), name)
    return kit


def check(kind: str, name: str, /, **settings: Any) -> None:
    """Check that a component has all properties of its kind; raises PropertyError if not.

        check("pooler", "max_pooling", special_tokens=False)

    Args:
        kind: The kind of component, or "package".
        name: Registered name of the component, or name of the distribution.
        settings: Options of the component; `only` or `without`, names of properties; and settings of the kind:
            encoders, poolers, pretrainers, rerankers: `model`, to test them with instead of tiny models.
            pretrainers: `max_length`, the maximum number of tokens per text.
            losses: `kept`, `Representation.kept` of documents with two vectors; `parts`, of both sides with 8 numbers.
            indexers: `folder`, for indexes; `recall`, the minimum share of the best ten texts that an approximate
            indexer must retrieve. Below 1, scores may be off by 5 %.
            sources: `address`.
    """
    kit_of(kind).check(name, **settings)


def targets_of(name: str, *, model: str | None = None, options: Mapping[str, Any] | None = None) -> list[Target]:
    """Kits to run: for everything in a distribution, or for a component of this name and its package."""
    registered = [component for plugin in registry.plugins() for component in plugin.components]
    whole = [component for component in registered if same_name(component.distribution, name)]
    chosen = whole or [component for component in registered if component.name == name]
    # A distribution that could not be loaded has no component, and is tested too.
    distributions = {plugin.distribution: plugin.name for plugin in registry.plugins()}
    packages = dict.fromkeys(component.distribution for component in chosen)
    packages |= dict.fromkeys(
        each for each, plugin in distributions.items() if same_name(each, name) or (not chosen and plugin == name)
    )
    if not packages:
        known = dict.fromkeys((*(component.name for component in registered), *distributions))
        hint = f"See rkit plugins list. {registry.default_registry().broken_plugins()}"
        raise UnknownNameError("component", name, known, hint=hint)
    # A component of the core does not bring in the tests of the core's package.
    targets = [Target(PACKAGES, each, {}) for each in packages if whole or each != "retrievalkit"]
    options = options or {}
    by_kind = set(options) <= {component.kind for component in chosen}
    for kind, of_kind in dict.fromkeys((component.kind, component.name) for component in chosen):
        own = options.get(kind, {}) if by_kind else options
        with_model = {"model": model} if model and kind in _WITH_MODEL else {}
        targets.append(Target(kit_of(kind), of_kind, {**with_model, **own}))
    return targets


def conformance(name: str, *, model: str | None = None, **options: Any) -> Callable[[tuple[str, str]], None]:
    """Create a test for each property of a component, and of its package.

    Assign it to a name that begins with `test`: `test_conforms = conformance("max_pooling")`. Each property is a
    separate test, such as `test_conforms[pooler max_pooling: order]`; inapplicable properties are skipped.
    The pytest plugin of this distribution finds the properties when tests are collected.

    Args:
        name: Name of a component or of a distribution.
        model: For encoders, poolers, pretrainers and re-rankers: a model to test them with instead of tiny models.
        options: Options of the component.
    """

    @cache
    def targets() -> dict[str, Target]:
        return {target.label: target for target in targets_of(name, model=model, options=options)}

    @cache
    def cases(label: str) -> Any:
        """State shared by properties, such as an index, created once; None if that fails, for the report to show."""
        with suppress(Exception):
            return targets()[label].kit.cases(targets()[label].name, **targets()[label].settings)

    def properties() -> list[tuple[str, str]]:
        """Label and property name of all properties."""
        return [(label, tested) for label, target in targets().items() for tested in target.kit.properties]

    def test(conforms_to: tuple[str, str]) -> None:
        """Test one property."""
        import pytest

        __tracebackhide__ = True
        label, tested = conforms_to
        target, failure = targets()[label], ""
        try:
            target.kit.report(target.name, only=[tested], cases=cases(label), **target.settings).check()
        except UnsupportedError as error:
            pytest.skip(str(error))
        except AssertionError as error:
            failure = str(error)
        if failure:
            pytest.fail(failure, pytrace=False)

    vars(test)["properties"] = properties
    return test


def rows_of(
    name: str, *, model: str | None, options: Mapping[str, Any], properties: Sequence[str], seconds: float
) -> list[dict[str, Any]]:
    """Return the rows of `rkit plugins check`: one per property, for each component and package of a name."""
    rows: list[dict[str, Any]] = []
    for each in targets_of(name, model=model, options=options):
        only = [other for other in properties if other in each.kit.properties]
        if properties and not only:
            continue
        row: dict[str, Any] = {"checked": each.label, "properties": [], "not_checked": each.kit.unchecked}
        # Native code cannot be interrupted; on a timeout, this prints the stack and ends the process.
        faulthandler.dump_traceback_later(10 * seconds, exit=True, file=2)
        try:
            report = each.kit.report(each.name, only=only or None, seconds=seconds, **each.settings)
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
        file, line = (failure.place.file, failure.place.line) if failure.place else (None, None)
        row |= {"problem": failure.problem, "measured": failure.numbers(), "case": failure.case}
        row |= {"file": file, "line": line}
    return row


def table(checked: Sequence[dict[str, Any]], width: int) -> str:
    """Render the rows: failures with problem, numbers and place, and at the end a summary of several components."""
    lines: list[str] = []
    for each in checked:
        rows = each["properties"]
        lines.append(f"{each['checked']}: {_counts(rows) or each.get('left_out', '')}".rstrip(": "))
        wide = max((len(row["property"]) for row in rows), default=0)
        for row in rows:
            start = f"  {row['property']:<{wide}}  {row['result']:<8}  "
            texts = [row["measured"]]
            if row["result"] == "failed":
                numbers = f": {row['measured']}" if row["measured"] else ""
                texts = [f"{row['problem']} [{row['case']}]{numbers}.", row["states"]]
                texts += [f"look at {row['file']}:{row['line']}"] if row["file"] else []
            for text in texts:
                lines += _wrapped(text, width, start) or [start.rstrip()]
                start = " " * len(start)
        if each["not_checked"]:
            lines += _wrapped(f"not checked: {each['not_checked']}", width, "  ")
    if len(checked) > 1:
        lines += ["", f"{len(checked)} components: {_counts([row for each in checked for row in each['properties']])}"]
        for each in checked:
            failed = [row["property"] for row in each["properties"] if row["result"] == "failed"]
            lines += [f"  {each['checked']} fails {', '.join(failed)}"] if failed else []
            lines += [f"  {each['checked']} left out: {each['left_out']}"] if "left_out" in each else []
    return "\n".join(lines)


def _wrapped(text: str, width: int, start: str) -> list[str]:
    wide, blank = max(width, len(start) + 40), " " * len(start)
    return textwrap.wrap(text, wide, initial_indent=start, subsequent_indent=blank, break_long_words=False)


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of properties by result: "20 passed, 1 failed"."""
    counts = {result: sum(row["result"] == result for row in rows) for result in ("passed", "failed", "left out")}
    return ", ".join(f"{count} {result}" for result, count in counts.items() if count)
