"""Versions, metadata, workflows, and the completeness of the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import retrievalkit
from retrievalkit import registry
from retrievalkit.cli.main import main as rkit

main = rkit.with_all_commands()
ROOT = Path(__file__).parent.parent
PLUGINS = sorted(path.name for path in (ROOT / "plugins").iterdir() if (path / "pyproject.toml").is_file())
DISTRIBUTIONS = [".", *(f"plugins/{name}" for name in PLUGINS)]


def project(folder):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]


def load(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_python_m_retrievalkit_is_rkit():
    ran = subprocess.run(
        [sys.executable, "-m", "retrievalkit", "--version"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"rkit, version {retrievalkit.__version__}\n")


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_the_version_is_only_in_the_module(folder):
    assert "version" not in project(folder)
    metadata = ProjectMetadata(str(ROOT / folder), PluginManager())
    module = "retrievalkit" if folder == "." else Path(folder).name.replace("-", "_")
    source = (ROOT / folder / module / "__init__.py").read_text()
    assert f'__version__ = "{metadata.version}"' in source


def test_links_of_the_description_on_pypi_are_absolute():
    description = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    assert "# retrievalkit" in description
    assert not re.findall(r"\]\((?!https://)", description)


def test_the_workflow_tests_every_plugin_and_python():
    jobs = load(".github/workflows/ci.yml")["jobs"]
    assert jobs["plugin"]["strategy"]["matrix"]["plugin"] == PLUGINS
    prefix = "Programming Language :: Python :: "
    promised = [name.removeprefix(prefix) for name in project(".")["classifiers"] if name.startswith(prefix)]
    for job in ("core", "plugin"):
        assert jobs[job]["strategy"]["matrix"]["python"] == promised


def test_the_workflow_runs_existing_targets_of_make():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in load(".github/workflows/ci.yml")["jobs"].values() for step in job["steps"]]
    called = {match for step in steps for match in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert called
    assert called <= targets


@pytest.mark.parametrize(
    ("page", "link"), [("index.md", "(how-to/compress"), ("how-to/large-corpora.md", "(../how-to/compress")]
)
def test_links_of_readme_sections_work_on_each_page(generate, page, link):
    """Links in the README begin with docs/, and its sections are shown on pages in several folders."""
    shown = generate.on_page_markdown(
        "<!-- from README.md: Indexes and hybrid search -->", SimpleNamespace(file=SimpleNamespace(src_uri=page))
    )
    assert link in shown
    assert "(docs/" not in shown


def test_reference_pages_have_every_command_and_component(generate):
    """The page of a command has all its options, the page of a kind all its components."""
    pages = generate.pages()
    for name, command in main.commands.items():
        page = pages[f"commands/rkit-{name}.md"]
        below = command.commands.values() if isinstance(command, click.Group) else [command]
        for option in (
            parameter for subcommand in below for parameter in subcommand.params if isinstance(parameter, click.Option)
        ):
            assert option.opts[0] in page
    for kind, hook in registry.HOOKS.items():
        page = pages[f"components/{hook.removeprefix('register_')}.md"]
        assert all(f"## {name}\n" in page for name in registry.names(kind))


def test_sections_that_pages_show_are_there():
    """`<!-- from FILE: HEADING -->` names a file of the repository, and a heading in it."""
    sections = [
        match
        for page in (ROOT / "docs").rglob("*.md")
        for match in re.findall(r"<!-- from (\S+?)(?:: (.+?))? -->", page.read_text())
    ]
    assert sections
    for path, heading in sections:
        assert not heading or f"\n## {heading}\n" in (ROOT / path).read_text(), f"{path}: {heading}"
