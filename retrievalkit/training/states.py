"""States of a training: written whole or not at all, and checked before a training goes on from one.

    states/step-40/state.json         the number of processes, and size and checksum of every file below
    states/step-40/model.safetensors  the weights
    states/step-40/optimizer.pt       optimizer, schedule and gradient scaler
    states/step-40/random-0.pt        random states of the process of rank 0
    states/step-40/progress.json      the step, and the terms of the loss since the last line of the log
    states/step-40/beside/...         copies of what the training had written next to its states: log, best state, ...

A state is written in `states/writing` and renamed, so each that has its name is whole. Without one of its files a
training would continue silently and end with other weights; so a state that was changed is not used.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from retrievalkit import artifacts
from retrievalkit.artifacts.schemas import File, InnerName
from retrievalkit.errors import ArtifactError, RetrievalkitError
from retrievalkit.model.pretrained import load_weights, save_weights
from retrievalkit.report.counts import counted
from retrievalkit.training import processes, sharding

if TYPE_CHECKING:
    from retrievalkit.training.loop import Loop

WRITING, STATE, WEIGHTS = "writing", "state.json", "model.safetensors"
_BESIDE, _PROGRESS, _OPTIMIZER = "beside", "progress.json", "optimizer.pt"
_REMEDY = (
    "Put the file back if you have it; or delete the state's folder, and --resume goes on from an older state, or "
    "starts this training from its beginning."
)


@dataclass(frozen=True)
class _State:
    """The form of state.json."""

    processes: int
    files: dict[InnerName, File]


@dataclass(frozen=True)
class _Progress:
    """The form of progress.json."""

    step: int
    terms: dict[str, list[float]]


def step_of(state: Path) -> int:
    """The step after which a state was saved."""
    return int(state.name.rpartition("-")[2])


def saved(folder: Path) -> list[Path]:
    """The states in a folder, the newest first."""
    states = [path for path in folder.glob("step-*") if path.name.rpartition("-")[2].isdecimal()]
    return sorted(states, key=step_of, reverse=True)


def save(loop: Loop, folder: Path, beside: Sequence[Path]) -> None:
    """Write the state of a training, and remove the older ones; all processes call it together.

    Args:
        loop: The training.
        folder: The folder of states.
        beside: Files and folders next to the states that belong to it, whether they exist or not.
    """
    written = folder / WRITING / f"step-{loop.done}"
    # What is written last completes the state, so the files of all processes must exist by then.
    with processes.together():
        written.mkdir(parents=True, exist_ok=True)
        torch.save(_random_state(), written / f"random-{processes.rank()}.pt")
    optimizer = loop.optimizer.optimizer
    if loop.step.sharded:
        divided = sharding.optimizer_state(loop.module, optimizer)
        with sharding.whole(loop.module):
            if processes.is_main():
                _write(loop, written, divided)
    elif processes.is_main():
        _write(loop, written, optimizer.state_dict())
    if processes.is_main():
        _complete(written, folder, beside)


def _write(loop: Loop, written: Path, optimizer: dict[str, Any]) -> None:
    save_weights(loop.module, written / WEIGHTS)
    scaler = loop.accelerator.scaler
    parts = {"optimizer": optimizer, "schedule": loop.schedule.state_dict(), "scaler": scaler and scaler.state_dict()}
    torch.save(parts, written / _OPTIMIZER)
    terms = {name: torch.stack(values).tolist() for name, values in loop.terms.items()}
    artifacts.write_json(written / _PROGRESS, {"step": loop.done, "terms": terms})


def _complete(written: Path, folder: Path, beside: Sequence[Path]) -> None:
    """Give a state its name once all of its files are there."""
    (written / _BESIDE).mkdir()
    for path in beside:
        if path.exists():
            # The log grows; the others are only ever replaced.
            _copy(path, written / _BESIDE / path.name, link=path.suffix != ".jsonl")
    files = artifacts.describe_files(written)
    artifacts.write_json(written / STATE, {"format": 2, "processes": processes.count(), "files": files})
    state = folder / written.name
    # There is one if a damaged state was left alone and an older one used.
    shutil.rmtree(state, ignore_errors=True)
    written.rename(state)
    for other in saved(folder):
        if other != state:
            shutil.rmtree(other)


def load_module(state: Path, module: torch.nn.Module) -> None:
    """Load the weights of a state.

    Raises:
        ArtifactError: They do not fit.
    """
    with _fitting(state):
        load_weights(module, state / WEIGHTS)


def load(state: Path, loop: Loop) -> None:
    """Load the rest of a state: optimizer, schedule, random states, and the terms that were not logged yet.

    Raises:
        ArtifactError: It does not fit this training.
    """
    with _fitting(state):
        parts = torch.load(state / _OPTIMIZER, map_location="cpu", weights_only=True, mmap=True)
        if loop.step.sharded:
            sharding.load_optimizer(loop.module, loop.optimizer.optimizer, parts["optimizer"])
        else:
            loop.optimizer.optimizer.load_state_dict(parts["optimizer"])
        loop.schedule.load_state_dict(parts["schedule"])
        if loop.accelerator.scaler is not None:
            loop.accelerator.scaler.load_state_dict(parts["scaler"])
        progress = artifacts.read_document(state / _PROGRESS, _Progress, do=_REMEDY, nan=True)
        device = loop.accelerator.device
        loop.terms = {name: list(torch.tensor(values, device=device)) for name, values in progress.terms.items()}
        drawn = state / f"random-{processes.rank()}.pt"
        if drawn.exists():  # a machine that joined has none
            _restore_random_state(torch.load(drawn, weights_only=True))


def _random_state() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys, np.int64)), *rest),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _restore_random_state(drawn: dict[str, Any]) -> None:
    random.setstate(drawn["python"])
    kind, keys, *rest = drawn["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(drawn["cpu"])
    if drawn["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(drawn["cuda"])


@contextmanager
def _fitting(state: Path) -> Iterator[None]:
    """Name the state whose files are whole, and do not fit."""
    try:
        yield
    except (RetrievalkitError, OSError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        msg = f"the state '{state}' does not fit this training ({reason}). Train without --resume."
        raise ArtifactError(msg) from error


def choose(folder: Path, *, processes: int, any_number: bool = False) -> tuple[Path | None, list[str]]:
    """The newest state that is as it was written, and what the user should know about it and those that are newer.

    Args:
        folder: The folder of states.
        processes: How many processes train.
        any_number: Whether a state of another number of processes will do.

    Raises:
        ArtifactError: There are states, but none to go on from.
    """
    problems: list[str] = []
    for state in saved(folder):
        try:
            count = _checked(state)
        except ArtifactError as error:
            problems.append(str(error))
        else:
            if not any_number:
                _check_processes(count, processes)
            said = [f"{one.removesuffix(f'. {_REMEDY}')}; going on from the state before it" for one in problems]
            return state, said + ([] if count == processes else [_changed(state, count, processes)])
    if problems:
        raise ArtifactError(problems[0])
    return None, []


def restore(state: Path | None, beside: Sequence[Path]) -> None:
    """Put what lies beside the states back to what it was when the state was saved; None = the beginning."""
    for path in beside:
        artifacts.discard(path)
        if state is not None and (state / _BESIDE / path.name).exists():
            _copy(state / _BESIDE / path.name, path, link=path.suffix != ".jsonl")


def _check_processes(before: int, count: int) -> None:
    if before == count:
        return
    again = f"torchrun --nproc-per-node {before} --no-python rkit ..." if before > 1 else "rkit, without torchrun"
    msg = (
        f"the training that was cut off had {_processes(before)}, and this one has {_processes(count)}; each has a "
        f"random state of its own, so it cannot be resumed. Start it again with {again}, or anew without --resume."
    )
    raise ArtifactError(msg)


def _changed(state: Path, before: int, count: int) -> str:
    return (
        f"The state after step {step_of(state):,} is that of {_processes(before)}, and {_processes(count)} go on from "
        "it: with the same samples in each step and the same gradient of them, but other random numbers for dropout"
    )


def _processes(count: int) -> str:
    return counted(count, "processes")


def _checked(state: Path) -> int:
    """The number of processes that wrote a state.

    Raises:
        ArtifactError: It is not as it was written.
    """
    recorded = artifacts.read_json(state / STATE, _State, do=_REMEDY)
    artifacts.check_unlisted(state, recorded["files"], skip=(STATE,), remedy=_REMEDY)
    artifacts.check_files(state, recorded["files"], remedy=_REMEDY)
    if problem := _unreadable(state, recorded["files"]):
        msg = f"'{state}' is damaged: {problem}. {_REMEDY}"
        raise ArtifactError(msg)
    return int(recorded["processes"])


def _unreadable(state: Path, names: Iterable[str]) -> str | None:
    """The file that would not load, though the state says that it was written so; None = all would."""
    for name in names:
        if name.endswith(".pt"):
            try:
                # Maps the tensors, so this reads little. Nothing but tensors and numbers is ever unpickled.
                torch.load(state / name, map_location="cpu", weights_only=True, mmap=True)
            except Exception:  # noqa: BLE001 - whatever torch raises at bytes that are no pickle of tensors
                return f"{name} holds something else than tensors and numbers"
    step = artifacts.read_document(state / _PROGRESS, _Progress, do=_REMEDY, nan=True).step
    return None if step == step_of(state) else f"{_PROGRESS} is that of step {step}"


def _copy(path: Path, to: Path, *, link: bool) -> None:
    """Copy a file or a folder; with `link`, files that are never written to again take no space."""
    if path.is_dir():
        shutil.copytree(path, to, copy_function=_linked)
    elif link:
        _linked(path, to)
    else:
        shutil.copy(path, to)


def _linked(path: str | Path, to: str | Path) -> object:
    try:
        os.link(path, to)
    except OSError:  # a file system without links
        return shutil.copy(path, to)
    return to
