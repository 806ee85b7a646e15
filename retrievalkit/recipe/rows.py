"""The rows of a recipe's table: its variants, each with the values of each set, and means over sets.

    sets:                                                  # of data, say
      nq: {title: Natural Questions, values: {data: nq}}
      web: {values: {data: web}}
    means:
      both: {title: Mean, of: [nq, web]}                   # sets, patterns, means before it
    variants:
      near: {expected: {source: Table 5, nq.RR@10: 0.3, both.RR@10: 0.4}}      # without a set: of the first one
      far: {values: {layers: [2, 6]}}
    baseline: near                                         # of the same set

Without `sets` a variant is a row. With them it has a row for each, here near-nq, near-web, near-both, far-nq ...; sets
alone are rows by themselves. The rows of `means` are not run: they average the figures of others, of variants where
there are no sets. `--variants` and `--set NAME.VALUE=...` take the name of a variant, of a set or of a row.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from retrievalkit.errors import InputError, UnknownNameError
from retrievalkit.recipe.files import NAME
from retrievalkit.recipe.log import FOLDER as LOGS
from retrievalkit.recipe.settings import NOWHERE, Place, Section, join
from retrievalkit.recipe.step import Step
from retrievalkit.recipe.variants import Cells, Row, Variant

_VARIANT_KEYS = ("title", "values", "expected")
_MEAN_KEYS = ("title", "of", "expected")
_OVER = ("sets", "means")
_BETWEEN = "-"

Names = Mapping[int | None, Mapping[str, str]]
"""Seed -> name of a step in the recipe -> name of the step that was run."""


@dataclass(frozen=True)
class Mean:
    """A row that averages others.

    Attributes:
        name: Its name.
        title: Its label.
        of: The sets (or variants, where there are no sets) and earlier means.
        expected: (step of the table, figure) -> reference.
        source: Where the references were published.
        place: Where the title is in the file.
    """

    name: str
    title: str
    of: tuple[str, ...]
    expected: Cells = field(default_factory=dict)
    source: str | None = None
    place: Place = NOWHERE


class RowReader:
    """Reads the variants, sets and means of a recipe; every error names file and line.

    Args:
        root: The recipe.
        steps: Its steps.
        table: Those whose figures are the columns.
        check_override: Refuses an override of something that the recipe does not have.

    Attributes:
        variants: What is run: a variant with a set, or either alone; one without a name where there are none.
        names: What settings of a part of the table can be for: variants, sets, and both together.
        in_sets: The sets and means that references of a variant can be of.
        baseline: The variant that the others are compared with; "" = none.
    """

    def __init__(
        self,
        root: Section,
        steps: Mapping[str, Step],
        table: Sequence[str],
        check_override: Callable[[str, Any], None],
    ) -> None:
        self.root = root
        self.steps = steps
        self.table = table
        self.check_override = check_override
        sets, means = ([name for name, one in root.section(kind).items() if one is not None] for kind in _OVER)
        self.in_sets = [*sets, *means] if sets else []
        self.declared = list(self.read("variants"))
        self.sets = list(self.read("sets"))
        self.variants: dict[str, Variant] = {}
        for variant in self.crossed():
            if variant.name in self.variants:
                root.section("variants").fail(f"two rows have the name '{variant.name}'. Rename a variant or a set.")
            self.variants[variant.name] = variant
        self.means = list(self.read_means())
        self.names = {*self.variants, *(part for one in self.variants.values() for part in one.parts)} - {""}
        self.baseline = root.get("baseline") or ""
        known = [variant.name for variant in self.declared or self.sets]
        if self.baseline and self.baseline not in known:
            root.fail(str(UnknownNameError("variant", str(self.baseline), known)), "baseline")

    def crossed(self) -> Iterator[Variant]:
        """Each variant with each set."""
        if not self.sets and not self.declared:
            yield Variant("", self.root["name"], Section(self.root.place), place=self.root.place)
        if not self.sets or not self.declared:
            yield from self.sets or self.declared
            return
        for variant in self.declared:
            for one in self.sets:
                yield replace(
                    variant,
                    name=f"{variant.name}{_BETWEEN}{one.name}",
                    title=f"{variant.title} · {one.title}",
                    overrides=join(variant.overrides, one.overrides),
                    expected={**one.expected, **variant.in_sets.get(one.name, {})},
                    source=variant.source or one.source,
                    parts=(variant.name, one.name),
                )

    def read(self, kind: str) -> Iterator[Variant]:
        """The variants, or the sets."""
        for name, section in self.sections(kind):
            section.check_keys(_VARIANT_KEYS, kind.removesuffix("s"))
            overrides = section.section("values")
            for key, value in overrides.items():
                try:
                    self.check_override(key, value)
                except InputError as error:
                    overrides.fail(f"{kind.removesuffix('s')} '{name}': {error}", key)
            figures = section.section("expected")
            in_sets = self.cells(figures, self.in_sets if kind == "variants" else ())
            yield Variant(
                name,
                _title(name, section),
                overrides,
                in_sets.pop("", {}),
                figures.get("source"),
                section.places.get("title", section.place),
                (name,),
                in_sets,
            )

    def read_means(self) -> Iterator[Mean]:
        """The means, after those that they average."""
        known = [variant.name for variant in self.sets or self.declared]
        for name, section in self.sections("means"):
            section.check_keys(_MEAN_KEYS, "mean")
            listed = section.wanted("of", list, "a list of sets, or of variants where there are no sets")
            members: dict[str, None] = {}
            for pattern in listed:
                matching = fnmatch.filter(known, str(pattern))
                if not matching:
                    section.fail(str(UnknownNameError("set or variant", str(pattern), known)), "of")
                members.update(dict.fromkeys(matching))
            figures = section.section("expected")
            expected = self.cells(figures, ()).get("", {})
            place = section.places.get("title", section.place)
            yield Mean(name, _title(name, section), tuple(members), expected, figures.get("source"), place)
            known.append(name)

    def sections(self, kind: str) -> Iterator[tuple[str, Section]]:
        """The named sections under a key; null removes one of a recipe that is extended."""
        sections = self.root.section(kind)
        if any(section is not None for section in sections.values()) and not self.table:
            self.root.fail(f"{kind} need 'table': the steps whose figures are its columns.", kind)
        for name, section in sections.items():
            if section is not None:
                self.check_name(name, sections, kind.removesuffix("s"))
                yield name, sections.section(name)

    def check_name(self, name: str, sections: Section, kind: str) -> None:
        """Refuse a name, or folder, that something else has."""
        if not NAME.fullmatch(name):
            sections.fail(f"the {kind} name '{name}' has other characters than letters, digits, - and _.", name)
        folders = {step.output.partition("/")[0] for step in self.steps.values() if step.output}
        others = {
            "a step": name in self.steps,
            "a value": isinstance(self.root.section("values").get(name), Section),
            "a folder that a step writes": name in folders,
            "a folder of seeds": name.startswith("seed-"),
            "the folder of logs": name == LOGS,
            "another row": any(
                self.root.section(other).get(name) is not None
                for other in ("variants", "sets", "means")
                if other != f"{kind}s"
            ),
        }
        for what in (what for what, same in others.items() if same):
            sections.fail(f"the {kind} '{name}' has the name of {what}. Rename it.", name)

    def cells(self, figures: Section, sets: Sequence[str]) -> dict[str, dict[tuple[str, str], Any]]:
        """Set -> the references of its cells; "" where there are none. FIGURE is of the first set."""
        found: dict[str, dict[tuple[str, str], Any]] = {}
        for key, value in figures.items():
            first, dot, rest = key.partition(".")
            named = dot and first in sets
            inside, name = (first, rest) if named else (next(iter(sets), ""), key)
            if key != "source":
                found.setdefault(inside, {})[self.cell(figures, key, name)] = value
        return found

    def cell(self, figures: Section, key: str, name: str) -> tuple[str, str]:
        """The step and name of a reference figure: FIGURE is of the table's first step, STEP.FIGURE of another."""
        step, dot, figure = name.partition(".")
        if step in self.steps:
            return step, figure
        if dot and NAME.fullmatch(step):
            known = {*self.steps, *self.in_sets}
            figures.fail(str(UnknownNameError("set or step" if self.in_sets else "step", step, known)), key)
        return self.table[0], name

    def rows(
        self, selected: Sequence[Variant], names: Mapping[str, Names], label: Callable[[Variant, str, Place], str]
    ) -> tuple[Row, ...]:
        """The rows of the selected variants, and of the means whose rows are all among them.

        Args:
            selected: The variants to be run.
            names: Variant -> its steps.
            label: Fills a title's values in.
        """
        rows: dict[str, Row] = {}
        for group in self.declared if self.sets and self.declared else [None]:
            for variant in selected:
                if group is None or variant.parts[0] == group.name:
                    rows[variant.name] = self.row(variant, names[variant.name], label)
            for mean in self.means:
                members = tuple(self.row_name(group, name) for name in mean.of)
                if all(name in rows for name in members):
                    name = self.row_name(group, mean.name)
                    rows[name] = self.mean_row(mean, group, members, label)
        return tuple(rows.values())

    def row(self, variant: Variant, names: Names, label: Callable[[Variant, str, Place], str]) -> Row:
        """A row that is run; a reference of the variant wins over the same one of a step."""
        steps = [self.steps[name] for name in self.table]
        expected = {(step.name, figure): value for step in steps for figure, value in step.expected.items()}
        sources = [variant.source, *(expected.pop((step.name, "source"), None) for step in steps)]
        expected |= variant.expected
        return Row(
            variant.name,
            label(variant, variant.title, variant.place),
            cells={seed: {step: own[step] for step in self.table} for seed, own in names.items()},
            expected=self.known(expected),
            source=next((str(one) for one in sources if one is not None), ""),
            baseline=_BETWEEN.join((self.baseline, *variant.parts[1:])) if self.baseline else "",
        )

    def mean_row(
        self,
        mean: Mean,
        group: Variant | None,
        members: tuple[str, ...],
        label: Callable[[Variant, str, Place], str],
    ) -> Row:
        """A row that averages others, of one variant where variants are crossed with sets."""
        whole = group or Variant(mean.name, "", Section(mean.place))
        title = mean.title if group is None else f"{group.title} · {mean.title}"
        return Row(
            self.row_name(group, mean.name),
            label(whole, title, mean.place),
            cells={},
            expected=self.known({**mean.expected, **whole.in_sets.get(mean.name, {})}),
            source=str(whole.source or mean.source or ""),
            baseline=_BETWEEN.join((self.baseline, mean.name)) if self.baseline and group else self.baseline,
            of=members,
        )

    def row_name(self, group: Variant | None, name: str) -> str:
        """The name of a set's or a mean's row."""
        return name if group is None else f"{group.name}{_BETWEEN}{name}"

    def known(self, expected: Mapping[tuple[str, str], Any]) -> Cells:
        """The references that are given, of the table's columns."""
        return {key: value for key, value in expected.items() if value is not None and key[0] in self.table}


def _title(name: str, section: Section) -> str:
    title = section.get("title")
    return name if title is None else str(title)
