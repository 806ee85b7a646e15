"""State of a run's steps: DIR/run.json, from which a later run determines the steps to skip."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from retrievalkit import __version__, storage
from retrievalkit.data import sources
from retrievalkit.errors import ArtifactError
from retrievalkit.models.pretrained import locate_model
from retrievalkit.recipes.job import Job
from retrievalkit.recipes.recipe import Recipe
from retrievalkit.recipes.step import texts

STATE = "run.json"


@dataclass(frozen=True)
class _Entry:
    """Schema of a step's entry."""

    key: str
    done: bool
    seconds: float
    fingerprint: str = ""
    sizes: str = ""


@dataclass(frozen=True)
class _Content:
    """Schema of the state file."""

    recipe: str
    steps: dict[str, _Entry]


class State:
    """State file of a run, written after each change: step -> key, done, seconds, fingerprint of its output."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        """Read the state of an earlier run of the same recipe, or start one in a new folder."""
        self.folder = folder
        self.recipe = recipe
        self.steps: dict[str, dict[str, Any]] = {}
        self._input = cache(_input_fingerprint)
        path = folder / STATE
        if path.exists():
            do = "Remove it and the outputs of the steps, or choose another --output."
            content = storage.read_json(path, _Content, do=do)
            self.steps = content["steps"]
            if (name := content["recipe"]) == recipe.name:
                return
            msg = f"'{folder}' belongs to the recipe '{name}', not to '{recipe.name}'. Choose another --output."
        elif folder.is_dir() and any(folder.iterdir()):
            msg = f"output folder '{folder}' exists already, but contains no run of a recipe. Choose another --output."
        else:
            storage.check_output(folder)
            return
        raise ArtifactError(msg)

    def key(self, job: Job) -> str:
        """Return a fingerprint of a step and all of its inputs; moving the run's folder does not change it."""
        inputs = {name: self.steps[name].get("fingerprint") for name in job.step.uses}
        inputs |= {text: self._input(text) for text in texts(job.step.options)}
        step = job.step
        return storage.fingerprint_value([__version__, step.command, step.options, step.output, inputs])

    def is_done(self, job: Job, key: str) -> bool:
        """True if an earlier run did the same step, and its output still exists."""
        entry = self.steps.get(job.step.name, {})
        if entry.get("key") != key or not entry.get("done"):
            return False
        return job.output is None or (job.output.exists() and _sizes(job.output) == entry.get("sizes"))

    def begin(self, job: Job, key: str) -> tuple[bool, float]:
        """Record that a step starts; return True if it was interrupted before, and the seconds it had run."""
        entry = self.steps.get(job.step.name, {})
        resumed = entry.get("key") == key and not entry.get("done")
        seconds: float = entry["seconds"] if resumed else 0.0
        self._write(job, {"key": key, "done": False, "seconds": seconds})
        return resumed, seconds

    def interrupt(self, job: Job, seconds: float) -> None:
        """Record the seconds of an interrupted step."""
        with contextlib.suppress(OSError):  # a full disk must not hide the error of the step
            self._write(job, self.steps[job.step.name] | {"seconds": seconds})

    def finish(self, job: Job, seconds: float) -> None:
        """Record that a step is done."""
        entry = {"key": self.steps[job.step.name]["key"], "done": True, "seconds": seconds, "command": job.typed}
        if job.output is not None:
            entry |= {"fingerprint": _content(job.output), "sizes": _sizes(job.output)}
        self._write(job, entry)

    def _write(self, job: Job, entry: dict[str, Any]) -> None:
        self.steps[job.step.name] = entry
        # Steps of other runs first, then the order of the recipe, not the order in which steps ended.
        order = {step.name: place for place, step in enumerate(self.recipe.steps)}
        self.steps = dict(sorted(self.steps.items(), key=lambda item: order.get(item[0], -1)))
        content = {"recipe": self.recipe.name, "values": dict(self.recipe.values), "steps": self.steps}
        storage.write_json(self.folder / STATE, content)


def _input_fingerprint(value: str) -> str | None:
    """Return the fingerprint of a file, a folder or a source; None for any other text."""
    if sources.split_prefix(value)[0]:
        return sources.fingerprint(value)
    path = Path(locate_model(value) if value.startswith("package:") else value)
    try:
        return _content(path) if path.is_file() or path.is_dir() else None
    except OSError:  # the text is too long for a path
        return None


def _content(path: Path) -> str:
    """Return a fingerprint of the content of a file or folder."""
    if not path.is_dir():
        return storage.fingerprint_file(path)
    # For a checkpoint, only the weights count: the training log contains times.
    checkpoint = storage.read_manifest(path) if storage.kind_of(path) == "checkpoint" else {}
    return checkpoint.get("fingerprint") or storage.fingerprint_folder(path)


def _sizes(path: Path) -> str:
    """Return a cheap fingerprint of file sizes, to check that a step's output is unchanged."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return storage.fingerprint_value(
        [(file.relative_to(path).as_posix(), file.stat().st_size) for file in files if file.is_file()]
    )
