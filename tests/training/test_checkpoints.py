"""A training goes on from a state that is as it was written, or says which file is not and what to do: never otherwise.

States lie in `.out.partial/states/step-N`. Each file of one is needed, and nothing in one runs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct

import pytest
import torch

from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit import storage
from retrievalkit.errors import ArtifactError
from retrievalkit.training import checkpoints, loop, session
from trainings import bytes_of


@pytest.fixture(scope="module")
def resume(programs, examples):
    """Trains to a folder in twelve steps; negatives are mined anew twice before the state after step 8."""
    options = {"epochs": 4.0, "logging_steps": 1, "save_steps": 4, "dev": examples["test"]}
    options["refresh_options"] = {"every": 1, "depth": 5}
    return lambda output: programs["train"](output, resume=True, **options)


@pytest.fixture(scope="module")
def whole(resume, tmp_path_factory):
    """The bytes of the training that was not cut off."""
    output = tmp_path_factory.mktemp("whole") / "out"
    resume(output)
    return bytes_of(output)


@pytest.fixture(scope="module")
def killed(resume, tmp_path_factory):
    """What a training of twelve steps left that was killed in the eleventh."""
    output = tmp_path_factory.mktemp("killed") / "out"

    def run():
        kill_at_call(loop.Loop, "compute_step", 11)
        resume(output)

    assert in_another_process(run) == -signal.SIGKILL
    return storage.partial_folder(output)


@pytest.fixture
def cut_off(killed, tmp_path):
    """A copy of it, to be damaged; the state is the one after step 8."""
    return shutil.copytree(killed, tmp_path / ".out.partial") / "states" / "step-8"


def files_of(state):
    return sorted(path for path in state.rglob("*") if path.is_file())


def damage(path, how):
    data = bytearray(path.read_bytes())
    path.unlink()  # it may be linked
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "altered":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


# --- going on ------------------------------------------------------------------------------------------------------


@forks
def test_a_state_has_everything_to_resume_from(cut_off, resume, whole, tmp_path):
    """What lies beside the states comes back with them: the log, the best state so far, the negatives in use."""
    names = {path.relative_to(cut_off).as_posix() for path in files_of(cut_off)}
    expected = {"model.safetensors", "optimizer.pt", "random-0.pt", "progress.json"}
    expected |= {"state.json", *(f"beside/{name}" for name in ("training.jsonl", "best.safetensors"))}
    expected |= {"beside/selection.json", *(f"beside/negatives/epoch-{epoch}.jsonl" for epoch in (1, 2))}
    assert names == expected | {f"beside/negatives/epoch-{epoch}.audit.json" for epoch in (1, 2)}
    for name in ("training.jsonl", "best.safetensors", "selection.json", "negatives/epoch-2.jsonl"):
        (tmp_path / ".out.partial" / name).unlink()
    resume(tmp_path / "out")
    assert bytes_of(tmp_path / "out") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@forks
def test_a_complete_training_is_only_renamed(resume, whole, tmp_path):
    """It was killed while its states were removed: half of one is still there."""

    def killed():
        kill_at_call(session, "_resumed_from", 2)
        resume(tmp_path / "out")

    assert in_another_process(killed) == -signal.SIGKILL
    for name in ("options.json", "states/step-12/optimizer.pt"):
        (storage.partial_folder(tmp_path / "out") / name).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "Loop", None)
        assert resume(tmp_path / "out")["counts"]["steps"] == 12
    assert bytes_of(tmp_path / "out") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- damage --------------------------------------------------------------------------------------------------------


@forks
@pytest.mark.parametrize("how", ["missing", "truncated", "altered"])
def test_a_state_with_any_file_damaged_is_refused_by_name(killed, tmp_path, how):
    whole = killed / "states" / "step-8"
    for number, path in enumerate(files_of(whole)):
        folder = tmp_path / str(number)
        state = shutil.copytree(whole, folder / "step-8")
        damage(state / path.relative_to(whole), how)
        # The description, altered, may name another file.
        named = state if path.name == checkpoints.STATE else state / path.relative_to(whole)
        with pytest.raises(ArtifactError, match=rf"^'{named}.*delete the state's folder"):
            checkpoints.choose(folder, processes=1)


# --- what a stranger put there --------------------------------------------------------------------------------------


class Runs:
    """What runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def described_anew(state):
    """Make `state.json` say that the files are as they were written."""
    recorded = json.loads((state / "state.json").read_text())
    recorded["files"] = {name: storage.describe_file(state / name) for name in recorded["files"]}
    (state / "state.json").write_text(json.dumps(recorded))


@forks
@pytest.mark.parametrize("name", ["optimizer.pt", "random-0.pt"])
@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_no_pickle_runs(cut_off, resume, tmp_path, name, old):
    """Also where the state says that it was written so."""
    torch.save(Runs(tmp_path / "ran"), cut_off / name, _use_new_zipfile_serialization=not old)
    with pytest.raises(ArtifactError, match=f"{name}' (was altered|has)"):
        checkpoints.choose(cut_off.parent, processes=1)
    described_anew(cut_off)
    with pytest.raises(ArtifactError, match="does not fit this training"):
        resume(tmp_path / "out")
    assert not (tmp_path / "ran").exists()


@forks
def test_an_unlisted_file_is_refused(cut_off):
    (cut_off / "scaler.pt").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"scaler\.pt' is not listed in"):
        checkpoints.choose(cut_off.parent, processes=1)


@forks
@pytest.mark.parametrize(
    "text",
    [
        *("", "[" * 100_000, '{"processes": 1, "files": {"progress.json": 3}}'),
        '{"processes": 1, "files": {"../../training.jsonl": {"bytes": 0, "blake2b": "%s"}}}' % ("0" * 32),
    ],
    ids=lambda text: text[:40] or "empty",
)
def test_an_invalid_description_is_refused(cut_off, text):
    (cut_off / "state.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"state\.json' is (damaged|not valid JSON)"):
        checkpoints.choose(cut_off.parent, processes=1)


@forks
@pytest.mark.parametrize("name", ["optimizer.pt", "random-0.pt", "model.safetensors", "progress.json", "a step"])
def test_a_file_of_another_form_with_a_correct_checksum_is_refused(cut_off, resume, tmp_path, name):
    """No traceback: the state was made by hand."""
    if name.endswith(".safetensors"):
        (cut_off / name).write_bytes(struct.pack("<Q", 2) + b"{}")
    elif name.endswith(".json"):
        (cut_off / name).write_text("[]")
    elif name == "a step":
        (cut_off / "progress.json").write_text('{"step": 7, "terms": {}}')
    else:
        torch.save({"state": [1]}, cut_off / name)
    described_anew(cut_off)
    with pytest.raises(ArtifactError, match=r"does not fit this training|is damaged: it is"):
        resume(tmp_path / "out")
