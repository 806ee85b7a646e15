"""Paths of the repository, and of shared data if the machine has any."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("RKIT_SHARED_DATA") or ROOT.parent / "shared" / "data")
