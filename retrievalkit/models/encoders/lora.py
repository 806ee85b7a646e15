"""Low-rank adapters (LoRA, Hu et al. 2021) with PEFT: small trained matrices next to the frozen weights of a model.

The adapters are stored next to the model's unchanged weights, in `adapters.safetensors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from retrievalkit.errors import InputError, MissingDependencyError

WEIGHTS = "adapters.safetensors"


class LowRank(NamedTuple):
    """Rank of the adapters (0 = none), alpha (scales their output by alpha / rank), and dropout before them."""

    rank: int = 0
    alpha: float = 16.0
    dropout: float = 0.0


def add_adapters(model: nn.Module, options: LowRank, folder: Path) -> None:
    """Add adapters to every linear layer of a model, freeze the rest, and load the adapters' weights if stored."""
    try:
        import peft
    except ImportError:
        raise MissingDependencyError("peft", "LoRA adapters", "'retrievalkit[lora]'") from None
    peft.inject_adapter_in_model(
        peft.LoraConfig(
            r=options.rank, lora_alpha=options.alpha, lora_dropout=options.dropout, target_modules="all-linear"
        ),
        model,
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.float()  # the frozen weights may be bf16
    if not (folder / WEIGHTS).is_file():
        return
    own = {name for name in model.state_dict() if "lora_" in name}
    stored = load_file(folder / WEIGHTS)
    if set(stored) != own or any(stored[name].shape != model.state_dict()[name].shape for name in own):
        msg = f"the adapters in '{folder}' are not of rank {options.rank}. Set encoder.lora_rank to theirs."
        raise InputError(msg)
    model.load_state_dict(stored, strict=False)


def save_adapters(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Write the adapters, and return the model's own weights under their own names."""
    state = model.state_dict()
    adapters = {name: tensor.cpu().contiguous() for name, tensor in state.items() if "lora_" in name}
    save_file(adapters, folder / WEIGHTS)
    return {name.replace(".base_layer.", "."): tensor for name, tensor in state.items() if "lora_" not in name}
