"""Where to look in the source of a component: the line of a method, of an option, or the one that raised."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A line of a source file.

    Attributes:
        file: The file.
        line: The line, from 1.
        name: What is there, such as "Mean.forward".
    """

    file: str
    line: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" ({self.name})" if self.name else "")


def of_component(component: type, *, method: str = "", source: str = "") -> Place | None:
    """The line of a component's class to look at; None if its source cannot be read.

    Args:
        component: The class.
        method: Its method, if the class itself or one beside it in the same file defines it; otherwise the class.
        source: A regular expression of a line of the class, which is looked for first.
    """
    classes = [one for one in component.__mro__ if _file(one) is not None and _file(one) == _file(component)]
    constructors = [vars(one)["__init__"] for one in classes if "__init__" in vars(one)]
    # A constructor first: a docstring names options too.
    for one in (*constructors, *classes) if source else ():
        lines, first = _source(one)
        for number, line in enumerate(lines):
            if re.search(source, line):
                return Place(str(_file(component)), first + number, one.__qualname__)
    for owner, name in _methods(component, classes, method):
        lines, first = _source(vars(owner)[name])
        return Place(str(_file(owner)), first + _definition(lines), f"{owner.__qualname__}.{name}")
    if not classes:
        return None
    lines, first = _source(component)
    return Place(str(_file(component)), first + _definition(lines), component.__qualname__)


def _methods(component: type, classes: Sequence[type], method: str) -> Iterator[tuple[type, str]]:
    """The method to look at: that of the class, or what it defines in its place, or that of its base."""
    own = [name for name, one in vars(component).items() if inspect.isroutine(one) and name != "__init__"]
    if method in own or (method and len(own) == 1):
        yield component, method if method in own else own[0]
    elif not own:
        yield from ((owner, method) for owner in classes if inspect.isroutine(vars(owner).get(method)))


def of_exception(component: type, error: BaseException) -> Place | None:
    """The deepest line of the component's own source that an exception went through; None if there is none."""
    own = _file(component)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if own is not None and _belongs(one, component)]
    if not frames:
        return None
    return Place(frames[-1].filename, frames[-1].lineno or 1, frames[-1].name)


def _belongs(frame: traceback.FrameSummary, component: type) -> bool:
    """Whether a frame is in the component's file, or for a plugin anywhere in its package."""
    path, own = Path(frame.filename), Path(str(_file(component)))
    package = sys.modules.get(component.__module__.partition(".")[0])
    roots = [Path(one) for one in getattr(package, "__path__", ())]
    if component.__module__.startswith("retrievalkit.") or not roots:
        return path == own
    return any(path.is_relative_to(root) for root in roots)


def _file(component: type) -> str | None:
    try:
        return inspect.getsourcefile(component)
    except TypeError:
        return None


def _source(thing: object) -> tuple[list[str], int]:
    """The lines of a class or function, and the number of the first of them."""
    try:
        return inspect.getsourcelines(thing)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return [], 1


def _definition(lines: list[str]) -> int:
    """Which of the lines has `class` or `def`, below its decorators."""
    return next((number for number, line in enumerate(lines) if re.match(r"\s*(async def|def|class) ", line)), 0)
