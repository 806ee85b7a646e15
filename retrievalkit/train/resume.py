"""What is kept of a training that was cut off, and where it goes on.

A training lies in a hidden folder beside its output until it is complete. `options.json` in there says which training
it is, so that another one does not resume it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.errors import ArtifactError
from retrievalkit.train import processes

LOG, LOGS, STATES, OPTIONS, WEIGHTS = "training.jsonl", "logs", "trainer", "options.json", "model.safetensors"


def finished(output: str | Path, kind: str, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of the very same training, if that is complete."""
    if artifacts.kind_of(output) != kind:
        return None
    manifest = artifacts.read_manifest(output)
    same = json.loads(json.dumps(identity, default=str)) == {name: manifest.get(name) for name in identity}
    return manifest if same else None


def prepare_partial(output: str | Path, identity: dict[str, Any], *, resume: bool) -> None:
    """Keep what a cut-off training left only if it is the same training and is to be resumed.

    Raises:
        ArtifactError: It is another training.
    """
    partial = artifacts.partial_folder(output)
    text = json.dumps(identity, sort_keys=True, default=str)
    if resume and (partial / OPTIONS).exists():
        if (partial / OPTIONS).read_text(encoding="utf-8") != text:
            msg = (
                f"the training to '{output}' that was cut off had other options or other data, so it cannot be "
                f"resumed. Repeat its command with --resume, or start anew without."
            )
            raise ArtifactError(msg)
        return
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / OPTIONS).write_text(text, encoding="utf-8")


@contextmanager
def only_resumable_kept(staging: Path, work: str | None) -> Iterator[None]:
    """If the block fails, keep the last state and the folder `work` alone; without either, nothing."""
    try:
        with artifacts.full_disk_named(staging):
            yield
    except BaseException as error:
        if processes.is_main():
            last = last_state(staging / STATES)
            for folder in set((staging / STATES).glob("*")) - {last}:
                shutil.rmtree(folder, ignore_errors=True)
            worked = work is not None and (staging / work).exists()
            # The prepared work may be what filled the disk.
            if last is None and (isinstance(error, OSError) or not worked):
                shutil.rmtree(staging, ignore_errors=True)
            elif isinstance(error, OSError) and last is not None:
                error.add_note(f"The state after step {step_of(last):,} is kept: --resume goes on from there.")
        raise


def interruption(at: int, states: Path) -> str:
    """What to tell the user who interrupted a training at a step."""
    last = last_state(states)
    if last is None:
        return f"Interrupted at step {at:,}; no state was saved before it (--set save_steps=N saves one every N steps)."
    return (
        f"Interrupted at step {at:,}; the state after step {step_of(last):,} is kept: run the same command with "
        "--resume."
    )


def step_of(state: Path) -> int:
    """The step after which a state was saved."""
    return int(state.name.rpartition("-")[2])


def cut_log(path: Path, state: Path | None) -> None:
    """Drop the lines of the log that a resumed training will write again."""
    if not path.exists():
        return
    step = step_of(state) if state else 0
    # The last line may have been cut off.
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    kept = (line for line, values in zip(whole, read_log(whole, path), strict=True) if values["step"] <= step)
    path.write_text("".join(kept), encoding="utf-8")


def read_log(lines: Sequence[str], path: Path) -> Iterator[dict[str, float]]:
    """The values of each line of a training's log, "step" among them.

    Args:
        lines: The lines.
        path: The file, for error messages.

    Raises:
        ArtifactError: A line is damaged.
    """
    for number, line in enumerate(lines, 1):
        try:
            values = artifacts.loads_json(line, nan=True)
        except ValueError:
            values = {}
        if not isinstance(values, dict) or "step" not in values or not _are_numbers(values.values()):
            msg = f"{path}:{number}: the line is no entry of a training's log: it is damaged. Train again."
            raise ArtifactError(msg)
        yield values


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def last_state(folder: Path) -> Path | None:
    """The last state that the Trainer saved completely."""
    return next((path for path in sorted(folder.glob("checkpoint-*"), key=step_of, reverse=True) if _whole(path)), None)


def _whole(state: Path) -> bool:
    # The Trainer writes its own state last.
    try:
        artifacts.read_json(state / "trainer_state.json", do="", nan=True)
    except ArtifactError:
        return False
    return True
