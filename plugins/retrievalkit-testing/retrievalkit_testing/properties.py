"""The framework of the conformance kit: named properties of a kind of component, their runner, and failure reports.

    POOLERS: Kit[PoolerCase] = Kit("pooler", pooler_cases)

    @POOLERS.property()
    def padding(case: PoolerCase, drawn: Drawn) -> None:
        \"\"\"Padding changes no vector.\"\"\"
        expect_same("the vectors of a batch with padding", found, expected)

A property is a function of a case, such as a pooler on one encoder, and of drawn values if it has a second argument;
its docstring states the property. Each runs separately, so that a fault is attributed to the property it breaks; any
exception of the component is also a failure.
"""

from __future__ import annotations

import inspect
import random
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import torch

from retrievalkit import registry
from retrievalkit.errors import InputError, UnsupportedError, check_choice
from retrievalkit_testing.drawing import EXAMPLES, LEAST, for_all


@dataclass(frozen=True)
class Place:
    """A line of a source file."""

    file: str
    line: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" ({self.name})" if self.name else "")


def of_component(component: type, *, method: str = "", source: str = "") -> Place | None:
    """The line of a component's class to look at; None if its source cannot be read.

    Args:
        component: The class.
        method: Look at this method of the class or its base, or at the only method that it defines.
        source: A regular expression for the line, such as the line of an option.
    """
    classes = [one for one in component.__mro__ if _file(one) is not None and _file(one) == _file(component)]
    constructors = [vars(one)["__init__"] for one in classes if "__init__" in vars(one)]
    places: list[tuple[Any, str]] = []
    # Constructors first: docstrings contain option names too.
    places += [(one, source) for one in (*constructors, *classes) if source]
    own = [name for name, one in vars(component).items() if inspect.isroutine(one) and name != "__init__"]
    if method in own or (method and len(own) == 1):
        places.append((vars(component)[method if method in own else own[0]], ""))
    elif not own:
        places += [(vars(owner)[method], "") for owner in classes if inspect.isroutine(vars(owner).get(method))]
    for thing, pattern in (*places, *((one, "") for one in classes[:1])):
        try:
            lines, first = inspect.getsourcelines(thing)
        except (OSError, TypeError):
            lines, first = [], 1
        for number, line in enumerate(lines):
            if re.search(pattern or r"^\s*(async def|def|class) ", line):
                return Place(str(_file(component)), first + number, thing.__qualname__)
        if not pattern:
            return Place(str(_file(component)), first, thing.__qualname__)
    return None


def of_exception(component: type, error: BaseException) -> Place | None:
    """The deepest line of the component's own source in an exception's traceback; None if there is none."""
    package = sys.modules.get(component.__module__.partition(".")[0])
    roots = [Path(one) for one in getattr(package, "__path__", ())]
    if component.__module__.startswith("retrievalkit.") or not roots:
        # For a plugin, anywhere in its package.
        roots = [Path(str(_file(component)))]
    frames = [
        one
        for one in traceback.extract_tb(error.__traceback__)
        if any(Path(one.filename).is_relative_to(root) for root in roots)
    ]
    return Place(frames[-1].filename, frames[-1].lineno or 1, frames[-1].name) if frames else None


def _file(component: type) -> str | None:
    try:
        return inspect.getsourcefile(component)
    except TypeError:
        return None


class Case(Protocol):
    """A component in a setting named by its label, such as "bert, fp32"; properties are tested on it.

    Attributes:
        origin: Kind, name, settings and number, from which another process can create the case again.
    """

    label: str
    origin: tuple[str, str, dict[str, Any], int]


C = TypeVar("C", bound=Case)
Check = Callable[..., str | None]
"""A property's function: takes a case, and drawn values or not; returns measurements."""


class PropertyError(AssertionError):
    """A component lacks a property. The kit adds the property's name and statement, the case and the component.

    Args:
        problem: The problem, without a full stop.
        expected: The value that the property requires.
        found: The component's value.
        difference: The difference between the two, if they are numbers.
        method: The method of the component to look at.
        source: A regular expression for the line of the component's class to look at, such as the line of an option.
        place: File and line to look at, if known.
    """

    def __init__(
        self,
        problem: str,
        *,
        expected: object = None,
        found: object = None,
        difference: float | None = None,
        method: str = "",
        source: str = "",
        place: Place | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected
        self.found = found
        self.difference = difference
        self.method = method
        self.source = source
        self.property = self.statement = self.case = self.component = ""
        self.place = place

    @property
    def numbers(self) -> str:
        """Expected and found values and their difference; "" if the problem has no numbers."""
        named = (("expected", self.expected), ("found", self.found), ("difference", self.difference))
        return ", ".join(
            f"{name} {f'{value:.6g}' if isinstance(value, float) else value}"
            for name, value in named
            if value is not None
        )

    def __str__(self) -> str:
        parts = [f"{self.component} lacks the property '{self.property}': " if self.property else "", self.problem]
        parts += [f" [{self.case}]" if self.case else "", f": {self.numbers}" if self.numbers else "", "."]
        parts += [f" {self.statement}" if self.statement else "", f" Look at {self.place}." if self.place else ""]
        return "".join(parts)


@dataclass(frozen=True)
class Property(Generic[C]):
    """A property, named after its function, whose docstring states it.

    Attributes:
        check: Raises PropertyError if the component of a case lacks the property, UnsupportedError if it is not
            applicable; may return measurements.
        after: Properties that it depends on: if one of these fails, it is skipped.
        once: Whether to test only the first case that supports it.
        draws: For a check of drawn values: the attribute of the case with their strategies.
        examples: For a check of drawn values: how many are drawn, for all cases together.
    """

    name: str
    statement: str
    check: Check
    after: tuple[str, ...] = ()
    once: bool = False
    draws: str = "draws"
    examples: int = EXAMPLES

    def test(self, case: C, cases: int, most: int) -> str | None:
        """Test one of several cases, with drawn values if the check takes any: other values for each case."""
        if len(inspect.signature(self.check).parameters) == 1:
            return self.check(case)
        examples, name = min(most, max(LEAST, self.examples // cases)), f"{self.name} {case.label}"
        for_all(getattr(case, self.draws), partial(self.check, case), name=name, examples=examples)
        return None


@dataclass(frozen=True)
class Outcome:
    """The outcome of one property: passed, failed or skipped."""

    property: str
    statement: str
    failure: PropertyError | None = None
    left_out: str = ""
    measured: str = ""


@dataclass(frozen=True)
class Report:
    """The outcomes of all properties of a component, in reading order."""

    component: str
    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> list[PropertyError]:
        """The failures, starting with the one to fix first."""
        return [one.failure for one in self.outcomes if one.failure is not None]

    def check(self) -> None:
        """Raise the first failure."""
        for failure in self.failures:
            raise failure


class Kit(Generic[C]):
    """The properties of a kind of component.

    Args:
        kind: The kind, such as "pooler".
        cases: Creates the cases for a component's name and keyword arguments, which are settings of the kit and options
            of the component. May raise any exception of the component.
        find: Looks up the class by name; by default the component's class.
        method: The method to look at if a property names none.
        unchecked: What no property of this kind covers, for the report.
    """

    def __init__(
        self,
        kind: str,
        cases: Callable[..., Iterable[C]],
        *,
        find: Callable[[str], type] | None = None,
        method: str = "",
        unchecked: str = "",
    ) -> None:
        self.kind = kind
        self.make_cases = cases
        self.unchecked = unchecked
        self.find = find or partial(registry.get, kind)
        self.method = method
        self.properties: dict[str, Property[C]] = {}

    def property(self, **settings: Any) -> Callable[[Check], Check]:
        """Append a function as a property. See `Property` for the settings."""

        def add(check: Check) -> Check:
            statement = (check.__doc__ or "").partition("\n")[0]
            after = tuple(settings.pop("after", ()))
            self.properties[check.__name__] = Property(check.__name__, statement, check, after, **settings)
            return check

        return add

    def cases(self, name: str, **settings: Any) -> list[C]:
        """The cases of a component, each with the origin by which another process can create it again."""
        cases = list(self.make_cases(name, **settings))
        for number, one in enumerate(cases):
            one.origin = (self.kind, name, settings, number)
        return cases

    def report(
        self,
        name: str,
        *,
        only: Sequence[str] | None = None,
        without: Sequence[str] = (),
        first: bool = False,
        cases: Sequence[C] | None = None,
        seconds: float | None = None,
        examples: int = EXAMPLES,
        **settings: Any,
    ) -> Report:
        """Test all properties of a component, or the named ones.

        Args:
            name: Registered name of the component.
            only: Names of properties.
            without: Names of properties that the component intentionally lacks.
            first: Whether to stop at the first failure.
            cases: The cases, if they already exist.
            seconds: Maximum time per property, which fails if it takes longer; None = no limit.
            examples: Maximum number of drawn values for each property.
            settings: Settings of the kit and options of the component.

        Raises:
            InputError: The component cannot be created with these options.
            UnsupportedError: No property is applicable.
        """
        component = f"{self.kind} '{name}'"
        for chosen in (*(only or ()), *without):
            check_choice(f"property of a {self.kind}", chosen, self.properties)
        tried = [
            one for one in self.properties.values() if (only is None or one.name in only) and one.name not in without
        ]
        kind = self.find(name)
        try:
            with limited(seconds):
                cases = self.cases(name, **settings) if cases is None else cases
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - a component may raise anything
            made = ("makes", "It can be made with these options.")
            return Report(component, [Outcome(*made, self._failure(error, *made, kind, component))])
        outcomes: dict[str, Outcome] = {}
        for one in tried:
            failed = [other for other in one.after if other in outcomes and outcomes[other].failure]
            if failed:
                outcomes[one.name] = Outcome(one.name, one.statement, left_out=f"'{failed[0]}' failed")
            else:
                outcomes[one.name] = self._outcome(one, cases, kind, component, seconds, examples)
            if first and outcomes[one.name].failure:
                break
        if outcomes and all(one.left_out for one in outcomes.values()):
            msg = f"nothing of {component} could be tried. {next(iter(outcomes.values())).left_out}"
            raise UnsupportedError(msg)
        return Report(component, list(outcomes.values()))

    def _outcome(
        self, one: Property[C], cases: Sequence[C], kind: type, component: str, seconds: float | None, examples: int
    ) -> Outcome:
        reasons: list[str] = []
        measured: list[str] = []
        for case in cases:
            try:
                with torch.random.fork_rng(devices=[]), limited(seconds):
                    torch.manual_seed(0)
                    random.seed(0)
                    if numbers := one.test(case, 1 if one.once else len(cases), examples):
                        measured.append(f"{case.label}: {numbers}")
            except UnsupportedError as error:
                reasons.append(str(error))
                continue
            except Exception as error:  # noqa: BLE001 - a component may raise anything
                label = ", ".join(filter(None, [case.label, getattr(error, "drawn", "")]))
                failure = self._failure(error, one.name, one.statement, kind, component, label)
                return Outcome(one.name, one.statement, failure)
            if one.once:
                break
        left_out = " ".join(dict.fromkeys(reasons)) if len(reasons) == len(cases) else ""
        return Outcome(one.name, one.statement, left_out=left_out, measured="; ".join(measured))

    def _failure(
        self, error: Exception, name: str, statement: str, kind: type, component: str, case: str = ""
    ) -> PropertyError:
        """The failure with all available details, whatever exception the component raised."""
        if isinstance(error, PropertyError):
            failure = error
        else:
            text = " ".join(str(error).split()).rstrip(".")
            place = of_exception(kind, error)
            # The kit's own assertions describe the problem.
            if not isinstance(error, AssertionError) or place is not None:
                text = f"it raises {type(error).__name__}" + (f": {text}" if text else "")
            failure = PropertyError(text)
            failure.__cause__ = error
            failure.place = place
        failure.place = failure.place or of_component(kind, method=failure.method or self.method, source=failure.source)
        failure.property, failure.statement = name, statement
        failure.case, failure.component = case, component
        return failure

    def check(self, name: str, **settings: Any) -> None:
        """Test all properties of a component, with few drawn values, as in a test that runs often. See `report`."""
        self.report(name, first=True, examples=LEAST, **settings).check()


def accepted(
    cases: Sequence[C],
    trial: Callable[[C], object],
    *,
    refusal: type[Exception] = UnsupportedError,
    none: str = "",
    method: str = "",
) -> list[C]:
    """The cases that a component does not refuse when tried; other errors are left to the properties.

    Raises:
        Exception: It refuses all cases, and `none` does not describe the problem.
        PropertyError: It refuses all cases, and `none` describes the problem.
    """
    taken, refusals = [], dict[str, Exception]()
    for case in cases:
        try:
            with torch.no_grad():
                trial(case)
        except refusal as error:
            refusals[case.label] = error
            continue
        except Exception:  # noqa: BLE001 - a component may raise anything
            pass
        taken.append(case)
    if taken:
        return taken
    if none:
        told = " ".join(f"{label}: {error}" for label, error in refusals.items())
        fail(f"{none} {told}".rstrip("."), method=method)
    raise next(iter(refusals.values()))


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer than some seconds; None = no limit.

    Works only in the main thread, on systems with timers, if nothing else uses the timer.
    """
    in_main = threading.current_thread() is threading.main_thread()
    possible = in_main and hasattr(signal, "setitimer") and not any(signal.getitimer(signal.ITIMER_REAL))
    if seconds is None or not possible:
        yield
        return

    def stop(*_: object) -> NoReturn:
        msg = f"no end within {seconds:.0f} s"
        raise TimeoutError(msg)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fail(problem: str, place: Place | None = None, **details: Any) -> NoReturn:
    """Report that the component lacks the tested property. See `PropertyError` for the arguments."""
    raise PropertyError(problem, place=place, **details)


def leave_out(reason: str) -> NoReturn:
    """Skip the property for this case, with the reason as a sentence."""
    raise UnsupportedError(reason)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors, arrays, texts and numbers in a structure, by their names in it."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from leaves(one, f"{name}.{key}" if name else str(key))
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{name}.{field.name}" if name else field.name)
    elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        ordered = value if isinstance(value, Sequence) else sorted(value, key=repr)
        yield f"length of {name or 'the result'}", len(ordered)
        for number, one in enumerate(ordered):
            yield from leaves(one, f"{name}[{number}]")
    else:
        yield name, value


def copied(value: Any) -> dict[str, Any]:
    """The leaves of a structure, with copies of tensors and arrays."""
    clones = {torch.Tensor: lambda one: one.detach().clone(), np.ndarray: lambda one: one.copy()}
    return {name: clones.get(type(one), lambda same: same)(one) for name, one in leaves(value)}


def expect_same(problem: str, found: Any, expected: Any, *, rtol: float = 0.0, atol: float = 0.0, **where: Any) -> None:
    """Expect two structures of equal leaves, numbers up to rounding; `where` are details of `PropertyError`."""
    first, second = dict(leaves(expected)), dict(leaves(found))
    if first.keys() != second.keys():
        sizes_of = [{name: one for name, one in some.items() if isinstance(one, int)} for some in (first, second)]
        names = [name for name in sizes_of[0] if sizes_of[0][name] != sizes_of[1].get(name)][:1]
        fail(problem, expected=[sizes_of[0].get(one) for one in names], found=[sizes_of[1].get(one) for one in names])
    for name, one in first.items():
        if difference := _difference(second[name], one, rtol, atol):
            fail(problem + (f" ('{name}')" if name else ""), **difference, **where)


def _difference(found: Any, expected: Any, rtol: float, atol: float) -> dict[str, Any]:
    """The first difference of two leaves: expected, found, and by how much; {} if there is none."""
    numbers = (torch.Tensor, np.ndarray, np.generic, float)
    if not isinstance(expected, numbers) or not isinstance(found, numbers):
        same = type(expected) is type(found) and bool(expected == found)
        return {} if same else {"expected": str(expected)[:80], "found": str(found)[:80]}
    if isinstance(expected, np.ndarray) and expected.dtype.kind in "OU":
        return {} if expected.tolist() == np.asarray(found).tolist() else {"expected": expected, "found": found}
    one, other = (torch.as_tensor(value).detach().double() for value in (expected, found))
    if one.shape != other.shape:
        return {"expected": tuple(one.shape), "found": tuple(other.shape)}
    apart = ~torch.isclose(other, one, rtol=rtol, atol=atol, equal_nan=True)
    if not apart.any():
        return {}
    gaps = (other - one).abs().nan_to_num(torch.inf).masked_fill(~apart, -1.0).reshape(-1)
    place = int(gaps.argmax())
    values = (float(value.reshape(-1)[place]) for value in (one, other))
    return {"expected": next(values), "found": next(values), "difference": float(gaps.max())}
