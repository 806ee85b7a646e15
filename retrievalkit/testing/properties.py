"""The frame of the conformance kit: named properties of a kind of component, what runs them, and how a failure reads.

    POOLERS: Kit[PoolerCase] = Kit("pooler", pooler_cases)

    @POOLERS.property()
    def order_of_batch(case: PoolerCase) -> None:
        \"\"\"The order of a batch changes no vector.\"\"\"
        expect_close("the vectors of a batch in another order", found, expected)

A property is a function of one case, such as a pooler on one encoder; its docstring is what it states. Each runs by
itself, so that a fault is blamed on the property that it breaks, and whatever the component raises is a failure too.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import torch

from retrievalkit import registry
from retrievalkit.errors import InputError, UnsupportedError, check_choice
from retrievalkit.testing.places import Place, of_component, of_exception


class Case(Protocol):
    """What properties are tried on: a component in some setting, which the label names, such as "bert, fp32"."""

    @property
    def label(self) -> str:
        """The setting, for messages."""
        ...


C = TypeVar("C", bound=Case)
Check = Callable[[C], str | None]
"""A property's function: of a case, what it measured."""


class PropertyError(AssertionError):
    """A component lacks a property.

    Raised by a property with the first arguments alone; the kit adds the rest.

    Args:
        problem: What is wrong, without a full stop.
        expected: What should have been found, as text or number.
        found: What was.
        difference: How far the two are apart, if they are numbers.
        method: The method of the component to look at.
        source: A regular expression for the line of the component's class to look at, such as that of an option.

    Attributes:
        property: Name of the property, such as "padding".
        statement: What the property states.
        case: The setting in which it failed, such as "bert, fp32".
        component: Kind and name, such as "pooler 'mean'".
        place: File and line to look at.
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
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected
        self.found = found
        self.difference = difference
        self.method = method
        self.source = source
        self.property = self.statement = self.case = self.component = ""
        self.place: Place | None = None

    @property
    def numbers(self) -> str:
        """What was expected and found, and how far they are apart; "" if the problem is not one of numbers."""
        named = (("expected", self.expected), ("found", self.found), ("difference", self.difference))
        return ", ".join(f"{name} {_shown(value)}" for name, value in named if value is not None)

    def __str__(self) -> str:
        parts = [f"{self.component} lacks the property '{self.property}': " if self.property else "", self.problem]
        parts += [f" [{self.case}]" if self.case else "", f": {self.numbers}" if self.numbers else "", "."]
        parts += [f" {self.statement}" if self.statement else "", f" Look at {self.place}." if self.place else ""]
        return "".join(parts)


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Property(Generic[C]):
    """A named property.

    Attributes:
        name: The name of its function.
        statement: What it states: the first line of the function's docstring.
        check: Raises PropertyError if the component of a case lacks it, UnsupportedError if it cannot be tried there;
            may return what it measured.
        after: Properties that it rests on: if one of these fails, it is left out.
        once: Whether it is tried on the first case that supports it alone.
    """

    name: str
    statement: str
    check: Check[C]
    after: tuple[str, ...] = ()
    once: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of one property: it holds, it failed, or it was left out.

    Attributes:
        property: Its name.
        statement: What it states.
        failure: Why the component lacks it; None if it does not.
        left_out: Why it was not tried; "" if it was.
        measured: What it measured, such as a recall; "" if nothing.
    """

    property: str
    statement: str
    failure: PropertyError | None = None
    left_out: str = ""
    measured: str = ""


@dataclass(frozen=True)
class Report:
    """What became of all properties of a component, in the order in which to read them.

    Attributes:
        component: Kind and name, such as "pooler 'mean'".
        outcomes: One for each property.
    """

    component: str
    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> list[PropertyError]:
        """The failures, the one to mend first in front."""
        return [one.failure for one in self.outcomes if one.failure is not None]

    def check(self) -> None:
        """Raise the first failure.

        Raises:
            PropertyError: The component lacks a property.
        """
        for failure in self.failures:
            raise failure


class Kit(Generic[C]):
    """The properties of a kind of component.

    Args:
        kind: The kind, such as "pooler".
        cases: Makes the cases for the name of a component and keyword arguments, which are the kit's and the options
            of the component. May raise what the component raises.
        find: The class of a name; by default the component's.
    """

    def __init__(
        self, kind: str, cases: Callable[..., Iterable[C]], *, find: Callable[[str], type] | None = None
    ) -> None:
        self.kind = kind
        self.cases = cases
        self.find = find or partial(registry.get, kind)
        self.properties: dict[str, Property[C]] = {}

    def property(self, *, after: Sequence[str] = (), once: bool = False) -> Callable[[Check[C]], Check[C]]:
        """Add a function as a property, at the end. See `Property` for the arguments."""

        def add(check: Check[C]) -> Check[C]:
            statement = (check.__doc__ or "").partition("\n")[0]
            self.properties[check.__name__] = Property(check.__name__, statement, check, tuple(after), once)
            return check

        return add

    def report(
        self,
        name: str,
        *,
        only: Sequence[str] | None = None,
        without: Sequence[str] = (),
        first: bool = False,
        cases: Sequence[C] | None = None,
        seconds: float | None = None,
        **settings: Any,
    ) -> Report:
        """Try all properties of a component, or those that are named.

        Args:
            name: Registered name of the component.
            only: Names of properties.
            without: Names of properties that the component lacks on purpose.
            first: Whether to stop at the first failure.
            cases: The cases, if they were made already.
            seconds: Most time of a property, which fails if it takes longer; None = no limit.
            settings: Of the kit and of the component.

        Raises:
            InputError: It cannot be made with these options.
            UnsupportedError: Nothing could be tried.
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
                cases = list(self.cases(name, **settings)) if cases is None else cases
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - a component may raise anything
            made = Property[C]("makes", "It can be made with these options.", _nothing)
            return Report(component, [Outcome(made.name, made.statement, _failure(error, made, kind, component, ""))])
        outcomes: dict[str, Outcome] = {}
        for one in tried:
            failed = [other for other in one.after if other in outcomes and outcomes[other].failure]
            if failed:
                outcomes[one.name] = Outcome(one.name, one.statement, left_out=f"'{failed[0]}' failed")
            else:
                outcomes[one.name] = _outcome(one, cases, kind, component, seconds)
            if first and outcomes[one.name].failure:
                break
        if outcomes and all(one.left_out for one in outcomes.values()):
            msg = f"nothing of {component} could be tried. {next(iter(outcomes.values())).left_out}"
            raise UnsupportedError(msg)
        return Report(component, list(outcomes.values()))

    def check(self, name: str, **settings: Any) -> None:
        """Try all properties of a component. See `report`.

        Raises:
            PropertyError: It lacks one; says which.
        """
        self.report(name, first=True, **settings).check()


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError where the block is after some seconds; None = never.

    In the main thread alone, on systems with timers, if nothing else uses the timer.
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


def _nothing(_: object) -> None:
    """A property that is tried by making the cases."""


def _outcome(one: Property[C], cases: Sequence[C], kind: type, component: str, seconds: float | None) -> Outcome:
    reasons: list[str] = []
    measured: list[str] = []
    for case in cases:
        try:
            with torch.random.fork_rng(devices=[]), limited(seconds):
                torch.manual_seed(0)
                random.seed(0)
                if numbers := one.check(case):
                    measured.append(f"{case.label}: {numbers}")
        except UnsupportedError as error:
            reasons.append(str(error))
            continue
        except Exception as error:  # noqa: BLE001 - a component may raise anything
            return Outcome(one.name, one.statement, _failure(error, one, kind, component, case.label))
        if one.once:
            break
    left_out = " ".join(dict.fromkeys(reasons)) if len(reasons) == len(cases) else ""
    return Outcome(one.name, one.statement, left_out=left_out, measured="; ".join(measured))


def _failure(error: Exception, one: Property[Any], kind: type, component: str, case: str) -> PropertyError:
    """The failure with all that is known of it, whatever the component raised."""
    if isinstance(error, PropertyError):
        failure = error
        failure.place = failure.place or of_component(kind, method=failure.method, source=failure.source)
    else:
        text = " ".join(str(error).split()).rstrip(".")
        raised = f"it raises {type(error).__name__}" + (f": {text}" if text else "")
        place = of_exception(kind, error)
        # An assertion of the kit's own says what is wrong.
        failure = PropertyError(text if isinstance(error, AssertionError) and place is None else raised)
        failure.__cause__ = error
        failure.place = place or of_component(kind)
    failure.property, failure.statement = one.name, one.statement
    failure.case, failure.component = case, component
    return failure


def fail(problem: str, **details: Any) -> NoReturn:
    """Say that the component lacks the property that is tried. See `PropertyError` for the arguments."""
    raise PropertyError(problem, **details)


def expect_equal(problem: str, found: torch.Tensor, expected: torch.Tensor, **where: str) -> None:
    """Expect the same values, bit by bit. See `expect_close`."""
    expect_close(problem, found, expected, rtol=0.0, atol=0.0, **where)


def expect_close(
    problem: str,
    found: torch.Tensor,
    expected: torch.Tensor,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    **where: str,
) -> None:
    """Expect values that are equal but for rounding.

    Args:
        problem: What is wrong if they are not, without a full stop.
        found: The values.
        expected: What they should be.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        where: `method` or `source` of the PropertyError.

    Raises:
        PropertyError: They differ; with the value that differs most, or the shapes.
    """
    if found.shape != expected.shape:
        fail(problem, expected=tuple(expected.shape), found=tuple(found.shape), **where)
    apart = ~torch.isclose(found.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)
    if not apart.any():
        return
    gaps = (found.double() - expected.double()).abs().nan_to_num(torch.inf).masked_fill(~apart, -1.0)
    place = int(gaps.argmax())
    values = (float(one.reshape(-1)[place]) for one in (expected, found))
    fail(problem, expected=next(values), found=next(values), difference=float(gaps.max()), **where)
