"""Recipe files: look-up by path or name, and their content merged with the recipes that they extend."""

from __future__ import annotations

import os
import re
from pathlib import Path

from retrievalkit import registry
from retrievalkit.errors import DataError, PluginError, UnknownNameError, shortlist
from retrievalkit.recipes.settings import Section, join, read_yaml

LOGS = "logs"
"""Folder of the steps' logs, within the run's folder."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_KEYS = (
    "extends", "name", "description", "requires", "values", "defaults", "steps", "table", "variants", "sets", "means",
    "baseline", "seeds",
)  # fmt: skip
_STEP_KEYS = ("name", "title", "command", "with", "output")


_HERE = Path(__file__).parent
FOLDER = _HERE / "bundled" if (_HERE / "bundled").is_dir() else _HERE.parents[1] / "recipes"
"""Folder of the bundled recipes; in a checkout, the repository's recipes."""


def find_recipe(source: str | Path) -> Path:
    """Find the file of a recipe by path, name of a bundled recipe, or `PLUGIN/NAME`."""
    path = Path(source)
    if path.is_file():
        return path
    name = str(source).removesuffix(".yaml").removeprefix("recipes/")
    known = recipes_in(FOLDER)
    owner = name.partition("/")[0]
    if owner in registry.names("recipe"):
        folder: Path = registry.component("recipe", owner).load()
        provided = {f"{owner}/{inner}": file for inner, file in recipes_in(folder).items()}
        if name in known and name in provided:
            msg = f"recipe '{name}' comes with both retrievalkit and '{owner}'. Give the path: {provided[name]}"
            raise PluginError(msg)
        known = provided if owner != "retrievalkit" else known | provided
    if name not in known:
        others = [f"{plugin}/NAME" for plugin in registry.names("recipe") if plugin not in (owner, "retrievalkit")]
        hint = f"Or give the path of a recipe file{', or ' + shortlist(others) if others else ''}."
        raise UnknownNameError("recipe", str(source), known, hint=hint)
    return known[name]


def recipes_in(folder: Path) -> dict[str, Path]:
    """Return the recipes of a folder and its subfolders: name -> file."""
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def read_recipe(path: Path, opened: tuple[Path, ...] = ()) -> Section:
    """Read a recipe file, merged with the files that it extends; its steps are keyed by name."""
    root = read_yaml(path)
    if not isinstance(root, Section):
        msg = "a recipe is a mapping with the keys name, values and steps."
        raise DataError(msg, file=path, line=1)
    root.check_keys(_KEYS, "recipe")
    if "steps" in root:
        steps = Section(root.places["steps"])
        for row in root.required("steps", list, "a list of steps"):
            if not isinstance(row, Section):
                root.fail("a step is a mapping.", "steps")
            row.check_keys(_STEP_KEYS, "step")
            name = row.required("name", str, "text")
            if not NAME.fullmatch(name):
                row.fail(f"the step name '{name}' has characters other than letters, digits, - and _.", "name")
            if name in steps:
                row.fail(f"step '{name}': another step has this name, in line {steps.places[name].line}. Rename one.")
            steps[name], steps.places[name] = row, row.place
        root["steps"] = steps
    extended = root.pop("extends", [])
    opened = (*opened, path.resolve())
    joined: Section | None = None
    for name in extended if isinstance(extended, list) else [extended]:
        if not isinstance(name, str):
            root.fail(f"'extends' is {name!r}, but should be the path or name of a recipe, or a list.", "extends")
        sibling = Path(os.path.normpath(Path(root.place.file).parent / name))
        try:
            other = sibling if sibling.is_file() else find_recipe(name)
        except UnknownNameError as error:
            root.fail(str(error), "extends")
        if other.resolve() in opened:
            root.fail(f"the recipe '{name}' extends this one, so this one cannot extend it.", "extends")
        base = read_recipe(other, opened)
        joined = base if joined is None else join(joined, base)
    return root if joined is None else join(joined, root)
