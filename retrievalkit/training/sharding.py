"""Sharded weights: `rkit train --sharding full` divides weights, gradients and optimizer states (FSDP2).

Each process keeps its shard of every weight, and receives the other shards for the layer being computed (Zhao et al.
2023, "PyTorch FSDP"). States and checkpoints contain the full weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from retrievalkit.training.collective import Collective


def shard(retriever: nn.Module, loss: nn.Module, collective: Collective) -> None:
    """Shard the weights among the processes (FSDP2): layer by layer, then the other weights, then the loss."""
    # Representations may be views of hidden states; nothing changes them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(next(retriever.parameters()).device.type, (collective.size,))
    parts: list[nn.Module] = [layer for layers in _outermost_lists(retriever) for layer in layers]
    parts += [retriever, loss]
    for part in parts:
        if list(part.parameters()):
            divided: Any = fully_shard(part, mesh=mesh)
            divided.set_gradient_divide_factor(1.0)
            divided.set_force_sum_reduction_for_comms(True)


def _outermost_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outermost_lists(child)


@contextmanager
def whole(module: nn.Module, collective: Collective) -> Iterator[None]:
    """Gather the full weights in the main process's CPU memory for the block; all processes must enter it."""
    divided = _weights(module)
    make_whole(module, collective)
    try:
        yield
    finally:
        for owner, name, weight in divided:
            owner._parameters[name] = weight


def make_whole(module: nn.Module, collective: Collective) -> None:
    """Gather the full weights in the main process; the module cannot compute afterwards. All processes must call it."""
    gathered: dict[int, nn.Parameter] = {}
    for owner, name, weight in _weights(module):
        if id(weight) not in gathered and isinstance(weight, DTensor):
            # A copy, since a view of a larger tensor would not be saved.
            full: Tensor = weight.full_tensor().detach()
            kept = full.to("cpu", copy=True) if collective.is_main else full.new_empty(0)
            gathered[id(weight)] = nn.Parameter(kept, requires_grad=False)
        owner._parameters[name] = gathered.get(id(weight), weight)


def _weights(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    return [
        (owner, name, weight)
        for owner in module.modules()
        for name, weight in owner._parameters.items()
        if weight is not None
    ]
