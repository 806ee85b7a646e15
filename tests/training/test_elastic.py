"""Processes that torchrun restarts after a loss resume the training without --resume."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
import pytest

from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.training import loop, session
from trainings import bytes_of

pytestmark = forks

QUICK = {"batch_size": 8, "learning_rate": 1e-2, "precision": "fp32", "logging_steps": 2, "save_steps": 2}


@pytest.fixture
def programs(programs):
    """Trainings of five steps, with dropout."""
    more = {"train": {"limit": 40, "epochs": 1}, "rerank": {"limit": 40, "epochs": 1}, "pretrain": {"steps": 5}}
    return {
        name: lambda output, name=name, **changes: programs[name](output, **(more[name] | changes)) for name in more
    }


def as_by_torchrun(monkeypatch, run="job", restarts=0):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))


def cut_off(run, output):
    """A training that is killed in its fourth step; the state after the second is saved."""

    def killed():
        kill_at_call(loop.Loop, "compute_step", 4)
        run(output)

    assert in_another_process(killed) == -signal.SIGKILL
    assert [one.name for one in (storage.partial_folder(output) / "states").glob("step-*")] == ["step-2"]


@pytest.mark.parametrize("name", ["train", "rerank", "pretrain"])
def test_a_restarted_training_resumes(programs, name, tmp_path, monkeypatch):
    """Without --resume, to the same bytes."""
    programs[name](tmp_path / "whole")
    as_by_torchrun(monkeypatch, run="none")
    cut_off(programs[name], tmp_path / "out")
    as_by_torchrun(monkeypatch, run="none", restarts=1)
    steps = []
    original = loop.Loop.compute_step
    monkeypatch.setattr(loop.Loop, "compute_step", lambda *rest: steps.append(1) or original(*rest))
    programs[name](tmp_path / "out")
    assert len(steps) == 3
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
    programs[name](tmp_path / "out")
    assert len(steps) == 3, "a loss after the end does not train again"


@pytest.mark.parametrize(
    ("first", "then", "goes_on"),
    [("job", "job", True), ("job", "other", False), ("none", "none", False), ("", "job", False)],
)
def test_the_training_of_another_torchrun_is_not_resumed(programs, tmp_path, monkeypatch, first, then, goes_on):
    """A joining machine makes torchrun restart the processes without counting it: the run id decides then."""
    as_by_torchrun(monkeypatch, run=first)
    cut_off(programs["train"], tmp_path / "out")
    as_by_torchrun(monkeypatch, run=then)
    found = []
    monkeypatch.setattr(session, "Loop", lambda *given: found.append(given[3]))
    with pytest.raises(AttributeError):
        programs["train"](tmp_path / "out")
    assert [last is not None for last in found] == [goes_on]


def test_another_number_of_processes_resumes_with_a_note(programs, together, tmp_path, monkeypatch, capfd):
    """torchrun adds and removes machines; with --resume, another number is refused."""
    as_by_torchrun(monkeypatch)
    cut_off(programs["train"], tmp_path / "out")
    shutil.copytree(storage.partial_folder(tmp_path / "out"), storage.partial_folder(tmp_path / "by hand"))
    made = together(lambda: programs["train"](tmp_path / "out"))
    assert "The state after step 2 is of 1 process, and 2 processes continue" in capfd.readouterr().err
    assert (made[0]["counts"]["steps"], made[0]["processes"]) == (5, 2)
    as_by_torchrun(monkeypatch, run="other")
    with pytest.raises(AssertionError):
        together(lambda: programs["train"](tmp_path / "by hand", resume=True))
    assert "had 1 process, and 2 processes cannot resume it" in capfd.readouterr().err


# --- real torchruns -------------------------------------------------------------------------------------------------


@contextmanager
def machines(words, folder, count=2):
    """Start a torchrun per machine, each with a process, that meet at a port of this machine."""
    port = 29500 + os.getpid() % 1000
    options = (f"--nnodes={count}", "--max-restarts=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=job")
    where = (
        f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-conf=is_host={}",
        "--local-addr=localhost",
        "--monitor-interval=1",
    )
    started = []
    for number in range(count):
        command = [*options, *(word.format(int(not number)) for word in where), "-m", "retrievalkit", *map(str, words)]
        with (folder / f"{number}.log").open("w") as log:
            torchrun = [sys.executable, "-m", "torch.distributed.run", *command]
            started.append(
                subprocess.Popen(torchrun, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
            )
    try:
        yield started
    finally:
        for one in started:
            one.terminate()
            one.wait()


def until(found, seconds=200):
    end = time.monotonic() + seconds
    while not (answer := found()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return answer


@pytest.mark.slow
def test_two_machines_resume_after_a_process_was_killed(
    programs, together, tmp_path, tiny_model, tiny_collection, examples
):
    """And write the bytes of an uninterrupted training."""
    together(lambda: programs["train"](tmp_path / "whole", epochs=12.0))
    settings = QUICK | {"limit": 40, "epochs": 12.0}
    words = ["train", "--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", examples["train"]]
    words += ["--pooler", "mean"]
    words += ["--output", tmp_path / "out", *(f"--set={name}={value}" for name, value in settings.items())]
    states = storage.partial_folder(tmp_path / "out") / "states"
    with machines(words, tmp_path) as (first, second):
        until(lambda: any(states.glob("step-*")))
        (lost,) = psutil.Process(second.pid).children()
        lost.kill()
        ended = [first.wait(200), second.wait(200)]
    said = [(tmp_path / f"{number}.log").read_text() for number in range(2)]
    assert ended == [0, 0], said
    assert "resuming after step" in "".join(said)
    assert "".join(said).count("failed (exitcode") <= 2, "those started again met at once"
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")
