"""What is not installed are found as if it were, by its entry points, while its tests run."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tomllib
from pathlib import Path

import pytest

from retrievalkit import registry

FOLDERS = tuple(path.parent for path in sorted(Path(__file__).parent.glob("*/pyproject.toml")))
sys.path += map(str, FOLDERS)


@pytest.fixture(scope="module", autouse=True)
def installed(request, tmp_path_factory):
    """The package of this test is installed; all are for a test of all."""
    mine = [folder for folder in FOLDERS if folder in request.path.parents]
    described = tmp_path_factory.mktemp("installed")
    places = [str(described)]
    for folder in mine or FOLDERS:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        if not any(importlib.metadata.distributions(name=project["name"])):
            _describe(project, described)
            places.append(str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*places, *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")]))
        registry.default_registry.cache_clear()
        yield
    registry.default_registry.cache_clear()


def _describe(project, folder):
    """Write what pip writes of a distribution, so far as the registry reads it."""
    described = folder / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
    described.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", "Version: 0.1.0"]
    lines += [f"Requires-Dist: {one}" for one in project["dependencies"]]
    (described / "METADATA").write_text("\n".join(lines) + "\n")
    points = [
        line
        for group, named in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in named.items()))
    ]
    (described / "entry_points.txt").write_text("\n".join(points) + "\n")
