"""Where tests find the repository's own files, and the shared data of the machine if it has any."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("RKIT_SHARED_DATA") or ROOT.parent / "shared" / "data")
