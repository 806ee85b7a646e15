"""The losses `distill_kl` and `margin_mse`: what a teacher's scores teach."""

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
from retrievalkit.errors import DataError, OptionError
from trainings import log_of

START = Progress(step=0, epoch=0.0, total_steps=10)
NAN = float("nan")
NAMES = ["distill_kl", "margin_mse"]
every_loss = pytest.mark.parametrize("name", NAMES)

# Two queries with three passages each, and their own scores; other queries' passages have none.
STUDENT = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
TEACHER = [[3.0, 0.0, -1.0], [1.0, 1.0, 1.0]]
OWN = torch.tensor([[*TEACHER[0], NAN, NAN, NAN], [NAN, NAN, NAN, *TEACHER[1]]], dtype=torch.float64)
POSITIVES = torch.tensor([0, 3])


def queries(n=2):
    """The n-th query is the n-th unit vector."""
    return Representation(torch.eye(n, dtype=torch.float64)[:, None])


def documents(student=STUDENT, others=0.5):
    """Documents that have the given scores with their own query, and `others` with other queries."""
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
    """Numbers worked out apart from this code."""

    def test_kl_from_teacher_to_student(self):
        assert total("distill_kl") == pytest.approx(0.1668501282, abs=1e-9)

    @pytest.mark.parametrize(("row", "expected"), [(0, 0.2142011644), (1, 0.1194990919)])
    def test_each_query(self, row, expected):
        """Alone, or beside a query without scores, which counts as 0 in the mean."""
        one = {"student": STUDENT[row : row + 1], "positives": POSITIVES[:1]}
        teacher = torch.tensor([TEACHER[row]], dtype=torch.float64)
        assert total("distill_kl", teacher=teacher, **one) == pytest.approx(expected, abs=1e-9)
        other = OWN.clone()
        other[1 - row] = NAN
        assert total("distill_kl", teacher=other) == pytest.approx(expected / 2, abs=1e-9)

    def test_the_direction_is_not_the_reverse(self):
        """The reverse would be 0.2255402436; the sides swapped give it."""
        teacher = OWN.clone()
        teacher[0, :3], teacher[1, 3:] = STUDENT[0], STUDENT[1]
        swapped = torch.tensor(TEACHER, dtype=torch.float64)
        assert total("distill_kl", student=swapped, teacher=teacher) == pytest.approx(0.2255402436, abs=1e-9)

    def test_kl_from_student_to_teacher(self):
        """As Eq. 16 of CoT-MAE v2 is printed; with its gradient p_s (ln p_s - ln p_t - KL) / 2, of two queries."""
        made = documents()
        value = loss_of("distill_kl", queries(), made, direction="student_to_teacher")
        assert value.total.item() == pytest.approx(0.2255402436, abs=1e-9)
        value.total.backward()
        for row, wanted in enumerate(TEACHER):
            p, t = (np.exp(one) / np.exp(one).sum() for one in (STUDENT[row].numpy(), np.array(wanted)))
            expected = p * (np.log(p / t) - (p * np.log(p / t)).sum()) / 2
            gradient = made.vectors.grad[3 * row : 3 * row + 3, 0, row]
            assert gradient.numpy() == pytest.approx(expected, abs=1e-9)

    def test_student_temperature(self):
        assert total("distill_kl", temperature=2) == pytest.approx(0.2377542739, abs=1e-9)

    def test_scale_is_the_temperature_squared(self):
        assert total("distill_kl", temperature=2, scale=True) == pytest.approx(4 * 0.2377542739, abs=1e-9)
        assert total("distill_kl", scale=True) == pytest.approx(0.1668501282, abs=1e-9)

    def test_gradient_of_the_student_scores(self):
        made = documents()
        loss_of("distill_kl", queries(), made).total.backward()
        gradient = made.vectors.grad[:, 0].T  # (Q, D), since the queries are unit vectors
        expected = [[-0.1354992981, 0.0990579242, 0.0364413738], [-0.0606958879, -0.0606958879, 0.1213917757]]
        assert gradient[0, :3].numpy() == pytest.approx(np.array(expected[0]), abs=1e-9)
        assert gradient[1, 3:].numpy() == pytest.approx(np.array(expected[1]), abs=1e-9)
        assert gradient[0, 3:].abs().sum() == gradient[1, :3].abs().sum() == 0

    def test_margins(self):
        """Margins 1, 2 and 0, -1 of the student, 3, 4 and 0, 0 of the teacher: (4 + 4 + 0 + 1) / 4."""
        assert total("margin_mse") == pytest.approx(2.25, abs=1e-12)

    def test_gradient_of_margins(self):
        """2 (margin - wanted) / 4 for each of the four pairs; minus that at the negative."""
        made = documents()
        loss_of("margin_mse", queries(), made).total.backward()
        gradient = made.vectors.grad[:, 0].T
        assert gradient.tolist() == [[-2.0, 1.0, 1.0, 0, 0, 0], [0, 0, 0, -0.5, 0, 0.5]]

    def test_margins_at_other_temperatures(self):
        """Student margins 2, 4, 0, -2 and teacher margins 1.5, 2, 0, 0: (0.25 + 4 + 0 + 4) / 4."""
        assert total("margin_mse", temperature=0.5, teacher_temperature=2) == pytest.approx(8.25 / 4, abs=1e-12)


def kl_reference(student, teacher, positives, t, teacher_t, scale, reverse):
    """In numpy, query by query."""
    parts = []
    for s, wanted in zip(student, teacher, strict=True):
        own = ~np.isnan(wanted)
        p, q = np.exp(wanted[own] / teacher_t), np.exp(s[own] / t)
        p, q = p / p.sum(), q / q.sum()
        p, q = (q, p) if reverse else (p, q)
        parts.append((p * np.log(p / q)).sum() if own.sum() > 1 else 0.0)
    return np.mean(parts) * (t**2 if scale else 1)


def margin_reference(student, teacher, positives, t, teacher_t, scale, reverse):
    """In numpy, pair by pair."""
    errors = [
        ((s[p] - s[d]) / t - (wanted[p] - wanted[d]) / teacher_t) ** 2
        for s, wanted, p in zip(student, teacher, positives, strict=True)
        for d in range(len(s))
        if d != p and not np.isnan(wanted[p] + wanted[d])
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
def test_equals_numpy(name, seed, n_queries, own, t, teacher_t, contrastive, scale, reverse):
    """An independent reference on random batches of many vectors, with holes in the teacher and ignored documents."""
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
    made = loss_of(
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
    assert made.total.item() == pytest.approx(expected + contrastive * entropy, rel=1e-9, abs=1e-12)
    assert made.terms[name].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert ("contrastive" in made.terms) == (contrastive > 0)


@every_loss
@pytest.mark.parametrize("option", ["temperature", "teacher_temperature", "contrastive"])
def test_each_option_changes_the_loss(name, option):
    assert total(name, **{option: 0.7}) != pytest.approx(total(name))


@every_loss
def test_a_student_that_scores_as_the_teacher_does_is_done(name):
    """Up to a constant for each query, which neither loss minds."""
    teacher = torch.tensor(TEACHER, dtype=torch.float64)
    assert total(name, student=teacher + torch.tensor([[5.0], [-3.0]])) == pytest.approx(0.0, abs=1e-12)


@every_loss
def test_other_queries_passages_do_not_count(name):
    """Whatever the student thinks of them; in the contrastive term they do."""
    assert total(name, others=9.0) == pytest.approx(total(name))
    assert total(name, others=9.0, contrastive=1) != pytest.approx(total(name, contrastive=1))


@every_loss
def test_a_passage_without_a_score_does_not_count(name):
    """And gets no gradient; no gradient is NaN."""
    teacher = OWN.clone()
    teacher[0, 2] = NAN
    far = STUDENT.clone()
    far[0, 2] = 100.0
    assert total(name, teacher=teacher) == pytest.approx(total(name, student=far, teacher=teacher))
    made = documents()
    loss_of(name, queries(), made, teacher).total.backward()
    assert made.vectors.grad[2].abs().sum() == 0
    assert made.vectors.grad.isfinite().all()
    assert made.vectors.grad[1].abs().sum() > 0


@every_loss
def test_a_query_with_too_few_scores_teaches_nothing(name):
    """None, or one: in `distill_kl` it is 0 in the mean over queries, in `margin_mse` it brings no pair."""
    for kept in ((), (3,)):
        teacher = OWN.clone()
        teacher[1] = NAN
        for column in kept:
            teacher[1, column] = 1.0
        made = documents()
        value = loss_of(name, queries(), made, teacher)
        value.total.backward()
        alone = total(name, student=STUDENT[:1], teacher=OWN[:1, :3], positives=POSITIVES[:1])
        assert value.total.item() == pytest.approx(alone / 2 if name == "distill_kl" else alone)
        assert made.vectors.grad[3:].abs().sum() == 0
        assert made.vectors.grad.isfinite().all()


def test_margins_need_the_score_of_the_positive():
    teacher = OWN.clone()
    teacher[0, 0] = NAN
    assert total("margin_mse", teacher=teacher) == pytest.approx(0.5)
    assert total("distill_kl", teacher=teacher) > 0


def test_the_positive_matters_to_margins_alone():
    """For the divergence it is a passage like any other."""
    other = torch.tensor([1, 4])
    assert total("distill_kl", positives=other) == pytest.approx(total("distill_kl"))
    assert total("margin_mse", positives=other) != pytest.approx(total("margin_mse"))


@every_loss
def test_ignored_documents_are_ignored_in_the_contrastive_term(name):
    """The teacher's word on a passage counts, known positive or not."""
    ignore = torch.zeros(2, 6, dtype=torch.bool)
    ignore[0, 1] = True
    assert total(name, ignore=ignore) == pytest.approx(total(name))
    assert total(name, ignore=ignore, contrastive=1) < total(name, contrastive=1)


@every_loss
def test_the_contrastive_term_is_the_contrastive_loss(name):
    plain = registry.create("loss", "contrastive", temperature=0.7)(queries(), documents(), POSITIVES, START)
    value = loss_of(name, queries(), documents(), temperature=0.7, contrastive=0.2)
    torch.testing.assert_close(value.terms["contrastive"], plain.total.detach())
    torch.testing.assert_close(value.total.detach(), value.terms[name] + 0.2 * value.terms["contrastive"])


@every_loss
def test_a_step_of_queries_with_one_score_each(name):
    """May come where not all negatives were scored: there is nothing to learn, and the rest of the training goes on."""
    made = documents()
    value = loss_of(name, queries(), made, torch.full((2, 6), NAN).index_fill(1, torch.tensor(0), 1.0))
    value.total.backward()
    assert value.total.item() == 0
    assert made.vectors.grad.abs().sum() == 0


@every_loss
@pytest.mark.parametrize("teacher", [None, torch.full((2, 6), NAN)], ids=["no teacher", "no score"])
def test_nothing_to_learn_from(name, teacher):
    """Says what the examples lack, and what to do."""
    with pytest.raises(DataError, match=rf"loss '{name}' learns from a teacher's scores, and .*\"teacher\": .*--loss"):
        loss_of(name, queries(), documents(), teacher)


@every_loss
@pytest.mark.parametrize(
    ("option", "value"), [("temperature", 0), ("teacher_temperature", -1), ("contrastive", -0.1), ("temperature", NAN)]
)
def test_options_out_of_range(name, option, value):
    with pytest.raises(OptionError, match=rf"option '{option}' of loss '{name}' cannot be {value}"):
        registry.create("loss", name, **{option: value})


@every_loss
def test_weights_are_scores_too(name):
    """A lexical student learns by the same rule."""
    made = Representation(weights=documents().vectors.detach()[:, 0])
    value = loss_of(name, Representation(weights=torch.eye(2, dtype=torch.float64)), made)
    assert value.total.item() == pytest.approx(total(name))


@every_loss
def test_float32_under_autocast(name):
    """Half-precision vectors under autocast give what the same numbers give in float32."""
    q, d = Representation(torch.eye(2)[:, None].bfloat16()), Representation(documents().vectors.detach().bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss_of(name, q, d, OWN.float(), contrastive=1).total
    assert half.dtype == torch.float32
    full = loss_of(name, Representation(q.vectors.float()), Representation(d.vectors.float()), contrastive=1).total
    assert half.item() == pytest.approx(full.item(), abs=1e-6)


@every_loss
def test_large_scores_stay_finite(name):
    teacher, student = OWN * 1e4, STUDENT * 1e4
    made = documents(student)
    value = loss_of(name, queries(), made, teacher)
    value.total.backward()
    assert value.total.isfinite()
    assert made.vectors.grad.isfinite().all()


@every_loss
def test_both_ask_for_a_teacher(name):
    assert registry.get("loss", name).needs_teacher


# --- from the command line -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def taught(tmp_path_factory, tiny_collection):
    """Questions of the tiny collection with two negatives each; the teacher counts the words that they share."""
    corpus = {passage.id: passage for passage in open_corpus(tiny_collection.corpus)}
    rows = []
    for place, row in enumerate(read_examples(tiny_collection.folder).rows[:32]):
        negatives = [one for one in corpus if one not in row.positives][place : place + 2]
        own = (*row.positives, *negatives)
        words = set(row.query.split())
        teacher = {one: float(len(words & set(f"{corpus[one].title} {corpus[one].text}".split()))) for one in own}
        rows.append(replace(row, negatives=tuple(negatives), teacher=teacher))
    return rows


def train(folder, tiny_model, tiny_collection, rows, *words):
    write_examples(folder / "train.jsonl", rows)
    base = ("train", "--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", folder / "train.jsonl")
    base += ("--output", folder / "model", "--epochs", 2, "--batch-size", 8, "--precision", "fp32")
    base += () if "--negatives" in words else ("--negatives", 2)
    return CliRunner().invoke(main, [str(word) for word in (*base, *words)])


@pytest.mark.parametrize(("name", "pooler"), [("distill_kl", "mean"), ("margin_mse", "colbert")])
def test_training(tmp_path, tiny_model, tiny_collection, taught, name, pooler):
    """With gradient caching, and the questions themselves as dev questions, whose loss falls."""
    words = ("--loss", name, "--pooler", pooler, "--query-length", 16, "--micro-batch-size", 4)
    words += ("--learning-rate", 1e-2, "--set", "loss.temperature=0.5", "--dev", tmp_path / "train.jsonl")
    result = train(tmp_path, tiny_model, tiny_collection, taught, *words)
    assert result.exit_code == 0, result.output
    log = log_of(tmp_path / "model")
    found = [line["dev_loss"] for line in log if "dev_loss" in line]
    assert len(found) == 2
    assert found[1] < found[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": None}, r"train\.jsonl:3: the teacher scores no positive and no negative of the query"),
        ({"negatives": ()}, r"train\.jsonl:3: 'teacher' scores the document '.*', which is neither a positive"),
    ],
)
def test_examples_without_scores_are_refused_before_any_step(
    tmp_path, tiny_model, tiny_collection, taught, changes, message
):
    rows = [*taught[:2], replace(taught[2], **changes), *taught[3:]]
    result = train(tmp_path, tiny_model, tiny_collection, rows, "--loss", "distill_kl")
    assert result.exit_code == 2
    assert re.search(message, " ".join(result.output.split()))
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]


def test_without_negatives_there_is_nothing_to_distil(tmp_path, tiny_model, tiny_collection, taught):
    result = train(tmp_path, tiny_model, tiny_collection, taught, "--loss", "distill_kl", "--negatives", 0)
    assert result.exit_code == 2
    assert "negatives is 0" in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["train.jsonl"]
