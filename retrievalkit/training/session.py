"""Runs a training and writes its output folder, for `rkit train`, `rkit pretrain` and `rkit rerank train`.

Everything is checked before anything is written. The training runs in a hidden folder next to the output, from which an
interrupted training resumes. Weights, manifest, model card and curves are written there; the folder is renamed last.
With several processes, only the main process writes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.models.pretrained import load_weights, quiet, uploading
from retrievalkit.storage import NOT_WEIGHTS
from retrievalkit.training import checkpoints
from retrievalkit.training.collective import Collective, joined
from retrievalkit.training.loop import Loop, Training, trackers
from retrievalkit.training.options import RunOptions
from retrievalkit.training.pages import write_curves
from retrievalkit.training.selection import BEST, best_of

Manifest = dict[str, Any]


def run_training(prepare: Callable[[Collective], Training], options: RunOptions) -> Manifest:
    """Train, write the output folder and return its manifest; all processes must call it.

    Args:
        prepare: Creates the training, which the processes of the argument share.
        options: Output, resuming, uploading and trackers.
    """
    output = Path(options.output)
    with joined() as collective, ExitStack() as stack:
        main = collective.is_main
        # If the training ended just before a process was lost, only its output is left to continue from.
        again = collective.restarted()
        resume = options.resume or again
        stack.enter_context(uploading(output, options.push if main else None))
        with collective.together():
            stack.enter_context(storage.held(output, wait=again))
            if main:
                storage.restore(output)
        with collective.together():
            followers = trackers(options.report_to) if main else ()
            if not resume:
                storage.check_output(output, overwrite=options.overwrite)
            training = prepare(collective)
            identity = {"options": dict(training.described), "inputs": dict(training.inputs)}
            done = checkpoints.finished(output, training.kind, identity) if resume else None
            if done is None:
                storage.check_output(output, overwrite=options.overwrite)
                training.dry_run()
        # Decided by the main process: only it writes, and the others may have looked a moment later.
        if done := collective.from_main(done):
            return done
        last = manifest = None
        partial = storage.partial_folder(output)
        with collective.together():
            if main:
                # A training killed while it removes the files for resuming is complete except for the final rename.
                if resume and not (partial / checkpoints.OPTIONS).exists():
                    manifest = checkpoints.finished(partial, training.kind, identity)
                if manifest is None:
                    with storage.full_disk_named(partial):
                        last = checkpoints.prepare_partial(
                            output, identity, resume=options.resume, again=again, processes=collective.size
                        )
        last, manifest = collective.from_main((last, manifest))
        writing = storage.write_folder(output, overwrite=options.overwrite, keep_partial=True)
        with writing if main else nullcontext(partial) as staging:
            if manifest is None:
                kept = checkpoints.only_resumable_kept(staging, training.work)
                with kept if main else storage.full_disk_named(staging), quiet():
                    steps = Loop(training, collective, staging, last, output.name, followers).run()
                    if main and (staging / BEST).exists():
                        load_weights(training.module, staging / BEST)
                manifest = _finish(training, staging, steps) if main else {}
            if main:
                # The options first: a folder without them is complete.
                for name in _resumed_from(training):
                    storage.discard(staging / name)
        return collective.from_main(manifest)


def _finish(training: Training, staging: Path, steps: int) -> Manifest:
    """Save the trained model with its manifest, model card and curves."""
    training.save(staging)
    processes = training.collective.size
    entries: dict[str, Any] = {"processes": processes} if processes > 1 else {}
    if (best := best_of(staging)) is not None:
        entries |= best.entries(held_out=training.held_out)
    files = storage.describe_files(staging, skip=(*NOT_WEIGHTS, *_resumed_from(training)))
    manifest = storage.write_manifest(
        staging,
        training.kind,
        command=training.command,
        options=training.described,
        inputs=training.inputs,
        counts={**training.counts, "steps": steps},
        fingerprint=storage.fingerprint_files(files),
        files=files,
        precision=training.precision,
        **training.entries,
        **entries,
    )
    (staging / "README.md").write_text(training.card(manifest), encoding="utf-8")
    write_curves(staging)
    return manifest


def _resumed_from(training: Training) -> list[str]:
    work = [] if training.work is None else [training.work]
    return [checkpoints.OPTIONS, checkpoints.STATES, BEST, *work, checkpoints.RUN]
