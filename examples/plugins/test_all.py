"""Checks of each package in this folder: promised imports, recipe, README."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.recipes.recipe import load_recipe
from retrievalkit.recipes.run import plan

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = sorted(path.parent for path in HERE.glob("*/pyproject.toml"))
RECIPES = sorted(HERE.glob("*/recipes/*.yaml"))

packages = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def components(folder):
    """The components that a package registers."""
    if folder.name == "retrievalkit-usearch" and not importlib.util.find_spec("usearch"):
        pytest.skip("usearch is not installed")
    registered = (component for plugin in registry.plugins() for component in plugin.components)
    return [component for component in registered if component.distribution == folder.name]


@packages
def test_only_promised_modules_are_imported(folder):
    """The import rule for the repository's plugins lists the allowed modules."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rule = next(rule for rule in rules if rule["name"].startswith("Plugins and built-in components"))
    allowed = [line.removeprefix("** -> ") for line in rule["ignore_imports"] if line.startswith("** -> ")]
    patterns = [re.compile(module.replace(".", r"\.").replace("*", r"\w+")) for module in allowed]
    modules = [
        node.module
        for path in folder.glob("retrievalkit_*/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "retrievalkit"
    ]
    assert set(modules) >= {"retrievalkit", "retrievalkit.contracts"}
    for module in set(modules) - {"retrievalkit"}:
        assert any(pattern.fullmatch(module) for pattern in patterns), module


@packages
def test_a_package_imports_nothing_heavy(folder):
    """Its module is imported at every start of rkit."""
    module = folder.name.replace("-", "_")
    heavy = {"torch", "numpy", "scipy", "faiss", "usearch"}
    code = f"import sys, {module}; sys.exit(not {heavy}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@packages
def test_the_readme_lists_every_component_and_option(folder):
    """Options with their defaults."""
    readme = (folder / "README.md").read_text()
    registered = components(folder)
    assert registered
    for component in registered:
        assert f"`{component.name}`" in readme
        for option in registry.options(component.load()).values():
            assert option.description, option.name
            assert f"| `{option.name}` | {option.default} |".lower() in readme.lower(), option.name


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.parents[1].name)
def test_every_command_of_a_recipe_is_valid(path, tmp_path):
    """And the recipe compares several rows with a baseline."""
    components(path.parents[1])
    recipe = load_recipe(path, {"data": "FOLDER"})
    if "bm25" not in registry.names("indexer"):
        pytest.skip("retrievalkit-pyserini is not installed")
    assert plan(recipe, tmp_path, main.with_all_commands())
    assert recipe.baseline
    assert len(recipe.rows) > 1


def test_the_workflow_tests_every_package():
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["example"]
    assert job["strategy"]["matrix"]["package"] == [folder.name for folder in FOLDERS]
