"""Variants of a recipe: the rows of a table, and which steps they share.

A step that is the same in all variants that need it is run once, in the run's own folder. Any other goes into the
folder of the first variant that has it in this form and, if the seed makes a difference to it, into `seed-N` in there.
Two steps are the same if their filled-in options are, and those of all steps that they use. All variants count in this,
selected or not, so that a run of some of them, or of more seeds, finds the outputs of another run.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrievalkit.errors import InputError, UnknownNameError
from retrievalkit.recipe.settings import NOWHERE, Place, Section
from retrievalkit.recipe.step import Step, joined_path

SEED = "seed"

Cells = Mapping[tuple[str, str], Any]
"""(Step of the table, figure) -> reference."""


@dataclass(frozen=True)
class Variant:
    """What differs in a row.

    Attributes:
        name: Its name, and that of its folder; "" where a recipe has no variants.
        title: Its label in the table, which may contain `${values}`.
        overrides: Values, and options of steps.
        expected: (step of the table, figure) -> reference.
        source: Where the references were published.
        place: Where the title is in the file.
        parts: The names of the variant and the set that it is made of.
        in_sets: Set or mean -> the references of its cells.
    """

    name: str
    title: str
    overrides: Section
    expected: Cells = field(default_factory=dict)
    source: str | None = None
    place: Place = NOWHERE
    parts: tuple[str, ...] = ()
    in_sets: Mapping[str, Cells] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of the table: a variant, and the steps whose figures are its cells.

    Attributes:
        name: The variant's name.
        title: Its label, with values filled in.
        cells: Seed (None = the recipe's only one) -> step of the table -> step that was run.
        expected: (step of the table, figure) -> reference.
        source: Where the references were published.
        baseline: The row that it is compared with; "" = the recipe's.
        of: The rows that it averages; () = it is run.
    """

    name: str
    title: str
    cells: Mapping[int | None, Mapping[str, str]]
    expected: Cells = field(default_factory=dict)
    source: str = ""
    baseline: str = ""
    of: tuple[str, ...] = ()


Build = Callable[[Variant, Mapping[str, Any]], Sequence[Step]]
"""Builds the steps that a variant needs, in order, with some values changed."""


def choose(variants: Mapping[str, Variant], wanted: Sequence[str] | None, recipe: str) -> list[Variant]:
    """The variants with these names, or with a part of these names; `*` and `?` match other characters.

    Raises:
        UnknownNameError: There is no such variant.
        InputError: The recipe has no variants.
    """
    if wanted is None:
        return list(variants.values())
    if list(variants) == [""]:
        msg = f"the recipe '{recipe}' has no variants. Leave --variants out."
        raise InputError(msg)
    parts = list(dict.fromkeys(part for variant in variants.values() for part in variant.parts))
    if not wanted:
        msg = f"--variants names none. Known: {', '.join(parts)}."
        raise InputError(msg)
    selected: set[str] = set()
    for pattern in wanted:
        matching = [name for name, variant in variants.items() if fnmatch.filter({name, *variant.parts}, pattern)]
        if not matching:
            raise UnknownNameError("variant of the recipe", pattern, parts)
        selected.update(matching)
    return [variant for name, variant in variants.items() if name in selected]


def parse_seeds(given: Any) -> tuple[list[int], str]:
    """Seeds, from a list, a number, or text such as "42,43"; and the problem with them, "" if there is none."""
    if isinstance(given, str):
        given = [int(part) if part.strip().isdigit() else part for part in given.split(",")]
    seeds = given if isinstance(given, list) else [] if given is None else [given]
    if any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in seeds):
        return [], f"'seeds' is {given!r}, and should be a list of whole numbers, such as [42, 43, 44]."
    if len(set(seeds)) < len(seeds):
        return [], f"'seeds' is {given!r}, and should name each seed once."
    return seeds, ""


def arrange(
    variants: Sequence[Variant], selected: Sequence[Variant], seeds: Sequence[int], build: Build
) -> tuple[list[Step], dict[str, dict[int | None, dict[str, str]]]]:
    """The steps of the selected variants, each once, under distinct names and folders.

    Args:
        variants: All of the recipe's.
        selected: Those to be run.
        seeds: Values of `seed` to run each with; none = the recipe's own.
        build: Builds a variant's steps.

    Returns:
        The steps in order; and variant -> seed -> name in the recipe -> name of the step.
    """
    # A missing seed differs from every seed given, so it marks the steps to which the seed makes a difference.
    no_seed: dict[str, Any] = {SEED: None} if seeds else {}
    probes = {variant.name: _identities(build(variant, no_seed)) for variant in variants}
    arranged: dict[str, Step] = {}
    names: dict[str, dict[int | None, dict[str, str]]] = {}
    for variant in selected:
        for seed in seeds or (None,):
            steps = build(variant, {SEED: seed} if seeds else {})
            folders = _folders(steps, variant.name, seed, probes)
            own = {name: joined_path(folder, name) for name, folder in folders.items()}
            for step in steps:
                arranged.setdefault(own[step.name], step.renamed(own, folders[step.name]))
            names.setdefault(variant.name, {})[seed] = own
    return list(arranged.values()), names


def _folders(
    steps: Sequence[Step], variant: str, seed: int | None, probes: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The folder that each step writes into, relative to the run's."""
    folders = {}
    for name, identity in _identities(steps).items():
        own = f"seed-{seed}" if identity != probes[variant][name] else ""
        folders[name] = "/".join(filter(None, (_owner(name, variant, probes), own)))
    return folders


def _owner(step: str, variant: str, probes: Mapping[str, Mapping[str, str]]) -> str:
    """The variant whose folder a step writes into; "" = the run's own folder."""
    same = {name: probe[step] for name, probe in probes.items() if step in probe}
    if len(same) > 1 and len(set(same.values())) == 1:
        return ""
    return next(name for name, identity in same.items() if identity == same[variant])


def _identities(steps: Sequence[Step]) -> dict[str, str]:
    """Step -> a fingerprint of its command and options, and of all steps that it uses."""
    identities: dict[str, str] = {}
    for step in steps:
        uses = {name: identities[name] for name in step.uses}
        text = json.dumps([step.command, step.options, step.output, uses], sort_keys=True, default=str)
        identities[step.name] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return identities
