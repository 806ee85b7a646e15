"""Training with weights sharded by FSDP equals training with whole weights; two real processes, connected by gloo."""

from __future__ import annotations

import signal

import pytest
import torch
from safetensors.torch import load_file

from killed_processes import forks, kill_at_call, start
from retrievalkit import storage
from retrievalkit.errors import OptionError
from retrievalkit.models.retriever import Retriever
from retrievalkit.training import loop
from retrievalkit.training.collective import join
from trainings import bytes_of, log_of

pytestmark = [forks, pytest.mark.slow]


@pytest.fixture
def quick(programs):
    more = {"epochs": 1, "limit": 20, "batch_size": 5, "logging_steps": 1, "adam_epsilon": 1e-2}
    return lambda output, dropout=0.0, **changes: programs["train"](
        output, encoder_options={"dropout": dropout}, **more, **changes
    )


@pytest.mark.parametrize("size", [None, 3], ids=["whole", "cached"])
def test_sharded_weights_are_trained_like_whole_weights(together, quick, tmp_path, size):
    """The same losses and weights, except for rounding; the checkpoint has whole weights."""
    together(lambda: quick(tmp_path / "whole", micro_batch_size=size))
    together(lambda: quick(tmp_path / "divided", micro_batch_size=size, sharding="full"))
    logs = [log_of(tmp_path / name) for name in ("whole", "divided")]
    assert len(logs[0]) == 4
    for one, other in zip(*logs, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    one, other = (load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("whole", "divided"))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-5)
    assert storage.read_manifest(tmp_path / "divided")["options"]["sharding"] == "full"
    assert Retriever.load(tmp_path / "divided").encode([("", "lima")], "query").vectors.isfinite().all()


def test_a_killed_training_of_sharded_weights_resumes_to_the_same_bytes(together, quick, tmp_path, tmp_path_factory):
    """With optimizer states and dropout."""
    options = {"dropout": 0.3, "sharding": "full", "micro_batch_size": 3}
    together(lambda: quick(tmp_path / "whole", **options))

    def killed():
        if join().rank == 1:
            kill_at_call(loop.Loop, "compute_step", 4)
        quick(tmp_path / "out", **options)

    started = start(killed, tmp_path_factory.mktemp("killed"), 2)
    started[1].join(timeout=300)
    assert started[1].exitcode == -signal.SIGKILL
    started[0].terminate()
    started[0].join(timeout=300)
    assert (storage.partial_folder(tmp_path / "out") / "states" / "step-2").exists()
    together(lambda: quick(tmp_path / "out", resume=True, **options))
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


def test_options_that_sharding_does_not_support_are_refused(quick, tmp_path):
    with pytest.raises(OptionError, match=r"does not support a single process and --separate-towers\."):
        quick(tmp_path / "out", sharding="full", separate_towers=True)
    assert list(tmp_path.iterdir()) == []
