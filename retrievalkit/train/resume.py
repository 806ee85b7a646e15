"""What surrounds a long training: its log and progress bar, and what of a cut-off one is kept and goes on.

A training lies in a hidden folder beside its output until it is whole. `options.json` in there says which training it
is, so that another one does not go on with it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from retrievalkit import artifacts
from retrievalkit.errors import ArtifactError

LOG = "training.jsonl"

LOGS = "logs"

STATES = "trainer"

OPTIONS = "options.json"


class Bar(transformers.TrainerCallback):
    """A progress bar on standard error.

    Args:
        title: What is shown in front of it.
    """

    def __init__(self, title: str) -> None:
        self.progress = Progress(
            TextColumn(f"[bold]{title}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Start where the training starts."""
        self.task = self.progress.add_task("", total=state.max_steps, completed=state.global_step, status="")
        self.progress.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """A step further."""
        self.progress.update(self.task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Show the loss, and what was measured on dev questions."""
        shown = {name: value for name, value in (logs or {}).items() if name == "loss" or name.startswith("dev_")}
        if shown:
            self.progress.update(self.task, status=" ".join(f"{name} {value:.4f}" for name, value in shown.items()))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Done."""
        self.progress.stop()

    def say(self, text: str) -> None:
        """Show a line above the bar."""
        self.progress.console.print(text, highlight=False)


def finished(output: str | Path, kind: str, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of the very same training, where that has come to its end."""
    if artifacts.kind_of(output) != kind:
        return None
    manifest = artifacts.read_manifest(output)
    same = json.loads(json.dumps(identity, default=str)) == {name: manifest.get(name) for name in identity}
    return manifest if same else None


def prepare_partial(output: str | Path, identity: dict[str, Any], *, resume: bool) -> None:
    """Keep what a cut-off training left only if it was the same training and is to be resumed.

    Raises:
        ArtifactError: It was another one.
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


def keep_resumable(staging: Path) -> bool:
    """Of a training that failed, keep the last state alone; says whether there is one."""
    last = last_checkpoint(staging / STATES)
    for folder in set((staging / STATES).glob("*")) - {last}:
        shutil.rmtree(folder, ignore_errors=True)
    return last is not None


def step_of(checkpoint: Path) -> int:
    """After how many steps a state was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def cut_log(path: Path, checkpoint: Path | None) -> None:
    """Drop the lines of the log that a resumed training will write again."""
    if not path.exists():
        return
    step = step_of(checkpoint) if checkpoint else 0
    # The last line may have been cut off.
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
    path.write_text("".join(line for line in whole if json.loads(line)["step"] <= step), encoding="utf-8")


def last_checkpoint(folder: Path) -> Path | None:
    """The last state that the Trainer saved and finished saving."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    return next((path for path in found if _is_whole(path)), None)


def _is_whole(checkpoint: Path) -> bool:
    # The Trainer writes its own state last.
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
