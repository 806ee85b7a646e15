"""A trial run before anything is written: two examples through encoder, pooler and loss.

Parts that do not fit together fail in seconds, with a message that names the part. Vectors that tell no document from
another, or equal each other, are noted: a training with them is an hour spent on nothing.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retrievalkit.contracts import LossValue, Progress, Representation, Side, Text
from retrievalkit.data.examples import Example
from retrievalkit.errors import RetrievalkitError, UnsupportedError
from retrievalkit.model.precision import Precision, autocast
from retrievalkit.oddities import note
from retrievalkit.training.objective import Objective
from retrievalkit.training.sampling import Draw, ExampleSampler, StepTexts
from retrievalkit.training.selection import DevSet

_EXAMPLES = 2
_ALIKE = 0.999  # cosines from which vectors count as the same


def rehearse(
    objective: Objective,
    step: StepTexts,
    described: Mapping[str, Any],
    *,
    precision: Precision,
    dev: DevSet | None = None,
) -> None:
    """Compute the loss of a small step once, without a gradient; weights and random state stay as they are.

    Args:
        objective: Retriever and loss, on the device that will train them.
        step: A few texts.
        described: Kind -> description of the encoder, the pooler and the loss, for error messages.
        precision: Number format of matrix products.
        dev: Dev questions, a few of which are judged once.

    Raises:
        InputError: The parts do not fit together.
    """
    device = objective.retriever.device
    with _unchanged(objective), torch.no_grad():
        objective.train()
        queries = _represent(objective, step.queries, "query", described, precision)
        documents = _represent(objective, step.documents, "document", described, precision)
        positives, ignore, teacher = (one if one is None else one.to(device) for one in step.tensors())
        with _blamed(described, loss=objective.loss):
            value = objective.loss(queries, documents, positives, Progress(0, 0.0, 1), ignore, teacher)
            if not isinstance(value, LossValue) or value.total.dim() != 0:
                msg = f"it returned {_shown(value)}, and must return a LossValue whose total is a single number"
                raise TypeError(msg)
        if documents.vectors is not None and documents.vectors.shape[1] > 1:
            objective.retriever.tower("document").eval()  # dropout makes equal vectors differ
            steady = _represent(objective, step.documents, "document", described, precision)
            _note_alike(steady, described["pooler"]["name"])
        if dev is not None:
            few = copy.copy(dev)
            few.examples = dev.examples[:_EXAMPLES]
            parts = {
                "encoder": objective.retriever.tower("query"),
                "pooler": objective.retriever.pooler,
                "loss": objective.loss,
            }
            with _blamed(described, when="when dev questions are judged", **parts):
                few.measure(objective.retriever, objective.loss, 0, precision)


def _represent(
    objective: Objective, texts: Sequence[Text], side: Side, described: Mapping[str, Any], precision: Precision
) -> Representation:
    retriever = objective.retriever
    encoder, pooler = retriever.tower(side), retriever.pooler
    with autocast(precision, retriever.device):
        with _blamed(described, encoder=encoder):
            batch = encoder.collate(encoder.tokenize(texts, side), side).to(retriever.device)
            states = encoder(batch, pooler.needs.layers_of(side, encoder.info))
        with _blamed(described, pooler=pooler):
            made = pooler(states, side)
            if not isinstance(made, Representation) or len(made) != len(texts):
                msg = f"it returned {_shown(made)}, and must return a Representation of {len(texts)} texts"
                raise TypeError(msg)
    return made


def _note_alike(documents: Representation, pooler: str) -> None:
    """Tell of vectors that are the same for all documents, while others are not, and of documents of equal vectors.

    In some encoders, such as MiniLM, the state of [CLS] depends on the text in the last layer alone.
    """
    if documents.vectors is None or documents.vector_mask is not None or documents.vectors.shape[1] == 1:
        return
    vectors = nn.functional.normalize(documents.vectors.float(), dim=-1)  # (D, m, width)
    across = torch.einsum("amw,bmw->mab", vectors, vectors).flatten(1).amin(dim=1) >= _ALIKE
    if across.all():
        return  # as of random weights, or of a text with itself
    count = vectors.shape[1]
    if across.any():
        which = ", ".join(str(place + 1) for place in across.nonzero()[:, 0].tolist())
        note(
            f"Before training, of the {count} vectors that pooler '{pooler}' makes of a text, number {which} is the "
            f"same for all that were tried (cosines of {_ALIKE} or more): this encoder puts nothing of the text there. "
            "Choose other layers, or another token."
        )
    elif bool((vectors @ vectors.transpose(1, 2) >= _ALIKE).all()):
        note(
            f"Before training, the {count} vectors that pooler '{pooler}' makes of a text are all the same "
            f"(cosines of {_ALIKE} or more), and a short training does not part them. Let them start farther apart, as "
            "pooler.position=1 does for viewers."
        )


@contextmanager
def _unchanged(objective: Objective) -> Iterator[None]:
    """Restore buffers, modes and random state afterwards."""
    device = objective.retriever.device
    buffers = [(buffer, buffer.clone()) for buffer in objective.buffers()]
    modes = [(module, module.training) for module in objective.modules()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    for module, mode in modes:
        module.training = mode


@contextmanager
def _blamed(described: Mapping[str, Any], *, when: str = "on the first examples", **parts: nn.Module) -> Iterator[None]:
    """Turn an error of a component into a message that names it; of several, the one that raised it."""
    try:
        yield
    except (RetrievalkitError, OSError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        kind, place = _origin(error, parts)
        reason = " ".join(str(error).split()) or "no reason given"
        msg = (
            f"{kind} '{described[kind]['name']}' fails {when}: {type(error).__name__}{place}: {reason}. "
            f"Its options or sizes may not fit the other parts (encoder '{described['encoder']['name']}', pooler "
            f"'{described['pooler']['name']}', loss '{described['loss']['name']}'); or it is a mistake of its plugin."
        )
        raise UnsupportedError(msg) from error


def _origin(error: Exception, parts: Mapping[str, nn.Module]) -> tuple[str, str]:
    """The kind of the part in whose file the error was raised, and " (file:line)"; else the last part."""
    files = {kind: getattr(sys.modules.get(type(part).__module__), "__file__", None) for kind, part in parts.items()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        for kind, file in files.items():
            if frame.filename == file:
                return kind, f" ({Path(frame.filename).name}:{frame.lineno})"
    return list(parts)[-1], ""


def _shown(value: object) -> str:
    if isinstance(value, Representation):
        return f"a Representation of {len(value)}"
    if isinstance(value, LossValue):
        return f"a LossValue with a total of shape {tuple(value.total.shape)}"
    return f"a {type(value).__name__}"


def first_draws(sampler: ExampleSampler) -> list[Draw]:
    """Examples to rehearse with: the first that have negatives."""
    examples = sampler.examples
    order: list[int] = []
    for wanted in (True, False):
        rows = (row for row, example in enumerate(examples) if bool(example.negatives) == wanted)
        order += islice(rows, _EXAMPLES - len(order))
    return [_draw(examples[row], sampler) for row in sorted(order)]


def _draw(example: Example, sampler: ExampleSampler) -> Draw:
    # Negatives that the teacher scored come first, since a full step would draw some of them.
    pool = sorted(example.negatives[: sampler.pool], key=lambda one: one not in (example.teacher or {}))
    return Draw(example, example.positives[0], tuple(pool[: sampler.negatives]))
