"""The number format that models compute in: what "auto" means on this processor, and the context that applies it.

Weights stay float32; matrix products are done in the lower precision (automatic mixed precision).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from retrievalkit.errors import UnsupportedError

Precision = Literal["auto", "fp32", "bf16", "fp16"]


def default_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """A definite format for "auto": bf16 where the hardware multiplies in it, else fp32.

    Raises:
        UnsupportedError: fp16 on a CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        msg = "precision fp16 needs a GPU. Use auto, bf16 or fp32 on a CPU."
        raise UnsupportedError(msg)
    if precision != "auto":
        return precision
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if _cpu_multiplies_bf16() else "fp32"


def _cpu_multiplies_bf16() -> bool:
    # Other CPUs emulate bf16, several times slower than fp32.
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, probe)() for probe in probes if hasattr(torch.cpu, probe))


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context in which a model computes in that precision."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(resolve_precision(precision, device))
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
