"""The description on PyPI: the README with absolute links, as PyPI resolves no relative links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Adds the README to the metadata, with links to the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        place = f"]({metadata['urls']['Repository']}/blob/main/"
        text = re.sub(r"\]\((?!https?:)", place, Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
