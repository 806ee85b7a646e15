"""Variants of a recipe: the rows of a table, and which steps they share.

A step that several variants need and that comes out the same in all of them is run once, in the run's own folder.
Others stand in the folder of the first variant for which they come out so, and in there, if the seed makes a difference
to them, in `seed-N`. What is the same is told from the steps' filled-in options and those of all that they use. All
variants count in this, wanted or not, so that a run of some of them, or of more seeds, finds what another one left.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrievalkit.errors import InputError, UnknownNameError
from retrievalkit.recipe.settings import Section
from retrievalkit.recipe.step import Step, joined_path

SEED = "seed"


@dataclass(frozen=True)
class Variant:
    """What is different in a row.

    Attributes:
        name: What it is called, and its folder; "" where a recipe has no variants.
        title: How the table shows it.
        overrides: Values, and options of steps.
        expected: (step of the table, figure) -> reference.
        source: Where the references are from.
    """

    name: str
    title: str
    overrides: Section
    expected: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table: a variant, and the steps whose figures are its cells.

    Attributes:
        name: Of the variant.
        title: How the table shows it.
        cells: For each seed (None where there is only one, that of the recipe) step of the table -> step that was run.
        expected: (step of the table, figure) -> reference.
        source: Where the references are from.
    """

    name: str
    title: str
    cells: Mapping[int | None, Mapping[str, str]]
    expected: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    source: str = ""


Build = Callable[[Variant, Mapping[str, Any]], Sequence[Step]]
"""Makes the steps that a variant needs, in order, with some values changed."""


def choose(variants: Mapping[str, Variant], wanted: Sequence[str] | None, recipe: str) -> list[Variant]:
    """The variants with these names; `*` and `?` stand for other characters.

    Raises:
        UnknownNameError: There is no such variant.
        InputError: There are no variants at all.
    """
    if wanted is None:
        return list(variants.values())
    if list(variants) == [""]:
        msg = f"the recipe '{recipe}' has no variants. Leave --variants out."
        raise InputError(msg)
    if not wanted:
        msg = f"--variants names none. Known: {', '.join(variants)}."
        raise InputError(msg)
    chosen: set[str] = set()
    for pattern in wanted:
        found = fnmatch.filter(variants, pattern)
        if not found:
            raise UnknownNameError("variant of the recipe", pattern, variants)
        chosen.update(found)
    return [variant for name, variant in variants.items() if name in chosen]


def parse_seeds(given: Any) -> tuple[list[int], str]:
    """Seeds, from a list, a number, or text such as "42,43"; and what is wrong with them."""
    if isinstance(given, str):
        given = [int(part) if part.strip().isdigit() else part for part in given.split(",")]
    seeds = given if isinstance(given, list) else [] if given is None else [given]
    if any(not isinstance(seed, int) or isinstance(seed, bool) or seed < 0 for seed in seeds):
        return [], f"'seeds' is {given!r}, and should be a list of whole numbers, such as [42, 43, 44]."
    if len(set(seeds)) < len(seeds):
        return [], f"'seeds' is {given!r}, and should name each seed once."
    return seeds, ""


def arrange(
    variants: Sequence[Variant], chosen: Sequence[Variant], seeds: Sequence[int], build: Build
) -> tuple[list[Step], dict[str, dict[int | None, dict[str, str]]]]:
    """The steps of the chosen variants, each once, under the names and folders that tell them apart.

    Args:
        variants: All of the recipe's.
        chosen: Those to be run.
        seeds: Values of `seed` to run each with; none = the recipe's own.
        build: Makes a variant's steps.

    Returns:
        The steps in order; and variant -> seed -> name in the recipe -> name of the step.
    """
    # A seed that was not given is like none that is.
    anyhow: dict[str, Any] = {SEED: None} if seeds else {}
    probes = {variant.name: _identities(build(variant, anyhow)) for variant in variants}
    arranged: dict[str, Step] = {}
    names: dict[str, dict[int | None, dict[str, str]]] = {}
    for variant in chosen:
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
    """For each step the folder that it writes into, relative to the run's."""
    folders = {}
    for name, identity in _identities(steps).items():
        own = f"seed-{seed}" if identity != probes[variant][name] else ""
        folders[name] = "/".join(filter(None, (_owner(name, variant, probes), own)))
    return folders


def _owner(step: str, variant: str, probes: Mapping[str, Mapping[str, str]]) -> str:
    """The variant in whose folder a step stands; "" = in that of all."""
    same = {name: probe[step] for name, probe in probes.items() if step in probe}
    if len(same) > 1 and len(set(same.values())) == 1:
        return ""
    return next(name for name, identity in same.items() if identity == same[variant])


def _identities(steps: Sequence[Step]) -> dict[str, str]:
    """Step -> a fingerprint of what it does, and of all that it uses."""
    found: dict[str, str] = {}
    for step in steps:
        uses = {name: found[name] for name in step.uses}
        text = json.dumps([step.command, step.options, step.output, uses], sort_keys=True, default=str)
        found[step.name] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return found
