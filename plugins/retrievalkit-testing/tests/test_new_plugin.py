"""Packages from `rkit plugins new` and `package` pass their tests, linters and type checks, and their recipe runs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from click.testing import CliRunner
from retrievalkit_testing.new_plugin import KINDS

from forked_commands import pytest_in
from killed_processes import forks
from retrievalkit import registry
from retrievalkit.cli import main


def rkit(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def write(folder, kind):
    result = rkit("plugins", "new", f"peak_{kind}", "--kind", kind, "--output", folder)
    assert result.exit_code == 0, result.output
    return folder


def run(*words, folder, site=None):
    """Run a program of this environment in the folder of a package; with `site`, its distribution is installed."""
    environment = dict(os.environ)
    if site is not None:
        install(folder, site)
        environment["PYTHONPATH"] = path_with(folder, site)
    ran = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def path_with(folder, site):
    return os.pathsep.join([str(folder), str(site), *filter(None, [os.environ.get("PYTHONPATH")])])


def install(folder, site):
    """Write the files of an editable installation, and return the name of its entry point."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["retrievalkit.plugins"].items()
    required = "".join(f"Requires-Dist: {one}\n" for one in project["dependencies"])
    about = site / f"{module}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n{required}"
    )
    (about / "entry_points.txt").write_text(f"[retrievalkit.plugins]\n{name} = {module}\n")
    (about / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}))
    return name


def pytest_of(folder, site):
    """Run the package's tests with the pytest plugin of the kit."""
    known = [one.value for one in importlib.metadata.entry_points(group="pytest11")]
    plugin = "retrievalkit_testing.pytest_plugin"
    words = [] if plugin in known else ["-p", plugin]
    install(folder, site)
    done = pytest_in(folder, "-q", "-rs", *words, environment={"PYTHONPATH": path_with(folder, site)})
    assert done.code == 0, done
    return done.out


def lint(folder):
    run("ruff", "check", "--no-cache", ".", folder=folder)
    run("ruff", "format", "--no-cache", "--check", ".", folder=folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_package_has_all_that_publishing_needs_and_lints(tmp_path, kind):
    folder = write(tmp_path / "package", kind)
    lint(folder)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"retrievalkit-peak-{kind}"
    assert yaml.safe_load((folder / ".github/workflows/test.yml").read_text())["jobs"]
    assert "MIT License" in (folder / "LICENSE").read_text()
    readme = (folder / "README.md").read_text()
    recipe = folder / f"retrievalkit_peak_{kind}/recipes/compare.yaml"
    assert recipe.is_file() == ("| baseline | | | |" in readme)
    texts = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert not re.search("my[_-]name|MyName|KIND", texts)


def test_more_components_join_a_package(tmp_path):
    """Components of another kind and of the same kind, each with its hook and tests."""
    folder = write(tmp_path / "package", "pooler")
    for name, kind in (("second", "loss"), ("third", "pooler")):
        added = rkit("plugins", "new", name, "--kind", kind, "--output", folder)
        assert added.exit_code == 0, added.output
    lint(folder)
    listed = run("retrievalkit", "plugins", "list", folder=folder, site=tmp_path / "site")
    assert all(re.search(rf"\b{name} ", listed) for name in ("peak_pooler", "second", "third"))
    assert {"test_conforms.py", "test_conforms_second.py", "test_conforms_third.py"} <= {
        one.name for one in (folder / "tests").iterdir()
    }
    assert rkit("plugins", "new", "third", "--kind", "loss", "--output", folder).exit_code == 2


FAST = ("metric",)


@forks
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in FAST else [pytest.mark.slow]) for kind in KINDS]
)
def test_a_new_package_passes_its_own_tests(tmp_path, kind):
    assert " passed" in pytest_of(write(tmp_path / "package", kind), tmp_path / "site")


@pytest.mark.slow
def test_new_packages_are_typed(tmp_path):
    for kind in KINDS:
        shutil.copytree(write(tmp_path / kind, kind), tmp_path / "all", dirs_exist_ok=True)
    modules = [f"retrievalkit_peak_{kind}" for kind in KINDS]
    out = run("mypy", "--cache-dir", tmp_path / "cache", *modules, folder=tmp_path / "all")
    assert "no issues found" in out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pooler", "indexer", "pretrainer", "filter", "fusion", "reranker"])
def test_the_recipe_of_a_new_package_compares_it_with_the_baseline(tmp_path, kind, tiny_model, tiny_collection):
    folder = write(tmp_path / "package", kind)
    recipe = f"retrievalkit-peak-{kind}/compare"
    values = [f"data={tiny_collection.folder}", f"model={tiny_model}", "seeds=42", "epochs=1", "limit=8"]
    values += ["pretraining_steps=1"] if kind == "pretrainer" else []
    words = [word for value in values for word in ("--set", value)]
    run("retrievalkit", "run", recipe, "--output", tmp_path / "out", *words, folder=folder, site=tmp_path / "site")
    table = (tmp_path / "out" / "results.md").read_text()
    assert "Baseline" in table
    assert f"peak_{kind}" in table


@pytest.mark.parametrize("name", ["Peak", "two-words", "1st"])
def test_a_name_that_is_not_snake_case_is_refused(tmp_path, name):
    result = rkit("plugins", "new", name, "--output", tmp_path / "package")
    assert result.exit_code == 2
    assert "snake_case" in result.stderr
    assert not (tmp_path / "package").exists()


# --- from a file ---------------------------------------------------------------------------------------------------

FILE = '''
"""Peaks: a pooler and a loss."""

import math

import torch

from retrievalkit import hookimpl
from retrievalkit.contracts import EncoderInfo, Loss, Pooler, Representation, Side, TokenStates
from retrievalkit.hookspecs import Register


@hookimpl
def register_poolers(register: Register) -> None:
    """Register the pooler."""
    register("peak", "peaks:Peak", help="The peak.")


class Peak(Pooler):
    """The first token's state.

    Args:
        scale: A factor.
    """

    def __init__(self, info: EncoderInfo, *, scale: float = math.e) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """The vectors."""
        rows = torch.arange(len(states.first))
        return Representation(self.scale * states.last[rows, states.first][:, None])


class Valley(Peak):
    """The same."""


class Depth(Loss):
    """A loss."""


@hookimpl
def register_losses(register: Register) -> None:
    """Register the loss."""
    register("depth", "peaks:Depth")
'''


def test_a_file_becomes_a_package(tmp_path, monkeypatch, fresh_registry):
    (tmp_path / "peaks.py").write_text(FILE.lstrip())
    result = rkit("plugins", "package", tmp_path / "peaks.py", "--output", tmp_path / "package")
    assert result.exit_code == 0, result.output
    assert "the pooler 'peak', the loss 'depth'" in result.output
    folder = tmp_path / "package"
    lint(folder)
    source = (folder / "retrievalkit_peaks" / "peaks.py").read_text()
    assert not re.search("hookimpl|Register", source)
    assert source.startswith('"""Peaks: a pooler and a loss."""\n\nimport math\n\nimport torch\n')
    assert source.endswith('class Depth(Loss):\n    """A loss."""\n')
    top = (folder / "retrievalkit_peaks" / "__init__.py").read_text()
    assert 'register("peak", "retrievalkit_peaks.peaks:Peak", help="The peak.")' in top
    assert "torch" not in top
    (tests,) = (folder / "tests").iterdir()
    assert tests.read_text().endswith('test_peak = conformance("peak")\ntest_depth = conformance("depth")\n')
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == ["retrievalkit>=0.1", "torch"]
    assert "values: {pooler: peak}" in (folder / "retrievalkit_peaks" / "recipes" / "compare.yaml").read_text()
    monkeypatch.syspath_prepend(folder)
    install(folder, tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    fresh_registry()
    assert registry.component("pooler", "peak").load().__module__ == "retrievalkit_peaks.peaks"


@pytest.mark.parametrize(
    ("text", "message"),
    [("1 / 0", "ZeroDivisionError"), ("", "it registers nothing"), (None, "is not a file")],
)
def test_a_file_that_is_no_plugin_is_refused(tmp_path, text, message, fresh_registry):
    if text is not None:
        (tmp_path / "peaks.py").write_text(text)
    result = rkit("plugins", "package", tmp_path / "peaks.py", "--output", tmp_path / "package")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "package").exists()
