"""`rkit index INDEX --add`, `--delete` and `--compact`: indexes that follow their collections."""

from __future__ import annotations

from retrievalkit.indexing.change.change import Outcome, change_index

__all__ = ["Outcome", "change_index"]
