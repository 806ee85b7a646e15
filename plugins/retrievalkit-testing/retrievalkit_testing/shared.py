"""The properties that components of several kinds have, each stated once; `share` adds them to the kit of a kind.

A case of a kind tells how to create its component, draw an input and call the component with it (`Subject`).
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import sys
import tempfile
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retrievalkit_testing.drawing import Drawn, Draws
from retrievalkit_testing.option_effects import add_option_properties
from retrievalkit_testing.processes import started
from retrievalkit_testing.properties import Kit, copied, expect_same, fail, leaves

_THREADS, _ROUNDS = 4, 12
_LESSONS = 3
_RATE = 0.05

Turn = tuple[str, Any, Callable[[Any], Any]]
"""Another order of an input: its name, the input, and a function that puts the answer into the first order."""


class Subject(ABC):
    """A component in a setting, as the shared properties see it.

    Attributes:
        draws: Strategies of the values from which an input is made; "options" are options off their defaults.
        typical: Drawn values that together involve all parts of a component.
        tolerance: How far numbers may differ in another batch: relative and absolute.
        kept: Folders in which nothing may be changed.
        zero_gradients: True if gradients of parameters may be 0, as those of the bias of attention keys are.
    """

    name: str
    label: str
    origin: tuple[str, str, dict[str, Any], int]
    draws: Draws
    typical: Sequence[Drawn] = ()
    tolerance: tuple[float, float] = (1e-4, 1e-5)
    kept: Sequence[Path] = ()
    zero_gradients: bool = False

    @abstractmethod
    def created(self, drawn: Drawn) -> Any:
        """A new component, in eval mode."""

    @abstractmethod
    def given(self, drawn: Drawn) -> Any:
        """The input, new in each call."""

    @abstractmethod
    def call(self, component: Any, given: Any) -> Any:
        """The result of the component."""

    @abstractmethod
    def check_form(self, given: Any, found: Any) -> None:
        """Fail if a result has another form than the contract names."""

    def read(self, given: Any, found: Any) -> Any:  # noqa: ARG002 - for kinds whose rows are padded
        """What of a result can be compared; for kinds with rows a list with an item for each."""
        return found

    def rows(self, given: Any) -> int:
        """The number of rows of an input."""
        return len(given)

    def chosen(self, given: Any, rows: Sequence[int]) -> Any:
        """The same input with some of its rows alone."""
        return [given[row] for row in rows]

    def near(self, given: Any) -> Any:
        """An input that differs a little from another."""
        return given

    def turned(self, given: Any, draw: np.random.Generator) -> Iterator[Turn]:
        """The same input in other orders; by default of its rows."""
        order = draw.permutation(self.rows(given)).tolist()
        yield "rows", self.chosen(given, order), lambda found: [found[order.index(row)] for row in range(len(order))]

    def objective(self, component: Any, given: Any) -> Tensor:
        """For torch modules: a number that depends on everything that a component gives in training."""
        raise NotImplementedError

    def parameters(self, component: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that have to be trained, by name."""
        return {name: one for name, one in component.named_parameters() if one.requires_grad}

    def exercise(self, drawn: Drawn) -> None:
        """Create a component and use it in every way."""
        component, given = self.created(drawn), self.given(drawn)
        self.call(component, given)
        if isinstance(component, nn.Module):
            _learn(self, component.train(), given)

    def fresh(self, drawn: Drawn) -> Any:
        """A new component, always with the same random parameters."""
        with seeded(0):
            return self.created(drawn)

    def answer(self, component: Any, given: Any, mode: Callable[[], Any] = torch.no_grad) -> Any:
        """What of the result can be compared, by default without a graph."""
        with mode():
            return self.read(given, self.call(component, given))

    def same(self, problem: str, found: Any, expected: Any) -> None:
        """Fail if answers differ by more than rounding."""
        expect_same(problem, found, expected, rtol=self.tolerance[0], atol=self.tolerance[1])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Set the global seeds for a block."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def share(
    kit: Kit[Any],
    *,
    modules: bool = False,
    rows: bool = False,
    threads: bool = False,
    options: Callable[[Any, Any], Sequence[Any]] | None = None,
    builds: int = 15,
) -> None:
    """Add the shared properties to a kit.

    Args:
        kit: The kit of a kind.
        modules: True if its components are torch modules.
        rows: True if its inputs have rows that do not affect each other.
        threads: True if its components are called from several threads.
        options: The behaviour of a component of a case with these options.
        builds: Number of inputs drawn for each property.
    """
    pure = ("form", "inputs_unchanged", "same_twice")

    @kit.property(examples=builds)
    def form(case: Subject, drawn: Drawn) -> None:
        """Each result has the shape, type and device that the contract names, and is finite."""
        component = case.fresh(drawn)
        given = case.given(drawn)
        with torch.no_grad():
            case.check_form(given, case.call(component, given))
        if isinstance(component, nn.Module):
            case.check_form(given, case.call(component.train(), given))

    @kit.property(after=("form",), examples=builds)
    def inputs_unchanged(case: Subject, drawn: Drawn) -> None:
        """Inputs are not changed in place."""
        component, given = case.fresh(drawn), case.given(drawn)
        before = copied(given)
        with torch.no_grad():
            case.call(component, given)
            if isinstance(component, nn.Module):
                case.objective(component.train(), given)
        expect_same("its input is changed in place", dict(leaves(given)), before)

    @kit.property(after=("form",), examples=5)
    def globals_unchanged(case: Subject, drawn: Drawn) -> None:
        """It sets no global seed, number of threads, default type, environment variable or working folder."""
        states = []
        for seed in (0, 1):
            with seeded(seed):
                before = {name: read() for name, (read, _) in _GLOBALS.items()}
                try:
                    case.exercise(drawn)
                    after = {name: read() for name, (read, _) in _GLOBALS.items()}
                    states.append(
                        {"random": random.random(), "numpy": np.random.rand(), "torch": torch.rand(()).item()}
                    )
                finally:
                    for name, (_, write) in _GLOBALS.items():
                        write(before[name])
            for name, value in before.items():
                if after[name] != value:
                    fail(f"it changes {name}", expected=str(value)[:60], found=str(after[name])[:60])
        for name, value in states[0].items():
            if states[1][name] == value:
                fail(f"it sets the seed of {name}: after two seeds the next number is the same", found=value)

    @kit.property(after=("form",), examples=8)
    def prints_nothing(case: Subject, drawn: Drawn) -> None:
        """Nothing is printed."""
        with captured() as printed:
            case.exercise(drawn)
        if printed[0]:
            fail("it prints", expected="nothing", found=printed[0][:80], source=r"\bprint\(|std(out|err)\.write")

    @kit.property(after=("form",), examples=5)
    def writes_nothing(case: Subject, drawn: Drawn) -> None:
        """No file is written outside the folder that it gets, and temporary ones."""
        with written() as paths:
            case.exercise(drawn)
        for path in paths:
            if _outside(path, case.kept):
                fail("it writes a file", expected="none", found=path, source=r"open\(|\.write|\.save|mkdir")

    @kit.property(after=("form", "inputs_unchanged"), examples=builds)
    def same_twice(case: Subject, drawn: Drawn) -> None:
        """The same input has the same result the second time, whatever the global seed."""
        component, found = case.fresh(drawn), []
        for seed in (0, 1):
            with seeded(seed):
                found.append(case.answer(component, case.given(drawn)))
        expect_same("the result is another one the second time, with another global seed", found[1], found[0])

    if modules:

        @kit.property(after=pure, examples=builds)
        def grad_mode(case: Subject, drawn: Drawn) -> None:
            """With gradients, under `no_grad` and in `inference_mode` the results are the same."""
            component, given = case.fresh(drawn), case.given(drawn)
            with seeded(0):
                expected = case.answer(component, given)
            for mode in (torch.enable_grad, torch.inference_mode):
                with seeded(0):
                    found = case.answer(component, given, mode)
                case.same(f"under {mode.__name__} the result differs from that under no_grad", found, expected)

    @kit.property(after=pure, examples=builds)
    def no_memory(case: Subject, drawn: Drawn) -> None:
        """Inputs that it has seen before, however similar, have no effect on a result."""
        used, given = case.fresh(drawn), case.given(drawn)
        expected = case.answer(case.fresh(drawn), given)
        for before in (case.given({**case.typical[-1], "options": drawn.get("options")}), case.near(case.given(drawn))):
            case.answer(used, before)
        problem = "a result depends on what was computed before"
        expect_same(problem, case.answer(used, given), expected, rtol=1e-6, atol=1e-6)

    @kit.property(after=pure, examples=builds)
    def order(case: Subject, drawn: Drawn) -> None:
        """Another order of the input changes nothing but the order of the results."""
        component, given = case.fresh(drawn), case.given(drawn)
        expected = case.answer(component, given)
        for what, turned, back in case.turned(given, np.random.default_rng(1)):
            case.same(f"the order of {what} changes the result", back(case.answer(component, turned)), expected)

    if rows:

        @kit.property(after=(*pure, "order"), examples=builds)
        def batch(case: Subject, drawn: Drawn) -> None:
            """A row has the same result alone, and in every other batch."""
            component, given = case.fresh(drawn), case.given(drawn)
            expected, count = case.answer(component, given), case.rows(given)
            size = 1 + drawn.get("seed", 0) % max(1, count)
            for start in range(0, count, max(size, count // 4)):
                some = list(range(start, min(count, start + size)))
                for part in (some, some[:1]):
                    found = case.answer(component, case.chosen(given, part))
                    problem = f"rows have another result in a batch of {len(part)} than of {count}"
                    case.same(problem, found, [expected[row] for row in part])

    if threads:

        @kit.property(after=(*pure, "no_memory"), once=True)
        def concurrent(case: Subject) -> None:
            """Calls from several threads at a time give what they give one after the other."""
            drawn = case.typical[0]
            component = case.fresh(drawn)
            inputs = [case.given({**drawn, "seed": number}) for number in range(_THREADS)]
            expected = [case.answer(component, one) for one in inputs]
            start, interval = threading.Barrier(_THREADS), sys.getswitchinterval()

            def work(number: int) -> list[Any]:
                start.wait()
                return [case.answer(component, inputs[number]) for _ in range(_ROUNDS)]

            sys.setswitchinterval(1e-6)
            try:
                with ThreadPoolExecutor(_THREADS) as pool:
                    found = list(pool.map(work, range(_THREADS)))
            finally:
                sys.setswitchinterval(interval)
            problem = "calls from several threads at a time get other results: is something kept in the object?"
            for answers, one in zip(found, expected, strict=True):
                for answer in answers:
                    case.same(problem, answer, one)

    @kit.property(after=pure, once=True)
    def other_process(case: Subject) -> None:
        """Another process, with another seed of hashes, has the same results."""
        expected = [case.answer(case.fresh(drawn), case.given(drawn)) for drawn in case.typical]
        code, found, printed = started("answers", *case.origin)
        if found is None:
            error = printed.rpartition("\n")[2].rstrip(".") or f"exit code {code}"
            fail(f"another process cannot use it: {error}")
        case.same("another process has other results", found, expected)

    if modules:

        @kit.property(after=pure, examples=builds)
        def gradients(case: Subject, drawn: Drawn) -> None:
            """Gradients are finite, in bf16 too, and reach the inputs and parameters on which the objective depends."""
            for bf16 in (True, False):
                component, given = case.fresh(drawn).train(), case.given(drawn)
                tensors = inputs_of(given) | dict(component.named_parameters())
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    total = _learn(case, component, given)
                for name, one in {"objective": total, **{name: one.grad for name, one in tensors.items()}}.items():
                    if one is not None and not one.isfinite().all():
                        what = f"'{name}' or its gradient is not finite" + (" in bf16" if bf16 else "")
                        fail(what, expected="numbers", found=float(one[~one.isfinite()].reshape(-1)[0]))
            for name, one in tensors.items():
                if one.requires_grad and (one.grad is None or not one.grad.any()):
                    generator, before = torch.Generator().manual_seed(1), one.detach().clone()
                    with torch.no_grad(), seeded(0):
                        one.add_(1e-2 * torch.randn(one.shape, generator=generator) * (one != 0))
                        change = float((case.objective(component, given) - total).abs())
                        one.copy_(before)
                    if change > 1e-6 * max(1.0, abs(float(total))):
                        found = f"none, where other values change the objective by {change:.3g}"
                        fail(f"no gradient reaches '{name}'", expected="a gradient", found=found)

        @kit.property(after=(*pure, "gradients"))
        def trained(case: Subject) -> str:
            """Every parameter gets a gradient, and something of the input does."""
            component = case.fresh(case.typical[0]).train()
            own, reached = case.parameters(component), list[bool]()
            _stir(component)
            for drawn in case.typical:
                given = case.given(drawn)
                _learn(case, component, given)
                reached += [one.grad is not None and bool(one.grad.any()) for one in inputs_of(given).values()]
            if reached and not any(reached):
                fail("no gradient reaches the input, on which the result has to depend")
            for name, one in own.items():
                if one.grad is None or not (case.zero_gradients or one.grad.any()):
                    problem = f"the parameter '{name}' gets no gradient, and is never trained"
                    attribute = next((part for part in name.split(".") if hasattr(component, part)), name)
                    fail(problem, expected="a gradient", source=rf"self\.{attribute}\b.*=")
            return f"{len(own)} parameters"

        @kit.property(after=(*pure, "gradients"))
        def state(case: Subject) -> None:
            """All that training changes is in `state_dict`: a copy by it goes on in the same way."""
            component = case.fresh(case.typical[0]).train()
            parameters = [one for one in component.parameters() if one.requires_grad]
            for number, drawn in enumerate(list(case.typical) * _LESSONS):
                _learn(case, component, case.given({**drawn, "seed": number}), number)
                with torch.no_grad():
                    for one in parameters:
                        one -= 0 if one.grad is None else _RATE * one.grad.clamp(-1, 1)
                        one.grad = None
            copy = case.fresh(case.typical[0]).train()
            copy.load_state_dict({name: one.clone() for name, one in component.state_dict().items()})
            for drawn in case.typical:
                found = []
                for one in (copy, component):
                    with seeded(0), torch.no_grad():
                        trained = case.objective(one.train(), case.given(drawn))
                        found.append([trained, case.answer(one.eval(), case.given(drawn))])
                problem = "a copy by `state_dict` differs after training: something that matters is kept elsewhere"
                expect_same(problem, *found, source=r"register_buffer|self\.\w+ = ")

    if options is not None:
        add_option_properties(kit, options, after=pure)


def inputs_of(given: Any) -> dict[str, Tensor]:
    """The tensors of an input that can have gradients, by name."""
    return {name: one for name, one in leaves(given) if isinstance(one, Tensor) and one.is_floating_point()}


def _learn(case: Subject, component: nn.Module, given: Any, seed: int = 0) -> Tensor:
    """Back-propagate the objective to parameters and inputs; returns it."""
    for one in inputs_of(given).values():
        one.requires_grad_()
    with seeded(seed):
        total = case.objective(component, given)
    if total.requires_grad:
        torch.autograd.backward(total)
    return total.detach()


def expect_mean(seen: Sequence[float], error: float = 0.0) -> None:
    """Fail if losses of a batch once, twice and three times grow evenly, as a sum does."""
    growth = seen[1] - seen[0]
    evenly = abs(seen[2] - seen[0] - 2 * growth) < 1e-3 * abs(growth) + 8 * error
    if evenly and abs(growth) > 1e-2 * abs(seen[0]) + 8 * error:
        problem = "it is a sum over the batch, and should be a mean: it grows evenly with copies of the batch"
        fail(problem, expected=seen[0], found=seen[1], difference=growth)


def _stir(component: nn.Module) -> None:
    """Change parameters a little: some are 0 at the start, which hides what depends on them."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for one in component.parameters():
            one.add_(0.1 * torch.randn(one.shape, generator=generator))


def _set_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


_GLOBALS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the number of threads of torch": (torch.get_num_threads, torch.set_num_threads),
    "the default type of torch": (torch.get_default_dtype, torch.set_default_dtype),
    "the mode of gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "how numpy handles errors": (np.geterr, lambda one: np.seterr(**one)),
    "the working folder": (os.getcwd, os.chdir),
    "the environment": (lambda: dict(os.environ), lambda one: _set_environment(one)),
    "the level of logging": (lambda: logging.getLogger().level, logging.getLogger().setLevel),
    "the limit of recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
}
"""Global settings of the process: how to read and set each."""


@contextmanager
def captured() -> Iterator[list[str]]:
    """Capture what is printed in a block, by native code too; the list has it after the block."""
    python, text = io.StringIO(), list[str]()
    sys.stdout.flush()
    with tempfile.TemporaryFile() as native, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = os.dup(1)
        os.dup2(native.fileno(), 1)
        try:
            with contextlib.redirect_stdout(python), contextlib.redirect_stderr(python):
                yield text
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            native.seek(0)
            text.append((python.getvalue() + native.read().decode(errors="replace")).strip())


_WRITTEN: list[list[str]] = []
_WRITING = {
    "os.mkdir": 0,
    "os.rename": 1,
    "os.remove": 0,
    "os.rmdir": 0,
    "os.link": 1,
    "os.symlink": 1,
    "os.truncate": 0,
}
"""Event of an audit hook -> which of its arguments is the path that changes."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _WRITTEN:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = bool(set(mode or "") & set("wax+")) or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    else:
        writes, path = event in _WRITING, arguments[_WRITING.get(event, 0)] if arguments else None
        # Below an open folder, as rmtree removes files, the name is not relative to the working directory.
        writes = writes and (event == "os.truncate" or arguments[-1] == -1)
    if writes and isinstance(path, str | os.PathLike):
        _WRITTEN[-1].append(os.path.abspath(path))


_audited: list[bool] = []


@contextmanager
def written() -> Iterator[list[str]]:
    """Collect the paths that Python code changes in a block."""
    if not _audited:
        sys.addaudithook(_audit)  # for good: hooks cannot be removed
        _audited.append(True)
    _WRITTEN.append([])
    try:
        yield _WRITTEN[-1]
    finally:
        _WRITTEN.pop()


def forget_written() -> None:
    """Forget what was written so far: it was the kit's own input."""
    for some in _WRITTEN:
        some.clear()


def _outside(path: str, kept: Sequence[Path]) -> bool:
    """True if a path that was written is none that a component may write."""
    here, temporary = Path.cwd(), Path(tempfile.gettempdir()).resolve()
    resolved = Path(path).resolve()
    if "__pycache__" in path or resolved.is_relative_to("/dev") or resolved.is_relative_to("/proc"):
        return False
    in_here = here != temporary and not temporary.is_relative_to(here) and resolved.is_relative_to(here)
    return in_here or not resolved.is_relative_to(temporary) or any(resolved.is_relative_to(one) for one in kept)
