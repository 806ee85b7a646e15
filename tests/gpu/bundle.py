"""Wheels for prove.py on a machine that has torch, transformers, pluggy, click and scipy, and no network.

python tests/gpu/bundle.py make build/gpu        here: downloads and builds them, for Python 3.11 to 3.13 on Linux
python tests/gpu/bundle.py install build/gpu     there: installs them into build/gpu/site, where prove.py looks last
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = [
    ROOT,
    *(ROOT / "plugins" / f"retrievalkit-{name}" for name in ("aggretriever", "cotmae", "mlr", "mvr", "testing")),
]
# Imported by the core, and not by torch, transformers, pluggy, click or scipy in every release.
THEIRS = (
    "accelerate", "annotated-types", "filelock", "markdown-it-py", "mdurl", "psutil", "pydantic", "pydantic-core",
    "pygments", "regex", "rich", "sentencex", "typing-inspection",
)  # fmt: skip
LARGEST = 64 << 20


def make(folder: Path) -> None:
    """Download the wheels of others at the pinned versions, and build ours, which register the components."""
    wheels = folder / "wheels"
    for version in ("3.11", "3.12", "3.13"):
        only = ("--only-binary=:all:", "--python-version", version, "--platform", "manylinux2014_x86_64")
        only += ("--platform", "manylinux_2_28_x86_64")
        pip("download", "--no-deps", *only, "--constraint", ROOT / "constraints.txt", "--dest", wheels, *THEIRS)
    for source in OURS:
        pip("wheel", "--no-deps", "--wheel-dir", wheels, source)
    size = sum(wheel.stat().st_size for wheel in wheels.iterdir())
    if size > LARGEST:
        sys.exit(f"{wheels} takes {size / 2**20:.0f} MiB, and at most {LARGEST / 2**20:.0f} can be carried.")
    print(f"{wheels}: {size / 2**20:.0f} MiB")


def install(folder: Path) -> None:
    """Install the wheels for this Python."""
    names = [*THEIRS, *("retrievalkit" if source == ROOT else source.name for source in OURS)]
    places = ("--find-links", folder / "wheels", "--target", folder / "site")
    pip("install", "--no-index", "--no-deps", "--upgrade", *places, *names)


def pip(*arguments: object) -> None:
    """Run this Python's pip."""
    subprocess.run([sys.executable, "-m", "pip", arguments[0], "--quiet", *map(str, arguments[1:])], check=True)


if __name__ == "__main__":
    {"make": make, "install": install}[sys.argv[1]](Path(sys.argv[2]))
