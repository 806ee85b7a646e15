"""Stand-in for a device whose memory holds a number of tokens: of a batch, and of graphs before their backward pass."""

from __future__ import annotations

import torch


class DeviceMemory:
    """Memory of a device: models raise torch.OutOfMemoryError if a batch does not fit.

    Attributes:
        sizes: Number of tokens of each batch.
        trained: Number of tokens of each batch with a graph.
    """

    def __init__(self, tokens):
        self.tokens, self.held, self.sizes, self.trained = tokens, 0, [], []

    def limit(self, model):
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after, with_kwargs=True)
        return model

    def _before(self, model, args, kwargs):
        size = tokens_of(args, kwargs)
        if self.held + size > self.tokens:
            msg = f"no memory for {size} tokens"
            raise torch.OutOfMemoryError(msg)

    def _after(self, model, args, kwargs, output):
        size = tokens_of(args, kwargs)
        self.sizes.append(size)
        if torch.is_grad_enabled():
            self.trained.append(size)
            output.last_hidden_state = _Kept.apply(output.last_hidden_state, _Tokens(self, size))


def tokens_of(args, kwargs):
    return (args[0] if args else kwargs["input_ids"]).numel()


class _Tokens:
    """Tokens of a graph, held until its backward pass or its end."""

    def __init__(self, memory, count):
        self.memory, self.count = memory, count
        memory.held += count

    def release(self):
        self.memory.held -= self.count
        self.count = 0

    __del__ = release


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, states, tokens):
        ctx.tokens = tokens
        return states.view_as(states)

    @staticmethod
    def backward(ctx, gradient):
        ctx.tokens.release()
        return gradient, None
