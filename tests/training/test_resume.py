"""A training that was interrupted at any moment resumes to the bytes of an uninterrupted training."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from retrievalkit_pretrain import token_store

from killed_processes import forks, in_another_process, kill, kill_at_call
from retrievalkit import storage
from retrievalkit.contracts import Pretrainer
from retrievalkit.errors import ArtifactError
from retrievalkit.models.retriever import Retriever
from retrievalkit.training import checkpoints, loop, selection
from retrievalkit.training.selection import DevSet
from trainings import bytes_of, interrupt_at, log_of

NAMES = ["train", "pretrain"]
# Trainings of nine and six steps, with states after every second step and the last.
RESUMED = {"train": {"epochs": 3, "logging_steps": 4, "separate_towers": True}, "pretrain": {"pretrainer": "retromae"}}


@pytest.fixture(scope="session")
def resumed(programs, examples):
    """Name -> its training, with the options that leave the most files to resume from."""
    more = {"train": {"dev": examples["test"]}, "pretrain": {}}
    return {
        name: lambda output, name=name, **changes: programs[name](output, **more[name] | RESUMED[name] | changes)
        for name in NAMES
    }


@pytest.fixture(scope="session")
def wholes(resumed, tmp_path_factory):
    """Name -> the bytes of the training that was not cut off."""
    folder = tmp_path_factory.mktemp("wholes")
    for name in NAMES:
        resumed[name](folder / name)
    return {name: bytes_of(folder / name) for name in NAMES}


def cut_file_and_kill(model, path):
    path.write_bytes(b"half of the weights")
    kill()


ALWAYS = {
    "before any state": lambda: kill_at_call(loop.Loop, "compute_step", 2),
    "in the middle of an epoch": lambda: kill_at_call(loop.Loop, "compute_step", 6),
    "while the weights of a state are written": lambda: setattr(checkpoints, "save_weights", cut_file_and_kill),
    "while the optimiser of a state is written": lambda: kill_at_call(torch, "save", 4),
    "before the last file of a state is written": lambda: kill_at_call(storage, "describe_files", 2),
    "between two states, the older still there": lambda: kill_at_call(checkpoints, "saved", 2),
    "after a line of the log": lambda: kill_at_call(loop.Loop, "log", 2, after=True),
    "before the states are removed": lambda: kill_at_call(storage, "discard", 2),
    "while the states are removed": lambda: kill_at_call(storage, "discard", 2, after=True),
    "before the folder gets its name": lambda: kill_at_call(storage.outputs, "_replace_folder", 1),
}
MOMENTS = {
    "train": ALWAYS
    | {
        "between the end of an epoch and dev selection": lambda: kill_at_call(DevSet, "measure", 4),
        "between the best state and its value": lambda: kill_at_call(selection, "save_weights", 1, after=True),
        "while the checkpoint is written": lambda: kill_at_call(Retriever, "save", 1),
    },
    "pretrain": ALWAYS
    | {
        "while the corpus is read": lambda: kill_at_call(token_store.Cutter, "cut", 2),
        "before the corpus is whole": lambda: kill_at_call(token_store, "write_json", 1),
        "while the model is written": lambda: kill_at_call(Pretrainer, "save", 1),
    },
}
SLOW = [(name, moment) for name in NAMES for moment in MOMENTS[name]]
FAST = [("train", "in the middle of an epoch"), ("pretrain", "while the corpus is read")]


@forks
@pytest.mark.parametrize(
    ("name", "moment"), [pytest.param(*one, marks=() if one in FAST else pytest.mark.slow) for one in SLOW]
)
def test_a_killed_training_resumes_to_the_same_bytes(resumed, wholes, tmp_path, name, moment):
    output = tmp_path / "out"

    def killed():
        MOMENTS[name][moment]()
        resumed[name](output)

    assert in_another_process(killed) == -signal.SIGKILL
    assert not output.exists()
    assert storage.partial_folder(output).exists()
    resumed[name](output, resume=True)
    assert bytes_of(output) == wholes[name]
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.slow
@forks
def test_a_training_can_be_killed_again_and_again(resumed, wholes, tmp_path):
    output = tmp_path / "out"

    def killed():
        kill_at_call(loop.Loop, "compute_step", 4)
        resumed["train"](output, resume=True)

    codes = []
    while not output.exists():
        codes.append(in_another_process(killed))
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert bytes_of(output) == wholes["train"]


@forks
def test_a_training_resumes_after_its_last_step_in_the_middle_of_an_epoch(programs, tmp_path):
    def killed():
        kill_at_call(Retriever, "save", 1)
        programs["train"](tmp_path / "out", epochs=1.5)

    programs["train"](tmp_path / "whole", epochs=1.5)
    assert in_another_process(killed) == -signal.SIGKILL
    assert programs["train"](tmp_path / "out", epochs=1.5, resume=True)["counts"]["steps"] == 5
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("name", NAMES)
def test_only_resume_continues(programs, tmp_path, monkeypatch, capfd, name):
    calls = interrupt_at(monkeypatch, 6)
    for output in ("resumed", "restarted"):
        calls.clear()
        with pytest.raises(KeyboardInterrupt) as interrupted:
            programs[name](tmp_path / output)
        kept = "Interrupted at step 5; the state after step 4 is kept: run the same command with --resume."
        assert interrupted.value.__notes__ == [kept]
    programs[name](tmp_path / "restarted")
    assert len(calls) == 12
    calls[:] = [1] * 6
    with monkeypatch.context() as patch:
        patch.setattr(token_store, "array", None)  # the corpus is not read again
        programs[name](tmp_path / "resumed", resume=True)
    assert "resuming after step 4 of 6\n" in capfd.readouterr().err
    assert len(calls) == 8, "six steps, and the last two again"
    assert bytes_of(tmp_path / "resumed") == bytes_of(tmp_path / "restarted")
    assert [line["step"] for line in log_of(tmp_path / "restarted")] == [2, 4, 6]


def test_an_interrupted_training_without_a_state_leaves_no_files(programs, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        programs["train"](tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


CHANGES = {
    "train": [{"seed": 1}, {"pooler": "last"}, {"epochs": 3}, {"separate_towers": True}],
    "pretrain": [{"seed": 1}, {"pretrainer": "retromae"}, {"max_length": 10}],
}


@pytest.mark.parametrize("name", NAMES)
def test_another_training_cannot_be_resumed(programs, tmp_path, monkeypatch, name):
    interrupt_at(monkeypatch, 6)
    with pytest.raises(KeyboardInterrupt):
        programs[name](tmp_path / "out")
    for change in CHANGES[name]:
        with pytest.raises(ArtifactError, match="had other options or other data, so it cannot be resumed"):
            programs[name](tmp_path / "out", resume=True, **change)
        assert storage.partial_folder(tmp_path / "out").exists(), "what was trained is still there"


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_training_is_not_repeated(programs, tmp_path, monkeypatch, name):
    """Nor is anything read if the output exists; --overwrite replaces it."""
    returned = programs[name](tmp_path / "out", resume=True)
    calls = interrupt_at(monkeypatch, 0)
    before = bytes_of(tmp_path / "out")
    assert programs[name](tmp_path / "out", resume=True) == json.loads(json.dumps(returned))
    for changes in ({"resume": True, "seed": 1}, {"model": "no-such/model"}):
        with pytest.raises(ArtifactError, match="exists already"):
            programs[name](tmp_path / "out", **changes)
    assert bytes_of(tmp_path / "out") == before
    assert not calls
    assert programs[name](tmp_path / "out", overwrite=True, seed=1)["fingerprint"] != returned["fingerprint"]


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_an_oserror_and_leaves_no_files(programs, tmp_path, monkeypatch, name):
    """Libraries raise a SafetensorError or a RuntimeError; the command prints an OSError in one line."""

    def full(*_, **__):
        msg = "Error while serializing: I/O error: No space left on device (os error 28)"
        raise RuntimeError(msg)

    monkeypatch.setattr(checkpoints, "save_weights", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        programs[name](tmp_path / "out")
    assert caught.value.filename.endswith(".out.partial")
    assert list(tmp_path.iterdir()) == []
