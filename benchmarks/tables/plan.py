"""tables.yaml as values: the runs with their folders filled in, and the queue with one seed after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrievalkit.recipes.settings import read_yaml

FILE = Path(__file__).with_name("tables.yaml")


@dataclass(frozen=True)
class Run:
    """A recipe and the values that it is run with.

    Attributes:
        name: Its folder below the output.
        recipe: The recipe.
        values: Name -> value.
    """

    name: str
    recipe: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class Item:
    """A part of the queue: some rows of a run, with one seed or with the recipe's own."""

    run: Run
    rows: tuple[str, ...] = ()
    seed: int | None = None

    def words(self, output: Path) -> list[str]:
        """The command line, after `rkit`."""
        words = ["run", self.run.recipe, "--output", str(output / self.run.name)]
        words += [word for name, value in self.run.values.items() for word in ("--set", f"{name}={value}")]
        words += ["--variants", ",".join(self.rows)] if self.rows else []
        return words + (["--set", f"seeds={self.seed}"] if self.seed is not None else [])


def runs(content: Mapping[str, Any], places: Mapping[str, Any]) -> dict[str, Run]:
    """The runs by name, with places such as "data" in their values."""
    return {
        name: Run(name, one["recipe"], {key: value.format(**places) for key, value in one["set"].items()})
        for name, one in content["runs"].items()
    }


def queue(content: Mapping[str, Any], known: Mapping[str, Run], seeds: Sequence[int]) -> Iterator[Item]:
    """All rows with the first seed, then all with the second; what has no seeds comes with the first."""
    for place, seed in enumerate(seeds):
        for one in content["queue"]:
            seedless = one.get("seeds") is False
            if place and seedless:
                continue
            yield Item(known[one["run"]], tuple(one.get("rows", ())), None if seedless else seed)


def content(path: Path = FILE) -> Any:
    """What tables.yaml holds."""
    return read_yaml(path)
