"""The number format that models compute in."""

from __future__ import annotations

import pytest
import torch

from retrievalkit.errors import UnsupportedError
from retrievalkit.model import precision

CPU = torch.device("cpu")


@pytest.mark.parametrize("chosen", ["fp32", "bf16"])
def test_a_definite_format_stays(chosen):
    assert precision.resolve_precision(chosen, CPU) == chosen


@pytest.mark.parametrize(("supported", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_where_the_processor_multiplies_in_it(monkeypatch, supported, expected):
    """Other processors emulate it, slower than float32."""
    for probe in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, probe, lambda: supported, raising=False)
    assert precision.resolve_precision("auto", CPU) == expected


@pytest.mark.parametrize(("supported", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_on_a_gpu_asks_the_gpu(monkeypatch, supported, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    assert precision.resolve_precision("auto", torch.device("cuda")) == expected


def test_fp16_needs_a_gpu():
    with pytest.raises(UnsupportedError, match=r"fp16 needs a GPU\. Use auto, bf16 or fp32"):
        precision.resolve_precision("fp16", CPU)
    assert precision.resolve_precision("fp16", torch.device("cuda")) == "fp16"


@pytest.mark.parametrize(("chosen", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_multiplies_in_that_format(chosen, expected):
    with precision.autocast(chosen, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == expected
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
