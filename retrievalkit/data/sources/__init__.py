"""Where data comes from: files, folders, and names with a prefix (hf:, irds:, pydoc:)."""

from __future__ import annotations

from retrievalkit.data.sources.prefix import fingerprint, is_folder, split_prefix

__all__ = ["fingerprint", "is_folder", "split_prefix"]
