"""Pooling of vocabulary logits, forward and backward: time and peak memory against the plain expression.

    python benchmarks/lexical.py [--texts 64] [--tokens 128] [--terms 30522] [--width 384] [--rounds 3]
    python benchmarks/lexical.py --memory

The same random states, weight and bias, every token a real one. The peer is the plain expression at its leanest: all
logits from one product, then torch's own operations, the logarithm only after the maximum. It wants several GB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pairs import compare, machine
from torch import Tensor
from torch.nn.functional import cosine_similarity

from retrievalkit.contracts import VocabularyHead
from retrievalkit.lexical import keep_top_k, max_saturated, max_weighted_softmax
from retrievalkit.model.precision import default_device

TOP_K, SLICES = 768, 1280


@dataclass
class Inputs:
    """What both are given: hidden states, a head and token weights."""

    hidden: Tensor
    head: VocabularyHead
    weights: Tensor
    mask: Tensor

    @classmethod
    def random(cls, texts: int, tokens: int, terms: int, width: int) -> Inputs:
        torch.manual_seed(0)
        device = default_device()
        head = VocabularyHead(torch.nn.Identity(), *_leaves((terms, width), (terms,), scale=0.05, device=device))
        hidden, weights = _leaves((texts, tokens, width), (texts, tokens), scale=1.0, device=device)
        return cls(hidden, head, weights, torch.ones(texts, tokens, dtype=torch.bool, device=device))

    def gradients(self, pooled: Tensor) -> tuple[Tensor, ...]:
        """Of a loss that gives every output another gradient."""
        loss = (pooled * torch.linspace(-1, 1, pooled.numel(), device=pooled.device).view_as(pooled)).sum()
        leaves = [self.hidden, self.head.weight, self.head.bias, self.weights]
        return tuple(one for one in torch.autograd.grad(loss, leaves, allow_unused=True) if one is not None)


def _leaves(*shapes: tuple[int, ...], scale: float, device: torch.device) -> list[Tensor]:
    return [torch.empty(shape, device=device).normal_(0, scale).requires_grad_() for shape in shapes]


def saturated(inputs: Inputs) -> Tensor:
    return keep_top_k(max_saturated(inputs.hidden, inputs.head, inputs.mask), TOP_K)


def plain_saturated(inputs: Inputs) -> Tensor:
    logits = inputs.head(inputs.hidden).masked_fill(~inputs.mask[:, :, None], float("-inf"))
    return keep_top_k(torch.log1p(torch.relu(logits.amax(dim=1))), TOP_K)


def weighted(inputs: Inputs) -> Tensor:
    return _slices(max_weighted_softmax(inputs.hidden, inputs.head, inputs.weights, inputs.mask))


def plain_weighted(inputs: Inputs) -> Tensor:
    values = inputs.head(inputs.hidden).softmax(dim=2) * inputs.weights[:, :, None]
    return _slices(values.masked_fill(~inputs.mask[:, :, None], float("-inf")).amax(dim=1))


def _slices(pooled: Tensor) -> Tensor:
    """(texts, SLICES): the maximum of every SLICES-th term, what is left over dropped."""
    deep = pooled.shape[1] // SLICES
    return pooled[:, : deep * SLICES].unflatten(1, (deep, SLICES)).amax(dim=1)


Pool = Callable[[Inputs], Tensor]
METHODS: dict[str, tuple[Pool, Pool]] = {
    f"saturated, top {TOP_K}": (saturated, plain_saturated),
    f"weighted softmax, {SLICES} slices": (weighted, plain_weighted),
}


def speed(ours: Pool, peer: Pool, sizes: list[int], rounds: int) -> dict:
    """The ratio, and how alike the gradients are."""
    inputs = Inputs.random(*sizes)
    result = compare(
        lambda: inputs.gradients(ours(inputs)),
        lambda: inputs.gradients(peer(inputs)),
        amount=sizes[0],
        unit="texts",
        rounds=rounds,
    )
    pairs = zip(inputs.gradients(ours(inputs)), inputs.gradients(peer(inputs)), strict=True)
    cosines = [float(cosine_similarity(one.flatten(), other.flatten(), dim=0)) for one, other in pairs]
    return result | {"smallest cosine of gradients": round(min(cosines), 6)}


def memory(method: str, sizes: list[int]) -> dict:
    """What each adds to the memory of its inputs at most, in MB, each in a process of its own."""
    peaks = {}
    for side, who in enumerate(("ours", "peer")):
        command = [sys.executable, __file__, "--peak-of", method, str(side), *map(str, sizes)]
        peaks[who] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"peak MB": peaks, "ratio": round(peaks["ours"] / peaks["peer"], 3), "machine": machine()}


def peak_of(method: str, side: int, sizes: list[int]) -> float:
    """One forward and backward pass in this process: by how many MB its peak exceeds what the inputs take."""
    # The first product and backward pass load libraries and start threads: a small one first.
    small = Inputs.random(2, 2, 2 * SLICES, 2)
    small.gradients(METHODS[method][side](small))
    inputs = Inputs.random(*sizes)
    before = _peak()
    inputs.gradients(METHODS[method][side](inputs))
    return round(_peak() - before, 1)


def _peak() -> float:
    """The most memory so far, in MB."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run what was asked for and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, size in {"texts": 64, "tokens": 128, "terms": 30522, "width": 384, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--peak-of", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = [arguments.texts, arguments.tokens, arguments.terms, arguments.width]
    if arguments.peak_of:
        method, side, *sizes = arguments.peak_of
        print(peak_of(method, int(side), [int(size) for size in sizes]))
        return
    found = {
        method: memory(method, sizes) if arguments.memory else speed(*pair, sizes, arguments.rounds)
        for method, pair in METHODS.items()
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
