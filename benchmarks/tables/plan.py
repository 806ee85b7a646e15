"""The content of tables.yaml: the runs with their folders filled in, and the queue, seed by seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrievalkit.recipes.settings import read_yaml

FILE = Path(__file__).with_name("tables.yaml")


@dataclass(frozen=True)
class Run:
    """A recipe and its values.

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
    """A part of the queue: some rows of a run, with a seed or with the recipe's seeds."""

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
    """The runs by name, with folders such as "data" in their values."""
    return {
        name: Run(name, run["recipe"], {key: value.format(**places) for key, value in run["set"].items()})
        for name, run in content["runs"].items()
    }


def queue(content: Mapping[str, Any], known: Mapping[str, Run], seeds: Sequence[int]) -> Iterator[Item]:
    """Yield all rows with the first seed, then all with the second; rows without seeds come first."""
    for place, seed in enumerate(seeds):
        for part in content["queue"]:
            seedless = part.get("seeds") is False
            if place and seedless:
                continue
            yield Item(known[part["run"]], tuple(part.get("rows", ())), None if seedless else seed)


def content(path: Path = FILE) -> Any:
    """The content of tables.yaml."""
    return read_yaml(path)
