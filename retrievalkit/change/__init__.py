"""`rkit index INDEX --add`, `--delete` and `--compact`: indexes that follow their collections."""

from __future__ import annotations

from retrievalkit.change.program import Outcome, as_json, change_index, describe

__all__ = ["Outcome", "as_json", "change_index", "describe"]
