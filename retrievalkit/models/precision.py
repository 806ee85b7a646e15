"""The number format that models compute in: the meaning of "auto" on this machine, and the context that applies it.

Weights stay float32; in bf16 and fp16 only the matrix products use the lower precision (automatic mixed precision). A
processor that encodes in bf16 also keeps hidden states in bf16. A bf16 number has 8 significant bits, so a sum depends
on the order of its addends, and a text's vector depends on the other texts of its batch. There are two defaults:

    fp32   if the result is a score to compare: queries of a search, pairs of a re-ranker
    auto   if speed counts and errors average out: training, encoding a corpus

int8 is for inference with OpenVINO, and never selected by "auto": its results differ in the third digit.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from typing import cast

import numpy as np
import torch

from retrievalkit.contracts.encoding import Precision as Precision
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.scoring.bf16_filter import multiplies_bf16

AUTO = "RKIT_PRECISION"
"""Environment variable: the meaning of "auto", fp32 or bf16, whatever the hardware."""


def default_device() -> torch.device:
    """Return the GPU if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve_precision(
    precision: Precision, device: torch.device, *, half: bool = False, among: Collection[Precision] | None = None
) -> Precision:
    """Return the format that a model computes in, never "auto"; with `half`, never fp32 either.

    `among` are the formats that its encoder or backend computes in: "auto" is fp32 if the usual one is not among them.
    """
    if precision == "fp16" and device.type == "cpu":
        msg = "precision fp16 needs a GPU. Use auto, bf16 or fp32 on a CPU."
        raise UnsupportedError(msg)
    if precision == "int8" and device.type != "cpu":
        msg = "precision int8 is for processors, and models run on a GPU here. Use auto, bf16 or fp16."
        raise UnsupportedError(msg)
    if among is not None and precision not in ("auto", *among):
        needed = "; int8 needs OpenVINO (pip install 'retrievalkit[openvino]')" if precision == "int8" else ""
        msg = f"the model computes in {', '.join(among)} here, not in {precision}. Use another --precision{needed}."
        raise UnsupportedError(msg)
    definite = auto_precision(device)[0] if precision == "auto" else precision
    if precision == "auto" and among is not None and definite not in among:
        return "fp32"
    if half and definite == "fp32":
        return "bf16" if device.type == "cpu" else _half_of_gpu()
    return definite


def _half_of_gpu() -> Precision:
    """Return bf16 if the GPU multiplies in bf16, and fp16 if it emulates bf16, several times slower (V100, T4)."""
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def auto_precision(device: torch.device) -> tuple[Precision, str]:
    """Return the meaning of "auto" on a device, and the reason.

    bf16 if the hardware multiplies in bf16; else fp16 on a GPU, and fp32 on a CPU, which emulates bf16 more slowly.
    """
    if wanted := os.environ.get(AUTO):
        if wanted not in ("fp32", "bf16"):
            msg = f"{AUTO} is '{wanted}'. Set it to fp32 or bf16, the precision that auto selects."
            raise OptionError(msg)
        return cast("Precision", wanted), f"set by {AUTO}"
    on_gpu = device.type == "cuda"
    chosen: Precision = _half_of_gpu() if on_gpu else "bf16" if multiplies_bf16() else "fp32"
    verb = "multiplies" if chosen == "bf16" else "does not multiply"
    return chosen, f"the {'GPU' if on_gpu else 'processor'} {verb} in bf16"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return torch's context for a precision; the model itself handles int8."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(resolve_precision(precision, device))
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def shared_best(exact: Iterable[np.ndarray], scores: Iterable[np.ndarray]) -> float:
    """Return the mean share of a query's ten best texts, at most the better half, that other scores rank as high.

    Both arguments have an array of scores per query.
    """
    shares = []
    for pair in zip(exact, scores, strict=True):
        count = min(10, -(-len(pair[0]) // 2))
        best, other = (set(np.argsort(-row, kind="stable")[:count].tolist()) for row in pair)
        shares.append(len(best & other) / count)
    return fmean(shares)
