"""Losses with one fault each, and the property that must find it: the contrastive loss with one thing changed."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from retrievalkit import hookimpl
from retrievalkit.contracts import Loss, LossValue
from retrievalkit.errors import DataError
from retrievalkit.score import scores


class Base(Loss):
    """The contrastive loss; subclasses change one step of it."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        return LossValue(self.total(self.logits(queries, documents), positives, ignore))

    def logits(self, queries, documents):
        return scores(queries.float(), documents.as_indexed().float())

    def total(self, logits, positives, ignore):
        logits = logits if ignore is None else logits.masked_fill(ignore, -torch.inf)
        return functional.cross_entropy(logits, positives)


class SumOverQueries(Base):
    """A sum in place of a mean."""

    found_by = "mean_over_queries"

    def total(self, logits, positives, ignore):
        return super().total(logits, positives, ignore) * len(positives)


class ForgetsIgnore(Base):
    """What is masked counts as a negative."""

    found_by = "ignore_effective"
    says = "`ignore` has no effect"

    def total(self, logits, positives, ignore):
        return super().total(logits, positives, None)


class NothingLeft(Base):
    """The mean score of the negatives, of which none may be left."""

    found_by = "all_ignored"

    def total(self, logits, positives, ignore):
        left = torch.ones_like(logits, dtype=torch.bool).scatter(1, positives[:, None], False)
        left = left if ignore is None else left & ~ignore
        negatives = (logits * left).sum(dim=1) / left.sum(dim=1)
        return functional.softplus(negatives - logits.gather(1, positives[:, None])[:, 0]).mean()


class ForgetsTheVectorMask(Base):
    """Masked vectors are scored."""

    found_by = "masked_vectors"
    says = "vectors that are masked change the loss"

    def logits(self, queries, documents):
        return super().logits(queries, replace(documents, vector_mask=None))


class GuessesThePositives(Base):
    """The positives are assumed to be every second document."""

    found_by = "positives_effective"
    says = "`positives` has no effect"

    def total(self, logits, positives, ignore):
        return super().total(logits, torch.arange(len(logits)) * 2, None if ignore is None else ignore)


class WeighsTheFirst(Base):
    """The first query of a step counts more."""

    found_by = "order_of_queries"
    says = "the order of queries changes the loss"

    def total(self, logits, positives, ignore):
        logits = logits if ignore is None else logits.masked_fill(ignore, -torch.inf)
        rows = functional.cross_entropy(logits, positives, reduction="none")
        return (rows * torch.ones(len(rows)).index_fill(0, torch.tensor(0), 2.0)).mean()


class WeighsTheLastDocument(Base):
    """The last document of a step is a harder negative."""

    found_by = "order_of_documents"

    def total(self, logits, positives, ignore):
        more = torch.zeros(logits.shape[1])
        more[-1] = 1.0
        return super().total(logits + more, positives, ignore)


class DetachedQueries(Base):
    """The graph of the queries is cut."""

    found_by = "gradient"
    says = "no gradient reaches the vectors of queries"

    def logits(self, queries, documents):
        return super().logits(queries.detach(), documents)


class DetachedDocuments(Base):
    """The graph of the documents is cut."""

    found_by = "gradient"

    def logits(self, queries, documents):
        return super().logits(queries, documents.detach())


class HalfTheGradient(Base):
    """Half of the scores are taken without their graph."""

    found_by = "finite_differences"

    def logits(self, queries, documents):
        logits = super().logits(queries, documents)
        return 0.5 * logits + 0.5 * logits.detach()


class TemperatureMultiplies(Base):
    """The temperature multiplies the scores."""

    found_by = "temperature"

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def logits(self, queries, documents):
        return super().logits(queries, documents) * self.temperature


class TemperatureIgnored(Base):
    """The temperature is not read."""

    found_by = "temperature"

    def __init__(self, *, temperature: float = 1.0) -> None:
        super().__init__()


class Overflows(Base):
    """The exponential of a score as it is."""

    found_by = "large_scores"

    def total(self, logits, positives, ignore):
        chances = logits.exp() if ignore is None else logits.exp().masked_fill(ignore, 0.0)
        return -(chances.gather(1, positives[:, None])[:, 0] / chances.sum(dim=1)).log().mean()


class HalfPrecision(Base):
    """Scores in float16, which ends at 65504."""

    found_by = "large_scores"

    def logits(self, queries, documents):
        logits = super().logits(queries, documents)
        return logits if logits.dtype == torch.float64 else logits + (logits.detach().half().float() - logits.detach())


class FillsWithTooMuch(Base):
    """Filled with the least float32, which no bf16 number is."""

    found_by = "finite_in_bf16"

    def logits(self, queries, documents):
        logits = scores(queries, documents.as_indexed())
        return logits.masked_fill(torch.zeros_like(logits, dtype=torch.bool), torch.finfo(torch.float32).min).float()


class WrongSign(Base):
    """Raised where it should fall."""

    found_by = "falls_under_training"

    def total(self, logits, positives, ignore):
        return super().total(-logits, positives, ignore)


class NoScalar(Base):
    """A loss for each query."""

    found_by = "value"
    says = r"has shape \(\d+,\), and must be a scalar"

    def total(self, logits, positives, ignore):
        logits = logits if ignore is None else logits.masked_fill(ignore, -torch.inf)
        return functional.cross_entropy(logits, positives, reduction="none")


class Infinite(Base):
    """A division by zero."""

    found_by = "value"
    says = "the total is inf"

    def total(self, logits, positives, ignore):
        return super().total(logits, positives, ignore) / 0


class WithoutGraph(Base):
    """The loss has no gradient."""

    found_by = "gradient"
    says = "no gradient reaches the vectors of queries"

    def total(self, logits, positives, ignore):
        return super().total(logits, positives, ignore).detach()


class WrongAxis(Base):
    """Documents compared with queries, the axes exchanged."""

    found_by = "value"

    def total(self, logits, positives, ignore):
        return super().total(logits.T, positives, ignore)


class ChangesTheVectors(Base):
    """Vectors and weights are scaled in place."""

    found_by = "inputs_unchanged"

    def logits(self, queries, documents):
        for one in (queries.vectors, queries.weights):
            if one is not None:
                one.detach().mul_(0.5)
        return super().logits(queries, documents)


class ChangesIgnore(Base):
    """What is masked is changed in place."""

    found_by = "inputs_unchanged"

    def total(self, logits, positives, ignore):
        if ignore is not None:
            ignore |= logits < logits.mean() - 10 * logits.std()
            ignore[0, -1] = True
        return super().total(logits, positives, ignore)


class DrawsByPython(Base):
    """Which documents are negatives is drawn by Python, another time in each process."""

    found_by = "two_processes"

    def logits(self, queries, documents):
        return super().logits(queries, documents) * (1 + random.random())


class OptionIgnored(Base):
    """An option that nobody reads."""

    found_by = "options_effective"

    def __init__(self, *, margin: float = 0.0) -> None:
        super().__init__()


class PositionalOption(Base):
    """An option that is no keyword."""

    found_by = "options_typed"

    def __init__(self, margin: float = 0.0) -> None:
        super().__init__()
        self.margin = margin


class UnusedParameter(Base):
    """A learned scale that is not multiplied with anything."""

    found_by = "parameters_trained"

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Student(Base):
    """Learns from a teacher; subclasses change one step of it."""

    needs_teacher = True

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        if teacher is None:
            msg = "there are no scores of a teacher"
            raise DataError(msg)
        return LossValue(self.distance(self.logits(queries, documents), teacher))

    def distance(self, logits, teacher):
        known = ~teacher.isnan()
        return (logits - teacher)[known].square().mean()


class TeacherIgnored(Student):
    """The teacher's scores are read, and not used."""

    found_by = "teacher_effective"
    says = "`teacher` has no effect"

    def distance(self, logits, teacher):
        return super().distance(logits, teacher * 0.0)


class TeacherMissing(Student):
    """Pairs without a score are not left out where a query has none."""

    found_by = "teacher_missing"

    def distance(self, logits, teacher):
        known = ~teacher.isnan()
        rows = (logits - teacher.nan_to_num()).square().masked_fill(~known, 0.0).sum(dim=1)
        return (rows / known.sum(dim=1)).mean()


class NoTeacher(Student):
    """Without a teacher it learns something else."""

    found_by = "teacher_needed"
    says = r"without a teacher it does not say what is missing \(InputError\)"

    def forward(self, queries, documents, positives, progress, ignore=None, teacher=None):
        if teacher is None:
            teacher = torch.full((len(queries), len(documents)), torch.nan).index_fill(1, positives, 1.0)
        return super().forward(queries, documents, positives, progress, ignore, teacher)


MUTANTS = {
    "".join("_" + one.lower() if one.isupper() else one for one in name)[1:]: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and "found_by" in vars(kind)
}


@hookimpl
def register_losses(register):
    for name, kind in MUTANTS.items():
        register(name, f"{__name__}:{kind.__name__}")
