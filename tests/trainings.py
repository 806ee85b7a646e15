"""Helpers of the tests of training: a short training, its output, and interruptions."""

from __future__ import annotations

import json

from retrievalkit import storage
from retrievalkit.training import checkpoints
from retrievalkit.training.loop import Loop


def quick_training(program, quick, **places):
    """Return a function that trains to a folder and returns the manifest; its keywords are further options.

    Args:
        program: `train`, `pretrain` or `train_reranker`.
        quick: Options that make it short.
        **places: Its model and data.
    """
    return lambda output, **changes: program(**(quick | places | changes), output=output).manifest


def bytes_of(folder):
    """Return all files except TensorBoard's, whose names and times differ."""
    files = [path for path in folder.rglob("*") if path.is_file() and "logs" not in path.relative_to(folder).parts]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def weights_of(folder):
    return storage.read_manifest(folder)["fingerprint"]


def log_of(folder):
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


def interrupt_at(monkeypatch, count):
    """Interrupt a training in a step; returns a list that grows with each step."""
    calls = []

    def step(self, *rest, original=Loop.compute_step):
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return original(self, *rest)

    monkeypatch.setattr(Loop, "compute_step", step)
    return calls


def saved_states(monkeypatch):
    saved = []

    def save(*rest, original=checkpoints.save):
        saved.append(1)
        original(*rest)

    monkeypatch.setattr(checkpoints, "save", save)
    return saved
