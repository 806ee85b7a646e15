"""Training states for resuming an interrupted training: written atomically, and verified before they are used.

Until a training is complete, it lives in a hidden folder next to its output:

    options.json                      identity of the training, so that a different training does not resume it
    states/step-40/state.json         the number of processes, and size and checksum of every file below
    states/step-40/model.safetensors  the weights
    states/step-40/optimizer.pt       optimizer, schedule and gradient scaler
    states/step-40/random-0.pt        random states of the process of rank 0
    states/step-40/progress.json      the step, and the loss terms since the last log line
    states/step-40/copies/...         copies of the files next to the states: log, best state, ...

A state is written to `states/writing` and then renamed, so a state with its final name is complete. A state with a
missing or changed file is refused: training would silently end with different weights.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

from retrievalkit import storage
from retrievalkit.errors import ArtifactError, RetrievalkitError
from retrievalkit.models.pretrained import load_weights, save_weights
from retrievalkit.reporting.terminal import counted, say
from retrievalkit.storage import NEGATIVES
from retrievalkit.storage.schemas import File, InnerName
from retrievalkit.training.selection import BEST, SELECTION
from retrievalkit.training.sharding import whole

if TYPE_CHECKING:
    from retrievalkit.training.loop import Loop

LOG, LOGS, STATES, OPTIONS = "training.jsonl", "logs", "states", "options.json"
RUN = "torchrun.txt"
"""Run id of the torchrun that started the training, which the processes restarted after a loss continue."""
PACE = f"{LOGS}/pace.jsonl"
"""Throughput and memory, kept out of the log: equal trainings write equal logs, but times always differ."""

WRITING, STATE, WEIGHTS = "writing", "state.json", "model.safetensors"
_PROGRESS, _OPTIMIZER = "progress.json", "optimizer.pt"
_COPIED = (LOG, BEST, SELECTION, NEGATIVES)
_REMEDY = "Restore the file, or delete the state's folder: --resume then uses an older state, or trains from the start."


@dataclass(frozen=True)
class _State:
    """Schema of state.json."""

    processes: int
    files: dict[InnerName, File]


@dataclass(frozen=True)
class _Progress:
    """Schema of progress.json."""

    step: int
    terms: dict[str, list[float]]


def step_of(state: Path) -> int:
    """Return the step after which a state was saved."""
    return int(state.name.rpartition("-")[2])


def saved(folder: Path) -> list[Path]:
    """Return the states in a folder, newest first."""
    states = [path for path in folder.glob("step-*") if path.name.rpartition("-")[2].isdecimal()]
    return sorted(states, key=step_of, reverse=True)


def save(loop: Loop, staging: Path) -> None:
    """Write the current state to the training's folder, and remove older states. All processes must call it."""
    states, collective = staging / STATES, loop.collective
    written = states / WRITING / f"step-{loop.done}"
    # The rename at the end completes the state: the files of all processes must exist by then.
    with collective.together():
        written.mkdir(parents=True, exist_ok=True)
        kind, keys, *rest = np.random.get_state()
        drawn = {
            "python": random.getstate(),
            "numpy": (kind, torch.from_numpy(np.asarray(keys, np.int64)), *rest),
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        }
        torch.save(drawn, written / f"random-{collective.rank}.pt")
    optimizer = loop.optimizer.optimizer
    if loop.training.sharded:
        # Gathered in the main process.
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        divided = get_optimizer_state_dict(loop.module, optimizer, options=options)
        with whole(loop.module, collective):
            if collective.is_main:
                _write(loop, written, divided)
    elif collective.is_main:
        _write(loop, written, optimizer.state_dict())
    if not collective.is_main:
        return
    for path in (staging / name for name in _COPIED):
        if path.exists():
            (written / "copies").mkdir(exist_ok=True)
            _copy(path, written / "copies" / path.name)
    files = storage.describe_files(written)
    storage.write_json(written / STATE, {"format": 2, "processes": collective.size, "files": files})
    state = states / written.name
    written.rename(state)
    for other in saved(states):
        if other != state:
            shutil.rmtree(other)


def _write(loop: Loop, written: Path, optimizer: dict[str, Any]) -> None:
    save_weights(loop.module, written / WEIGHTS)
    scaler = loop.accelerator.scaler
    parts = {"optimizer": optimizer, "schedule": loop.schedule.state_dict(), "scaler": scaler and scaler.state_dict()}
    torch.save(parts, written / _OPTIMIZER)
    terms = {name: torch.stack(values).tolist() for name, values in loop.terms.items()}
    storage.write_json(written / _PROGRESS, {"step": loop.done, "terms": terms})


def load_module(state: Path, module: torch.nn.Module) -> None:
    """Load the weights of a state."""
    with _fitting(state):
        load_weights(module, state / WEIGHTS)


def load(state: Path, loop: Loop) -> None:
    """Load the rest of a state: optimizer, schedule, random states, and the loss terms not logged yet."""
    with _fitting(state):
        # Only tensors and numbers are ever unpickled.
        parts = torch.load(state / _OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
        if loop.training.sharded:
            options = StateDictOptions(full_state_dict=True)
            set_optimizer_state_dict(loop.module, loop.optimizer.optimizer, parts["optimizer"], options=options)
        else:
            loop.optimizer.optimizer.load_state_dict(parts["optimizer"])
        loop.schedule.load_state_dict(parts["schedule"])
        if loop.accelerator.scaler is not None:
            loop.accelerator.scaler.load_state_dict(parts["scaler"])
        progress = storage.read_document(state / _PROGRESS, _Progress, do=_REMEDY, nan=True)
        if progress.step != loop.done:
            msg = f"{_PROGRESS} is of step {progress.step}"
            raise ValueError(msg)
        device = loop.accelerator.device
        loop.terms = {name: list(torch.tensor(values, device=device)) for name, values in progress.terms.items()}
        path = state / f"random-{loop.collective.rank}.pt"
        if path.exists():  # missing on a machine that joined later
            drawn = torch.load(path, weights_only=True)
            random.setstate(drawn["python"])
            kind, keys, *rest = drawn["numpy"]
            np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
            torch.set_rng_state(drawn["cpu"])
            if drawn["cuda"] is not None and torch.cuda.is_available():
                torch.cuda.set_rng_state(drawn["cuda"])


@contextmanager
def _fitting(state: Path) -> Iterator[None]:
    """Turn errors in the block into a message that names the state: its files are intact, but do not fit."""
    try:
        yield
    except (RetrievalkitError, OSError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        msg = f"the state '{state}' does not fit this training ({reason}). Train without --resume."
        raise ArtifactError(msg) from error


def finished(output: str | Path, kind: str, identity: dict[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of the output if it is of the same training and complete, else None."""
    if storage.kind_of(output) != kind:
        return None
    manifest = storage.read_manifest(output)
    same = json.loads(json.dumps(identity, default=str)) == {name: manifest.get(name) for name in identity}
    return manifest if same else None


def prepare_partial(
    output: str | Path, identity: dict[str, Any], *, resume: bool, again: bool = False, processes: int = 1
) -> Path | None:
    """Keep the files of an interrupted training that is resumed, else remove them; return its state, None = the start.

    If torchrun started the processes `again`, the training resumes without --resume, even with another number of
    processes: torchrun chooses it from a range of machines.
    """
    partial = storage.partial_folder(output)
    text = json.dumps(identity, sort_keys=True, default=str)

    same = storage.holds(partial / OPTIONS, text)
    # A joining machine restarts the others without counting it, so the run id decides too; "none" is the default id.
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    restarted = same and (again or run not in ("", "none")) and storage.holds(partial / RUN, run)
    continues = (resume or restarted) and (partial / OPTIONS).exists()
    if continues and not same:
        problem = f"the interrupted training to '{output}' had other options or other data, so it cannot be resumed"
        msg = f"{problem}. Repeat its command with --resume, or start again without."
        raise ArtifactError(msg)
    if not continues:
        storage.discard(partial)
        partial.mkdir(parents=True)
    for name, content in ((RUN, run), *(() if continues else ((OPTIONS, text),))):
        with storage.write_file(partial / name) as staging:
            staging.write_text(content, encoding="utf-8")
    if not continues:
        return None
    shutil.rmtree(partial / STATES / WRITING, ignore_errors=True)
    state = choose(partial / STATES, processes=processes, any_number=restarted)
    for path in (partial / name for name in _COPIED):
        storage.discard(path)
        if state is not None and (state / "copies" / path.name).exists():
            _copy(state / "copies" / path.name, path)
    return state


def choose(folder: Path, *, processes: int, any_number: bool = False) -> Path | None:
    """Return the newest state, after verifying its files; None if there is no state."""
    state = next(iter(saved(folder)), None)
    if state is None:
        return None
    recorded = storage.read_json(state / STATE, _State, do=_REMEDY)
    storage.check_unlisted(state, recorded["files"], skip=(STATE,), remedy=_REMEDY)
    storage.check_files(state, recorded["files"], remedy=_REMEDY)
    before, now = (counted(count, "processes") for count in (recorded["processes"], processes))
    if before != now and not any_number:
        problem = f"the interrupted training had {before}, and {now} cannot resume it: each has its own random state"
        msg = f"{problem}. Start as many by torchrun, or start again without --resume."
        raise ArtifactError(msg)
    if before != now:
        same = "with the same samples and gradient in each step, but other random numbers"
        say(f"The state after step {step_of(state):,} is of {before}, and {now} continue: {same}", err=True)
    return state


def _copy(path: Path, to: Path) -> None:
    """Copy a file or a folder; files that are never written again are hard-linked, and take no space."""

    def link(path: str | Path, to: str | Path) -> object:
        try:
            os.link(path, to)
        except OSError:  # a file system without hard links
            shutil.copy(path, to)
        return to

    if path.is_dir():
        shutil.copytree(path, to, copy_function=link)
    else:
        (shutil.copy if path.name == LOG else link)(path, to)


@contextmanager
def only_resumable_kept(staging: Path, work: str | None) -> Iterator[None]:
    """If the block fails, keep only the last state and the folder `work`; without either, remove everything."""
    try:
        with storage.full_disk_named(staging):
            yield
    except BaseException as error:
        shutil.rmtree(staging / STATES / WRITING, ignore_errors=True)
        last = saved(staging / STATES)
        worked = work is not None and (staging / work).exists()
        # The prepared work may have filled the disk.
        if not last and (isinstance(error, OSError) or not worked):
            shutil.rmtree(staging, ignore_errors=True)
        elif isinstance(error, OSError) and last:
            error.add_note(f"The state after step {step_of(last[0]):,} is kept: --resume continues from there.")
        raise
