"""`rkit train --refresh-negatives`: negatives of the current model, and the same after resuming."""

from __future__ import annotations

import json
import signal
from functools import wraps

import pytest

import retrievalkit as rk
from killed_processes import first_fast, forks, in_another_process, kill_at_call
from retrievalkit.data.examples import read_examples
from retrievalkit.errors import InputError
from retrievalkit.mining import parts as mining
from retrievalkit.mining import sources
from retrievalkit.search import searcher
from retrievalkit.training import loop, refresh, sampling
from retrievalkit.training.options import TrainOptions
from retrievalkit.training.refresh import RefreshOptions, refresh_options, share_changed
from trainings import bytes_of, log_of

# Two steps per epoch: epochs end with steps 2, 4, 6 and 8.
QUICK = {"epochs": 4, "limit": 16, "logging_steps": 3, "save_steps": 3}
REFRESH = {"every": 2, "depth": 8, "negatives": 4}


@pytest.fixture(scope="module")
def quick(programs):
    return lambda output, refresh=REFRESH, **changes: programs["train"](
        output, refresh_options=refresh, **(QUICK | changes)
    )


@pytest.fixture(scope="module")
def refreshed(quick, tmp_path_factory):
    """A training that mined once, after its second epoch."""
    output = tmp_path_factory.mktemp("refreshed") / "out"
    quick(output)
    return output


def test_negatives_are_mined_after_every_second_epoch(refreshed, examples):
    """After the second of four epochs, not after the last; the share of new negatives is logged."""
    files = sorted(path.name for path in (refreshed / "negatives").iterdir())
    assert files == ["epoch-2.audit.json", "epoch-2.jsonl"]
    before = {row.query_id: row for row in read_examples(examples["train"]).rows}
    after = read_examples(refreshed / "negatives" / "epoch-2.jsonl").rows
    assert len(after) == 16
    assert all(row.positives == before[row.query_id].positives for row in after)
    assert all(set(row.negatives).isdisjoint(row.positives) for row in after)
    (logged,) = [line for line in log_of(refreshed) if "negatives_changed" in line]
    assert logged["step"] == 4
    assert logged["negatives_changed"] == share_changed([before[row.query_id] for row in after], after) > 0
    audit = json.loads((refreshed / "negatives" / "epoch-2.audit.json").read_text())
    assert audit["source"] == {"source": "the model after epoch 2", "kind": "checkpoint"}
    assert audit["options"]["depth"] == 8
    assert sorted(path.name for path in refreshed.iterdir() if path.is_dir() and path.name != "logs") == [
        "encoder",
        "negatives",
    ]


def test_training_continues_with_the_new_negatives(quick, tmp_path, monkeypatch):
    """Steps after the refresh draw from the new negatives, steps before it from the old negatives."""
    drawn = []
    assemble = sampling.StepAssembler.assemble

    def watched(self, draws):
        drawn.append([(draw.example.query_id, draw.negatives, draw.example.negatives) for draw in draws])
        return assemble(self, draws)

    monkeypatch.setattr(sampling.StepAssembler, "assemble", watched)
    quick(tmp_path / "out")
    rows = {row.query_id: row for row in read_examples(tmp_path / "out" / "negatives" / "epoch-2.jsonl").rows}
    steps = drawn[-8:]
    for number, step in enumerate(steps, 1):
        pools = {query: pool for query, _, pool in step}
        new = {query: rows[query].negatives for query in pools}
        assert (pools == new) == (number > 4)
        assert all(set(negatives) <= set(pools[query]) for query, negatives, _ in step)


def test_negatives_are_those_of_the_current_model(quick, tmp_path, tiny_collection, monkeypatch):
    """They equal the negatives of `rkit mine-negatives` with a checkpoint of that step."""
    save = refresh._save
    monkeypatch.setattr(refresh, "_save", lambda model, folder: save(model, tmp_path / "kept") and save(model, folder))
    quick(tmp_path / "out", refresh={"every": 1, "depth": 8, "negatives": 4}, epochs=2)
    mined = tmp_path / "out" / "negatives" / "epoch-1.jsonl"
    places = {"corpus": tiny_collection.corpus, "examples": mined, "output": tmp_path / "mined.jsonl"}
    rk.mine_negatives(tmp_path / "kept", **places, depth=8, negatives=4, precision="fp32")
    assert read_examples(tmp_path / "mined.jsonl").rows == read_examples(mined).rows


# --- resuming ------------------------------------------------------------------------------------------------------


# States are saved after steps 3, 6 and 8, and negatives are mined after step 4.
MOMENTS = {
    "before the refresh": lambda: kill_at_call(loop.Loop, "compute_step", 4),
    "while the corpus is encoded": lambda: kill_at_call(refresh.Mining, "run", 1),
    "between two parts": lambda: kill_at_call(mining.MinedParts, "write", 1, after=True),
    "before the negatives are written": lambda: kill_at_call(refresh, "write_examples", 1),
    "after the negatives are written": lambda: kill_at_call(refresh, "write_examples", 1, after=True),
    "after the refresh, before a state": lambda: kill_at_call(loop.Loop, "compute_step", 6),
    "after the refresh and a state": lambda: kill_at_call(loop.Loop, "compute_step", 7),
}


@forks
@pytest.mark.parametrize("moment", first_fast(MOMENTS))
def test_a_killed_training_resumes_with_the_same_negatives(quick, refreshed, tmp_path, moment):
    """It ends with the bytes of an uninterrupted training."""

    def killed():
        MOMENTS[moment]()
        quick(tmp_path / "out")

    assert in_another_process(killed) == -signal.SIGKILL
    quick(tmp_path / "out", resume=True)
    assert bytes_of(tmp_path / "out") == bytes_of(refreshed)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# --- wrong input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"refresh": {"every": 0}}, "refresh.every is 0, and has to be from 1"),
        ({"refresh": {"every": 4}}, "refresh.every is 4, .* less than the 4 epochs"),
        ({"refresh": {"every": 1, "depth": 0}}, "depth.* 0"),
        ({"refresh": {"every": 1, "positives": "retrieved"}}, "a training keeps its positives"),
        ({"refresh": {"every": 1, "keep": 3}}, "there is no other set"),
        ({"refresh": {"every": 1, "reranker": "nowhere", "reranker_above": 0}}, "cannot load the model 'nowhere'"),
        ({"refresh": {"depth": 5}}, "needs the option 'every'"),
        ({"refresh": {"every": 2, "dept": 5}}, "did you mean 'depth'"),
        ({"refresh": {}, "refresh_negatives": "2"}, "such as every=2"),
        ({"refresh": {}, "refresh_negatives": "evry=2"}, "did you mean 'every'"),
        ({"refresh": {}, "refresh_negatives": "every=two"}, "cannot be 'two'"),
        ({"negatives": 0}, "mined negatives would not be used"),
        ({"loss": "distill_kl"}, "a teacher's scores, which negatives mined"),
        ({"corpus": None}, "Name it: --corpus CORPUS"),
    ],
)
def test_an_impossible_refresh_is_refused_before_anything_is_written(quick, tmp_path, options, problem):
    if "corpus" in options:  # the examples bring their passages along
        rows = ({"anchor": f"which {number}?", "positive": "this one", "negative": "that one"} for number in range(4))
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        options = options | {"examples": str(tmp_path / "train.jsonl")}
    with pytest.raises(InputError, match=problem):
        quick(tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == (["train.jsonl"] if "corpus" in options else [])


def test_the_flag_and_the_options_are_combined():
    for flag, settings, expected in (
        (None, {}, None),
        ("every=2", {"depth": "50"}, {"every": 2, "depth": 50}),
        ("every=1,skip_top=5", {}, {"every": 1, "skip_top": 5}),
        (None, {"every": 1}, {"every": 1}),
    ):
        given = {"refresh_negatives": flag, "refresh_options": settings}
        made = refresh_options(TrainOptions("model", "examples", output="output", **given).suited(1000))
        assert made == (expected and RefreshOptions(**expected))


@forks
def test_two_processes_mine_and_use_the_same_negatives(quick, together, tmp_path, monkeypatch):
    """The first process runs the mining; all share the steps, so they need the same draws."""
    monkeypatch.setattr(searcher, "BATCH_QUERIES", 2)

    def run():
        mine, step, calls = refresh.NegativeRefresh.mine, loop.Loop.compute_step, []
        search = sources._searched

        def mined(*arguments):
            calls.append("mined")
            return mine(*arguments)

        def stepped(self, *arguments):
            calls.append([row.negatives for row in self.training.samples.examples])
            return step(self, *arguments)

        @wraps(search)
        def searched(*arguments):
            calls.append("searched")
            return search(*arguments)

        sources._searched = searched
        refresh.NegativeRefresh.mine, loop.Loop.compute_step = mined, stepped
        quick(tmp_path / "out")
        return calls

    main, other = together(run)
    assert "mined" in main
    assert "mined" not in other
    assert "searched" in other
    main, other = ([one for one in calls if isinstance(one, list)] for calls in (main, other))
    assert main == other
    rows = read_examples(tmp_path / "out" / "negatives" / "epoch-2.jsonl").rows
    assert other[-1] == [row.negatives for row in rows] != other[0]
