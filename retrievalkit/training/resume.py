"""What is kept of a training that was cut off, and where it goes on.

A training lies in a hidden folder beside its output until it is complete. `options.json` in there says which training
it is, so that another one does not resume it; `retrievalkit.training.states` has the states that it goes on from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.artifacts import NEGATIVES
from retrievalkit.errors import ArtifactError
from retrievalkit.report.terminal import say
from retrievalkit.training import processes, states
from retrievalkit.training.selection import BEST, SELECTION

LOG, LOGS, STATES, OPTIONS = "training.jsonl", "logs", "states", "options.json"
RUN = "torchrun.txt"
"""Which torchrun started the training, so that the processes it starts after a loss go on with it."""
PACE = f"{LOGS}/pace.jsonl"
"""What was measured beside the log: equal trainings write equal files, and times are never equal."""


def beside(staging: Path) -> list[Path]:
    """What a training writes beside its states, and goes on with."""
    return [staging / name for name in (LOG, BEST, SELECTION, NEGATIVES)]


def finished(output: str | Path, kind: str, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of the very same training, if that is complete."""
    if artifacts.kind_of(output) != kind:
        return None
    manifest = artifacts.read_manifest(output)
    same = json.loads(json.dumps(identity, default=str)) == {name: manifest.get(name) for name in identity}
    return manifest if same else None


def complete_but_for_its_name(output: str | Path, kind: str, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of the very same training, if that was killed when only what resuming needs was left to remove."""
    partial = artifacts.partial_folder(output)
    return None if (partial / OPTIONS).exists() else finished(partial, kind, identity)


def prepare_partial(output: str | Path, identity: dict[str, Any], *, resume: bool, again: bool = False) -> Path | None:
    """Keep what a cut-off training left only if it is the same training and is to be resumed.

    Args:
        output: The folder that is trained to.
        identity: What makes it the same training.
        resume: Whether the user wants to resume.
        again: Whether torchrun has started the processes again. What processes of the same torchrun left is resumed
            anyway, by another number of them too: a user who gives it a range of machines does not choose it.

    Returns:
        The state to go on from; None = from the beginning.

    Raises:
        ArtifactError: It is another training, or its states are damaged.
    """
    partial = artifacts.partial_folder(output)
    text = json.dumps(identity, sort_keys=True, default=str)
    same = _holds(partial / OPTIONS, text.encode())
    # A machine that joins has the others start again uncounted, so the name counts too; "none" is every torchrun's.
    run = processes.torchrun_id()
    restarted = same and (again or run not in ("", "none")) and _holds(partial / RUN, run.encode())
    if not (resume or restarted) or not (partial / OPTIONS).exists():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _note_run(partial, run)
        with artifacts.write_file(partial / OPTIONS) as staging:
            staging.write_text(text, encoding="utf-8")
        return None
    if not same:
        msg = (
            f"the training to '{output}' that was cut off had other options or other data, so it cannot be "
            f"resumed. Repeat its command with --resume, or start anew without."
        )
        raise ArtifactError(msg)
    _note_run(partial, run)
    shutil.rmtree(partial / STATES / states.WRITING, ignore_errors=True)
    last, problems = states.choose(partial / STATES, processes=processes.count(), any_number=restarted)
    for problem in problems:
        say(problem, err=True)
    states.restore(last, beside(partial))
    return last


def _note_run(partial: Path, run: str) -> None:
    if run:
        with artifacts.write_file(partial / RUN) as staging:
            staging.write_text(run, encoding="utf-8")
    else:
        (partial / RUN).unlink(missing_ok=True)


def _holds(path: Path, content: bytes) -> bool:
    """Whether a file has this content; a pipe or a device, which may never end, has not."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


@contextmanager
def only_resumable_kept(staging: Path, work: str | None) -> Iterator[None]:
    """If the block fails, keep the last state and the folder `work` alone; without either, nothing."""
    try:
        with artifacts.full_disk_named(staging):
            yield
    except BaseException as error:
        if processes.is_main():
            shutil.rmtree(staging / STATES / states.WRITING, ignore_errors=True)
            last = states.saved(staging / STATES)
            worked = work is not None and (staging / work).exists()
            # The prepared work may be what filled the disk.
            if not last and (isinstance(error, OSError) or not worked):
                shutil.rmtree(staging, ignore_errors=True)
            elif isinstance(error, OSError) and last:
                error.add_note(
                    f"The state after step {states.step_of(last[0]):,} is kept: --resume goes on from there."
                )
        raise


def interruption(at: int, folder: Path) -> str:
    """What to tell the user who interrupted a training at a step."""
    last = states.saved(folder)
    if not last:
        return f"Interrupted at step {at:,}; no state was saved before it (--set save_steps=N saves one every N steps)."
    return (
        f"Interrupted at step {at:,}; the state after step {states.step_of(last[0]):,} is kept: run the same command "
        "with --resume."
    )


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
