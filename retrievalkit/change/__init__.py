"""`rkit index INDEX --add`, `--delete` and `--compact`: indexes that follow their collections."""

from __future__ import annotations

from retrievalkit.change.program import Outcome, as_json, change_index, describe, read_ids

__all__ = ["Outcome", "as_json", "change_index", "describe", "read_ids"]
