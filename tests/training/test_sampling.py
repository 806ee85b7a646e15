"""The positives and negatives of a step, and its masked false negatives."""

from __future__ import annotations

import math

import pytest
import torch

from retrievalkit.contracts import Progress, Representation, Text
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example
from retrievalkit.models.losses.contrastive import Contrastive
from retrievalkit.training.sampling import Draw, ExampleSampler, StepAssembler, window_sample

NEGATIVES = tuple(f"n{number}" for number in range(20))
EXAMPLES = [Example(f"q{row}", f"query {row}", (f"p{row}", f"r{row}"), NEGATIVES) for row in range(30)]


def sampler(examples=EXAMPLES, **options):
    return ExampleSampler(examples, **options)


# --- Tevatron's rule -----------------------------------------------------------------------------------------------

GOLDEN = {0: (1, [0, 4]), 1: (0, [1, 3]), 2: (1, [2, 0]), 3: (0, [4, 1])}


@pytest.mark.parametrize("epoch", GOLDEN)
def test_window_sampling_golden(epoch):
    """Item 3, seed 42, 2 positives, negatives 0 to 4, two per epoch; from a smaller pool with replacement."""
    assert window_sample(3, epoch, seed=42, positives=2, pool=range(5), count=2) == GOLDEN[epoch]
    assert window_sample(0, epoch, seed=1, positives=1, pool=["a"], count=3) == (0, ["a", "a", "a"])


def test_the_sampler_applies_the_window_rule_to_ids():
    examples = [Example("q", "q", ("p0", "p1"), tuple("abcde"))] * 4
    draw = sampler(examples, sampling="window", negatives=2, positive="random", seed=42).draw(3, 0)
    assert (draw.positive, draw.negatives) == ("p1", ("a", "e"))
    assert sampler(examples, sampling="window", negatives=2, seed=42).draw(3, 0).positive == "p0"


# --- random draws --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["epoch", "position", "seed"])
def test_draws_differ_by(what):
    base = {"epoch": 0, "position": 0, "seed": 0}
    changed = base | {what: 1}
    drawn = [
        sampler(negatives=5, seed=one["seed"]).draw(one["position"], one["epoch"]).negatives for one in (base, changed)
    ]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("sampling", ["random", "window"])
def test_negatives_are_drawn_from_the_pool_without_replacement(sampling):
    """All negatives if there are too few; the positive is the first, or random."""
    draws = [sampler(negatives=8, pool=12, sampling=sampling).draw(0, epoch) for epoch in range(50)]
    assert all(len(set(draw.negatives)) == 8 for draw in draws)
    assert {one for draw in draws for one in draw.negatives} == set(NEGATIVES[:12])
    assert {draw.positive for draw in draws} == {"p0"}
    assert {sampler(positive="random", sampling=sampling).draw(0, epoch).positive for epoch in range(20)} == {
        "p0",
        "r0",
    }
    few = [Example("q", "q", ("p",), ("n",)), Example("q", "q", ("p",))]
    assert [set(sampler(few, negatives=3, sampling=sampling).draw(row, 0).negatives) for row in (0, 1)] == [
        {"n"},
        set(),
    ]


def test_the_order_is_a_shuffle_that_differs_by_epoch_and_seed():
    orders = [sampler(seed=seed).order(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert sampler(seed=1).order(1) == orders[3]


# --- steps ---------------------------------------------------------------------------------------------------------


def passage(name):
    """Return a passage; `same-1` and `same-2` have the same text, in two spellings and under two titles."""
    text = f"text of {name.split('-')[0]}"
    return Passage(name, f"title of {name}", f" {text.title()}\u200b" if name.endswith("-2") else text)


def step(draws, known=None, **options):
    return StepAssembler(passage, known or [draw.example for draw in draws], **options).assemble(draws)


def draw(query, positive, *negatives, known=(), teacher=None):
    return Draw(Example(query, query, (positive, *known), negatives, teacher=teacher), positive, negatives)


def test_each_positive_is_followed_by_its_own_negatives():
    made = step([draw("a", "p", "n1", "n2"), draw("b", "q"), draw("c", "r", "n3")])
    assert made.queries == [Text("", "a"), Text("", "b"), Text("", "c")]
    assert [text.body for text in made.documents] == [f"text of {one}" for one in ("p", "n1", "n2", "q", "r", "n3")]
    assert made.documents[0] == Text("title of p", "text of p")
    assert made.positives == [0, 3, 4]
    assert (made.ignore, made.teacher) == ([], {})


EARLIER = Example("2", "A\u00a0", ("q",))


@pytest.mark.parametrize(
    ("draws", "ignored"),
    [
        # q, the positive of b, is also a positive of query a, by its own example or another example of the query.
        ([draw("a", "p", "n", known=("q",)), draw("b", "q")], [(0, 2)]),
        ([draw("a", "p"), draw("b", "r", "q")], [(0, 2)]),
        # The text of the positive: the same passage for two queries, or two ids with the same text.
        ([draw("a", "p"), draw("b", "p")], [(0, 1), (1, 0)]),
        ([draw("a", "same-1", "same-2"), draw("b", "r")], [(0, 1)]),
        # A copy of another known positive, in the step or not.
        ([draw("a", "p", known=("same-1",)), draw("b", "same-2")], [(0, 1)]),
        ([draw("a", "p", "same-2", known=("same-1",)), draw("b", "same-1")], [(0, 1), (0, 2), (1, 1)]),
        # Never the positive itself.
        ([draw("a", "p", "p", "q", known=("q", "p")), draw("b", "q", "p")], [(0, 1), (0, 2), (0, 3), (0, 4), (1, 2)]),
    ],
)
def test_known_positives_and_their_copies_are_masked(draws, ignored):
    """Unless masking is off, as in the papers' code."""
    known = [EARLIER, *(one.example for one in draws)]
    made = step(draws, known)
    assert made.ignore == ignored
    assert made.tensors()[1].nonzero().tolist() == [list(pair) for pair in ignored]
    assert step(draws, known, mask_false_negatives=False).ignore == []


def test_a_known_positive_outside_the_step_is_looked_up_once():
    looked_up = []

    def look_up(name):
        looked_up.append(name)
        return passage(name)

    draws = [draw("a", "p", known=("same-1",)), draw("b", "same-2")]
    made = StepAssembler(look_up, [one.example for one in draws])
    assert made.assemble(draws).ignore == made.assemble(draws).ignore == [(0, 1)]
    assert looked_up.count("same-1") == 1


def test_a_copy_of_a_known_positive_has_no_part_in_the_loss():
    """Worked: of the scores 1, 2, 0 of query a (p; same-2, a copy of its same-1; n) the softmax has 1 and 0 alone."""
    made = step([draw("a", "p", known=("same-1",)), draw("b", "same-2", "n")])
    positives, ignore, _ = made.tensors()
    queries = torch.tensor([[[1.0]], [[0.0]]])
    documents = torch.tensor([[[1.0]], [[2.0]], [[0.0]]], requires_grad=True)
    loss = Contrastive()(Representation(queries), Representation(documents), positives, Progress(0, 0.0, 1), ignore)
    loss.total.backward()
    e = math.e
    # Query b has the vector 0, so all its scores are 0 and it moves nothing.
    assert loss.total.item() == pytest.approx((math.log((e + 1) / e) + math.log(3)) / 2)
    assert documents.grad.flatten().tolist() == pytest.approx([-1 / (e + 1) / 2, 0.0, 1 / (e + 1) / 2])


def test_a_passage_of_two_queries_has_a_teacher_score_for_each():
    """Only for its own query: as an in-batch negative of another query it has none."""
    shared = {"p": 1.0, "n": 2.0}
    made = step([draw("a", "p", "n", teacher=shared), draw("b", "q", "n", teacher={"n": 3.0, "q": 4.0, "p": 9.0})])
    _, _, teacher = made.tensors()
    assert teacher.nan_to_num(nan=0.0).tolist() == [[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 4.0, 3.0]]
    assert teacher.isnan().tolist() == [[False, False, True, True], [True, True, False, False]]
