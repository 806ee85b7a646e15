"""Selection of the best state of a training, by several measures."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from killed_processes import forks
from retrievalkit import registry
from retrievalkit.contracts import Loss, LossValue, Representation
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.examples import Example
from retrievalkit.evaluation.metrics import per_query
from retrievalkit.training import selection
from retrievalkit.training.collective import join
from retrievalkit.training.selection import Best, DevSet, rank_metrics

# Vectors of two questions, their gold passages and hard negatives.
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
    """Stand-in for a retriever: texts are names of vectors."""

    device = torch.device("cpu")

    def __init__(self, vectors=VECTORS):
        self.vectors = vectors
        self.calls = []

    def encode(self, texts, side, precision):
        self.calls.append((side, len(texts), precision))
        return Representation(torch.tensor([self.vectors[text.body] for text in texts])[:, None])


def passage(name):
    return Passage(name, "", name)


def dev_set(examples=EXAMPLES, **options):
    return DevSet(examples=examples, passage=passage, **{"batch_size": 10, "rank_from": 30} | options)


def contrastive():
    return registry.create("loss", "contrastive")


TAUGHT = [
    Example("1", "qa", ("a",), ("a-", "b-"), teacher={"a": 2.0, "b-": 0.5}),
    Example("2", "qb", ("b",), ("b-",), teacher={"b": 1.0, "b-": 3.0}),
]


# --- nDCG@10 over a pool -------------------------------------------------------------------------------------------


@given(
    scores=st.lists(
        st.lists(st.floats(-9, 9, width=32), min_size=14, max_size=14, unique=True), min_size=1, max_size=4
    ),
    data=st.data(),
)
def test_metrics_are_those_of_the_evaluation(scores, data):
    grades = [data.draw(st.sets(st.integers(0, 13), min_size=1, max_size=13)) for _ in scores]
    run = {
        str(row): sorted(((f"d{d}", one) for d, one in enumerate(own)), key=lambda hit: -hit[1])
        for row, own in enumerate(scores)
    }
    qrels = {str(row): {f"d{d}": 1 for d in own} for row, own in enumerate(grades)}
    relevant = torch.tensor([[d in own for d in range(14)] for own in grades])
    found = rank_metrics(torch.tensor(scores), relevant)
    for name, values in per_query(run, qrels, "nDCG@10 RR@10").items():
        assert found[name] == pytest.approx(list(values.values()), abs=1e-9)


def test_metrics_worked_by_hand():
    """Of equal scores, the first column ranks first; -inf ranks last."""
    scores = torch.tensor([[3.0, 2.0, 1.0, 1.0], [0.0, 0.0, 0.0, -math.inf]])
    relevant = torch.tensor([[False, True, False, True], [False, False, True, False]])
    ndcg = [(1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3)), 0.5]
    assert rank_metrics(scores, relevant) == {"nDCG@10": pytest.approx(ndcg), "RR@10": pytest.approx([1 / 2, 1 / 3])}


POOLED = [
    Example("1", "qa", ("a", "a2"), ("a-", "b-", "x")),
    Example("2", "qb", ("b",), ("b-", "a")),
    Example("3", "QA ", ("a3",), ()),
]


@pytest.mark.parametrize(
    ("size", "others"), [(0, []), (5, ["a-"]), (7, ["a-", "b-", "x"]), (9, ["a-", "b-", "x", "?", "?"])]
)
def test_the_pool_has_all_positives_then_the_hardest_negatives_then_random_passages(size, others):
    """A passage that is another question's positive, or is drawn twice, occurs once, in any spelling."""
    corpus = Corpus.of([passage(name) for name in ("a", "A ", "a-", "\ta-", "c", "d", "e")])
    texts, answers = dev_set(POOLED, corpus=corpus, pool_size=size).pool
    names = [text.body for text in texts]
    assert len(set(names)) == len(names)
    assert [one if one in VECTORS or one == "x" else "?" for one in names[: len(others)]] == others
    assert names[len(others) :] == ["a", "a2", "a3", "b"]
    assert {query.body: [names[place] for place in own] for query, own in answers.items()} == {
        "qa": ["a", "a2", "a3"],
        "qb": ["b"],
    }


def test_the_ranking_by_brute_force(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    names = [f"p{number}" for number in range(60)]
    questions = [f"q{number}" for number in range(30)]
    vectors = {name: torch.randn(4, generator=generator).tolist() for name in (*names, *questions)}
    examples = [
        Example(name, name, (names[row], names[row + 1]), tuple(names[row + step] for step in (1, 5, 20)))
        for row, name in enumerate(questions)
    ]
    dev = dev_set(examples, rank_from=None, corpus=Corpus.of(map(passage, names)), pool_size=50)
    pool = [text.body for text in dev.pool[0]]
    assert len(pool) == 50
    run = {
        name: sorted(
            ((one, sum(x * y for x, y in zip(vectors[name], vectors[one], strict=True))) for one in pool),
            key=lambda hit: -hit[1],
        )
        for name in questions
    }
    qrels = {example.query: dict.fromkeys(example.positives, 1) for example in examples}
    monkeypatch.setattr(selection, "_BLOCK", 7)
    monkeypatch.setattr(selection, "_POOL_BLOCK", 11)
    found = dev.measure(Encoded(vectors), contrastive(), 0, "fp32")
    for name, values in per_query(run, qrels, "nDCG@10 RR@10").items():
        assert found[name] == pytest.approx(list(values.values()), abs=1e-6)


def test_a_model_that_scores_all_texts_equally_is_the_worst():
    collapsed = Encoded({name: [1.0, 1.0] for name in VECTORS})
    many = [Example("1", "qa", ("a",), ("a-", "b-", "b"))]
    assert dev_set(many, rank_from=None).measure(collapsed, contrastive(), 0, "fp32")["RR@10"] == [1 / 4]


# --- DPR's rule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "taken"),
    [
        ([("loss", value) for value in (3.0, 2.0, 2.0, 2.5, 1.0)], [True, True, False, False, True]),
        # A rank of 40 is not worse than a loss of 1: they are not comparable.
        ([("loss", 0.5), ("rank", 40.0), ("rank", 45.0), ("rank", 38.0)], [True, True, False, True]),
        # Some state must be kept, and NaN is worse than any number.
        ([("loss", math.nan), ("loss", 5.0), ("loss", math.nan)], [True, True, False]),
    ],
)
def test_the_lowest_value_of_a_measure_is_the_best(history, taken):
    best = Best()
    assert [best.improve(epoch, {measure: [value]}) for epoch, (measure, value) in enumerate(history, 1)] == taken
    last = max(epoch for epoch, one in enumerate(taken) if one)
    assert best == Best(last + 1, *history[last])


@pytest.mark.parametrize(("epoch", "measure"), [(0, "loss"), (29, "loss"), (30, "average_rank"), (31, "average_rank")])
def test_the_average_rank_is_measured_from_epoch_30_on(epoch, measure):
    """Epochs are counted from 0."""
    assert list(dev_set().measure(Encoded(), contrastive(), epoch, "fp32")) == [measure]


# --- loss ----------------------------------------------------------------------------------------------------------


def cross_entropy(scores, target):
    return math.log(sum(math.exp(score) for score in scores)) - scores[target]


def test_the_loss_is_that_of_training_with_the_first_hard_negative():
    """Documents a, a-, b, b-, computed by hand. Each question counts once in any batch."""
    both = cross_entropy([0.85, 0.55, -0.5, 0.95], 0) + cross_entropy([-0.3, 0.85, 1.5, 0.15], 2)
    assert dev_set().loss(Encoded(), contrastive(), "fp32") == pytest.approx(both / 2, abs=1e-6)
    dev = dev_set([*EXAMPLES, Example("3", "qa", ("b-",), ("b",))], batch_size=2, mask_false_negatives=False)
    expected = (both + cross_entropy([0.95, -0.5], 0)) / 3
    assert dev.loss(Encoded(), contrastive(), "fp32") == pytest.approx(expected, abs=1e-6)
    examples = [Example("1", "qa", ("a",)), Example("2", "qb", ("a",)), Example("3", "qa", ("b",))]
    masked, kept = (dev_set(examples, mask_false_negatives=one) for one in (True, False))
    assert masked.loss(Encoded(), contrastive(), "fp32") < kept.loss(Encoded(), contrastive(), "fp32")


def test_the_dev_loss_uses_teacher_scores():
    """For each gold passage and the first negative with a teacher score."""
    margin = registry.create("loss", "margin_mse")
    scored = [(0.85 - 0.95, 2.0 - 0.5), (1.5 - 0.15, 1.0 - 3.0)]
    expected = sum((ours - theirs) ** 2 for ours, theirs in scored) / 2
    assert dev_set(TAUGHT).measure(Encoded(), margin, 0, "fp32") == {"loss": [pytest.approx(expected, abs=1e-6)]}
    # Without teacher scores, the rank decides.
    lacking = dev_set(TAUGHT[:1] + EXAMPLES[1:]).measure(Encoded(), margin, 0, "fp32")
    assert lacking == {"average_rank": [dev_set().average_rank(Encoded(), "fp32")]}


def test_the_dev_loss_is_computed_in_eval_mode_at_the_start_of_training():
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


def test_the_average_rank_does_not_depend_on_blocks(monkeypatch):
    """qa: b- 0.95, a 0.85, a- 0.55, b -0.5; qb: b 1.5, ... so ranks 1 and 0, counted from 0."""
    assert dev_set().average_rank(Encoded(), "fp32") == 0.5
    monkeypatch.setattr(selection, "_BLOCK", 1)
    monkeypatch.setattr(selection, "_POOL_BLOCK", 1)
    encoded = Encoded()
    assert dev_set().average_rank(encoded, "fp32") == 0.5
    assert [texts for side, texts, _ in encoded.calls if side == "document"] == [2, 1, 1]


@forks
@pytest.mark.parametrize("rank_from", [None, 0, 1])
def test_several_processes_encode_a_part_each(together, monkeypatch, rank_from):
    monkeypatch.setattr(selection, "_FEW_TEXTS", 2)

    def measured():
        encoded = Encoded()
        values = dev_set(rank_from=rank_from, collective=join()).measure(encoded, contrastive(), 0, "fp32")
        return values, sum(texts for _, texts, _ in encoded.calls)

    (alone, texts), found = measured(), together(measured)
    assert [values for values, _ in found] == [alone, alone]
    assert [count for _, count in found] == [texts / 2, texts / 2]


def test_of_equal_scores_the_gold_passage_ranks_last():
    """Otherwise a model with the same vector for all texts would be the best."""
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
