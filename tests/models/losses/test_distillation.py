"""The losses `distill_kl` and `margin_mse`, which train on the scores of a teacher."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.contracts import Progress, Representation
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples, write_examples
from retrievalkit.errors import DataError
from trainings import log_of

START = Progress(step=0, epoch=0.0, total_steps=10)
NAN = float("nan")
NAMES = ["distill_kl", "margin_mse"]
every_loss = pytest.mark.parametrize("name", NAMES)

# Scores of two queries with three passages each; passages of the other query are unscored.
STUDENT = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
TEACHER = [[3.0, 0.0, -1.0], [1.0, 1.0, 1.0]]
OWN = torch.tensor([[*TEACHER[0], NAN, NAN, NAN], [NAN, NAN, NAN, *TEACHER[1]]], dtype=torch.float64)
POSITIVES = torch.tensor([0, 3])


def queries(n=2):
    """Return queries that are unit vectors."""
    return Representation(torch.eye(n, dtype=torch.float64)[:, None])


def documents(student=STUDENT, others=0.5):
    """Return documents with these scores for their own query, and the score `others` for other queries."""
    n, own = student.shape
    scores = torch.full((n, n * own), others, dtype=torch.float64)
    for row in range(n):
        scores[row, row * own : (row + 1) * own] = student[row]
    return Representation(scores.T.contiguous()[:, None].requires_grad_())


def loss_of(name, queries, documents, teacher=OWN, positives=POSITIVES, ignore=None, **options):
    return registry.create("loss", name, **options)(queries, documents, positives, START, ignore, teacher)


def total(name, *, student=STUDENT, others=0.5, **more):
    return loss_of(name, queries(len(student)), documents(student, others), **more).total.item()


class TestGolden:
    """Expected values of independent computations."""

    def test_kl_from_teacher_to_student(self):
        assert total("distill_kl") == pytest.approx(0.1668501282, abs=1e-9)

    def test_kl_from_student_to_teacher(self):
        """Eq. 16 of CoT-MAE v2 as printed."""
        assert total("distill_kl", direction="student_to_teacher") == pytest.approx(0.2255402436, abs=1e-9)

    def test_scale_is_the_temperature_squared(self):
        assert total("distill_kl", temperature=2, scale=True) == pytest.approx(4 * 0.2377542739, abs=1e-9)
        assert total("distill_kl", scale=True) == pytest.approx(0.1668501282, abs=1e-9)

    def test_margins(self):
        """Margins 1, 2 and 0, -1 of the student, 3, 4 and 0, 0 of the teacher: (4 + 4 + 0 + 1) / 4."""
        assert total("margin_mse") == pytest.approx(2.25, abs=1e-12)

    def test_margins_at_other_temperatures(self):
        """Student margins 2, 4, 0, -2 and teacher margins 1.5, 2, 0, 0: (0.25 + 4 + 0 + 4) / 4."""
        assert total("margin_mse", temperature=0.5, teacher_temperature=2) == pytest.approx(8.25 / 4, abs=1e-12)


def kl_reference(student, teacher, positives, t, teacher_t, scale, reverse):
    """Compute the divergence query by query in numpy."""
    parts = []
    for s, scores in zip(student, teacher, strict=True):
        own = ~np.isnan(scores)
        p, q = np.exp(scores[own] / teacher_t), np.exp(s[own] / t)
        p, q = p / p.sum(), q / q.sum()
        p, q = (q, p) if reverse else (p, q)
        parts.append((p * np.log(p / q)).sum() if own.sum() > 1 else 0.0)
    return np.mean(parts) * (t**2 if scale else 1)


def margin_reference(student, teacher, positives, t, teacher_t, scale, reverse):
    """Compute the squared errors pair by pair in numpy."""
    errors = [
        ((s[p] - s[d]) / t - (scores[p] - scores[d]) / teacher_t) ** 2
        for s, scores, p in zip(student, teacher, positives, strict=True)
        for d in range(len(s))
        if d != p and not np.isnan(scores[p] + scores[d])
    ]
    return np.mean(errors)


@every_loss
@given(
    seed=st.integers(0, 10_000),
    n_queries=st.integers(1, 4),
    own=st.integers(2, 4),
    t=st.floats(0.2, 5),
    teacher_t=st.floats(0.2, 5),
    contrastive=st.sampled_from([0.0, 0.2, 1.0]),
    scale=st.booleans(),
    reverse=st.booleans(),
)
def test_the_losses_equal_independent_references(name, seed, n_queries, own, t, teacher_t, contrastive, scale, reverse):
    """On random batches of several vectors, with unscored and ignored documents."""
    random = np.random.default_rng(seed)
    n_documents = n_queries * own
    q, d = random.normal(size=(n_queries, 2, 3)), random.normal(size=(n_documents, 2, 3))
    positives = np.arange(n_queries) * own
    teacher = np.full((n_queries, n_documents), np.nan)
    for row in range(n_queries):
        teacher[row, row * own : (row + 1) * own] = random.normal(size=own) * 3
    holes = random.random(teacher.shape) < 0.3
    holes[0] = False
    teacher[holes] = np.nan
    ignore = random.random(teacher.shape) < 0.2
    ignore[np.arange(n_queries), positives] = False

    s = np.einsum("qch,dmh->qdcm", q, d).max(3).sum(2)
    reference = kl_reference if name == "distill_kl" else margin_reference
    expected = reference(s, teacher, positives, t, teacher_t, scale, reverse)
    masked = np.where(ignore, -np.inf, s / t)
    entropy = (np.log(np.exp(masked).sum(1)) - masked[np.arange(n_queries), positives]).mean()

    options = {}
    if name == "distill_kl":
        options = {"scale": scale, "direction": "student_to_teacher" if reverse else "teacher_to_student"}
    value = loss_of(
        name,
        Representation(torch.tensor(q)),
        Representation(torch.tensor(d)),
        torch.tensor(teacher),
        torch.tensor(positives),
        torch.tensor(ignore),
        temperature=t,
        teacher_temperature=teacher_t,
        contrastive=contrastive,
        **options,
    )
    assert value.total.item() == pytest.approx(expected + contrastive * entropy, rel=1e-9, abs=1e-12)
    assert value.terms[name].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert ("contrastive" in value.terms) == (contrastive > 0)


@every_loss
@pytest.mark.parametrize("teacher", [None, torch.full((2, 6), NAN)], ids=["no teacher", "no score"])
def test_missing_teacher_scores_are_reported(name, teacher):
    with pytest.raises(DataError, match=rf"loss '{name}' learns from a teacher's scores, and .*\"teacher\": .*--loss"):
        loss_of(name, queries(), documents(), teacher)


@pytest.fixture(scope="module")
def scored_examples(tmp_path_factory, tiny_collection):
    """Examples with two negatives each, and as teacher scores the number of shared words."""
    corpus = {passage.id: passage for passage in open_corpus(tiny_collection.corpus)}
    rows = []
    for place, row in enumerate(read_examples(tiny_collection.folder).rows[:32]):
        negatives = [name for name in corpus if name not in row.positives][place : place + 2]
        own = (*row.positives, *negatives)
        words = set(row.query.split())
        texts = {name: f"{corpus[name].title} {corpus[name].text}" for name in own}
        teacher = {name: float(len(words & set(text.split()))) for name, text in texts.items()}
        rows.append(replace(row, negatives=tuple(negatives), teacher=teacher))
    return rows


def train(folder, tiny_model, tiny_collection, rows, *words):
    write_examples(folder / "train.jsonl", rows)
    base = ("train", "--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", folder / "train.jsonl")
    base += ("--output", folder / "model", "--epochs", 2, "--batch-size", 8, "--precision", "fp32")
    base += () if "--negatives" in words else ("--negatives", 2)
    return CliRunner().invoke(main, [str(word) for word in (*base, *words)])


@pytest.mark.parametrize(("name", "pooler"), [("distill_kl", "mean"), ("margin_mse", "colbert")])
def test_training_reduces_the_dev_loss(tmp_path, tiny_model, tiny_collection, scored_examples, name, pooler):
    """With gradient caching, on the training examples themselves."""
    words = ("--loss", name, "--pooler", pooler, "--query-length", 16, "--micro-batch-size", 4)
    words += ("--learning-rate", 1e-2, "--set", "loss.temperature=0.5", "--dev", tmp_path / "train.jsonl")
    words += ("--rank-from", 30)
    result = train(tmp_path, tiny_model, tiny_collection, scored_examples, *words)
    assert result.exit_code == 0, result.output
    log = log_of(tmp_path / "model")
    before, after = (line["dev_loss"] for line in log if "dev_loss" in line)
    assert after < before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": None}, r"train\.jsonl:3: the query .* has no teacher score of a positive or a negative"),
        ({"negatives": ()}, r"train\.jsonl:3: 'teacher' scores the document '.*', which is neither a positive"),
        ({}, "negatives is 0"),
    ],
)
def test_unscored_examples_are_refused_before_training(
    tmp_path, tiny_model, tiny_collection, scored_examples, changes, message
):
    rows = [*scored_examples[:2], replace(scored_examples[2], **changes), *scored_examples[3:]]
    words = () if changes else ("--negatives", 0)
    result = train(tmp_path, tiny_model, tiny_collection, rows, "--loss", "distill_kl", *words)
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split()))
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
