"""Several processes share a step and train the weights of a single process; real processes, connected by gloo."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed import TCPStore

from killed_processes import forks, kill_at_call, start
from retrievalkit import cli, storage
from retrievalkit.contracts import Representation
from retrievalkit.errors import InputError, RetrievalkitError
from retrievalkit.models import retriever
from retrievalkit.training import collective, loop, selection, session
from retrievalkit.training.collective import ALONE, GradientSum, divide, join, joined
from trainings import bytes_of

pytestmark = forks


def test_a_process_that_cannot_reach_the_others_is_reported(monkeypatch):
    """In one line; rank 0, which stores the addresses, was killed."""
    store = [TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)]
    placed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store[0].port), "WORLD_SIZE": "2", "RANK": "1"}
    for name, value in (placed | {"LOCAL_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "False"}).items():
        monkeypatch.setenv(name, value)
    threading.Timer(1.0, store.clear).start()
    with pytest.raises(RetrievalkitError, match="process 1 cannot reach the others at"), joined():
        pass


# --- start ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, r"WORLD_SIZE is 2, and RANK is not set.*torchrun"),
        (
            {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            r"no GPU for process 3 .*has 2\. Use --nproc-per-node 2",
        ),
    ],
)
def test_a_start_without_torchrun_and_too_many_processes_are_refused(monkeypatch, environment, message):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=message):
        join()


def test_an_error_in_any_process_ends_all_and_is_reported_once(together):
    def check():
        if join().rank > 0:
            msg = f"process {join().rank}"
            raise InputError(msg)

    def fail():
        try:
            with join().together():
                check()
        except (InputError, SystemExit) as error:
            return type(error).__name__, str(error)

    assert together(fail, 3) == [("SystemExit", "2"), ("InputError", "process 1"), ("SystemExit", "2")]


def test_a_mistake_in_the_command_line_is_printed_once(together, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")

    def wrong():
        ended = CliRunner().invoke(cli.main, ["train", "--epochz", "3"])
        return ended.exit_code, "--epochs" in ended.output

    assert together(wrong) == [(2, True), (2, False)]


# --- division ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(1, 5))
def test_texts_are_divided_evenly(sizes, count):
    shares = divide(sizes, count)
    assert sorted(text for share in shares for text in share) == list(range(len(sizes)))
    assert all(share == sorted(share) for share in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    loads = [sum(sizes[text] for text in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


# --- exchange ------------------------------------------------------------------------------------------------------

PARTS = {"first": slice(0, 2), "rest": slice(2, 4)}


def made(texts, vectors=None, masked=False, weights=False, extras=False, keyed=False, dtype=torch.float32):
    """Return a representation whose values identify its texts; without texts, a placeholder with more vectors."""
    count = vectors if vectors is not None else max((text % 3 + 1 for text in texts), default=7)
    numbers = torch.tensor(texts or [0], dtype=dtype)
    values = (numbers[:, None, None] + torch.arange(count)[:, None] / 8 + torch.arange(4) / 64).to(dtype)
    return Representation(
        values.requires_grad_() if count else None,
        torch.arange(count) <= torch.tensor(texts or [0])[:, None] % 3 if masked else None,
        (numbers[:, None] * torch.arange(5)).to(dtype).requires_grad_() if weights else None,
        kept=0,
        parts=PARTS,
        extras={"gate": numbers.clone().requires_grad_(), "each": values[..., 0].detach()} if extras else {},
        keys=(8 * values[..., 0]).detach().long() if keyed else None,
    )


# Texts of each process; in the last two, a process has none.
SHARES = [[[0, 3, 4], [1, 2]], [[1], [0, 2, 3, 4]], [[0, 1, 2, 3, 4], []], [[], [0, 1]]]
GATHERED = [
    {"vectors": 1},
    {"vectors": 3, "masked": True},
    {"masked": True},
    {},
    {"vectors": 2, "weights": True},
    {"vectors": 0, "weights": True},
    {"masked": True, "extras": True},
    {"masked": True, "keyed": True},
    {"vectors": 2, "keyed": True},
    {"vectors": 0, "weights": True, "extras": True},
    {"vectors": 1, "dtype": torch.bfloat16},
]


def test_every_process_has_all_representations_in_order(together):
    def gathered(shares, options):
        own = made(shares[join().rank], **options)
        whole = join().gather(own, shares)
        read = [(one.vectors, one.weights, one.extras.get("gate")) for one in (whole, own)]
        torch.autograd.backward(sum(one.float().sum() for one in read[0] if one is not None))
        return whole.detach(), [one.grad for one in read[1] if one is not None]

    cases = [(shares, options) for shares in SHARES for options in GATHERED]
    for rank, found in enumerate(together(lambda: [gathered(*case) for case in cases])):
        for (whole, gradients), (shares, options) in zip(found, cases, strict=True):
            texts = sorted(text for share in shares for text in share)
            assert (whole.kept, whole.parts, len(whole)) == (0, PARTS, len(texts))
            for row, text in enumerate(texts):
                part = made([text], **options)
                if part.vectors is not None:
                    every = slice(None)
                    vectors = whole.vectors[row][every if whole.vector_mask is None else whole.vector_mask[row]]
                    expected = part.vectors[0][every if part.vector_mask is None else part.vector_mask[0]]
                    # Without a mask, also the padding of its chunk.
                    assert torch.equal(vectors if options else vectors[: len(expected)], expected)
                    if part.keys is not None:
                        assert torch.equal(whole.keys[row], (8 * whole.vectors[row, :, 0]).long())
                if part.weights is not None:
                    assert torch.equal(whole.weights[row], part.weights[0])
                for name, extra in part.extras.items():
                    received = whole.extras[name][row]
                    assert torch.equal(received[: extra.shape[1]] if extra.dim() > 1 else received, extra[0])
            # A placeholder gets no gradient.
            for gradient in gradients:
                assert torch.equal(gradient, torch.full_like(gradient, float(bool(shares[rank]))))


def test_gradients_are_summed_and_weights_and_draws_are_shared(together):
    """A gradient that a process lacks counts as 0; each process continues its own random numbers."""

    def exchanged():
        collective = join()
        rank = collective.rank
        parameters = [torch.nn.Parameter(torch.zeros(2, 3).to(dtype)) for dtype in (torch.float32, torch.float64) * 2]
        gradients = collective.gradient_sum(parameters)
        # The first backward pass adds to that of the block; in the second step, no process waits for the unused weight.
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = None
            (parameters[0].sum() * rank).backward()
            used = [number for number in range(3) if number != 1 or rank == 1]
            with gradients.last_backward():
                sum((parameters[number] * 10**number).sum() for number in used).backward()
        torch.manual_seed(rank)
        module = torch.nn.BatchNorm1d(3)
        torch.nn.init.normal_(module.weight)
        module.num_batches_tracked += rank
        collective.share_weights(module)
        before = torch.get_rng_state()
        with collective.same_draws(3, torch.device("cpu")):
            same = torch.rand(2)
        assert torch.equal(before, torch.get_rng_state())
        sums = [None if one.grad is None else one.grad.flatten()[0].item() for one in parameters]
        return sums, {"same": same, **module.state_dict()}

    (gradients, main), (others, other) = together(exchanged)
    assert gradients == others == [3.0, 10.0, 200.0, None]
    assert other["num_batches_tracked"] == 0
    assert main["weight"].std() > 0
    assert_close(main, other, rtol=0.0, atol=0.0)
    before = torch.get_rng_state()
    with ALONE.same_draws(3, torch.device("cpu")):
        torch.rand(2)
    assert not torch.equal(before, torch.get_rng_state()), "a single process continues its own random numbers"


def test_all_processes_get_the_results_of_all_items_in_order(together):
    squares = [[item * item for item in range(count)] for count in (0, 1, 5)]
    found = together(lambda: [join().spread(lambda item: item * item, range(count)) for count in (0, 1, 5)], 3)
    assert found == [squares] * 3


def test_sums_start_during_the_backward_pass(together):
    """The last layers' first; weights that no process uses delay nothing after the first step."""

    def started():
        layers = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(3)), torch.nn.Linear(2, 2))
        seen = []
        gradients = GradientSum(list(layers.parameters()))
        layers[0].weight.register_hook(lambda _: seen.append(len(gradients._sums)))
        for _ in range(2):
            layers.zero_grad()
            with gradients.last_backward():
                layers[:3](torch.ones(1, 2)).sum().backward()
        return seen

    assert together(started) == [[0, 2], [0, 2]]


def test_sums_in_bf16_are_rounded(together):
    def summed():
        weight = torch.nn.Parameter(torch.ones(()))
        sums = []
        for dtype in (None, torch.bfloat16):
            weight.grad = None
            gradients = join().gradient_sum([weight], dtype)
            with gradients.last_backward():
                (weight * (1 + 2**-10)).backward()
            sums.append(weight.grad.item())
        return sums

    assert together(summed) == [[2 + 2**-9, 2.0]] * 2


def test_a_stalled_process_ends_the_others(tmp_path, monkeypatch):
    """After the timeout: 2 s here."""
    monkeypatch.setenv(collective.PATIENCE, "0.033")

    def step():
        with pytest.raises(RetrievalkitError, match=r"has not answered for 0\.033 minutes"), joined() as others:
            if others.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            others.everywhere(1)

    main, other = start(step, tmp_path, 2)
    main.join(timeout=60)
    other.kill()
    other.join()
    assert main.exitcode == 0


# --- a step --------------------------------------------------------------------------------------------------------

PLUGIN = """
import torch
from retrievalkit import hookimpl
from retrievalkit.contracts import Loss, LossValue, Pooler, Representation
from retrievalkit.scoring.rule import scores
from retrievalkit.training.collective import join

@hookimpl
def register_poolers(register):
    register("all_tokens", "local_shared:AllTokens")
    register("both", "local_shared:Both")
    register("failing", "local_shared:FailingPooler")

@hookimpl
def register_losses(register):
    register("scaled", "local_shared:Scaled")
    register("failing", "local_shared:Failing")

class AllTokens(Pooler):  # a vector a token of documents: another number of them in each chunk
    def __init__(self, info):
        super().__init__()
    def forward(self, states, side):
        if side == "query":
            return Representation(states.last[:, :1])
        return Representation(states.last, states.attention_mask.bool())

class Both(Pooler):
    def __init__(self, info):
        super().__init__()
        self.terms = torch.nn.Linear(info.width, 50)
    def forward(self, states, side):
        return Representation(states.last[:, :1], weights=self.terms(states.last[:, 0]).relu())

class Scaled(Loss):  # with a weight of its own, and noise
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(0.7))
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        noise = torch.rand(()) * 0.0
        total = torch.nn.functional.cross_entropy(scores(queries, documents) * self.scale + noise, positives)
        return LossValue(total, {"drawn": torch.rand(())})

class OutOfMemory(torch.autograd.Function):  # once in process 1, in the forward or the backward pass
    times = 1
    @classmethod
    def meet(cls):
        if join().rank == 1 and cls.times:
            cls.times -= 1
            raise torch.OutOfMemoryError
    @staticmethod
    def forward(ctx, tensor, place):
        ctx.place = place
        if place == "forward" and tensor.requires_grad:
            OutOfMemory.meet()
        return tensor.view_as(tensor)
    @staticmethod
    def backward(ctx, gradient):
        if ctx.place == "backward":
            OutOfMemory.meet()
        return gradient, None

class FailingPooler(Pooler):
    def __init__(self, info, *, place: str = "forward", times: int = 1):
        super().__init__()
        self.place = place
        OutOfMemory.times = times
    def forward(self, states, side):
        return Representation(OutOfMemory.apply(states.last[:, :1], self.place))

class Failing(Loss):
    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        logits = OutOfMemory.apply(scores(queries, documents), "forward")
        return LossValue(torch.nn.functional.cross_entropy(logits, positives))
"""

# Eight queries and sixteen documents. Epsilon is large, so that rounding does not decide the sign of an update.
STEP = {"epochs": 1, "limit": 8, "batch_size": 8, "learning_rate": 1e-2, "precision": "fp32"}
STEP |= {"logging_steps": 1, "warmup_ratio": 0.0, "adam_epsilon": 1e-2}
STEPS = {
    "plain": {"pooler": "mean"},
    "cached": {"pooler": "mean", "micro_batch_size": 3, "separate_towers": True},
    "many vectors": {"pooler": "all_tokens", "batch_tokens": 60},
    "many vectors, cached": {"pooler": "all_tokens", "micro_batch_size": 2},
    "dense and weights": {"pooler": "both"},
    "dense and weights, cached": {"pooler": "both", "micro_batch_size": 3},
    "a loss with weights": {"pooler": "mean", "loss": "scaled", "max_gradient_norm": 0.01},
    "fewer texts than processes": {"pooler": "mean", "limit": 2, "negatives": 0},
    "fewer texts than processes, cached": {"pooler": "both", "limit": 2, "negatives": 0, "micro_batch_size": 1},
}


@pytest.fixture
def quick(programs, tmp_path_factory, monkeypatch, fresh_registry):
    """Train for some steps; keywords are options of `train`."""
    plugin = tmp_path_factory.mktemp("plugin") / "local_shared.py"
    plugin.write_text(PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(plugin))
    return lambda output, dropout=0.0, **changes: programs["train"](
        output, encoder_options={"dropout": dropout}, **(STEP | changes)
    )


def one_step(quick, output, **changes):
    """Return the gradients of a step, the weights after it, and the logged values."""
    seen = {}

    class Watching(loop.Loop):
        def prepare(self):
            # In float64: rounding would hide a mistake.
            self.training.module.double()
            super().prepare()
            clip = self.accelerator.clip_grad_norm_

            def watched(weights, most):
                named = self.module.named_parameters()
                seen["gradients"] = {name: one.grad.clone() for name, one in named if one.grad is not None}
                return clip(weights, most)

            self.accelerator.clip_grad_norm_ = watched

        def compute_step(self, inputs):
            returned = super().compute_step(inputs)
            seen["terms"] = {name: float(values[-1]) for name, values in self.terms.items()}
            seen["seed"] = torch.initial_seed()
            seen["weights"] = {name: one.detach().clone() for name, one in self.module.named_parameters()}
            return returned

    original = session.Loop
    session.Loop = Watching
    try:
        manifest = quick(output, **changes)
    finally:
        session.Loop = original
    assert manifest["counts"]["steps"] == 1
    return seen


def assert_close(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], msg=lambda text, name=name: f"{name}: {text}", **tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_compute_the_gradients_and_weights_of_one(together, quick, tmp_path, count):
    steps = {name: options for name, options in STEPS.items() if count == 2 or "fewer" in name}

    def all_steps():
        folder = tmp_path / f"{join().size}"
        return {name: one_step(quick, folder / name, **options) for name, options in steps.items()}

    alone, found = all_steps(), together(all_steps, count)
    for name in steps:
        expected = alone[name]
        assert max(gradient.abs().max() for gradient in expected["gradients"].values()) > 1e-5
        for rank, one in enumerate(seen[name] for seen in found):
            assert_close(expected["gradients"], one["gradients"], rtol=1e-7, atol=1e-12)
            assert_close(expected["weights"], one["weights"], rtol=1e-7, atol=1e-12)
            assert_close(found[0][name]["weights"], one["weights"], rtol=0.0, atol=0.0)
            assert one["terms"] == found[0][name]["terms"], "also what is drawn in the loss"
            assert one["terms"]["loss"] == pytest.approx(expected["terms"]["loss"], rel=1e-5)
            assert one["seed"] == STEP.get("seed", 42) + rank
        manifests = [storage.read_manifest(tmp_path / part / name) for part in ("1", str(count))]
        assert [manifest.get("processes") for manifest in manifests] == [None, count]
        assert manifests[0]["options"] == manifests[1]["options"]


FAILING = {
    "encoding": {"pooler": "failing"},
    "encoding again": {"pooler": "failing", "micro_batch_size": 4},
    "loss": {"pooler": "failing", "pooler_options": {"times": 1, "place": "never"}, "loss": "failing"},
    "backward": {"pooler": "failing", "pooler_options": {"place": "backward"}},
}


def test_all_processes_repeat_a_step_in_which_one_ran_out_of_memory(together, quick, tmp_path):
    def steps():
        folder = tmp_path / f"{join().size}"
        return {name: one_step(quick, folder / name, **options) for name, options in FAILING.items()}

    alone, found = steps(), together(steps)
    for name in FAILING:
        for one in found:
            assert_close(alone[name]["gradients"], one[name]["gradients"], rtol=1e-7, atol=1e-12)
            assert_close(alone[name]["weights"], one[name]["weights"], rtol=1e-7, atol=1e-12)
        cached = storage.read_manifest(tmp_path / "2" / name).get("gradient_caching", False)
        assert cached == (name != "encoding"), "only process 1 encodes again before the others wait for it"


def test_a_process_without_enough_memory_ends_the_others(together, quick, tmp_path):
    def train():
        errors = {0: "another process has ended", 1: "too little memory for the smallest part of a step"}
        with pytest.raises(RetrievalkitError, match=errors[join().rank]):
            quick(tmp_path / "out", pooler="failing", pooler_options={"times": 99})

    together(train)
    assert not (tmp_path / "out").exists()


# --- resuming ------------------------------------------------------------------------------------------------------

RESUMED = {"limit": 24, "epochs": 2, "save_steps": 2, "logging_steps": 4, "pooler": "mean", "dropout": 0.3}


# Six steps: states are saved after 2, 4 and 6, and dev questions evaluated after 3 and 6.
MOMENTS = {
    "in a step": (1, lambda: kill_at_call(loop.Loop, "compute_step", 4)),
    "before its random state is written": (1, lambda: kill_at_call(torch, "save", 2)),
    "while dev questions are evaluated": (0, lambda: kill_at_call(selection.DevSet, "measure", 3)),
    "while the folder is finished": (0, lambda: kill_at_call(retriever.Retriever, "save", 1)),
}


@pytest.mark.slow
def test_a_killed_training_of_two_processes_resumes_to_the_same_bytes(
    together, quick, tmp_path, examples, tmp_path_factory
):
    """With dropout, so the random state of each process is restored too."""
    together(lambda: quick(tmp_path / "whole", dev=examples["test"], **RESUMED))
    expected = bytes_of(tmp_path / "whole")
    for number, (rank, moment) in enumerate(MOMENTS.values()):
        output = tmp_path / f"out{number}"

        def killed(output=output, rank=rank, moment=moment):
            if join().rank == rank:
                moment()
            quick(output, dev=examples["test"], **RESUMED)

        started = start(killed, tmp_path_factory.mktemp("killed"), 2)
        started[rank].join(timeout=300)
        assert started[rank].exitcode == -signal.SIGKILL
        # As torchrun does.
        started[1 - rank].terminate()
        started[1 - rank].join(timeout=300)
        assert not output.exists()
        together(lambda output=output: quick(output, dev=examples["test"], resume=True, **RESUMED))
        assert bytes_of(output) == expected
        assert not storage.partial_folder(output).exists()


# --- torchrun ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_torchrun_trains_the_weights_of_one_process(quick, tmp_path, tiny_model, tiny_collection, examples):
    """And prints the summary once."""
    options = {"limit": 16, "epochs": 2.0, "micro_batch_size": 4}
    quick(tmp_path / "alone", **options, pooler="both", dev=examples["test"])
    words = ["-m", "torch.distributed.run", "--nproc-per-node", 2, "-m", "retrievalkit", "train", "--model", tiny_model]
    words += ["--corpus", tiny_collection.corpus, "--examples", examples["train"], "--dev", examples["test"]]
    words += ["--pooler", "both", *(f"--set={one}={value}" for one, value in (STEP | options).items())]
    words += ["--set=encoder.dropout=0.0", "--set=save_steps=2", "--output", tmp_path / "two"]

    ended = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(
        rf"{tmp_path}/two: trained on 16 examples in 4 steps; nDCG@10 on 16 dev questions .*\n", ended.stdout
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "two"]
    manifests = [storage.read_manifest(tmp_path / name) for name in ("alone", "two")]
    assert manifests[0]["options"] == manifests[1]["options"]
    assert manifests[0]["inputs"] == manifests[1]["inputs"]
    assert set(bytes_of(tmp_path / "alone")) == set(bytes_of(tmp_path / "two"))
    for file in ("encoder/model.safetensors", "pooler.safetensors"):
        alone, two = (load_file(tmp_path / name / file) for name in ("alone", "two"))
        assert_close(alone, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("command", [["run", "recipe.yaml"], ["convert", "corpus.jsonl"]], ids=str)
def test_torchrun_is_refused_for_other_commands(monkeypatch, command):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ended = CliRunner().invoke(cli.main, [*command, "--output", "out"])
    assert ended.exit_code == 2
    name = " ".join(command[:-1])
    assert f"rkit {name} runs in one process. Start it without torchrun, which is for rkit train, " in ended.output
