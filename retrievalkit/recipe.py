"""A recipe: the steps of an experiment as data, each of them a command as one would type it.

    name: two-stage
    description: One sentence that says what comes out.
    values:                      # what `--set corpus=...` overrides; null = has to be given
      corpus: null
      examples: ${corpus}/train.jsonl
    defaults:                    # options that all steps of a command share
      train: {batch_size: 32}
    steps:
      - name: bm25
        command: index
        with: {source: "${corpus}", indexer: bm25}
        output: bm25             # in the run's own folder
      - name: stage1
        command: train
        with: {corpus: "${corpus}", examples: "${examples}", pooler: self_contrastive, set: {pooler.layers: [4, 6]}}
        output: stage1
      - name: figures
        command: evaluate
        with: {run: "${steps.search}", qrels: test.tsv, json: true}
        output: figures.json     # a command without --output: what it prints
        expected: {source: "Table 2", nDCG@10: 0.41}

The keys under `with` are the command's options and arguments, with dashes or underscores; `set` holds what `--set`
takes. `${name}` is a value, `${steps.NAME}` the output of an earlier step. `expected` holds figures to be shown beside
ours. `--set STEP.OPTION=...` changes an option of one step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError

if TYPE_CHECKING:
    import yaml

_KEYS = ("name", "description", "values", "defaults", "steps")
_STEP_KEYS = ("name", "command", "with", "output", "expected")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {"true": True, "false": False, "null": None, "~": None}


class Section(dict[str, Any]):
    """A mapping of a recipe file that knows where it stands.

    Attributes:
        line: Where it starts, counted from 1.
        lines: Key -> line.
    """

    def __init__(self, line: int = 0) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


@dataclass(frozen=True)
class Step:
    """One command of a recipe.

    Attributes:
        name: What other steps call it.
        command: The name of an rkit command.
        options: Its options and arguments; `${steps.NAME}` still stands in them.
        output: What it writes, relative to the run's folder; None = it only prints.
        uses: The earlier steps whose outputs it names.
        expected: Figures to compare with, and their "source".
        file: The recipe's file.
        line: Where the step stands in it.
        lines: Option -> line.
    """

    name: str
    command: str
    options: Mapping[str, Any]
    output: str | None = None
    uses: tuple[str, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    line: int = 0
    lines: Mapping[str, int] = field(default_factory=dict)

    def error(self, problem: str, option: str = "") -> DataError:
        """A complaint about this step, or one of its options."""
        return DataError(f"step '{self.name}': {problem}", file=self.file, line=self.lines.get(option, self.line))


@dataclass(frozen=True)
class Recipe:
    """A recipe with its values filled in.

    Attributes:
        name: What it is called.
        description: What comes out.
        values: Name -> value, overrides applied.
        steps: In the order they run.
        file: Where it was read.
    """

    name: str
    description: str
    values: Mapping[str, Any]
    steps: tuple[Step, ...]
    file: str

    def options_in(self, step: Step, folder: str) -> dict[str, Any]:
        """A step's options, with the outputs of earlier steps as paths in a folder ("" = relative to it)."""
        outputs = {f"steps.{one.name}": _joined(folder, one.output) for one in self.steps if one.output}
        filled: dict[str, Any] = _fill(dict(step.options), outputs.__getitem__)
        return filled


def load_recipe(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        source: A file, or the name of a recipe that comes with retrievalkit ("quickstart").
        overrides: What `parse_set` made of `--set`: values, and options of steps.

    Raises:
        DataError: Something is wrong in the file; names file and line.
        UnknownNameError: There is no such recipe, or an override is neither a value nor a step.
    """
    path = find_recipe(source)
    root = read_yaml(path)
    if not isinstance(root, Section):
        msg = "a recipe is a mapping with the keys name, values and steps."
        raise DataError(msg, file=path, line=1)
    reader = _Reader(str(path), root)
    return reader.recipe(dict(overrides or {}))


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
    for folder in (here / "recipes", here.parent / "recipes"):
        found = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
        if found:
            return found
    return {}


def parse_set(settings: Iterable[str]) -> dict[str, Any]:
    """What `--set` was given, as nested options: ["pooler.layers=10,12"] -> {"pooler": {"layers": "10,12"}}.

    Values are read as in a recipe: numbers, true, false, null, [lists], "quoted" text, and text.

    Raises:
        OptionError: A setting has no "=", no name, or sets both an option and a part of it.
    """
    parsed: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            msg = f"--set {setting!r} is not KEY=VALUE, such as pooler.layers=4,6 or epochs=3."
            raise OptionError(msg)
        place = parsed
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                msg = f"--set {setting!r}: '{name}' has been set to {place!r} already, so it has no options."
                raise OptionError(msg)
        if isinstance(place.get(names[-1]), dict):
            msg = f"--set {setting!r}: options of '{key}' have been set already, so it cannot be one value."
            raise OptionError(msg)
        place[names[-1]] = _setting_value(setting, text)
    return parsed


def flatten(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted keys: {"pooler": {"layers": [4, 6]}} -> {"pooler.layers": [4, 6]}."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def read_yaml(path: str | Path) -> Any:
    """What a YAML file holds: mappings as `Section`, plain scalars by the rules of YAML 1.2.

    YAML 1.1, which PyYAML follows, takes `no` for false, 1e-5 for text and 1:30 for 90.

    Raises:
        DataError: It is no YAML; names the line.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        msg = f"byte 0x{error.object[error.start]:02x} is not UTF-8. Save the file as UTF-8."
        raise DataError(msg, file=path, line=error.object.count(b"\n", 0, error.start) + 1) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        msg = f"broken YAML: {problem}."
        raise DataError(msg, file=path, line=mark.line + 1 if mark else None) from None
    if node is None:
        msg = "the file is empty."
        raise DataError(msg, file=path)
    return _construct(node, str(path))


def _construct(node: yaml.Node, file: str) -> Any:
    line = node.start_mark.line + 1
    if node.id == "scalar":
        return scalar(node.value) if node.style is None else node.value
    if node.id == "sequence":
        return [_construct(one, file) for one in node.value]
    section = Section(line)
    for key_node, value_node in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        if key_node.id != "scalar":
            msg = "a key is a plain name."
            raise DataError(msg, file=file, line=line)
        if key in section:
            msg = f"'{key}' stands here twice; the first is in line {section.lines[key]}. Remove one of them."
            raise DataError(msg, file=file, line=line)
        section[key] = _construct(value_node, file)
        section.lines[key] = line
    return section


def scalar(text: str) -> Any:
    """What a plain scalar stands for: a number, true, false, null or text."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _setting_value(setting: str, text: str) -> Any:
    if not text.startswith(("[", '"', "'")):
        return scalar(text)
    import yaml

    try:
        return _construct(yaml.compose(text, Loader=yaml.SafeLoader), setting)
    except (yaml.YAMLError, DataError) as error:
        msg = f"--set {setting!r}: the value cannot be read: {getattr(error, 'problem', error)}."
        raise OptionError(msg) from None


class _Reader:
    """Checks what a recipe file holds and fills its values in; every complaint names the line."""

    def __init__(self, file: str, root: Section) -> None:
        self.file = file
        self.root = root

    def recipe(self, overrides: dict[str, Any]) -> Recipe:
        self.check_keys(self.root, _KEYS, "recipe")
        rows = self.field(self.root, "steps", list, "a list of steps")
        sections = [row if isinstance(row, Section) else self.fail("a step is a mapping.", self.root) for row in rows]
        values = self.section(self.root, "values")
        defaults = self.section(self.root, "defaults")
        steps = [self.step(section, defaults) for section in sections]
        of_steps = self.override(values, {step.name for step in steps}, overrides)
        steps = [_with_options(step, of_steps.get(step.name, {})) for step in steps]
        lookup = _Values(self, values)
        return Recipe(
            name=self.field(self.root, "name", str, "text"),
            description=self.root.get("description") or "",
            values={name: lookup.optional(name) for name in values},
            steps=tuple(self.filled(steps, lookup)),
            file=self.file,
        )

    def step(self, section: Section, defaults: Section) -> Step:
        self.check_keys(section, _STEP_KEYS, "step")
        name = self.field(section, "name", str, "text")
        if not _NAME.fullmatch(name):
            self.fail(f"the step name '{name}' is not made of letters, digits, - and _.", section, "name")
        command = self.field(section, "command", str, "the name of a command")
        options, shared = self.section(section, "with"), self.section(defaults, command)
        return Step(
            name=name,
            command=command,
            options=_merged(shared, options),
            output=self.output(section),
            expected=self.section(section, "expected"),
            file=self.file,
            line=section.line,
            lines={key.replace("-", "_"): line for key, line in (shared.lines | options.lines).items()},
        )

    def output(self, section: Section) -> str | None:
        if section.get("output") is None:
            return None
        output: str = self.field(section, "output", str, "a path")
        path = PurePosixPath(output)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            self.fail(f"output '{output}' is not inside the run's folder. Give a relative path.", section, "output")
        return path.as_posix()

    def override(self, values: Section, steps: set[str], overrides: dict[str, Any]) -> dict[str, Any]:
        """Put the overrides of values in; returns those of steps."""
        of_steps: dict[str, Any] = {}
        for name, value in overrides.items():
            if name in values and not isinstance(value, dict):
                values[name] = value
            elif name in steps and isinstance(value, dict):
                of_steps[name] = value
            else:
                hint = "--set takes a value of the recipe, or STEP.OPTION."
                raise UnknownNameError("value of the recipe", name, {*values, *steps}, hint=hint)
        return of_steps

    def filled(self, steps: list[Step], lookup: _Values) -> Iterable[Step]:
        """The steps with values in place of variables, and with the names of the steps they use."""
        earlier: dict[str, Step] = {}
        for step in steps:
            if step.name in earlier:
                msg = f"another step has this name, in line {earlier[step.name].line}. Rename one."
                raise step.error(msg)
            if taken := [one for one in earlier.values() if step.output and one.output == step.output]:
                msg = f"step '{taken[0].name}' writes '{step.output}' already. Choose another output."
                raise step.error(msg)
            uses: dict[str, None] = {}
            options = {
                name: _fill(value, partial(self.variable, step, name, earlier, lookup, uses))
                for name, value in step.options.items()
            }
            earlier[step.name] = replace(step, options=options, uses=tuple(uses))
            yield earlier[step.name]

    def variable(
        self, step: Step, option: str, earlier: Mapping[str, Step], lookup: _Values, uses: dict[str, None], name: str
    ) -> Any:
        if not name.startswith("steps."):
            return lookup.required(name, step.lines.get(option, step.line))
        used = name.removeprefix("steps.")
        if used not in earlier:
            raise step.error(str(UnknownNameError("earlier step", used, earlier)), option)
        if earlier[used].output is None:
            msg = f"step '{used}' has no output. Give it one."
            raise step.error(msg, option)
        uses[used] = None
        return f"${{{name}}}"

    def check_keys(self, section: Section, known: tuple[str, ...], kind: str) -> None:
        for key in section:
            if key not in known:
                self.fail(str(UnknownNameError(f"key of a {kind}", key, known)), section, key)

    def field(self, section: Section, key: str, type_: type, wanted: str) -> Any:
        value = section.get(key)
        if value is None:
            self.fail(f"'{key}' is missing.", section)
        if not isinstance(value, type_):
            self.fail(f"'{key}' is {value!r}, and should be {wanted}.", section, key)
        return value

    def section(self, section: Section, key: str) -> Section:
        value = section.get(key)
        if value is None:
            return Section(section.line)
        if not isinstance(value, Section):
            self.fail(f"'{key}' is {value!r}, and should be a mapping.", section, key)
        found: Section = value
        return found

    def fail(self, problem: str, section: Section, key: str = "") -> Any:
        raise DataError(problem, file=self.file, line=section.lines.get(key, section.line))


class _Values:
    """The values of a recipe, which may name each other."""

    def __init__(self, reader: _Reader, values: Section) -> None:
        self.reader = reader
        self.values = values
        self.open: list[str] = []

    def optional(self, name: str) -> Any:
        """A value; None where it was not given, or needs one that was not given."""
        try:
            return self.required(name, 0)
        except _NotGivenError:
            return None

    def required(self, name: str, line: int) -> Any:
        if name not in self.values:
            problem = str(UnknownNameError("value", name, self.values))
            raise DataError(problem, file=self.reader.file, line=self._line(line))
        if name in self.open:
            circle = " -> ".join([*self.open, name])
            self.reader.fail(f"the value '{name}' is made of itself ({circle}).", self.values, name)
        value = self.values[name]
        if value is None:
            raise _NotGivenError(name, self.reader.file, line)
        self.open.append(name)
        try:
            return _fill(value, lambda inner: self.required(inner, line))
        finally:
            self.open.pop()

    def _line(self, line: int) -> int:
        return line or self.values.lines.get(self.open[-1] if self.open else "", self.values.line)


class _NotGivenError(InputError):
    """A value that has no default was not given."""

    def __init__(self, name: str, file: str, line: int) -> None:
        super().__init__(f"{file}:{line}: the recipe needs a value for '{name}'. Give it: --set {name}=...")


def _fill(value: Any, variable: Callable[[str], Any]) -> Any:
    """Replace `${name}` in all texts; a text that is one variable becomes that variable's value."""
    if isinstance(value, str):
        if whole := _VARIABLE.fullmatch(value):
            return variable(whole[1].strip())
        return _VARIABLE.sub(lambda match: _as_text(variable(match[1].strip())), value)
    if isinstance(value, list):
        return [_fill(one, variable) for one in value]
    if isinstance(value, Mapping):
        return {key: _fill(one, variable) for key, one in value.items()}
    return value


def _as_text(value: Any) -> str:
    return ",".join(map(_as_text, value)) if isinstance(value, list) else str(value)


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Options with dashes turned to underscores; those under `set` are joined key by key, the second's winning."""
    merged: dict[str, Any] = {}
    for options in (first, second):
        for name, value in options.items():
            name = name.replace("-", "_")
            if name == "set" and isinstance(value, Mapping):
                value = merged.get("set", {}) | flatten(value)
            merged[name] = value
    return merged


def _with_options(step: Step, options: Mapping[str, Any]) -> Step:
    return replace(step, options=_merged(step.options, options)) if options else step


def _joined(folder: str, output: str) -> str:
    return str(Path(folder) / output) if folder else output
