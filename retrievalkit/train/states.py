"""States of a training: written whole or not at all, and checked before a training goes on from one.

    trainer/checkpoint-40/state.json     the number of processes, and size and fingerprint of every file below
    trainer/checkpoint-40/...            weights, optimiser, schedule, random states, steps: as the Trainer writes them
    trainer/checkpoint-40/beside/...     what the training had written beside its states by then: log, best state, ...

A state is written in `trainer/writing` and renamed, so each that has its name is whole. Without one of its files the
Trainer would go on in silence and end with other weights; so a state that was changed is not used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerState
from transformers.trainer_pt_utils import safe_globals

from retrievalkit import artifacts
from retrievalkit.errors import ArtifactError

WRITING, STATE = "writing", "state.json"
_BESIDE, _STEPS = "beside", "trainer_state.json"
_PICKLES = (".pt", ".pth", ".bin")


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
    files = described(written, sorted(_names(written)))
    artifacts.write_json(written / STATE, {"format": 1, "processes": processes, "files": files})
    state = folder / written.name
    # There is one if a damaged state was left alone and an older one used.
    shutil.rmtree(state, ignore_errors=True)
    written.rename(state)
    for other in saved(folder):
        if other != state:
            shutil.rmtree(other)


def choose(folder: Path, *, processes: int) -> tuple[Path | None, list[str]]:
    """The newest state that is as it was written, and what is wrong with those that are newer.

    Raises:
        ArtifactError: There are states, but none to go on from.
    """
    problems: list[str] = []
    for state in saved(folder):
        problem = _damage(state)
        if problem is None:
            _check_processes(state, processes)
            return state, problems
        problems.append(f"the state '{state}' is damaged: {problem}")
    if problems:
        msg = (
            f"{problems[0]}. Put the file back if you have it; or delete that folder, and --resume starts this "
            "training from its beginning."
        )
        raise ArtifactError(msg)
    return None, []


def restore(state: Path | None, beside: Sequence[Path]) -> None:
    """Put what lies beside the states back to what it was when the state was saved; None = the beginning."""
    for path in beside:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if state is not None and (state / _BESIDE / path.name).exists():
            _copy(state / _BESIDE / path.name, path, link=path.suffix != ".jsonl")


def _check_processes(state: Path, count: int) -> None:
    before = _read(state)["processes"]
    if before == count:
        return
    again = f"torchrun --nproc-per-node {before} --no-python rkit ..." if before > 1 else "rkit, without torchrun"
    msg = (
        f"the training that was cut off had {_processes(before)}, and this one has {_processes(count)}; each has a "
        f"random state of its own, so it cannot be resumed. Start it again with {again}, or anew without --resume."
    )
    raise ArtifactError(msg)


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _damage(state: Path) -> str | None:
    """What is wrong with a state; None = it is as it was written."""
    try:
        recorded = _read(state)["files"]
    except (OSError, ValueError) as error:
        return f"{STATE} cannot be read ({error})"
    if extra := sorted(_names(state) - set(recorded)):
        return f"{extra[0]} does not belong to it"
    return first_changed(state, recorded) or _unreadable(state, recorded)


def _unreadable(state: Path, names: Sequence[str]) -> str | None:
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


def _read(state: Path) -> dict[str, Any]:
    """What `state.json` says.

    Raises:
        OSError: There is none.
        ValueError: It has another form.
    """
    recorded = artifacts.loads_json((state / STATE).read_bytes())
    try:
        files = {
            name: {"bytes": int(described["bytes"]), "fingerprint": str(described["fingerprint"])}
            for name, described in recorded["files"].items()
        }
        count = int(recorded["processes"])
    except (TypeError, KeyError, AttributeError) as error:
        msg = "it has another form"
        raise ValueError(msg) from error
    if outside := [name for name in files if name.startswith("/") or ".." in Path(name).parts]:
        msg = f"'{outside[0]}' is no file of it"
        raise ValueError(msg)
    return {"processes": count, "files": files}


def _names(state: Path) -> set[str]:
    """The files of a state, but `state.json` and hidden ones, as some file systems make."""
    found = (path.relative_to(state) for path in state.rglob("*") if not path.is_dir())
    return {path.as_posix() for path in found if not path.name.startswith(".") and path.as_posix() != STATE}


def described(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Size and fingerprint of some files of a folder, for `first_changed`."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "fingerprint": artifacts.fingerprint_file(folder / name)}
        for name in names
    }


def first_changed(folder: Path, files: Mapping[str, Any]) -> str | None:
    """What is wrong with the first of these files that is not as it was described; None = all are."""
    for name, before in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != before["bytes"]:
            return f"{name} has {path.stat().st_size:,} bytes, and {before['bytes']:,} were written"
        if artifacts.fingerprint_file(path) != before["fingerprint"]:
            return f"{name} was changed after it was written"
    return None


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
