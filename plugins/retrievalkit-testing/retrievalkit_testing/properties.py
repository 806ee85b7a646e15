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
        method: Look at this method of it or of its base, or at the only one that it defines.
        source: A regular expression for the line, such as that of an option.
    """
    classes = [one for one in component.__mro__ if _file(one) is not None and _file(one) == _file(component)]
    constructors = [vars(one)["__init__"] for one in classes if "__init__" in vars(one)]
    places: list[tuple[Any, str]] = []
    # A constructor first: a docstring names options too.
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
    """The deepest line of the component's own source that an exception went through; None if there is none."""
    package = sys.modules.get(component.__module__.partition(".")[0])
    roots = [Path(one) for one in getattr(package, "__path__", ())]
    if component.__module__.startswith("retrievalkit.") or not roots:
        # For a plugin anywhere in its package.
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
    """A component in some setting, which the label names, such as "bert, fp32"; properties are tried on it."""

    label: str


C = TypeVar("C", bound=Case)
Check = Callable[[C], str | None]
"""A property's function: of a case, what it measured."""


class PropertyError(AssertionError):
    """A component lacks a property. The kit adds name and statement of the property, the case and the component.

    Args:
        problem: The problem, without a full stop.
        expected: The value that the property asks for.
        found: The value of the component.
        difference: Between the two, if they are numbers.
        method: The method of the component to look at.
        source: A regular expression for the line of the component's class to look at, such as that of an option.
        place: File and line to look at, if they are known.
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
        """What was expected and found, and how far they are apart; "" if the problem is not one of numbers."""
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
    """A property with the name of its function, whose docstring states it.

    Attributes:
        check: Raises PropertyError if the component of a case lacks it, UnsupportedError if it cannot be tried there;
            may return measurements.
        after: Properties on which it rests: if one of these fails, it is left out.
        once: Whether it is tried on the first case that supports it alone.
    """

    name: str
    statement: str
    check: Check[C]
    after: tuple[str, ...] = ()
    once: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of one property: it holds, it failed, or it was left out."""

    property: str
    statement: str
    failure: PropertyError | None = None
    left_out: str = ""
    measured: str = ""


@dataclass(frozen=True)
class Report:
    """The outcomes of all properties of a component, in the order in which to read them."""

    component: str
    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> list[PropertyError]:
        """The failures, the one to mend first in front."""
        return [one.failure for one in self.outcomes if one.failure is not None]

    def check(self) -> None:
        """Raise the first failure."""
        for failure in self.failures:
            raise failure


class Kit(Generic[C]):
    """The properties of a kind of component.

    Args:
        kind: The kind, such as "pooler".
        cases: Makes the cases for the name of a component and keyword arguments, which are the kit's and the options
            of the component. May raise what the component raises.
        find: The class of a name; by default the component's.
        method: The method to look at where a property names no other.
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
        """The failure with all that is known of it, whatever the component raised."""
        if isinstance(error, PropertyError):
            failure = error
        else:
            text = " ".join(str(error).split()).rstrip(".")
            place = of_exception(kind, error)
            # An assertion of the kit's own says what is wrong.
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
        """Try all properties of a component. See `report`."""
        self.report(name, first=True, **settings).check()


def accepted(
    cases: Sequence[C],
    trial: Callable[[C], object],
    *,
    refusal: type[Exception] = UnsupportedError,
    none: str = "",
    method: str = "",
) -> list[C]:
    """The cases that a component does not refuse when they are tried; other errors are for the properties to find.

    Raises:
        Exception: It refuses all, and `none` does not say what is wrong then.
        PropertyError: It refuses all, and `none` does.
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


def fail(problem: str, place: Place | None = None, **details: Any) -> NoReturn:
    """Say that the component lacks the property that is tried. See `PropertyError` for the arguments."""
    raise PropertyError(problem, place=place, **details)


def leave_out(reason: str) -> NoReturn:
    """Leave the property out for this case, with the reason as a sentence."""
    raise UnsupportedError(reason)


def expect_equal(problem: str, found: torch.Tensor, expected: torch.Tensor, **where: Any) -> None:
    """Expect the same values, bit by bit. See `expect_close`."""
    expect_close(problem, found, expected, rtol=0.0, atol=0.0, **where)


def expect_close(
    problem: str, found: torch.Tensor, expected: torch.Tensor, *, rtol: float = 1e-4, atol: float = 1e-5, **where: Any
) -> None:
    """Expect values that are equal but for rounding."""
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
    """Back-propagate, unless nothing needs it."""
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
    """Expect that each parameter gets a gradient in the block, which may be `zero`."""
    if not parameters:
        leave_out("it has no parameters of its own.")
    yield
    for name, one in parameters.items():
        if one.requires_grad and (one.grad is None or not (zero or one.grad.any())):
            problem = f"the parameter '{name}' gets no gradient, and is never trained"
            found = "none" if one.grad is None else "0 everywhere"
            fail(problem, expected="a gradient", found=found, source=rf"self\.{name.partition('.')[0]}\b.*=")
