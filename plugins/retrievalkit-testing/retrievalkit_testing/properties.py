"""The framework of the conformance kit: named properties of a kind of component, their runner, and failure reports.

    POOLERS: Kit[PoolerCase] = Kit("pooler", pooler_cases)

    @POOLERS.property()
    def padding(case: PoolerCase, drawn: Drawn) -> None:
        \"\"\"Padding changes no vector.\"\"\"
        expect_same("padding changes the vectors", padded, expected)

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
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np
import torch

from retrievalkit import registry
from retrievalkit.errors import InputError, PluginError, UnsupportedError, check_choice
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
    """Return the line of a component's class to look at; None if its source cannot be read.

    This is the line that matches `source`, or a method of the class or its base, or the only method that it defines.
    """
    file, own = _file(component), [name for name, member in vars(component).items() if inspect.isroutine(member)]
    own = [name for name in own if name != "__init__"]
    method = own[0] if len(own) == 1 and method not in own else method
    # The constructor first: docstrings contain option names too.
    places = [(component.__init__, source), (component, source)] if source else []  # type: ignore[misc]
    places += [(getattr(component, method, None), "")] if method in own or not own else []
    for thing, pattern in (*places, (component, "")):
        try:
            lines, first = inspect.getsourcelines(thing)
            if inspect.getsourcefile(thing) != file:
                continue
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines):
            if re.search(pattern or r"^\s*(async def|def|class) ", line):
                return Place(str(file), first + number, thing.__qualname__)
        if not pattern:
            return Place(str(file), first, thing.__qualname__)
    return Place(file, 1, component.__qualname__) if file else None


def of_exception(component: type, error: BaseException) -> Place | None:
    """Return the deepest line of the component's own source in an exception's traceback; None if there is none."""
    package = sys.modules.get(component.__module__.partition(".")[0])
    roots = [Path(path) for path in getattr(package, "__path__", ())]
    if component.__module__.startswith("retrievalkit.") or not roots:
        # For a plugin, anywhere in its package.
        roots = [Path(str(_file(component)))]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if any(Path(frame.filename).is_relative_to(root) for root in roots)
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


@dataclass(eq=False)
class PropertyError(AssertionError):
    """A component fails a property. The kit adds the property's name and statement, the case and the component.

    Args:
        problem: The problem, without a full stop.
        expected: The value that the property requires.
        actual: The component's value.
        difference: The difference between the two, if they are numbers.
        method: The method of the component to look at.
        source: A regular expression for the line of the component's class to look at, such as the line of an option.
        place: File and line to look at, if known.
    """

    problem: str
    _: KW_ONLY
    expected: object = None
    actual: object = None
    difference: float | None = None
    method: str = ""
    source: str = ""
    place: Place | None = None
    property = statement = case = component = ""

    def numbers(self) -> str:
        """Expected and actual values and their difference; "" if the problem has no numbers."""
        named = {"expected": self.expected, "got": self.actual, "difference": self.difference}
        texts = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in named.items()}
        return ", ".join(f"{name} {text}" for name, text in texts.items() if text is not None)

    def __str__(self) -> str:
        parts = [f"{self.component} fails the property '{self.property}': " if self.property else "", self.problem]
        parts += [f" [{self.case}]" if self.case else "", f": {self.numbers()}" if self.numbers() else "", "."]
        parts += [f" {self.statement}" if self.statement else "", f" Look at {self.place}." if self.place else ""]
        return "".join(parts)


@dataclass(frozen=True)
class Property(Generic[C]):
    """A property, named after its function, whose docstring states it.

    Attributes:
        check: Raises PropertyError if the component of a case fails the property, UnsupportedError if it is not
            applicable; may return measurements.
        after: Properties that it depends on: if one of these fails, it is skipped.
        once: True to test only the first case that supports it.
        draws: For a check of drawn values: the attribute of the case with their possible values.
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
        """Test one of several cases, with drawn values if the check has an argument for them."""
        if len(inspect.signature(self.check).parameters) == 1:
            return self.check(case)
        examples, name = min(most, max(LEAST, self.examples // cases)), f"{self.name} {case.label}"
        draws, check = getattr(case, self.draws), partial(self.check, case)
        # Frequent tests skip the search for the smallest failing input.
        for_all(draws, check, name=name, examples=examples, reduce=most > LEAST)
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

    outcomes: Sequence[Outcome]

    @property
    def failures(self) -> list[PropertyError]:
        """The failures, starting with the one to fix first."""
        return [outcome.failure for outcome in self.outcomes if outcome.failure is not None]

    def check(self) -> None:
        """Raise the first failure."""
        for failure in self.failures:
            raise failure


@dataclass
class Kit(Generic[C]):
    """The properties of a kind of component.

    Args:
        kind: The kind, such as "pooler".
        create: Creates the cases for a component's name and keyword arguments, which are settings of the kit and
            options of the component. May raise any exception of the component.
        find: Looks up the class by name; by default the component's class.
        method: The method to look at if a property names none.
        unchecked: What no property of this kind covers, for the report.
    """

    kind: str
    create: Callable[..., Iterable[C]]
    _: KW_ONLY
    find: Callable[[str], type] | None = None
    method: str = ""
    unchecked: str = ""
    properties: dict[str, Property[C]] = field(default_factory=dict)

    def property(self, *, after: Sequence[str] = (), **settings: Any) -> Callable[[Check], Check]:
        """Append a function as a property. See `Property` for the settings."""

        def add(check: Check) -> Check:
            statement = (check.__doc__ or "").partition("\n")[0]
            self.properties[check.__name__] = Property(check.__name__, statement, check, tuple(after), **settings)
            return check

        return add

    def cases(self, name: str, **settings: Any) -> list[C]:
        """Return the cases of a component, each with the origin by which another process can create it again."""
        cases = list(self.create(name, **settings))
        for number, case in enumerate(cases):
            case.origin = (self.kind, name, settings | getattr(case, "shared", {}), number)
        return cases

    def report(
        self,
        name: str,
        *,
        only: Sequence[str] | None = None,
        without: Sequence[str] = (),
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
        kind = self.find(name) if self.find else registry.get(self.kind, name)
        try:
            with limited(seconds):
                cases = self.cases(name, **settings) if cases is None else cases
        except Exception as error:
            if isinstance(error, InputError) and not isinstance(error, PluginError):
                raise
            creation = ("creation", "It can be created with these options.")
            if isinstance(error, PluginError) and (typed := self.properties.get("options_typed")):
                creation = typed.name, typed.statement  # its options cannot be read
            return Report([Outcome(*creation, self._failure(error, *creation, kind, component))])
        outcomes: dict[str, Outcome] = {}
        for tested in self.properties.values():
            if (only is not None and tested.name not in only) or tested.name in without:
                continue
            failed = [other for other in tested.after if other in outcomes and outcomes[other].failure]
            if failed:
                outcomes[tested.name] = Outcome(tested.name, tested.statement, left_out=f"'{failed[0]}' failed")
            else:
                outcomes[tested.name] = self._outcome(tested, cases, kind, component, seconds, examples)
        if outcomes and all(outcome.left_out for outcome in outcomes.values()):
            msg = f"no property of {component} is applicable. {next(iter(outcomes.values())).left_out}"
            raise UnsupportedError(msg)
        return Report(list(outcomes.values()))

    def _outcome(
        self, tested: Property[C], cases: Sequence[C], kind: type, component: str, seconds: float | None, examples: int
    ) -> Outcome:
        reasons, measured = list[str](), list[str]()
        for case in cases:
            try:
                with torch.random.fork_rng(devices=[]), limited(seconds):
                    torch.manual_seed(0)
                    random.seed(0)
                    if numbers := tested.test(case, 1 if tested.once else len(cases), examples):
                        measured.append(f"{case.label}: {numbers}")
            except UnsupportedError as error:
                reasons.append(str(error))
                continue
            except Exception as error:  # noqa: BLE001 - a component may raise anything
                label = ", ".join(filter(None, [case.label, getattr(error, "drawn", "")]))
                failure = self._failure(error, tested.name, tested.statement, kind, component, label)
                return Outcome(tested.name, tested.statement, failure)
            if tested.once:
                break
        left_out = " ".join(dict.fromkeys(reasons)) if len(reasons) == len(cases) else ""
        return Outcome(tested.name, tested.statement, left_out=left_out, measured="; ".join(measured))

    def _failure(
        self, error: Exception, name: str, statement: str, kind: type, component: str, case: str = ""
    ) -> PropertyError:
        """Return the failure with all available details, whatever exception the component raised."""
        if isinstance(error, PropertyError):
            failure = error
        else:
            text, place = " ".join(str(error).split()).rstrip("."), of_exception(kind, error)
            # The kit's own assertions describe the problem.
            if not isinstance(error, AssertionError) or place is not None:
                text = f"it raises {type(error).__name__}" + (f": {text}" if text else "")
            failure = PropertyError(text, place=place)
            failure.__cause__ = error
        failure.place = failure.place or of_component(kind, method=failure.method or self.method, source=failure.source)
        failure.property, failure.statement = name, statement
        failure.case, failure.component = case, component
        return failure

    def check(self, name: str, **settings: Any) -> None:
        """Test a component with few drawn values and without a second process, as in a test that runs often."""
        without = {"other_process"} & set(self.properties) - set(settings.get("only") or ())
        settings["without"] = [*settings.get("without", ()), *without]
        self.report(name, examples=LEAST, **settings).check()


def accepted(
    factories: Iterable[Callable[[], C]], *, refusal: type[Exception] = UnsupportedError, none: str = ""
) -> list[C]:
    """Return the cases that a component accepts.

    If it refuses all, this raises PropertyError with the problem `none`, or the first refusal if that is "".
    """
    cases, refusals = [], list[Exception]()
    for create in factories:
        try:
            with torch.no_grad():
                cases.append(create())
        except refusal as error:
            refusals.append(error)
    if not cases and none:
        fail(f"{none} {' '.join(map(str, refusals))}".rstrip("."), method="__init__")
    if not cases:
        raise refusals[0]
    return cases


def tried(case: C, trial: Callable[[C], object], refusal: type[Exception] = UnsupportedError) -> C:
    """Return the case unless the trial is refused; the properties report other errors."""
    try:
        trial(case)
    except refusal:
        raise
    except Exception:  # noqa: BLE001 - a component may raise anything
        pass
    return case


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
    """Report that the component fails the tested property. See `PropertyError` for the arguments."""
    raise PropertyError(problem, place=place, **details)


def expect(holds: object, problem: str, **details: Any) -> None:
    """Report a problem unless a condition holds. See `PropertyError` for the arguments."""
    if not holds:
        fail(problem, **details)


def leave_out(reason: str) -> NoReturn:
    """Skip the property for this case, with the reason as a sentence."""
    raise UnsupportedError(reason)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return the tensors, arrays, texts and numbers in a structure, by their names in it."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}" if name else str(key))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from leaves({field.name: getattr(value, field.name) for field in fields(value)}, name)
    elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        ordered = value if isinstance(value, Sequence) else sorted(value, key=repr)
        yield f"length of {name or 'the result'}", len(ordered)
        for number, part in enumerate(ordered):
            yield from leaves(part, f"{name}[{number}]")
    else:
        yield name, value


def copied(value: Any) -> dict[str, Any]:
    """Return the leaves of a structure, with copies of tensors and arrays."""
    clones: dict[type, Any] = {torch.Tensor: lambda tensor: tensor.detach().clone(), np.ndarray: np.copy}
    return {name: clones.get(type(leaf), lambda same: same)(leaf) for name, leaf in leaves(value)}


def expect_same(
    problem: str, actual: Any, expected: Any, *, rtol: float = 0, atol: float = 0, selected: bool = False, **where: Any
) -> None:
    """Expect two structures of equal leaves, numbers up to rounding; `where` are details of `PropertyError`.

    With `selected`, the component may select numbers by their size, such as the largest of a slice or the top k.
    Rounding decides between two that are equally large, so a few numbers may change their sign or place.
    """
    first, second = dict(leaves(expected)), dict(leaves(actual))
    if first.keys() != second.keys():
        lengths = [{name: leaf for name, leaf in some.items() if isinstance(leaf, int)} for some in (first, second)]
        names = [name for name in lengths[0] if lengths[0][name] != lengths[1].get(name)][:1]
        before, after = ([some.get(name) for name in names] for some in lengths)
        fail(problem, expected=before, actual=after, **where)
    for name, leaf in first.items():
        if difference := _difference(second[name], leaf, rtol, atol, selected):
            fail(problem + (f" ('{name}')" if name else ""), **difference, **where)


def differ(first: Any, second: Any) -> bool:
    """True if two structures are not equal."""
    try:
        expect_same("", first, second)
    except PropertyError:
        return True
    return False


def _difference(actual: Any, expected: Any, rtol: float, atol: float, selected: bool) -> dict[str, Any]:
    """Return the largest difference of two leaves: expected value, actual value, difference; {} if they are equal."""
    numbers = (torch.Tensor, np.ndarray, np.generic, float)
    if not isinstance(expected, numbers) or not isinstance(actual, numbers):
        same = type(expected) is type(actual) and bool(expected == actual)
        return {} if same else {"expected": str(expected)[:80], "actual": str(actual)[:80]}
    if isinstance(expected, np.ndarray) and expected.dtype.kind in "OU":
        return {} if expected.tolist() == np.asarray(actual).tolist() else {"expected": expected, "actual": actual}
    first, second = (torch.as_tensor(value).detach().double() for value in (expected, actual))
    if first.shape != second.shape:
        return {"expected": tuple(first.shape), "actual": tuple(second.shape)}
    apart = ~torch.isclose(second, first, rtol=rtol, atol=atol, equal_nan=True)
    if not apart.any():
        return {}
    if selected and apart.sum() <= max(2, 0.01 * apart.numel()):
        # The same magnitudes with other signs, or at other places.
        sizes = [value[apart].abs().sort().values for value in (second, first)]
        if torch.allclose(sizes[0], sizes[1], rtol=rtol, atol=atol):
            return {}
    gaps = (second - first).abs().nan_to_num(torch.inf).masked_fill(~apart, -1.0).reshape(-1)
    place = int(gaps.argmax())
    values = [float(value.reshape(-1)[place]) for value in (first, second)]
    return {"expected": values[0], "actual": values[1], "difference": float(gaps[place])}
