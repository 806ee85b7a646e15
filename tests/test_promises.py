"""Promises to plugins change only with a version of the contract and a line in the changelog."""

from __future__ import annotations

import ast
import re

import pytest

import promises
from places import ROOT
from retrievalkit.contracts import VERSION

VERSIONS = promises.versions()
PLUGINS = [
    path.parent for folder in ("plugins", "examples/plugins") for path in sorted(ROOT.glob(f"{folder}/*/*/__init__.py"))
    # The conformance kit belongs to a release of the core, and also tests its recipes and commands.
    if path.parent.name not in ("tests", "retrievalkit_testing")
]  # fmt: skip
DO = (
    "Raise VERSION in retrievalkit/hookspecs.py (from 1.0 on the first number where a plugin may break, else the "
    "second) unless it is not released yet, run `python tests/promises.py`, and write the line that it prints into "
    "CHANGELOG.md."
)


def test_promised_names_and_signatures_are_unchanged():
    assert VERSION in VERSIONS, DO
    before, now = promises.written(VERSION), promises.lines()
    changed = [f"- {line}" for line in before if line not in now] + [f"+ {line}" for line in now if line not in before]
    assert not changed, "\n".join([f"What contract {VERSION} promises has changed.", *changed, DO])


def test_the_page_of_promises_is_up_to_date(generate):
    """It is in the repository, readable without building the documentation, and has no private names."""
    page = (ROOT / generate.PROMISES).read_text()
    assert page == generate.promises(), "Run: python docs/_generate.py"
    assert not re.search(r"(?<![\w/])_[A-Za-z]", page.partition("## Names")[2])


def test_the_changelog_has_the_digest_of_the_promises():
    """No promise changes without this line."""
    line = f"contract {VERSION} ({promises.digest(promises.written(VERSION))})"
    assert line in (ROOT / "CHANGELOG.md").read_text(), f"CHANGELOG.md lacks '{line}'. {DO}"


def imported_names(package):
    """Yield (file, name) of a package's imports from retrievalkit, except those for annotations."""
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_bytes())
        guarded = [
            node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ]
        left_out = {id(below) for node in guarded for below in ast.walk(node)}
        for node in ast.walk(tree):
            ours = isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "retrievalkit"
            for alias in node.names if ours and id(node) not in left_out else ():
                yield path.relative_to(ROOT), f"{node.module}.{alias.name}"


@pytest.mark.parametrize("package", PLUGINS, ids=lambda package: package.name)
def test_plugins_import_only_promised_names(package):
    """The names are promised by the contract that the plugin declares, by default the first."""
    source = ast.parse((package / "__init__.py").read_bytes())
    assigned = {ast.unparse(node.targets[0]): node.value for node in source.body if isinstance(node, ast.Assign)}
    declared = VERSIONS[0]
    if "retrievalkit_contract" in assigned:
        declared = ast.literal_eval(assigned["retrievalkit_contract"])
    numbers = promises.numbers(declared)
    fitting = [version for version in VERSIONS if promises.numbers(version)[: len(numbers)] >= numbers]
    assert fitting, declared
    promised = {line.partition("(")[0] for line in promises.written(fitting[0])}
    modules = {name for module in promises.PROMISED for name in (module, module.rpartition(".")[0])}
    beyond = [f"{path}: {name}" for path, name in imported_names(package) if name not in promised | modules]
    assert not beyond
