"""The conformance check of losses, on random representations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from retrievalkit import registry
from retrievalkit.contracts import Progress, Representation
from retrievalkit.errors import InputError


def check_loss(name: str, *, kept: int | None = None, parts: Mapping[str, slice] | None = None, **options: Any) -> None:
    """Check that a loss keeps the contract on random representations of two vectors (of size 8) a document.

    One that needs a teacher is given its scores for each query's own passages.

    Args:
        name: Registered name of the loss.
        kept: `Representation.kept` of the documents, for a loss that wants it.
        parts: `Representation.parts` of both sides, for a loss that wants them.
        options: Of the loss.

    Raises:
        AssertionError: Says what it does wrong.
    """
    loss = registry.create("loss", name, **options)
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 1, 8, generator=generator, requires_grad=True)
    documents = torch.randn(6, 2, 8, generator=generator, requires_grad=True)
    positives = torch.tensor([0, 2, 4])
    scored = _own_scores(positives, 6, generator) if loss.needs_teacher else None

    def value(order: Sequence[int] = (0, 1, 2), ignore: torch.Tensor | None = None, **changes: Any) -> torch.Tensor:
        rows = torch.tensor(order)
        compared = {"vectors": documents, "kept": kept, "parts": parts} | changes
        right = positives[rows] + compared.pop("moved", 0)
        asked = Representation(queries[rows], parts=parts)
        teacher = compared.pop("teacher", scored)
        teacher = teacher if teacher is None else teacher[rows]
        made = loss(asked, Representation(**compared), right, Progress(0, 0.0, 10), ignore, teacher)
        total: torch.Tensor = made.total
        return total

    total = value()
    assert total.dim() == 0, f"the total has shape {tuple(total.shape)}, and must be a scalar"
    assert torch.isfinite(total), f"the total is {total.item()}"
    torch.testing.assert_close(value([2, 0, 1]), total, msg="the order of queries changes the loss")
    if scored is None:
        assert value(moved=1) != total, "`positives` has no effect"
        ignore = torch.zeros(3, 6, dtype=torch.bool)
        ignore[0, 1] = True
        assert value(ignore=ignore) != total, "`ignore` has no effect"
    else:
        # It may learn from the teacher alone, who says which passages are good.
        assert value(teacher=scored * torch.tensor([1.0, 2.0]).repeat(3)) != total, "`teacher` has no effect"
        assert _refuses(lambda: value(teacher=None)), "without a teacher it does not say what is missing (InputError)"
    padded = torch.cat([documents, torch.full((6, 1, 8), 100.0)], dim=1)
    mask = torch.tensor([True, True, False]).expand(6, 3)
    masked = value(vectors=padded, vector_mask=mask)
    torch.testing.assert_close(masked, total, msg="vectors that are masked change the loss")
    assert total.requires_grad, "no gradient reaches the representations"
    torch.autograd.backward(total)
    assert queries.grad is not None, "no gradient reaches the queries"
    assert documents.grad is not None, "no gradient reaches the documents"


def _own_scores(positives: torch.Tensor, documents: int, generator: torch.Generator) -> torch.Tensor:
    """(Q, documents): a teacher's scores for each query's positive and for the document after it, otherwise NaN."""
    teacher = torch.full((len(positives), documents), float("nan"))
    own = torch.stack([positives, positives + 1], dim=1)
    return teacher.scatter(1, own, torch.randn(own.shape, generator=generator))


def _refuses(work: Callable[[], object]) -> bool:
    try:
        work()
    except InputError:
        return True
    return False
