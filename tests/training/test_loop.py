"""The examples of a training step, its chunks, and saved weights."""

from __future__ import annotations

import json

import pytest
import torch

from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example, write_examples
from retrievalkit.models.pretrained import load_weights, save_weights
from retrievalkit.models.retriever import Retriever
from retrievalkit.training.loop import batches, steps_per_epoch
from retrievalkit.training.objective import Objective
from retrievalkit.training.options import TrainOptions
from retrievalkit.training.retriever import RetrieverTraining
from retrievalkit.training.sampling import ExampleSampler

EXAMPLES = [
    Example(str(row), "what is the capital of peru " * (row % 3 + 1), (f"p{row}",), (f"n{row}",)) for row in range(9)
]


def passage(name):
    return Passage(name, "", f"the city of {name} " * (int(name[1:]) % 4 + 1))


# --- examples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("examples", "batch_size", "sizes"),
    [(9, 3, [3, 3, 3]), (8, 3, [3, 3, 2]), (7, 3, [3, 3]), (2, 3, [2]), (1, 3, [1]), (2, 1, [1, 1])],
)
def test_a_last_step_of_one_example_is_dropped(examples, batch_size, sizes):
    """It has nothing to contrast with; a single example in all is kept."""
    samples = ExampleSampler(EXAMPLES[:examples])
    assert [len(step) for step in batches(samples, batch_size, 0)] == sizes
    assert [len(step) for step in batches(samples, batch_size, 0, skipped=1)] == sizes[1:]
    assert steps_per_epoch(examples, batch_size) == len(sizes)


# --- chunks --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collated(tiny_model, tmp_path_factory):
    """The inputs of a step of all examples, and the training."""
    folder = tmp_path_factory.mktemp("loop")
    names = [f"{kind}{row}" for kind in "pn" for row in range(9)]
    rows = ({"_id": name, "text": passage(name).text} for name in names)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def collated(examples=EXAMPLES, **options):
        write_examples(folder / "train.jsonl", examples)
        places = {"corpus": str(folder / "corpus.jsonl"), "output": "never"}
        training = RetrieverTraining(TrainOptions(tiny_model, str(folder / "train.jsonl"), **places, **options))
        return training.collate([(0, position) for position in range(len(examples))]), training.retriever

    return collated


@pytest.mark.parametrize(
    ("options", "sizes"),
    [({}, [9, 18]), ({"batch_tokens": 60}, None), ({"micro_batch_size": 4}, [4, 4, 1, 4, 4, 4, 4, 2])],
    ids=str,
)
def test_chunks_hold_every_text_once_within_their_budget(collated, options, sizes):
    inputs, retriever = collated(**options)
    texts = {"query": [one.query for one in EXAMPLES]}
    texts["document"] = [passage(f"{kind}{row}").text for row in range(9) for kind in "pn"]
    for side, own in texts.items():
        chunks = [chunk for chunk in inputs.chunks if chunk.side == side]
        assert sorted(row for chunk in chunks for row in chunk.rows) == list(range(len(own)))
        tower = retriever.tower(side)
        for chunk in chunks:
            expected = tower.collate(tower.tokenize([("", own[row]) for row in chunk.rows], side), side)
            assert torch.equal(chunk.batch.input_ids, expected.input_ids)
    assert inputs.positives.tolist() == list(range(0, 18, 2))
    if sizes is None:
        assert len(inputs.chunks) > 4
        assert max(chunk.batch.input_ids.numel() for chunk in inputs.chunks) <= 60
    else:
        assert [len(chunk.rows) for chunk in inputs.chunks] == sizes


def test_inputs_have_masks_and_teacher_scores(collated):
    inputs, _ = collated(EXAMPLES[:3])
    assert inputs.ignore is None
    assert inputs.teacher is None
    same = [
        Example("1", "a", ("p1",), ("n1",), teacher={"p1": 2.0}),
        Example("2", "b", ("p1",), ("n2",)),
    ]
    inputs, _ = collated(same)
    assert inputs.ignore.tolist() == [[False, False, True, False], [True, False, False, False]]
    assert inputs.teacher[0, 0] == 2.0
    assert inputs.teacher.isnan().sum() == 7
    moved = inputs.to(torch.device("meta"))
    tensors = [moved.positives, moved.ignore, moved.teacher, *(chunk.batch.input_ids for chunk in moved.chunks)]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny_model", "tiny_t5"])
def test_shared_weights_are_saved_and_loaded(request, tmp_path, model):
    made = [Objective(Retriever.create(request.getfixturevalue(model)), torch.nn.Linear(2, 2)) for _ in range(2)]
    with torch.no_grad():
        for parameter in made[0].parameters():
            parameter += 1
    save_weights(made[0], tmp_path / "weights")
    load_weights(made[1], tmp_path / "weights")
    for one, other in zip(made[0].state_dict().values(), made[1].state_dict().values(), strict=True):
        assert torch.equal(one, other)
