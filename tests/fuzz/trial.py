"""A trial: a target with edits of one of its inputs or with added options, drawn by a seed or read from a file."""

import json
import random
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzz import edits, material, mutations, process, verdict
from fuzz.targets import BY_NAME, TARGETS

_DEEP = "a/b/c/d/e"
"""The room lies this deep in a trial's folder, so that `../../../x` is seen."""


@dataclass(frozen=True)
class Trial:
    """A target with edits of the material `damaged` ("" for none), or with options added to its command."""

    target: str
    damaged: str = ""
    edits: tuple = ()
    options: tuple = ()

    def size(self):
        """Return the size of the trial, to find the smallest."""
        return len(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Whole:
    """Result of a command with whole input."""

    err: str
    results: tuple


class Bench:
    """Folder with the material, where trials run one after the other; benches of several names run in parallel."""

    def __init__(self, folder, name="0"):
        self.folder = Path(folder)
        self.material = self.folder / "material"
        self.place = self.folder / "trials" / name
        self.room = self.place / _DEEP / "room"
        self.wholes = {}

    def learn(self, trial):
        """Run the target with whole input; RuntimeError if it fails."""
        known = trial.target, trial.damaged
        if known not in self.wholes:
            ended, changes, _ = self._perform(Trial(*known))
            if ended.code and trial.damaged:
                msg = f"{trial.target} ({trial.damaged}), whole: exit {ended.code}\n{ended.err}"
                raise RuntimeError(msg)
            self.wholes[known] = Whole(ended.err, changes.results)
        return self.wholes[known]

    def draw(self, seed, number):
        """Draw the trial of a number."""
        rng = random.Random(f"{seed}:{number}")
        target = rng.choices(TARGETS, [one.share for one in TARGETS])[0]
        if target.options:
            return Trial(target.name, options=tuple(mutations.draw_options(rng, target.options)))
        damaged = rng.choice(target.damaged)
        return Trial(target.name, damaged, tuple(mutations.draw(rng, self.material / damaged)))

    def attempt(self, trial):
        """Run a trial; return the result, its failures, and the number of applied edits."""
        target = BY_NAME[trial.target]
        # First of all: a command that refuses whole input would never fail.
        whole = self.learn(trial)
        ended, changes, applied = self._perform(trial)
        failures = verdict.judge(ended, target=target, trial=trial, whole=whole, changes=changes)
        return ended, failures, applied

    def _perform(self, trial):
        target = BY_NAME[trial.target]
        shutil.rmtree(self.place, ignore_errors=True)
        self.room.parent.mkdir(parents=True)
        elsewhere = self._prepare(target, trial)
        command = [*material.arguments(target.command, self.material, **elsewhere), *trial.options]
        applied = edits.apply(trial.edits, self.room / elsewhere.get(trial.damaged, ""), self.material)
        for name in ("home", "tmp", "log"):
            (self.room.parent / name).mkdir()
        before, around = verdict.listing(self.place), self._around()
        ended = process.run(command, self.room)
        after = verdict.listing(self.place)
        return ended, self._changes(before, after, around, ended), applied

    def _prepare(self, target, trial):
        """Copy the damaged material into the room; return its paths."""
        source = self.material / trial.damaged
        if target.room:
            shutil.copytree(source, self.room, symlinks=True)
            return {}
        self.room.mkdir()
        if not trial.damaged:
            return {}
        place = self.room / Path(trial.damaged).name
        if source.is_dir():
            shutil.copytree(source, place)
        else:
            shutil.copy(source, place)
        named = {trial.damaged: place.name}
        # A command may name one form of its input, and trials give it others.
        if f"@{trial.damaged}" not in target.command.split():
            first = next(name for name in target.damaged if f"@{name}" in target.command.split())
            named[first] = place.name
        return named

    def _around(self):
        return verdict.listing(self.folder / "outside") | verdict.listing(self.material)

    def _changes(self, before, after, around, ended):
        room, beside = str(self.room), str(self.room.parent)
        changed = verdict.differing(before, after, self.place)
        inner = f"{_DEEP}/room/"
        in_room = [name for name in changed if name.startswith(inner)]
        written = frozenset(name.removeprefix(inner) for name in in_room if str(self.place / name) in after)
        inputs = frozenset(name.removeprefix(inner) for name in in_room if str(self.place / name) in before)
        own = (inner, f"{_DEEP}/log/")
        temporary = frozenset(name for name in changed if name.startswith((f"{_DEEP}/tmp", f"{_DEEP}/home")))
        outside = frozenset(name for name in changed if not name.startswith(own)) - temporary
        outside |= verdict.differing(around, self._around(), self.folder)
        results = verdict.results_of(room, written, ended.out.replace(beside, ""))
        return verdict.Changes(written, inputs, outside, temporary, results)
