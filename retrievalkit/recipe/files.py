"""Recipe files: where they are, and their content once joined with the recipes that they extend."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from retrievalkit.errors import DataError, UnknownNameError
from retrievalkit.recipe.settings import Section, join, read_yaml

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_KEYS = (
    "extends", "name", "description", "requires", "values", "defaults", "steps", "table", "variants", "sets", "means",
    "baseline", "seeds",
)  # fmt: skip
_STEP_KEYS = ("name", "title", "command", "with", "output", "expected")


def find_recipe(source: str | Path) -> Path:
    """The file of a recipe: a path, or the name of one that comes with retrievalkit."""
    path = Path(source)
    if path.is_file():
        return path
    bundled = bundled_recipes()
    name = str(source).removesuffix(".yaml").removeprefix("recipes/")
    if name not in bundled:
        raise UnknownNameError("recipe", str(source), bundled, hint="Or give the path of a recipe file.")
    return bundled[name]


def bundled_recipes() -> dict[str, Path]:
    """The recipes that come with retrievalkit: name -> file."""
    here = Path(__file__).parent
    for folder in (here / "bundled", here.parents[1] / "recipes"):
        found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
        if found:
            return found
    return {}


def read_recipe(path: Path, opened: tuple[Path, ...] = (), read: dict[Path, Section] | None = None) -> Section:
    """The content of a recipe file joined with the files that it extends, its steps by name.

    Args:
        path: The file.
        opened: The files that extend it.
        read: What was read before: many files may extend one.

    Raises:
        DataError: One of them is not a recipe, or extends itself; names file and line.
    """
    read = {} if read is None else read
    if path.resolve() in read:
        return read[path.resolve()]
    root = read_yaml(path)
    if not isinstance(root, Section):
        msg = "a recipe is a mapping with the keys name, values and steps."
        raise DataError(msg, file=path, line=1)
    root.check_keys(_KEYS, "recipe")
    if "steps" in root:
        root["steps"] = _steps_by_name(root)
    extended = root.pop("extends", [])
    opened = (*opened, path.resolve())
    joined: Section | None = None
    for name in extended if isinstance(extended, list) else [extended]:
        base = read_recipe(_extended(root, name, opened), opened, read)
        joined = base if joined is None else join(joined, base)
    read[opened[-1]] = root if joined is None else join(joined, root)
    return read[opened[-1]]


def _extended(root: Section, name: Any, opened: tuple[Path, ...]) -> Path:
    if not isinstance(name, str):
        root.fail(f"'extends' is {name!r}, and should be the path or name of a recipe, or a list of them.", "extends")
    beside = Path(os.path.normpath(Path(root.place.file).parent / name))
    try:
        path = beside if beside.is_file() else find_recipe(name)
    except UnknownNameError as error:
        root.fail(str(error), "extends")
    if path.resolve() in opened:
        root.fail(f"the recipe '{name}' extends this one, so this one cannot extend it.", "extends")
    return path


def _steps_by_name(root: Section) -> Section:
    rows = root["steps"]
    if not isinstance(rows, list):
        root.fail(f"'steps' is {rows!r}, and should be a list of steps.", "steps")
    steps = Section(root.places["steps"])
    for row in rows:
        if not isinstance(row, Section):
            root.fail("a step is a mapping.", "steps")
        row.check_keys(_STEP_KEYS, "step")
        name = row.wanted("name", str, "text")
        if not NAME.fullmatch(name):
            row.fail(f"the step name '{name}' has other characters than letters, digits, - and _. Rename it.", "name")
        if name in steps:
            row.fail(f"step '{name}': another step has this name, in line {steps.places[name].line}. Rename one.")
        steps.put(name, row, row.place)
    return steps
