"""A recipe: the steps of an experiment as data, each of them a command as one would type it.

    name: layers
    description: One sentence about the result.
    requires: {retrievalkit-mlr: pooler self_contrastive}    # distributions to have installed, and what they bring
    values:                      # changed by `--set corpus=...`; null = has to be given
      corpus: null
      examples: ${corpus}/train.jsonl
      layers: [4, 6]
      dev: null                  # used as ${dev?} below, so it may be missing
      seed: 42
    defaults:                    # options that all steps of a command share
      train: {batch_size: 32, seed: "${seed}"}
    steps:
      - name: model
        title: "Train on layers ${layers}: the last one is indexed"    # what: why; the summary leaves out the reason
        command: train
        with: {corpus: "${corpus}", examples: "${examples}", dev: "${dev?}", set: {pooler.layers: "${layers}"}}
        output: model            # in the run's own folder
      - {name: vectors, command: encode, with: {model: "${steps.model}", texts: "${corpus}"}, output: vectors}
      - {name: index, command: index, with: {source: "${steps.vectors}"}, output: index}
      - {name: search, command: search, with: {indexes: "${steps.index}", queries: test.jsonl}, output: run.trec}
      - name: figures
        command: evaluate
        with: {run: "${steps.search}", qrels: test.tsv, per-query: true, json: true}    # by query: to test significance
        output: figures.json     # of a command without --output: what it prints

    table: [figures]             # the steps whose figures are the table's columns; only what they build on is run
    variants:                    # its rows: what differs in each, and reference figures
      near: {title: "Layers ${layers}", expected: {source: "Table 2", nDCG@10: 0.41}}
      far: {title: "Layers ${layers}", values: {layers: [2, 6], model: {batch_size: 8}}, expected: {nDCG@10: 0.4}}
    baseline: near               # the row that the others are compared with
    seeds: [42, 43, 44]          # each variant is run with each of these as the value `seed`

The keys under `with` are the command's options and arguments, with dashes or underscores; `set` contains the settings
of `--set`. `${name}` is a value, `${steps.NAME}` the output of a step. `--set VALUE=...` changes a value for all
variants, `--set VARIANT.VALUE=...` for one, `--set STEP.OPTION=...` an option of a step, `--set seeds=...` the seeds.
Titles may contain values too, and follow them. Reference figures may also be given as `expected` at a step; in a
variant those of a second step in the table are STEP.FIGURE. `sets` (of data) multiply the rows, and `means` average
them: see `recipe.rows`.

`extends: other.yaml` (or a list) starts from another recipe, by a path from this one's folder or by name. Mappings are
joined key by key, steps and variants by name; `null` removes a variant or a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from retrievalkit.errors import InputError, OptionError, UnknownNameError
from retrievalkit.recipe.files import find_recipe, read_recipe
from retrievalkit.recipe.log import FOLDER as LOGS
from retrievalkit.recipe.rows import Names, RowReader
from retrievalkit.recipe.settings import Place, Section, flatten, join
from retrievalkit.recipe.step import Step, Values, fill, in_order, joined_path, merged, needed
from retrievalkit.recipe.variants import SEED, Row, Variant, arrange, choose, parse_seeds

Overrides = Sequence[Mapping[str, Any]]
"""Values and options of steps, by name; later ones win."""


@dataclass(frozen=True)
class Recipe:
    """A recipe with its values filled in.

    Attributes:
        name: Its name.
        description: One sentence about the result.
        values: Name -> value, overrides applied; those of variants are not among them.
        steps: In the order they run, those of all variants.
        file: The file it was read from.
        table: The steps whose figures are the columns; () = there is no table.
        rows: The table's rows.
        baseline: The row that the others are compared with; "" = none.
        requires: Distributions to have installed -> what they bring.
        named: The texts that the user gave by `--set`: stores are read only at addresses among them.
    """

    name: str
    description: str
    values: Mapping[str, Any]
    steps: tuple[Step, ...]
    file: str
    table: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    baseline: str = ""
    requires: Mapping[str, str] = field(default_factory=dict)
    named: tuple[str, ...] = ()

    def options_in(self, step: Step, folder: str) -> dict[str, Any]:
        """A step's options, with the outputs of other steps as paths in a folder; "" leaves them relative to it."""
        filled: dict[str, Any] = fill(dict(step.options), lambda name: joined_path(folder, self.outputs[name]))
        return filled

    @cached_property
    def outputs(self) -> dict[str, str]:
        """`steps.NAME` -> what the step writes."""
        return {f"steps.{step.name}": step.output for step in self.steps if step.output}


def load_recipe(
    source: str | Path, overrides: Mapping[str, Any] | None = None, variants: Sequence[str] | None = None
) -> Recipe:
    """Read a recipe.

    Args:
        source: A file, or the name of a recipe that comes with retrievalkit ("quickstart").
        overrides: The settings of `--set`, as `parse_set` returns them: values, and options of steps.
        variants: Which of its variants to run, by name or pattern; None = all.

    Raises:
        DataError: Something is wrong in the file; names file and line.
        UnknownNameError: There is no such recipe or variant, or an override is neither a value nor a step.
    """
    return _Reader(read_recipe(find_recipe(source))).recipe(dict(overrides or {}), variants)


class _Reader:
    """Checks a recipe and fills its values in; every error names file and line."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.name: str = root.wanted("name", str, "text")
        self.values = root.section("values")
        defaults = root.section("defaults")
        sections: Section = root.wanted("steps", Section, "a list of steps")
        self.steps = {name: _step(section, defaults) for name, section in sections.items()}
        _check_outputs(self.steps.values())
        self.table = self.step_names("table")
        self.row_names: set[str] = set()
        self.table_rows = RowReader(root, self.steps, self.table, self.check_override)
        self.variants = self.table_rows.variants
        self.row_names = self.table_rows.names

    def recipe(self, overrides: dict[str, Any], wanted: Sequence[str] | None) -> Recipe:
        seeds = self.seeds(overrides)
        texts = [
            one for value in flatten(overrides).values() for one in (value if isinstance(value, list) else [value])
        ]
        for name, value in overrides.items():
            self.check_override(name, value)
        selected = choose(self.variants, wanted, self.name)
        # A value may have the name of a variant; settings of the variant are a mapping.
        of_rows = {name: overrides.pop(name) for name in self.row_names if isinstance(overrides.get(name), Mapping)}

        def given(variant: Variant) -> Overrides:
            return [
                overrides,
                *(of_rows[name] for name in dict.fromkeys((*variant.parts, variant.name)) if name in of_rows),
            ]

        def build(variant: Variant, values: Mapping[str, Any]) -> Sequence[Step]:
            return self.filled([variant.overrides, *given(variant), values])

        steps, names = arrange(list(self.variants.values()), selected, seeds, build)
        if any(step.lacks for step in steps):
            complete = [name for name, own in self.variants.items() if not any(step.lacks for step in build(own, {}))]
            hint = f" Without it: --variants {','.join(complete)}" if complete else ""
            for step in steps:
                step.check_given(hint)
        values, _ = self.overridden([overrides])
        return Recipe(
            name=self.name,
            description=self.root.get("description") or "",
            values=Values(values).given(),
            steps=tuple(steps),
            file=self.root.place.file,
            table=self.table,
            rows=self.rows(selected, names, given),
            baseline=self.table_rows.baseline,
            requires={name: str(brings) for name, brings in self.root.section("requires").items()},
            named=tuple(one for one in texts if isinstance(one, str)),
        )

    def filled(self, overrides: Iterable[Mapping[str, Any]]) -> list[Step]:
        """The steps to be run, in order, with values in place of their names."""
        values, of_steps = self.overridden(overrides)
        lookup = Values(values)
        steps = [step.with_options(of_steps.get(step.name, {})) for step in self.steps.values()]
        ordered = in_order(step.filled(lookup) for step in steps)
        return needed(ordered, self.table) if self.table else ordered

    def overridden(self, overrides: Iterable[Mapping[str, Any]]) -> tuple[Section, dict[str, Any]]:
        """The recipe's values and the options of steps, with these overrides; later ones win."""
        values = self.values
        of_steps: dict[str, Any] = {}
        for given in overrides:
            mine = {name: value for name, value in given.items() if self.is_value(name, value)}
            values = join(values, mine)
            for name in given.keys() - mine.keys():
                of_steps[name] = merged(of_steps.get(name, {}), given[name])
        return values, of_steps

    def is_value(self, name: str, override: Any) -> bool:
        """Whether an override is of a value: a mapping may be that of a step's options."""
        return name in self.values and (
            not isinstance(override, Mapping) or isinstance(self.values[name], Section) or name not in self.steps
        )

    def check_override(self, name: str, value: Any) -> None:
        """Refuse an override of something that the recipe does not have."""
        nested = isinstance(value, Mapping)
        if nested and name in self.row_names:
            for inner, override in value.items():
                self.check_override(inner, override)
            return
        if name in (self.steps if nested else self.values) or (nested and isinstance(self.values.get(name), Section)):
            return
        if name in self.values:
            msg = f"the value '{name}' has no options, it is {self.values[name]!r}. Give it one value."
            raise InputError(msg)
        hint = "What can be set is a value of the recipe, VARIANT.VALUE, or STEP.OPTION."
        known = {*self.values, *self.steps, *self.row_names}
        raise UnknownNameError("value of the recipe", name, known, hint=hint)

    def seeds(self, overrides: dict[str, Any]) -> list[int]:
        """The seeds; removes those of `--set seeds=...` from the overrides."""
        if "seeds" in overrides and "seeds" not in self.values:
            seeds, problem = parse_seeds(overrides.pop("seeds"))
        else:
            seeds, problem = parse_seeds(self.root.get("seeds"))
            if problem:
                self.root.fail(problem, "seeds")
        if seeds and SEED not in self.values:
            problem = "'seeds' are assigned to the value 'seed', which the recipe lacks. Add it under 'values'."
        elif seeds and SEED in overrides:
            problem = f"the recipe has 'seeds', which are assigned to 'seed'. Set them: --set seeds={overrides[SEED]}"
        if problem:
            raise OptionError(problem)
        return seeds

    def rows(
        self, selected: Sequence[Variant], names: Mapping[str, Names], overrides: Callable[[Variant], Overrides]
    ) -> tuple[Row, ...]:
        """The rows of the table."""

        def label(variant: Variant, title: str, place: Place) -> str:
            values, _ = self.overridden([variant.overrides, *overrides(variant)])
            return Values(values).label(title, place)

        return self.table_rows.rows(selected, names, label) if self.table else ()

    def step_names(self, key: str) -> tuple[str, ...]:
        """The steps under a key of the recipe that lists names."""
        listed = self.root.get(key)
        if listed is None:
            return ()
        if not isinstance(listed, list) or not listed:
            self.root.fail(f"'{key}' is {listed!r}, and should be a list of steps.", key)
        for name in listed:
            if name not in self.steps:
                self.root.fail(str(UnknownNameError("step", str(name), self.steps)), key)
        return tuple(listed)


def _step(section: Section, defaults: Section) -> Step:
    command = section.wanted("command", str, "the name of a command")
    options, shared = section.section("with"), defaults.section(command)
    return Step(
        name=section["name"],
        command=command,
        options=merged(shared, options),
        output=_output(section),
        title=section.wanted("title", str, "text") if section.get("title") is not None else "",
        expected=section.section("expected"),
        place=section.place,
        places={key.replace("-", "_"): place for key, place in (shared.places | options.places).items()},
    )


def _output(section: Section) -> str | None:
    if section.get("output") is None:
        return None
    output: str = section.wanted("output", str, "a path")
    path = PurePosixPath(output)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        section.fail(f"output '{output}' is not inside the run's folder. Give a relative path.", "output")
    if path.parts[0] == LOGS:
        section.fail(f"output '{output}' is in the folder of logs. Choose another output.", "output")
    return path.as_posix()


def _check_outputs(steps: Iterable[Step]) -> None:
    written: dict[str, Step] = {}
    for step in steps:
        if step.output is not None and written.setdefault(step.output, step) is not step:
            msg = f"step '{written[step.output].name}' writes '{step.output}' already. Choose another output."
            raise step.error(msg)
