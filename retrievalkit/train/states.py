"""States of a training: written whole or not at all, and checked before a training goes on from one.

    trainer/checkpoint-40/state.json     the number of processes, and size and checksum of every file below
    trainer/checkpoint-40/...            weights, optimiser, schedule, random states, steps: as the Trainer writes them
    trainer/checkpoint-40/beside/...     what the training had written beside its states by then: log, best state, ...

A state is written in `trainer/writing` and renamed, so each that has its name is whole. Without one of its files the
Trainer would go on in silence and end with other weights; so a state that was changed is not used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.trainer_callback import TrainerState
from transformers.trainer_pt_utils import safe_globals

from retrievalkit import artifacts
from retrievalkit.artifacts.schemas import File, InnerName
from retrievalkit.errors import ArtifactError
from retrievalkit.report.counts import counted

WRITING, STATE = "writing", "state.json"
_BESIDE, _STEPS = "beside", "trainer_state.json"
_PICKLES = (".pt", ".pth", ".bin")
_REMEDY = (
    "Put the file back if you have it; or delete the state's folder, and --resume goes on from an older state, or "
    "starts this training from its beginning."
)


@dataclass(frozen=True)
class _State:
    """The form of state.json."""

    processes: int
    files: dict[InnerName, File]


def step_of(state: Path) -> int:
    """The step after which a state was saved."""
    return int(state.name.rpartition("-")[2])


def saved(folder: Path) -> list[Path]:
    """The states in a folder, the newest first."""
    states = [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]
    return sorted(states, key=step_of, reverse=True)


def complete(written: Path, folder: Path, beside: Sequence[Path], *, processes: int) -> None:
    """Give a state that the Trainer wrote its name, and remove the older ones.

    Args:
        written: Where the Trainer wrote it.
        folder: The folder of states.
        beside: Files and folders beside the states that go with it, whether they exist or not.
        processes: How many processes train.
    """
    (written / _BESIDE).mkdir()
    for path in beside:
        if path.exists():
            # The log grows; the others are only ever replaced.
            _copy(path, written / _BESIDE / path.name, link=path.suffix != ".jsonl")
    files = artifacts.describe_files(written)
    artifacts.write_json(written / STATE, {"format": 1, "processes": processes, "files": files})
    state = folder / written.name
    # There is one if a damaged state was left alone and an older one used.
    shutil.rmtree(state, ignore_errors=True)
    written.rename(state)
    for other in saved(folder):
        if other != state:
            shutil.rmtree(other)


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
        if name.endswith(_PICKLES):
            try:
                # Maps the tensors, so this reads little. Nothing but tensors and numbers is ever unpickled.
                with safe_globals():
                    torch.load(state / name, map_location="cpu", weights_only=True, mmap=True)
            except Exception:  # noqa: BLE001 - whatever torch raises at bytes that are no pickle of tensors
                return f"{name} holds something else than tensors and numbers"
    try:
        step = TrainerState.load_from_json(str(state / _STEPS)).global_step
    except (OSError, ValueError, TypeError):
        return f"{_STEPS} cannot be read"
    return None if step == step_of(state) else f"{_STEPS} is that of step {step}"


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
