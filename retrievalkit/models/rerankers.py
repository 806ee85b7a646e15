"""Re-rankers by their addresses: a cross-encoder's name or folder, or `NAME:MODEL` with a registered name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import registry
from retrievalkit.contracts import Reranker
from retrievalkit.errors import PluginError, UnknownNameError
from retrievalkit.models.precision import Precision, default_device, resolve_precision

# At least two letters: a single letter is a drive.
_PREFIXED = re.compile(r"([a-z][a-z0-9_]+):(.*)", re.DOTALL)


def open_reranker(address: str | Path, *, max_length: int | None = None, backend: str = "auto") -> Reranker:
    """Load a re-ranker; `backend` computes the layers of a cross-encoder.

    Raises:
        UnknownNameError: The name before the colon is not registered.
        InputError: The model does not exist.
        PluginError: The re-ranker has no fingerprint.
    """
    match = _PREFIXED.fullmatch(str(address))
    if match and match[1] in registry.names("reranker"):
        name, source = match[1], match[2]
    elif match and match[1] != "package" and not os.path.exists(address):  # package: is for `locate_model`
        hint = f"'{address}' is not a folder. {registry.default_registry().hint('reranker', match[1])}".rstrip()
        raise UnknownNameError("reranker", match[1], registry.names("reranker"), hint=hint)
    else:
        name, source = "cross_encoder", str(address)
    reranker: Reranker = registry.get("reranker", name).load(source, max_length=max_length)  # type: ignore[attr-defined]
    if name == "cross_encoder":
        reranker.compile(backend)  # type: ignore[attr-defined]
    if not isinstance(getattr(reranker, "fingerprint", None), str):
        msg = f"the re-ranker '{name}' has no fingerprint, a text that changes with its model. Set it in load."
        raise PluginError(msg)
    return reranker


def score_pairs(
    reranker: Reranker,
    pairs: Sequence[Any],
    *,
    batch_tokens: int | None = None,
    precision: Precision = "fp32",
    advance: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Return checked scores (pairs,) float32 of pairs tokenised by the re-ranker; see `contracts.Reranker.score`."""
    precision = resolve_precision(precision, default_device(), among=getattr(reranker, "precisions", None))
    returned = reranker.score(pairs, batch_tokens=batch_tokens, precision=precision, advance=advance)
    try:
        scores = np.asarray(returned, dtype=np.float32)
    except (TypeError, ValueError):
        scores = np.empty((), dtype=np.float32)
    if scores.shape != (len(pairs),):
        problem = f"score() returns {type(returned).__name__} of shape {np.shape(scores)} for {len(pairs)} pairs"
        raise registry.wrong_result("reranker", reranker, problem)
    if not np.isfinite(scores).all():
        raise registry.wrong_result("reranker", reranker, "score() returns a score that is not finite")
    return scores
