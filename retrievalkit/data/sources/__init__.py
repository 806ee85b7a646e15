"""Where data comes from: files, folders, and registered prefixes such as `hf:`, `irds:` and `pydoc:`."""

from __future__ import annotations

from retrievalkit.data.sources.memory import InMemory
from retrievalkit.data.sources.prefix import fingerprint, is_folder, open_source, split_prefix
from retrievalkit.data.sources.source import PARTS, Part, Row, Source

__all__ = ["open_source", "Source", "Part", "PARTS", "Row", "InMemory", "fingerprint", "is_folder", "split_prefix"]
