"""The properties that components of several kinds have, each stated once; `share` adds them to the kit of a kind.

A case of a kind creates its component, draws an input and calls the component with it (`Subject`).
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import LossValue
from retrievalkit_testing.drawing import Drawn, Draws
from retrievalkit_testing.option_effects import add_option_properties, required_values
from retrievalkit_testing.processes import started
from retrievalkit_testing.properties import Kit, copied, expect, expect_same, fail, leaves

_THREADS, _ROUNDS = 4, 12
_LESSONS = 3
_RATE = 0.05

Turn = tuple[str, Any, Callable[[Any], Any]]
"""Another order of an input: its name, the input, and a function that restores the first order in the answer."""


class Subject(ABC):
    """A component in a setting, as the shared properties use it.

    Args:
        name: Registered name of the component.
        label: Name of the setting.
        options: Options of the component; those that it requires have a value by default.

    Attributes:
        kind: The kind of component.
        draws: Possible values from which an input is made; "options" are options off their defaults.
        typical: Drawn values that together involve all parts of a component.
        tolerance: Maximum difference of numbers in another batch: relative and absolute.
        selected: True if the component may select numbers by their size. See `expect_same`.
        kept: Folders in which nothing may be changed.
        zero_gradients: True if gradients of parameters may be 0, as those of the bias of attention keys are.
    """

    kind: str
    origin: tuple[str, str, dict[str, Any], int]
    draws: Draws
    typical: Sequence[Drawn] = ()
    tolerance: tuple[float, float] = (1e-4, 1e-5)
    selected: bool = False
    kept: Sequence[Path] = ()
    zero_gradients: bool = False

    def __init__(self, name: str, label: str, options: Mapping[str, Any]) -> None:
        self.name, self.label = name, label
        self.options = {**required_values(registry.get(self.kind, name), options), **options}

    def create(self, options: Mapping[str, Any]) -> Any:
        """Create a component with these options."""
        return registry.create(self.kind, self.name, **options)

    def created(self, drawn: Drawn) -> Any:
        """Create a component with the drawn options, in eval mode."""
        component = self.create({**self.options, **drawn.get("options", {})})
        return component.eval() if isinstance(component, nn.Module) else component

    @abstractmethod
    def inputs(self, drawn: Drawn) -> Any:
        """Create the input."""

    @abstractmethod
    def call(self, component: Any, inputs: Any) -> Any:
        """Call the component."""

    @abstractmethod
    def check_form(self, inputs: Any, result: Any) -> None:
        """Fail if a result has another form than the contract names."""

    def read(self, inputs: Any, result: Any) -> Any:  # noqa: ARG002 - for kinds whose rows are padded
        """Return the comparable part of a result; for kinds with rows a list with an item for each."""
        return result

    def rows(self, inputs: Any) -> int:
        """Return the number of rows of an input."""
        return len(inputs)

    def chosen(self, inputs: Any, rows: Sequence[int]) -> Any:
        """Select rows of the input."""
        return [inputs[row] for row in rows]

    def near(self, inputs: Any) -> Any:
        """Return an input that differs slightly from this one."""
        return inputs

    def turned(self, inputs: Any, draw: np.random.Generator) -> Iterator[Turn]:
        """Return the input in other orders; by default, of its rows."""
        order = draw.permutation(self.rows(inputs)).tolist()
        yield "rows", self.chosen(inputs, order), lambda answer: [answer[order.index(row)] for row in range(len(order))]

    def objective(self, component: Any, inputs: Any) -> Tensor:
        """For torch modules: a number that depends on everything that a component computes in training."""
        raise NotImplementedError

    def parameters(self, component: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters that have to be trained, by name."""
        return {name: tensor for name, tensor in component.named_parameters() if tensor.requires_grad}

    def exercise(self, drawn: Drawn) -> None:
        """Create a component and use it in every way."""
        component, inputs = self.created(drawn), self.inputs(drawn)
        self.call(component, inputs)
        if type(self).objective is not Subject.objective:
            _learn(self, component.train(), inputs)

    def behaviour(self, options: Mapping[str, Any]) -> Any:
        """Everything that an option may change."""
        component = self.create(options)
        return [self.answer(component, self.inputs({**self.typical[0], "seed": seed})) for seed in range(3)]

    def fresh(self, drawn: Drawn) -> Any:
        """Create a component, always with the same random parameters."""
        with seeded(0):
            return self.created(drawn)

    def answer(self, component: Any, inputs: Any, mode: Callable[[], Any] = torch.no_grad) -> Any:
        """Return the comparable part of the result, by default without a graph."""
        with mode():
            return self.read(inputs, self.call(component, inputs))

    def same(self, problem: str, actual: Any, expected: Any) -> None:
        """Fail if answers differ by more than rounding."""
        rtol, atol = self.tolerance
        expect_same(problem, actual, expected, rtol=rtol, atol=atol, selected=self.selected)


def check_loss_value(value: Any, device: torch.device | None = None) -> None:
    """Fail if something is not a LossValue of finite scalars."""
    expect(isinstance(value, LossValue), "it returns no LossValue", expected="LossValue", actual=type(value).__name__)
    for name, number in {**value.terms, "total": value.total}.items():
        if number.dim() or number.dtype != torch.float32 or (device is not None and number.device != device):
            actual = f"{tuple(number.shape)} {number.dtype} {number.device}"
            fail(f"the {name} is not a scalar of this type", expected=f"() torch.float32 {device or ''}", actual=actual)
        expect(torch.isfinite(number), f"the {name} is {number.item()}", expected="a number", actual=number.item())


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
    kit: Kit[Any], *, modules: bool = False, rows: bool = False, threads: bool = False, options: bool = False
) -> None:
    """Add the shared properties to a kit.

    Args:
        kit: The kit of a kind.
        modules: True if its components are torch modules that are trained.
        rows: True if its inputs have rows that do not affect each other.
        threads: True if its components are called from several threads.
        options: True if `Subject.behaviour` depends on every option of a component.
    """
    pure = ("form", "inputs_unchanged", "same_twice")

    @kit.property()
    def form(case: Subject, drawn: Drawn) -> None:
        """Results are finite, with the shape, type and device of the contract."""
        component, inputs = case.fresh(drawn), case.inputs(drawn)
        with torch.no_grad():
            case.check_form(inputs, case.call(component, inputs))
        if modules:
            case.check_form(inputs, case.call(component.train(), inputs))

    @kit.property(after=("form",))
    def inputs_unchanged(case: Subject, drawn: Drawn) -> None:
        """Inputs are not changed in place."""
        component, inputs = case.fresh(drawn), case.inputs(drawn)
        before = copied(inputs)
        with torch.no_grad():
            case.call(component, inputs)
            if modules:
                case.objective(component.train(), inputs)
        expect_same("its input is changed in place", dict(leaves(inputs)), before)

    @kit.property(after=("form",), examples=5)
    def no_side_effects(case: Subject, drawn: Drawn) -> None:
        """It prints nothing, writes only temporary files and caches, and changes no seed or other global setting."""
        numbers = []
        for seed in (0, 1):
            before = {name: read() for name, (read, _) in _GLOBALS.items()}
            with seeded(seed), written() as paths, captured() as printed:
                try:
                    case.exercise(drawn)
                    after = {name: read() for name, (read, _) in _GLOBALS.items()}
                    now = (random.random(), np.random.rand(), float(torch.rand(())))
                    numbers.append(dict(zip(("random", "numpy", "torch"), now, strict=True)))
                finally:
                    for name, (_, write) in _GLOBALS.items():
                        write(before[name])
            for name, value in before.items():
                texts = {"expected": str(value)[:60], "actual": str(after[name])[:60]}
                expect(after[name] == value, f"it changes {name}", **texts)
            where = r"\bprint\(|std(out|err)\.write"
            expect(not printed[0], "it prints", expected="nothing", actual=printed[0][:80], source=where)
            files, where = [path for path in paths if _outside(path, case.kept)], r"open\(|\.write|\.save|mkdir"
            expect(not files, "it writes a file", expected="none", actual=files[:1], source=where)
        for name, number in numbers[0].items():
            problem = f"it sets the seed of {name}: after two seeds the next number is the same"
            expect(numbers[1][name] != number, problem, actual=number)

    @kit.property(after=("form", "inputs_unchanged"))
    def same_twice(case: Subject, drawn: Drawn) -> None:
        """A repeated call with the same input returns the same result, with any global seed."""
        component, answers = case.fresh(drawn), []
        for seed in (0, 1):
            with seeded(seed):
                answers.append(case.answer(component, case.inputs(drawn)))
        expect_same("the second time, with another global seed, the result is different", answers[1], answers[0])

    if modules:

        @kit.property(after=pure)
        def grad_mode(case: Subject, drawn: Drawn) -> None:
            """Results are the same with gradients, under `no_grad` and in `inference_mode`."""
            component, inputs = case.fresh(drawn), case.inputs(drawn)
            answers = []
            for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
                with seeded(0):
                    answers.append(case.answer(component, inputs, mode))
                case.same(f"under {mode.__name__} the result differs from that under no_grad", answers[-1], answers[0])

    @kit.property(after=pure)
    def no_memory(case: Subject, drawn: Drawn) -> None:
        """Earlier inputs, even similar ones, do not affect a result."""
        used, inputs = case.fresh(drawn), case.inputs(drawn)
        expected = case.answer(case.fresh(drawn), inputs)
        for before in (
            case.inputs({**case.typical[-1], "options": drawn.get("options")}),
            case.near(case.inputs(drawn)),
        ):
            case.answer(used, before)
        problem = "a result depends on what was computed before"
        expect_same(problem, case.answer(used, inputs), expected, rtol=1e-6, atol=1e-6)

    @kit.property(after=pure)
    def order(case: Subject, drawn: Drawn) -> None:
        """Reordering the input only reorders the results."""
        component, inputs = case.fresh(drawn), case.inputs(drawn)
        expected = case.answer(component, inputs)
        for name, turned, back in case.turned(inputs, np.random.default_rng(1)):
            case.same(f"the order of {name} changes the result", back(case.answer(component, turned)), expected)

    if rows:

        @kit.property(after=(*pure, "order"))
        def batch(case: Subject, drawn: Drawn) -> None:
            """A row's result does not depend on its batch."""
            component, inputs = case.fresh(drawn), case.inputs(drawn)
            expected, count = case.answer(component, inputs), case.rows(inputs)
            size = 1 + drawn.get("seed", 0) % max(1, count)
            for start in range(0, count, max(size, count // 4)):
                some = list(range(start, min(count, start + size)))
                for part in (some, some[:1]):
                    problem = f"rows have another result in a batch of {len(part)} than of {count}"
                    answer = case.answer(component, case.chosen(inputs, part))
                    case.same(problem, answer, [expected[row] for row in part])

    if threads:

        @kit.property(after=(*pure, "no_memory"), once=True)
        def concurrent(case: Subject) -> None:
            """Concurrent calls return the same results as sequential calls."""
            drawn = case.typical[0]
            component = case.fresh(drawn)
            parts = [case.inputs({**drawn, "seed": number}) for number in range(_THREADS)]
            expected = [case.answer(component, part) for part in parts]
            start, interval = threading.Barrier(_THREADS), sys.getswitchinterval()

            def work(number: int) -> list[Any]:
                start.wait()
                return [case.answer(component, parts[number]) for _ in range(_ROUNDS)]

            sys.setswitchinterval(1e-6)
            try:
                with ThreadPoolExecutor(_THREADS) as pool:
                    results = list(pool.map(work, range(_THREADS)))
            finally:
                sys.setswitchinterval(interval)
            problem = "calls from several threads have other results: does the object keep their state?"
            for answers, first in zip(results, expected, strict=True):
                for answer in answers:
                    case.same(problem, answer, first)

    @kit.property(after=pure, once=True)
    def other_process(case: Subject) -> None:
        """Another process with another hash seed computes the same results."""
        expected = [case.answer(case.fresh(drawn), case.inputs(drawn)) for drawn in case.typical]
        code, answers, printed = started("answers", *case.origin)
        if answers is None:
            error = printed.rpartition("\n")[2].rstrip(".") or f"exit code {code}"
            fail(f"another process cannot use it: {error}")
        case.same("another process has other results", answers, expected)

    if modules:

        @kit.property(after=pure)
        def gradients(case: Subject, drawn: Drawn) -> None:
            """Gradients are finite, in bf16 too, and reach the inputs and parameters on which the objective depends."""
            for bf16 in (True, False):
                component, inputs = case.fresh(drawn).train(), case.inputs(drawn)
                tensors = inputs_of(inputs) | dict(component.named_parameters())
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    total = _learn(case, component, inputs)
                values = {"objective": total} | {name: tensor.grad for name, tensor in tensors.items()}
                for name, value in values.items():
                    if value is not None and not value.isfinite().all():
                        problem = f"'{name}' or its gradient is not finite" + (" in bf16" if bf16 else "")
                        fail(problem, expected="numbers", actual=float(value[~value.isfinite()].reshape(-1)[0]))
            for name, tensor in tensors.items():
                if tensor.requires_grad and (tensor.grad is None or not tensor.grad.any()):
                    generator, before = torch.Generator().manual_seed(1), tensor.detach().clone()
                    with torch.no_grad(), seeded(0):
                        tensor.add_(1e-2 * torch.randn(tensor.shape, generator=generator) * (tensor != 0))
                        change = float((case.objective(component, inputs) - total).abs())
                        tensor.copy_(before)
                    if change > 1e-6 * max(1.0, abs(float(total))):
                        actual = f"none, where other values change the objective by {change:.3g}"
                        fail(f"no gradient reaches '{name}'", expected="a gradient", actual=actual)

        @kit.property(after=(*pure, "gradients"))
        def trained(case: Subject) -> str:
            """Every parameter gets a gradient, and at least one input does."""
            component = case.fresh(case.typical[0]).train()
            own, reached = case.parameters(component), list[bool]()
            # Some parameters are 0 at the start, which hides what depends on them.
            stir(component, 0.1)
            for drawn in case.typical:
                inputs = case.inputs(drawn)
                _learn(case, component, inputs)
                reached += [
                    tensor.grad is not None and bool(tensor.grad.any()) for tensor in inputs_of(inputs).values()
                ]
            expect(any(reached) or not reached, "no gradient reaches the input, on which the result has to depend")
            for name, tensor in own.items():
                if tensor.grad is None or not (case.zero_gradients or tensor.grad.any()):
                    problem = f"the parameter '{name}' gets no gradient, and is never trained"
                    attribute = next((part for part in name.split(".") if hasattr(component, part)), name)
                    fail(problem, expected="a gradient", source=rf"self\.{attribute}\b.*=")
            return f"{len(own)} parameters"

        @kit.property(after=(*pure, "gradients"))
        def state(case: Subject) -> None:
            """All that training changes is in `state_dict`: training continues in the same way from a copy."""
            component = case.fresh(case.typical[0]).train()
            parameters = [tensor for tensor in component.parameters() if tensor.requires_grad]
            for number, drawn in enumerate(list(case.typical) * _LESSONS):
                _learn(case, component, case.inputs({**drawn, "seed": number}), number)
                with torch.no_grad():
                    for tensor in parameters:
                        tensor -= 0 if tensor.grad is None else _RATE * tensor.grad.clamp(-1, 1)
                        tensor.grad = None
            copy = case.fresh(case.typical[0]).train()
            copy.load_state_dict({name: tensor.clone() for name, tensor in component.state_dict().items()})
            problem = "a copy by `state_dict` differs after training: there is state elsewhere"
            for drawn in case.typical:
                answers = []
                for module in (copy, component):
                    with seeded(0), torch.no_grad():
                        trained = case.objective(module.train(), case.inputs(drawn))
                        answers.append([trained, case.answer(module.eval(), case.inputs(drawn))])
                expect_same(problem, *answers, source=r"register_buffer|self\.\w+ = ")

    if options:
        add_option_properties(kit, after=pure)


def inputs_of(inputs: Any) -> dict[str, Tensor]:
    """Return the tensors of an input that can have gradients, by name."""
    return {name: leaf for name, leaf in leaves(inputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()}


def backward(total: Tensor) -> None:
    """Back-propagate, unless no tensor requires gradients."""
    if total.requires_grad:
        torch.autograd.backward(total)


def _learn(case: Subject, component: nn.Module, inputs: Any, seed: int = 0) -> Tensor:
    """Back-propagate the objective to parameters and inputs; returns it."""
    for tensor in inputs_of(inputs).values():
        tensor.requires_grad_()
    with seeded(seed):
        total = case.objective(component, inputs)
    backward(total)
    return total.detach()


def expect_mean(losses: Sequence[float], error: float = 0.0) -> None:
    """Fail if losses of a batch once, twice and three times grow evenly, as a sum does."""
    growth = losses[1] - losses[0]
    evenly = abs(losses[2] - losses[0] - 2 * growth) < 1e-3 * abs(growth) + 8 * error
    if evenly and abs(growth) > 1e-2 * abs(losses[0]) + 8 * error:
        problem = "it is a sum over the batch, and should be a mean: it grows evenly with copies of the batch"
        fail(problem, expected=losses[0], actual=losses[1], difference=growth)


def stir(component: nn.Module, size: float) -> nn.Module:
    """Add random numbers to all parameters; returns the component."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for tensor in component.parameters():
            tensor.add_(size * torch.randn(tensor.shape, generator=generator))
    return component


_GLOBALS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the number of threads of torch": (torch.get_num_threads, torch.set_num_threads),
    "the default type of torch": (torch.get_default_dtype, torch.set_default_dtype),
    "the mode of gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "how numpy handles errors": (np.geterr, lambda modes: np.seterr(**modes)),
    "the working folder": (os.getcwd, os.chdir),
    "the environment": (lambda: dict(os.environ), lambda values: (os.environ.clear(), os.environ.update(values))),  # type: ignore[func-returns-value]
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
        stdout = os.dup(1)
        os.dup2(native.fileno(), 1)
        try:
            with contextlib.redirect_stdout(python), contextlib.redirect_stderr(python):
                yield text
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
            native.seek(0)
            text.append((python.getvalue() + native.read().decode(errors="replace")).strip())


_WRITTEN: list[list[str]] = []
_WRITING = dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate"), 0)
_WRITING |= dict.fromkeys(("os.rename", "os.link", "os.symlink"), 1)
"""Event of an audit hook -> the number of its argument with the path that changes."""


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
        sys.addaudithook(_audit)  # permanently: hooks cannot be removed
        _audited.append(True)
    _WRITTEN.append([])
    try:
        yield _WRITTEN[-1]
    finally:
        _WRITTEN.pop()


def forget_written() -> None:
    """Drop the paths collected so far: those of the kit's own input."""
    for paths in _WRITTEN:
        paths.clear()


def _outside(path: str, kept: Sequence[Path]) -> bool:
    """True if a component may not write to a path."""
    here, temporary, resolved = Path.cwd(), Path(tempfile.gettempdir()).resolve(), Path(path).resolve()
    caches = [Path("/dev"), Path("/proc"), Path.home() / ".cache"]
    names = ("XDG_CACHE_HOME", "HF_HOME", "HF_DATASETS_CACHE")
    caches += [Path(os.environ[name]) for name in names if os.environ.get(name)]
    if "__pycache__" in path or any(resolved.is_relative_to(folder.resolve()) for folder in caches):
        return False
    in_here = here != temporary and not temporary.is_relative_to(here) and resolved.is_relative_to(here)
    return in_here or not resolved.is_relative_to(temporary) or any(resolved.is_relative_to(folder) for folder in kept)
