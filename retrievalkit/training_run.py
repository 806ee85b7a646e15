"""What surrounds a long training: its log and progress bar, and what of a cut-off one is kept and goes on.

A training lies in a hidden folder beside its output until it is whole. `options.json` in there says which training it
is, so that another one does not go on with it.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from retrievalkit import artifacts
from retrievalkit.data.examples import Example
from retrievalkit.errors import ArtifactError
from retrievalkit.trainer import last_checkpoint

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


def trainer_arguments(options: Any, folder: Path, steps: int, **own: Any) -> transformers.TrainingArguments:
    """What Hugging Face's trainer is told: AdamW, linear warm-up and decay, a state once an epoch or so many steps.

    Args:
        options: Of any training: batch_size, learning_rate, weight_decay, adam_epsilon, max_gradient_norm,
            warmup_ratio, logging_steps, save_steps, precision, seed.
        folder: For the states.
        steps: How many there are, all epochs together.
        own: Arguments of one kind of training, such as how long it is.
    """
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        adam_epsilon=options.adam_epsilon,
        max_grad_norm=options.max_gradient_norm,
        lr_scheduler_type="linear",
        warmup_steps=int(options.warmup_ratio * steps),
        logging_steps=options.logging_steps,
        save_strategy="epoch" if options.save_steps is None else "steps",
        save_steps=options.save_steps or 500,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        fp16=options.precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
        **({"seed": options.seed} | own),
    )
    # The Trainer would split our steps over the threads of several GPUs, and wrongly.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def limited(rows: Sequence[Example], limit: int | None, seed: int) -> Sequence[Example]:
    """So many of the examples, drawn with the seed, in their order; None = all."""
    if limit is None or limit >= len(rows):
        return rows
    kept = random.Random(f"limit {seed}").sample(range(len(rows)), limit)
    return [rows[position] for position in sorted(kept)]


def tensorboard(folder: Path) -> list[transformers.TrainerCallback]:
    """The callback that logs for TensorBoard, where that is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return []
    callback = transformers.integrations.TensorBoardCallback()
    callback.logging_dir = str(folder)
    return [callback]


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
