"""From a training step to a finished folder: the one path of `rkit train`, `rkit pretrain` and `rkit rerank train`.

Everything is checked before anything is written; the training runs in a hidden folder beside the output, where a killed
one is resumed; the finished folder gets weights, manifest, model card and curves, and then its name. Of several
processes the main one writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.artifacts import NOT_WEIGHTS
from retrievalkit.model.precision import default_device, resolve_precision
from retrievalkit.model.pretrained import load_weights, quiet
from retrievalkit.training import processes, sharding
from retrievalkit.training.card import ModelCard
from retrievalkit.training.curves import write_curves
from retrievalkit.training.loop import Loop, steps_per_epoch, trackers
from retrievalkit.training.options import LoopOptions, RunOptions
from retrievalkit.training.progress import Bar
from retrievalkit.training.resume import (
    OPTIONS,
    RUN,
    STATES,
    complete_but_for_its_name,
    finished,
    only_resumable_kept,
    prepare_partial,
)
from retrievalkit.training.selection import BEST, best_of
from retrievalkit.training.states import WEIGHTS, step_of
from retrievalkit.training.step import TrainingStep

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """A training that is ready to start.

    Attributes:
        step: What is trained, and how.
        kind: Kind of the folder, such as "checkpoint".
        command: The command that writes it, such as "train".
        options: Everything the user chose, for the manifest.
        inputs: Fingerprints of model and data, for the manifest.
        card: Makes the model card from the manifest.
        extra: More entries of the manifest.
    """

    step: TrainingStep[Any]
    kind: str
    command: str
    options: Mapping[str, Any]
    inputs: Mapping[str, Any]
    card: Callable[[Manifest], ModelCard]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, Any]:
        """What a training must have in common with a cut-off one to resume it."""
        return {"options": dict(self.options), "inputs": dict(self.inputs)}


def run_training(make: Callable[[], Training], options: RunOptions) -> Manifest:
    """Train and write a folder.

    Args:
        make: Reads data and model.
        options: Options of the loop, and where it writes.

    Returns:
        The manifest of the folder.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    processes.join()
    # Of a training that has ended just before a process was lost, nothing is left to go on with but its output.
    again = processes.restarted()
    with ExitStack() as stack:
        with processes.together():
            stack.enter_context(artifacts.held(Path(options.output), wait=again))
            if processes.is_main():
                artifacts.restore(Path(options.output))
        return _run(make, options, again)


def _run(make: Callable[[], Training], options: RunOptions, again: bool) -> Manifest:
    output, overwrite, resume = Path(options.output), options.overwrite, options.resume
    with processes.together():
        followers = trackers(options.report_to) if processes.is_main() else ()
        if not (resume or again):
            artifacts.check_output(output, overwrite=overwrite)
        training = make()
        done = finished(output, training.kind, training.identity) if resume or again else None
        if done is None:
            artifacts.check_output(output, overwrite=overwrite)
            training.step.rehearse()
    # As the main process saw it: it alone writes, and the others may have looked a moment later.
    if done := processes.from_main(done):
        return done
    with processes.together():
        manifest = complete_but_for_its_name(output, training.kind, training.identity) if resume or again else None
        last = None
        if manifest is None and processes.is_main():
            with artifacts.full_disk_named(artifacts.partial_folder(output)):
                last = prepare_partial(output, training.identity, resume=resume, again=again)
    last, manifest = processes.from_main((last, manifest))
    with _staging(output, overwrite=overwrite) as staging:
        if manifest is None:
            with only_resumable_kept(staging, training.step.work), quiet():
                steps = _train(training.step, options, staging, last, followers)
            manifest = _finish(training, options, staging, steps) if processes.is_main() else {}
        if processes.is_main():
            _tidy(staging, training.step.work)
    return processes.from_main(manifest)


def _staging(output: str | Path, *, overwrite: bool) -> AbstractContextManager[Path]:
    """The folder to train in, which the main process renames at the end."""
    if processes.is_main():
        return artifacts.write_folder(output, overwrite=overwrite, keep_partial=True)
    return nullcontext(artifacts.partial_folder(output))


def _train(
    step: TrainingStep[Any], options: RunOptions, staging: Path, last: Path | None, followers: tuple[str, ...]
) -> int:
    """Train, from the state `last` if there is one, and leave the best state in the module.

    Returns:
        The number of steps.
    """
    step.open(staging)
    total = options.total_steps(steps_per_epoch(len(step.samples), options.batch_size))
    if total == 0:
        return 0
    # Equal already, unless a component draws its initial weights in a way of its own.
    processes.share_weights(step.module)
    if last and step_of(last) == total:
        load_weights(step.module, last / WEIGHTS)
    else:
        bar = Bar(step.title, shown=processes.is_main())
        Loop(step, options, staging, total, bar, last, Path(options.output).name, followers).run()
        if step.sharded:
            sharding.make_whole(step.module)
    if processes.is_main() and (staging / BEST).exists():
        load_weights(step.module, staging / BEST)
    return total


def _finish(training: Training, options: LoopOptions, staging: Path, steps: int) -> Manifest:
    """Save what was trained and describe it."""
    step = training.step
    step.save(staging)
    several: dict[str, Any] = {"processes": processes.count()} if processes.count() > 1 else {}
    if (best := best_of(staging)) is not None:
        several["selection"] = best.as_dict()
    files = artifacts.describe_files(staging, skip=(*NOT_WEIGHTS, *_resumed_from(step.work)))
    manifest = artifacts.write_manifest(
        staging,
        training.kind,
        command=training.command,
        options=training.options,
        inputs=training.inputs,
        counts={**step.counts, "steps": steps},
        fingerprint=artifacts.fingerprint_files(files),
        files=files,
        precision=resolve_precision(options.precision, default_device()),
        **training.extra,
        **several,
    )
    (staging / "README.md").write_text(training.card(manifest).text(), encoding="utf-8")
    write_curves(staging)
    return manifest


def _resumed_from(work: str | None) -> list[str]:
    return [name for name in (STATES, BEST, work) if name is not None] + [RUN, OPTIONS]


def _tidy(staging: Path, work: str | None) -> None:
    """Remove what resuming alone needed; the options first, so that what is left without them is complete."""
    (staging / OPTIONS).unlink(missing_ok=True)
    for name in _resumed_from(work):
        artifacts.discard(staging / name)
