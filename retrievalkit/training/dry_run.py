"""Dry run before anything is written: two examples through encoder, pooler and loss.

Incompatible components fail within seconds, with a message that names the component. Vectors that are the same for all
documents, or equal to each other, cause a warning, since training with them is wasted time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from retrievalkit import registry
from retrievalkit.contracts import LossValue, Progress, Representation, Side, Text
from retrievalkit.contracts.models import to_device
from retrievalkit.models.precision import Precision, autocast
from retrievalkit.models.retriever import blamed, token_states, tokenize
from retrievalkit.reporting.notices import note
from retrievalkit.training.objective import LossSum, Objective
from retrievalkit.training.sampling import Draw, ExampleSampler, StepTexts
from retrievalkit.training.selection import DevSet

_EXAMPLES = 2
_ALIKE = 0.999  # cosine from which vectors count as equal


def dry_run(
    objective: Objective,
    step: StepTexts,
    described: Mapping[str, Any],
    *,
    precision: Precision,
    dev: DevSet | None = None,
) -> None:
    """Compute the loss of a small step once, without gradients; weights and random state are left unchanged."""
    retriever, loss = objective.retriever, objective.loss
    device, pooler = retriever.device, retriever.pooler

    def represent(texts: Sequence[Text], side: Side) -> Representation:
        encoder = retriever.tower(side)
        with autocast(precision, device):
            with blamed(described, {"encoder": encoder}):
                batch = encoder.collate(tokenize(retriever, texts, side), side).to(device)
                states = token_states(retriever, batch, side)
            with blamed(described, {"pooler": pooler}):
                return retriever.pool(states, side)

    with unchanged(objective), torch.no_grad():
        objective.train()
        queries, documents = represent(step.queries, "query"), represent(step.documents, "document")
        positives, ignore, teacher = (
            None if target is None else to_device(target, device) for target in step.tensors()
        )
        with blamed(described, {"loss": loss}):
            losses: Sequence[nn.Module] = [*loss.losses] if isinstance(loss, LossSum) else [loss]
            for part in losses:
                value = part(queries, documents, positives, Progress(0, 0.0, 1), ignore, teacher)
                if problem := _wrong_value(value):
                    raise registry.wrong_result("loss", part, problem)
        if documents.vectors is not None and documents.vectors.shape[1] > 1:
            retriever.tower("document").eval()  # dropout makes equal vectors differ
            _note_alike(represent(step.documents, "document"), described["pooler"]["name"])
        if dev is not None:
            few = replace(dev, examples=dev.examples[:_EXAMPLES], pool_size=0, corpus=None)
            parts = {"encoder": retriever.tower("query"), "pooler": pooler, "loss": loss}
            with blamed(described, parts, when="when dev questions are evaluated"):
                few.measure(retriever, loss, 0, precision)


def _wrong_value(value: object) -> str:
    """Return the problem of a loss's result; "" if its total and its terms are single numbers."""
    if not isinstance(value, LossValue):
        return f"it returned a {type(value).__name__}, and must return a LossValue"
    for name, number in (("total", value.total), *value.terms.items()):
        if not isinstance(number, Tensor) or number.dim():
            form = f"of shape {tuple(number.shape)}" if isinstance(number, Tensor) else f"{number!r}"
            return f"it returned a LossValue with a {name} {form}, and must return a LossValue with scalar tensors"
    return "" if value.total.isfinite() else f"its total on the first examples is {value.total.item()}"


def _note_alike(documents: Representation, pooler: str) -> None:
    """Warn if some vectors are the same for all documents, or if all vectors of each document are equal.

    In some encoders, such as MiniLM, the [CLS] state depends on the text only in the last layer.
    """
    if documents.vectors is None or documents.vector_mask is not None or documents.vectors.shape[1] == 1:
        return
    vectors = nn.functional.normalize(documents.vectors.float(), dim=-1)  # (D, m, width)
    across = torch.einsum("amw,bmw->mab", vectors, vectors).flatten(1).amin(dim=1) >= _ALIKE
    if across.all():
        return  # as with random weights, or with a single text
    problem = ""
    if across.any():
        numbers = ", ".join(str(place + 1) for place in across.nonzero()[:, 0].tolist())
        problem = f"number {numbers} is the same for all texts. Choose other layers, or another token"
    elif bool((vectors @ vectors.transpose(1, 2) >= _ALIKE).all()):
        problem = "all are the same. Let them start farther apart, as pooler.position=1 does for viewers"
    if problem:
        note(f"Before training, of the {len(across)} vectors that pooler '{pooler}' makes of a text, {problem}.")


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore buffers, training modes and random state after the block."""
    device = next((weight.device for weight in module.parameters()), torch.device("cpu"))
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    modes = [(part, part.training) for part in module.modules()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    for part, mode in modes:
        part.training = mode


def first_draws(sampler: ExampleSampler) -> list[Draw]:
    """Return the examples for the dry run: the first with negatives, else the first."""
    order: list[int] = []
    for wanted in (True, False):
        rows = (row for row, example in enumerate(sampler.examples) if bool(example.negatives) == wanted)
        order += islice(rows, _EXAMPLES - len(order))
    draws = []
    for example in (sampler.examples[row] for row in sorted(order)):
        # Negatives with a teacher score come first, since a full step would draw some of them.
        scored = example.teacher or {}
        pool = sorted(example.negatives[: sampler.pool], key=lambda negative: negative not in scored)
        draws.append(Draw(example, example.positives[0], tuple(pool[: sampler.negatives])))
    return draws
