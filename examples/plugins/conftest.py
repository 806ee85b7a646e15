"""Fixtures of the packages' tests; packages that are not installed are discoverable by their entry points."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrievalkit import registry
from retrievalkit.cli import main

FOLDERS = tuple(path.parent for path in sorted(Path(__file__).parent.glob("*/pyproject.toml")))
sys.path += map(str, FOLDERS)


@pytest.fixture(scope="module", autouse=True)
def installed(request, tmp_path_factory):
    """Register the package of a test, or all packages for a test of all."""
    tested = [folder for folder in FOLDERS if folder in request.path.parents]
    metadata = tmp_path_factory.mktemp("installed")
    places = [str(metadata)]
    for folder in tested or FOLDERS:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        if not any(importlib.metadata.distributions(name=project["name"])):
            _write_metadata(project, metadata)
            places.append(str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*places, *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join([*places, os.environ.get("PYTHONPATH", "")]))
        registry.default_registry.cache_clear()
        yield
    registry.default_registry.cache_clear()


@pytest.fixture(scope="session")
def rkit():
    """Runs a command; returns its output."""

    def run(*words, code=0):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == code, f"rkit {' '.join(map(str, words))}\n{result.output}\n{result.exception!r}"
        return result.output if code else result.stdout

    return run


@pytest.fixture
def train_and_index(rkit, tiny_model, tiny_collection, tmp_path):
    """Trains a pooler on the tiny collection; returns the index, and the output of `rkit index --check`."""

    def run(pooler, indexer="flat"):
        data, index = tiny_collection.folder, tmp_path / "index"
        places = ["--model", tiny_model, "--corpus", data, "--examples", data, "--output", tmp_path / "checkpoint"]
        settings = ["--learning-rate", "1e-2", "--set", "encoder.dropout=0", "--set", "negatives=0"]
        rkit("train", "--pooler", pooler, *places, "--epochs", 8, "--batch-size", 16, *settings)
        rkit("encode", tmp_path / "checkpoint", tiny_collection.corpus, "--output", tmp_path / "vectors")
        return index, rkit("index", tmp_path / "vectors", "--indexer", indexer, "--output", index, "--check")

    return run


@pytest.fixture
def ndcg(rkit, tiny_collection):
    """Computes nDCG@10 of an index on the tiny collection."""

    def measure(index):
        run = index.with_suffix(".trec")
        run.unlink(missing_ok=True)
        rkit("search", index, "--queries", tiny_collection.queries, "--k", 10, "--output", run)
        output = rkit("evaluate", run, "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json")
        return json.loads(output)["metrics"]["nDCG@10"]

    return measure


def _write_metadata(project, folder):
    """Write the metadata of a distribution, like pip."""
    metadata = folder / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"
    metadata.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", "Version: 0.1.0"]
    lines += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    (metadata / "METADATA").write_text("\n".join(lines) + "\n")
    points = [
        line
        for group, named in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in named.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(points) + "\n")
