"""Masks of the fast dropout, drawn with a seed."""

from __future__ import annotations

import math

import torch

from retrievalkit.models.encoders.dropout import drop, places


def seeded(function, *arguments, seed=0, **options):
    torch.manual_seed(seed)
    return function(*arguments, **options)


def drop_mask(shape, probability):
    """Return a bool tensor, True where dropout with this probability drops a value."""
    ones = torch.ones(math.prod(shape), dtype=torch.int8)
    return drop(ones, probability, places(len(ones))).view(tuple(shape)) == 0
