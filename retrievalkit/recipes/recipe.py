"""Recipes in YAML: the steps of an experiment, each an `rkit` command. `recipes/README.md` describes the format."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from retrievalkit.errors import InputError, OptionError, UnknownNameError
from retrievalkit.recipes.files import LOGS, NAME, find_recipe, read_recipe
from retrievalkit.recipes.settings import Place, Section, join
from retrievalkit.recipes.step import Step, Values, closure, fill, in_order, joined_path, merged, texts

_SEED = "seed"

Cells = Mapping[tuple[str, str], Any]
"""(Step of the table, figure) -> reference."""


@dataclass(frozen=True)
class Row:
    """Row of the table: a variant, and the steps whose figures are its cells.

    Attributes:
        cells: Seed (None = the recipe has no seeds) -> step of the table -> step that was run.
        expected: (step of the table, figure) -> reference.
        baseline: The row to compare with; "" = the recipe's baseline.
        of: The averaged rows, for a mean; () = the row is run.
    """

    name: str
    title: str
    cells: Mapping[int | None, Mapping[str, str]]
    expected: Cells = field(default_factory=dict)
    source: str = ""
    baseline: str = ""
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A recipe with its values filled in.

    Attributes:
        values: Name -> value, with overrides applied, without the values of variants.
        steps: Steps of all variants, in the order they run.
        table: Steps whose figures are the columns; () = no table.
        baseline: Row that the others are compared with; "" = none.
        requires: Required distributions -> the components that they provide.
        named: Texts that the user set by `--set`: stores are read only at these addresses.
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
        """Return a step's options, with outputs of other steps as paths in a folder; "" leaves the paths relative."""
        outputs = {f"steps.{other.name}": other.output for other in self.steps if other.output}
        filled: dict[str, Any] = fill(dict(step.options), lambda name: joined_path(folder, outputs[name]))
        return filled


def load_recipe(
    source: str | Path, overrides: Mapping[str, Any] | None = None, variants: Sequence[str] | None = None
) -> Recipe:
    """Read a recipe.

    Args:
        source: A file, or the name of a recipe that comes with retrievalkit ("quickstart").
        overrides: Settings of `--set`, as returned by `parse_set`: values, and options of steps.
        variants: Variants to run, by name or pattern; None = all.
    """
    return _Reader(read_recipe(find_recipe(source))).recipe(dict(overrides or {}), variants)


@dataclass(frozen=True)
class _Variant:
    """A variant, a set, a variant of a set, or a mean `of` others; unnamed if a recipe has none.

    The title may contain `${values}`; `parts` are the names of its variant and its set, and `in_sets` has the
    references of its cells in sets and means.
    """

    name: str
    title: str
    place: Place
    overrides: Section = field(default_factory=Section)
    expected: Cells = field(default_factory=dict)
    source: Any = None
    parts: tuple[str, ...] = ()
    in_sets: Mapping[str, Cells] = field(default_factory=dict)
    of: tuple[str, ...] = ()


class _Reader:
    """Checks a recipe and fills in its values; every error names file and line."""

    def __init__(self, root: Section) -> None:
        self.root = root
        self.name: str = root.wanted("name", str, "text")
        self.values = root.section("values")
        defaults = root.section("defaults")
        self.steps: dict[str, Step] = {}
        outputs: dict[str, str] = {}
        for name, section in root.wanted("steps", Section, "a list of steps").items():
            step = self.steps[name] = _step(section, defaults)
            if step.output is not None and (other := outputs.setdefault(step.output, name)) != name:
                step.fail(f"step '{other}' writes '{step.output}' already. Choose another output.")
        self.table = tuple(root.wanted("table", list, "a list of steps")) if root.get("table") is not None else ()
        for name in self.table:
            if name not in self.steps:
                root.fail(str(UnknownNameError("step", str(name), self.steps)), "table")
        self.row_names: set[str] = set()
        sets, means = ([name for name, section in root.section(kind).items() if section is not None] for kind in _OVER)
        self.in_sets = [*sets, *means] if sets else []
        self.declared, self.sets = (list(self.read(kind)) for kind in ("variants", "sets"))
        self.variants: dict[str, _Variant] = {}
        for variant in self.crossed():
            if variant.name in self.variants:
                root.section("variants").fail(f"two rows have the name '{variant.name}'. Rename a variant or a set.")
            self.variants[variant.name] = variant
        self.means = list(self.read_means())
        self.row_names = {*self.variants, *(part for row in self.variants.values() for part in row.parts)} - {""}
        self.baseline = root.get("baseline") or ""
        known = [variant.name for variant in self.declared or self.sets]
        if self.baseline and self.baseline not in known:
            root.fail(str(UnknownNameError("variant", str(self.baseline), known)), "baseline")

    def recipe(self, overrides: dict[str, Any], wanted: Sequence[str] | None) -> Recipe:
        seeds = self.seeds(overrides)
        named = tuple(texts(overrides))
        for name, value in overrides.items():
            self.check_override(name, value)
        selected = self.choose(wanted)
        # A value may have the name of a variant; settings of a variant are a mapping.
        of_rows = {name: overrides.pop(name) for name in self.row_names if isinstance(overrides.get(name), Mapping)}

        def overrides_of(variant: _Variant) -> list[Mapping[str, Any]]:
            names = dict.fromkeys((*variant.parts, variant.name))
            return [variant.overrides, overrides, *(of_rows[name] for name in names if name in of_rows)]

        def build(variant: _Variant, values: Mapping[str, Any]) -> Sequence[Step]:
            return self.filled([*overrides_of(variant), values])

        def label(variant: _Variant, title: str, place: Place) -> str:
            return Values(self.overridden(overrides_of(variant))[0]).label(title, place)

        steps, names = _arrange(list(self.variants.values()), selected, seeds, build)
        if unset := [(step, *reference) for step in steps for reference in step.unset()]:
            complete = [name for name, row in self.variants.items() if not any(step.unset() for step in build(row, {}))]
            hint = f" Without it: --variants {','.join(complete)}" if complete else ""
            step, option, name = unset[0]
            problem = f"the recipe needs a value for '{name}'. Set it: --set {name}=...{hint}"
            Section(step.places.get(option, step.place)).fail(problem)
        return Recipe(
            name=self.name,
            description=self.root.get("description") or "",
            values=Values(self.overridden([overrides])[0]).filled(),
            steps=tuple(steps),
            file=self.root.place.file,
            table=self.table,
            rows=tuple(self.rows(selected, names, label)) if self.table else (),
            baseline=self.baseline,
            requires={name: str(use) for name, use in self.root.section("requires").items()},
            named=named,
        )

    def filled(self, overrides: Iterable[Mapping[str, Any]]) -> list[Step]:
        """Return the steps to run, in order, with values filled in."""
        values, of_steps = self.overridden(overrides)
        lookup = Values(values)
        steps = [
            replace(step, options=merged(step.options, of_steps[name])) if name in of_steps else step
            for name, step in self.steps.items()
        ]
        ordered = in_order(step.filled(lookup) for step in steps)
        needed = closure({step.name: step.uses for step in ordered}, self.table or self.steps)
        return [step for step in ordered if step.name in needed]

    def overridden(self, overrides: Iterable[Mapping[str, Any]]) -> tuple[Section, dict[str, Any]]:
        """Return the recipe's values and the options of steps with these overrides; later overrides win."""
        values = self.values
        of_steps: dict[str, Any] = {}
        for override in overrides:
            for name, value in override.items():
                # A mapping may contain the options of a step.
                mapping = isinstance(value, Mapping)
                if name in values and not (mapping and name in self.steps and not isinstance(values[name], Section)):
                    values = join(values, {name: value})
                else:
                    of_steps[name] = merged(of_steps.get(name, {}), value)
        return values, of_steps

    def check_override(self, name: str, value: Any) -> None:
        """Refuse an override of an unknown value, step option or variant."""
        nested = isinstance(value, Mapping)
        if nested and name in self.row_names:
            for inner, override in value.items():
                self.check_override(inner, override)
            return
        if name in (self.steps if nested else self.values) or (nested and isinstance(self.values.get(name), Section)):
            return
        if name in self.values:
            msg = f"the value '{name}' has no options: it is {self.values[name]!r}. Set it to a single value."
            raise InputError(msg)
        hint = "Set a value of the recipe, VARIANT.VALUE, or STEP.OPTION."
        known = {*self.values, *self.steps, *self.row_names}
        raise UnknownNameError("value of the recipe", name, known, hint=hint)

    def choose(self, patterns: Sequence[str] | None) -> list[_Variant]:
        """Return the variants whose name, or the name of a part, matches a pattern with `*` and `?`."""
        if patterns is None:
            return list(self.variants.values())
        if list(self.variants) == [""]:
            msg = f"the recipe '{self.name}' has no variants. Leave --variants out."
            raise InputError(msg)
        parts = list(dict.fromkeys(part for variant in self.variants.values() for part in variant.parts))
        selected: set[str] = set()
        for pattern in patterns or [""]:
            matching = [name for name, row in self.variants.items() if fnmatch.filter({name, *row.parts}, pattern)]
            if not matching:
                raise UnknownNameError("variant of the recipe", pattern, parts)
            selected.update(matching)
        return [variant for name, variant in self.variants.items() if name in selected]

    def seeds(self, overrides: dict[str, Any]) -> list[int]:
        """Return the seeds; remove `seeds` from the overrides."""
        is_set = "seeds" in overrides and "seeds" not in self.values
        value = overrides.pop("seeds") if is_set else self.root.get("seeds")
        if isinstance(value, str):
            value = [int(part) if part.strip().isdigit() else part for part in value.split(",")]
        seeds: list[int] = value if isinstance(value, list) else [] if value is None else [value]
        problem = ""
        if any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in seeds):
            problem = f"'seeds' is {value!r}, but should be a list of whole numbers, such as [42, 43, 44]."
        elif len(set(seeds)) < len(seeds):
            problem = f"'seeds' is {value!r}, but should list each seed once."
        if problem and not is_set:
            self.root.fail(problem, "seeds")
        if not problem and seeds and _SEED not in self.values:
            problem = "'seeds' are assigned to the value 'seed', which the recipe lacks. Add it under 'values'."
        elif not problem and seeds and _SEED in overrides:
            problem = f"the recipe has 'seeds', which are assigned to 'seed'. Set them: --set seeds={overrides[_SEED]}"
        if problem:
            raise OptionError(problem)
        return seeds

    def crossed(self) -> Iterator[_Variant]:
        """Yield each variant with each set."""
        if not self.sets and not self.declared:
            yield _Variant("", self.name, self.root.place)
        if not self.sets or not self.declared:
            yield from self.sets or self.declared
            return
        for variant in self.declared:
            for data in self.sets:
                yield replace(
                    variant,
                    name=f"{variant.name}-{data.name}",
                    title=f"{variant.title} · {data.title}",
                    overrides=join(variant.overrides, data.overrides),
                    expected={**data.expected, **variant.in_sets.get(data.name, {})},
                    source=variant.source or data.source,
                    parts=(variant.name, data.name),
                )

    def read(self, kind: str) -> Iterator[_Variant]:
        """Read the variants or the sets."""
        for name, section in self.sections(kind, ("title", "values", "expected")):
            overrides = section.section("values")
            for key, value in overrides.items():
                try:
                    self.check_override(key, value)
                except InputError as error:
                    overrides.fail(f"{kind.removesuffix('s')} '{name}': {error}", key)
            figures = section.section("expected")
            in_sets = self.references(figures, self.in_sets if kind == "variants" else ())
            title, place = str(section.get("title", name)), section.places.get("title", section.place)
            expected = in_sets.pop("", {})
            yield _Variant(name, title, place, overrides, expected, figures.get("source"), (name,), in_sets)

    def read_means(self) -> Iterator[_Variant]:
        """Read the means; a mean may average earlier means."""
        known = [variant.name for variant in self.sets or self.declared]
        for name, section in self.sections("means", ("title", "of", "expected")):
            members: dict[str, None] = {}
            for pattern in section.wanted("of", list, "a list of sets, or of variants where there are no sets"):
                matching = fnmatch.filter(known, str(pattern))
                if not matching:
                    section.fail(str(UnknownNameError("set or variant", str(pattern), known)), "of")
                members.update(dict.fromkeys(matching))
            figures = section.section("expected")
            expected = self.references(figures, ()).get("", {})
            title, place = str(section.get("title", name)), section.places.get("title", section.place)
            yield _Variant(name, title, place, expected=expected, source=figures.get("source"), of=tuple(members))
            known.append(name)

    def sections(self, kind: str, keys: Sequence[str]) -> Iterator[tuple[str, Section]]:
        """Yield the named sections under a key; null removes a section of the extended recipe."""
        sections, singular = self.root.section(kind), kind.removesuffix("s")
        if any(section is not None for section in sections.values()) and not self.table:
            self.root.fail(f"{kind} need 'table', the steps whose figures are its columns. Add it.", kind)
        others = [self.root.section(other) for other in ("variants", *_OVER) if other != kind]
        reserved = {
            "a step": self.steps,
            "a value": [name for name, value in self.values.items() if isinstance(value, Section)],
            "a folder that a step writes": [(step.output or "").partition("/")[0] for step in self.steps.values()],
            "a folder of seeds": [name for name in sections if name.startswith("seed-")],
            "the folder of logs": [LOGS],
            "another row": [name for other in others for name, section in other.items() if section is not None],
        }
        for name, section in sections.items():
            if section is None:
                continue
            if not NAME.fullmatch(name):
                sections.fail(f"the {singular} name '{name}' has characters other than letters, digits, - and _.", name)
            for owner in (owner for owner, names in reserved.items() if name in names):
                sections.fail(f"the {singular} '{name}' has the name of {owner}. Rename it.", name)
            section = sections.section(name)
            section.check_keys(keys, singular)
            yield name, section

    def references(self, figures: Section, sets: Sequence[str]) -> dict[str, dict[tuple[str, str], Any]]:
        """Return set -> references of its cells; the set is "" without sets, and the first set by default.

        FIGURE refers to the table's first step, and STEP.FIGURE to another step.
        """
        cells: dict[str, dict[tuple[str, str], Any]] = {}
        for key, value in figures.items():
            if key == "source":
                continue
            inside, name = next(iter(sets), ""), key
            if "." in key and key.partition(".")[0] in sets:
                inside, _, name = key.partition(".")
            step, dot, figure = name.partition(".")
            if step not in self.steps and dot and NAME.fullmatch(step):
                known = {*self.steps, *self.in_sets}
                figures.fail(str(UnknownNameError("set or step" if self.in_sets else "step", step, known)), key)
            cells.setdefault(inside, {})[(step, figure) if step in self.steps else (self.table[0], name)] = value
        return cells

    def rows(
        self,
        selected: Sequence[_Variant],
        names: Mapping[str, Mapping[int | None, Mapping[str, str]]],
        label: Callable[[_Variant, str, Place], str],
    ) -> Iterable[Row]:
        """Return the rows of the selected variants, and of the means whose rows are all selected."""
        rows: dict[str, Row] = {}

        def known(expected: Cells) -> Cells:
            return {key: value for key, value in expected.items() if value is not None and key[0] in self.table}

        for group in self.declared if self.sets and self.declared else [None]:
            for variant in selected:
                if group is not None and variant.parts[0] != group.name:
                    continue
                rows[variant.name] = Row(
                    variant.name,
                    label(variant, variant.title, variant.place),
                    {seed: {step: ran[step] for step in self.table} for seed, ran in names[variant.name].items()},
                    known(variant.expected),
                    str(variant.source or ""),
                    "-".join((self.baseline, *variant.parts[1:])) if self.baseline else "",
                )
            for mean in self.means:
                name, *members = (f"{group.name}-{part}" if group else part for part in (mean.name, *mean.of))
                if not rows.keys() >= set(members):
                    continue
                whole = group or mean
                rows[name] = Row(
                    name,
                    label(whole, f"{group.title} · {mean.title}" if group else mean.title, mean.place),
                    {},
                    known({**mean.expected, **whole.in_sets.get(mean.name, {})}),
                    str(whole.source or mean.source or ""),
                    f"{self.baseline}-{mean.name}" if self.baseline and group else self.baseline,
                    tuple(members),
                )
        return rows.values()


_OVER = ("sets", "means")


def _step(section: Section, defaults: Section) -> Step:
    command = section.wanted("command", str, "the name of a command")
    options, shared = section.section("with"), defaults.section(command)
    output = None
    if section.get("output") is not None:
        path = PurePosixPath(section.wanted("output", str, "a path"))
        if path.is_absolute() or ".." in path.parts or not path.parts:
            section.fail(f"output '{path}' is not inside the run's folder. Give a relative path.", "output")
        if path.parts[0] == LOGS:
            section.fail(f"output '{path}' is in the folder of logs. Choose another output.", "output")
        output = path.as_posix()
    return Step(
        name=section["name"],
        command=command,
        options=merged(shared, options),
        output=output,
        title=section.wanted("title", str, "text") if section.get("title") is not None else "",
        place=section.place,
        places={key.replace("-", "_"): place for key, place in (shared.places | options.places).items()},
    )


def _arrange(
    variants: Sequence[_Variant],
    selected: Sequence[_Variant],
    seeds: Sequence[int],
    build: Callable[[_Variant, Mapping[str, Any]], Sequence[Step]],
) -> tuple[list[Step], dict[str, dict[int | None, dict[str, str]]]]:
    """Return the distinct steps of the selected variants, and variant -> seed -> name in the recipe -> step name."""
    # A missing seed differs from every real seed, so it identifies the steps that depend on the seed.
    no_seed: dict[str, Any] = {_SEED: None} if seeds else {}
    probes = {variant.name: _identities(build(variant, no_seed)) for variant in variants}

    def owner(step: str, variant: str) -> str:
        """Return the variant whose folder a step writes to; "" = the run's own folder."""
        same = {name: probe[step] for name, probe in probes.items() if step in probe}
        if len(same) > 1 and len(set(same.values())) == 1:
            return ""
        return next(name for name, identity in same.items() if identity == same[variant])

    arranged: dict[str, Step] = {}
    names: dict[str, dict[int | None, dict[str, str]]] = {}
    for variant in selected:
        for seed in seeds or (None,):
            steps = build(variant, {_SEED: seed} if seeds else {})
            folders = {}
            for name, identity in _identities(steps).items():
                subfolder = f"seed-{seed}" if identity != probes[variant.name][name] else ""
                folders[name] = "/".join(filter(None, (owner(name, variant.name), subfolder)))
            renamed = {name: joined_path(folder, name) for name, folder in folders.items()}
            for step in steps:
                arranged.setdefault(renamed[step.name], step.renamed(renamed, folders[step.name]))
            names.setdefault(variant.name, {})[seed] = renamed
    return list(arranged.values()), names


def _identities(steps: Sequence[Step]) -> dict[str, str]:
    """Return step -> fingerprint of its command and options, and of all steps that it uses."""
    identities: dict[str, str] = {}
    for step in steps:
        uses = {name: identities[name] for name in step.uses}
        text = json.dumps([step.command, step.options, step.output, uses], sort_keys=True, default=str)
        identities[step.name] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return identities
