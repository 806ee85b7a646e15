"""Weights, gradients and optimizer states divided among the processes: `rkit train --sharding full`, by FSDP2.

Each process keeps its part of every weight, and receives the others' for the layer that it computes (Zhao et al. 2023,
"PyTorch FSDP"). Gradients are added up, as everywhere here. States and checkpoints hold the whole weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from retrievalkit.errors import OptionError
from retrievalkit.training import processes
from retrievalkit.training.objective import Objective

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def check(objective: Objective, *, also: dict[str, bool]) -> None:
    """Refuse what does not go with divided weights.

    Args:
        objective: What is trained.
        also: Options that were given or not.

    Raises:
        OptionError: Names it.
    """
    also = also | {
        "a single process": processes.count() == 1,
        "--separate-towers": len(objective.retriever.towers) > 1,
        "frozen weights, such as those under encoder.lora_rank": not all(
            one.requires_grad for one in objective.parameters()
        ),
    }
    if found := [name for name, given in also.items() if given]:
        msg = f"--sharding full does not go with {' and '.join(found)}. Leave it out, or start several by torchrun."
        raise OptionError(msg)


def shard(objective: Objective) -> None:
    """Divide the weights among the processes: layer by layer, then the rest, and those of the loss."""
    # Representations may be views of hidden states; nothing changes them in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(objective.retriever.device.type, (processes.count(),))
    parts: list[nn.Module] = [layer for layers in _outermost_lists(objective.retriever) for layer in layers]
    parts += [objective.retriever, objective.loss]
    for part in parts:
        if any(True for _ in part.parameters()):
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
def whole(module: nn.Module) -> Iterator[None]:
    """In this block, the main process has whole weights, in its own memory; all processes enter it together."""
    divided = _weights(module)
    make_whole(module)
    try:
        yield
    finally:
        for owner, name, weight in divided:
            owner._parameters[name] = weight


def make_whole(module: nn.Module) -> None:
    """Give the main process whole weights; the module computes no more. All processes call it together."""
    made: dict[int, nn.Parameter] = {}
    for owner, name, weight in _weights(module):
        if id(weight) not in made and isinstance(weight, DTensor):
            # A copy, since this may be part of a larger tensor, which would not be saved.
            full: Tensor = weight.full_tensor().detach()
            kept = full.to("cpu", copy=True) if processes.is_main() else full.new_empty(0)
            made[id(weight)] = nn.Parameter(kept, requires_grad=False)
        owner._parameters[name] = made.get(id(weight), weight)


def _weights(module: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    return [
        (owner, name, weight)
        for owner in module.modules()
        for name, weight in owner._parameters.items()
        if weight is not None
    ]


def optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of the optimizer, whole in the main process; all call it together."""
    return get_optimizer_state_dict(module, optimizer, options=_WHOLE)


def load_optimizer(module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Give each process its part of what `optimizer_state` returned."""
    set_optimizer_state_dict(module, optimizer, state, options=StateDictOptions(full_state_dict=True))
