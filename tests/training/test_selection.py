"""Which state of a training is kept."""

from __future__ import annotations

import math

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Representation
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Example
from retrievalkit.training import selection
from retrievalkit.training.selection import Best, DevSet

# What a text is encoded to: two questions, their gold passages and hard negatives.
VECTORS = {
    "qa": [1.0, 0.5],
    "qb": [-0.5, 1.0],
    "a": [0.8, 0.1],
    "a-": [0.1, 0.9],
    "b": [-1.0, 1.0],
    "b-": [0.7, 0.5],
}
EXAMPLES = [Example("1", "qa", ("a",), ("a-", "b-")), Example("2", "qb", ("b",), ("b-",))]


class Encoded:
    """Stands in for a retriever: texts are names of vectors."""

    device = torch.device("cpu")

    def __init__(self, vectors=VECTORS):
        self.vectors = vectors
        self.calls = []

    def encode(self, texts, side, precision):
        self.calls.append((side, len(texts), precision))
        return Representation(torch.tensor([self.vectors[text] for _, text in texts])[:, None])


def passage(name):
    return Passage(name, "", name)


def dev_set(examples=EXAMPLES, **options):
    return DevSet(examples, passage, **{"batch_size": 10} | options)


def contrastive():
    return registry.create("loss", "contrastive")


TAUGHT = [
    Example("1", "qa", ("a",), ("a-", "b-"), teacher={"a": 2.0, "b-": 0.5}),
    Example("2", "qb", ("b",), ("b-",), teacher={"b": 1.0, "b-": 3.0}),
]


# --- DPR's rule ----------------------------------------------------------------------------------------------------


def test_the_lowest_value_is_kept_and_an_equal_one_does_not_replace_it():
    best = Best()
    taken = [best.improve(epoch, "loss", value) for epoch, value in enumerate([3.0, 2.0, 2.0, 2.5, 1.0])]
    assert taken == [True, True, False, False, True]
    assert best == Best(4, "loss", 1.0)


def test_the_best_value_is_reset_when_the_measure_changes():
    """A rank of 40 is no worse than a loss of 1: the two are not comparable."""
    best = Best()
    history = [("loss", 1.0), ("loss", 0.5), ("average_rank", 40.0), ("average_rank", 45.0), ("average_rank", 38.0)]
    taken = [best.improve(epoch, *measured) for epoch, measured in enumerate(history)]
    assert taken == [True, True, True, False, True]
    assert (best.epoch, best.measure, best.value) == (4, "average_rank", 38.0)


def test_a_value_that_is_no_number_is_worse_than_any():
    best = Best()
    assert best.improve(0, "loss", math.nan), "something must be kept"
    assert best.improve(1, "loss", 5.0)
    assert not best.improve(2, "loss", math.nan)
    assert best.epoch == 1


@pytest.mark.parametrize(("epoch", "measure"), [(0, "loss"), (29, "loss"), (30, "average_rank"), (31, "average_rank")])
def test_from_epoch_30_on_the_average_rank_is_measured(epoch, measure):
    """Epochs are counted from 0."""
    assert dev_set().measure(Encoded(), contrastive(), epoch, "fp32")[0] == measure


# --- loss ----------------------------------------------------------------------------------------------------------


def cross_entropy(scores, target):
    return math.log(sum(math.exp(score) for score in scores)) - scores[target]


def test_the_loss_is_that_of_training_with_the_first_hard_negative():
    """Documents a, a-, b, b-; worked out by hand."""
    first = cross_entropy([0.85, 0.55, -0.5, 0.95], 0)
    second = cross_entropy([-0.3, 0.85, 1.5, 0.15], 2)
    assert dev_set().loss(Encoded(), contrastive(), "fp32") == pytest.approx((first + second) / 2, abs=1e-6)


def test_batches_share_their_passages_and_each_question_counts_once():
    """Three questions in batches of two: the mean is over the questions, not over the batches."""
    examples = [*EXAMPLES, Example("3", "qa", ("b-",), ("b",))]
    first = cross_entropy([0.85, 0.55, -0.5, 0.95], 0) + cross_entropy([-0.3, 0.85, 1.5, 0.15], 2)
    second = cross_entropy([0.95, -0.5], 0)
    expected = (first + second) / 3
    dev = dev_set(examples, batch_size=2, mask_false_negatives=False)
    assert dev.loss(Encoded(), contrastive(), "fp32") == pytest.approx(expected, abs=1e-6)


def test_a_loss_with_a_teacher_is_taken_with_its_scores():
    """On each gold passage and the first negative that the teacher scored."""
    margin = registry.create("loss", "margin_mse")
    scored = [(0.85 - 0.95, 2.0 - 0.5), (1.5 - 0.15, 1.0 - 3.0)]
    expected = sum((ours - theirs) ** 2 for ours, theirs in scored) / 2
    assert dev_set(TAUGHT).measure(Encoded(), margin, 0, "fp32") == ("loss", pytest.approx(expected, abs=1e-6))


def test_where_the_dev_questions_have_no_teacher_the_rank_decides():
    margin = registry.create("loss", "margin_mse")
    name, value = dev_set(TAUGHT[:1] + EXAMPLES[1:]).measure(Encoded(), margin, 0, "fp32")
    assert (name, value) == ("average_rank", dev_set().average_rank(Encoded(), "fp32"))
    assert dev_set(EXAMPLES).measure(Encoded(), contrastive(), 0, "fp32")[0] == "loss"


def test_false_negatives_are_masked_as_in_training():
    examples = [Example("1", "qa", ("a",)), Example("2", "qb", ("a",)), Example("3", "qa", ("b",))]
    masked = dev_set(examples).loss(Encoded(), contrastive(), "fp32")
    kept = dev_set(examples, mask_false_negatives=False).loss(Encoded(), contrastive(), "fp32")
    assert masked < kept


def test_the_loss_is_taken_in_eval_mode_as_at_the_start_of_training():
    seen = []

    class Watching(Loss):
        def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
            seen.append((self.training, progress.step, progress.epoch, torch.is_grad_enabled()))
            return LossValue(torch.zeros(()))

    for training in (True, False):
        loss = Watching().train(training)
        assert dev_set().loss(Encoded(), loss, "fp32") == 0
        assert loss.training is training
    assert seen == [(False, 0, 0.0, False)] * 2


# --- average rank --------------------------------------------------------------------------------------------------


def test_the_rank_of_the_gold_passage_is_counted_from_0_among_all_passages():
    """qa: b- 0.95, a 0.85, a- 0.55, b -0.5; qb: b 1.5, ... so ranks 1 and 0."""
    assert dev_set().average_rank(Encoded(), "fp32") == 0.5


def test_blocks_change_nothing(monkeypatch):
    """Few questions and passages at a time give the same ranks as all at once."""
    monkeypatch.setattr(selection, "_BLOCK", 1)
    monkeypatch.setattr(selection, "_POOL_BLOCK", 1)
    encoded = Encoded()
    assert dev_set().average_rank(encoded, "fp32") == 0.5
    assert [texts for side, texts, _ in encoded.calls if side == "document"] == [2, 1, 1]


def test_a_passage_of_equal_score_is_ranked_before_the_gold_one():
    """Otherwise a model that gives all texts one vector would be the best."""
    collapsed = Encoded({name: [1.0, 1.0] for name in VECTORS})
    assert dev_set().average_rank(collapsed, "fp32") == 3.0


def test_the_average_rank_by_brute_force():
    generator = torch.Generator().manual_seed(0)
    names = [f"p{number}" for number in range(40)]
    questions = [f"q{number}" for number in range(300)]
    vectors = {name: torch.randn(4, generator=generator).tolist() for name in (*names, *questions)}
    examples = [
        Example(question, question, (names[row % 40],), tuple(names[(row + step) % 40] for step in (1, 5)))
        for row, question in enumerate(questions)
    ]
    ranks = []
    for example in examples:
        scores = {
            name: sum(one * two for one, two in zip(vectors[example.query], vectors[name], strict=True))
            for name in names
        }
        ordered = sorted(names, key=lambda name: -scores[name])
        ranks.append(ordered.index(example.positives[0]))
    assert dev_set(examples).average_rank(Encoded(vectors), "fp32") == pytest.approx(sum(ranks) / 300)
