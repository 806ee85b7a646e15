"""The framework of the conformance kit: named properties of a kind of component, their runner, and failure reports.

    POOLERS: Kit[PoolerCase] = Kit("pooler", pooler_cases)

    @POOLERS.property()
    def order_of_batch(case: PoolerCase) -> None:
        \"\"\"The order of a batch changes no vector.\"\"\"
        expect_close("the vectors of a batch in another order", found, expected)

A property is a function of one case, such as a pooler on one encoder; its docstring states the property. Each runs
separately, so that a fault is attributed to the property it breaks; any exception of the component is also a failure.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import torch

from retrievalkit import registry
from retrievalkit.errors import InputError, UnsupportedError, check_choice


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
    """A component in a setting named by its label, such as "bert, fp32"; properties are tested on it."""

    label: str


C = TypeVar("C", bound=Case)
Check = Callable[[C], str | None]
"""A property's function: takes a case, returns measurements."""


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
    """

    name: str
    statement: str
    check: Check[C]
    after: tuple[str, ...] = ()
    once: bool = False


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
    """

    def __init__(
        self,
        kind: str,
        cases: Callable[..., Iterable[C]],
        *,
        find: Callable[[str], type] | None = None,
        method: str = "",
    ) -> None:
        self.kind = kind
        self.cases = cases
        self.find = find or partial(registry.get, kind)
        self.method = method
        self.properties: dict[str, Property[C]] = {}

    def property(self, *, after: Sequence[str] = (), once: bool = False) -> Callable[[Check[C]], Check[C]]:
        """Append a function as a property. See `Property` for the arguments."""

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
        """Test all properties of a component, or the named ones.

        Args:
            name: Registered name of the component.
            only: Names of properties.
            without: Names of properties that the component intentionally lacks.
            first: Whether to stop at the first failure.
            cases: The cases, if they already exist.
            seconds: Maximum time per property, which fails if it takes longer; None = no limit.
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
                cases = list(self.cases(name, **settings)) if cases is None else cases
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
                outcomes[one.name] = self._outcome(one, cases, kind, component, seconds)
            if first and outcomes[one.name].failure:
                break
        if outcomes and all(one.left_out for one in outcomes.values()):
            msg = f"nothing of {component} could be tried. {next(iter(outcomes.values())).left_out}"
            raise UnsupportedError(msg)
        return Report(component, list(outcomes.values()))

    def _outcome(
        self, one: Property[C], cases: Sequence[C], kind: type, component: str, seconds: float | None
    ) -> Outcome:
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
                failure = self._failure(error, one.name, one.statement, kind, component, case.label)
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
        """Test all properties of a component. See `report`."""
        self.report(name, first=True, **settings).check()


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


def expect_equal(problem: str, found: torch.Tensor, expected: torch.Tensor, **where: Any) -> None:
    """Expect bitwise equal values. See `expect_close`."""
    expect_close(problem, found, expected, rtol=0.0, atol=0.0, **where)


def expect_close(
    problem: str, found: torch.Tensor, expected: torch.Tensor, *, rtol: float = 1e-4, atol: float = 1e-5, **where: Any
) -> None:
    """Expect values that are equal up to rounding."""
    if found.shape != expected.shape:
        fail(problem, expected=tuple(expected.shape), found=tuple(found.shape), **where)
    apart = ~torch.isclose(found.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)
    if not apart.any():
        return
    gaps = (found.double() - expected.double()).abs().nan_to_num(torch.inf).masked_fill(~apart, -1.0)
    place = int(gaps.argmax())
    values = (float(one.reshape(-1)[place]) for one in (expected, found))
    fail(problem, expected=next(values), found=next(values), difference=float(gaps.max()), **where)


def backward(total: torch.Tensor) -> None:
    """Back-propagate, unless no tensor requires gradients."""
    if total.requires_grad:
        torch.autograd.backward(total)


def expect_scalars(numbers: Mapping[str, torch.Tensor], what: str = "") -> None:
    """Expect finite scalars; `what` follows their names in messages."""
    for name, number in numbers.items():
        if number.dim():
            problem = f"the {name} has shape {tuple(number.shape)}, and must be a scalar"
            fail(problem, expected="()", found=tuple(number.shape))
        if not torch.isfinite(number):
            fail(f"the {name}{what} is {number.item()}", expected="a number", found=number.item())


@contextmanager
def trained(parameters: Mapping[str, torch.nn.Parameter], *, zero: bool = False) -> Iterator[None]:
    """Expect that each parameter gets a gradient in the block; `zero` allows gradients of 0."""
    if not parameters:
        leave_out("it has no parameters of its own.")
    yield
    for name, one in parameters.items():
        if one.requires_grad and (one.grad is None or not (zero or one.grad.any())):
            problem = f"the parameter '{name}' gets no gradient, and is never trained"
            found = "none" if one.grad is None else "0 everywhere"
            fail(problem, expected="a gradient", found=found, source=rf"self\.{name.partition('.')[0]}\b.*=")
