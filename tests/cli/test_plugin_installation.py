"""`rkit plugins install` and `remove` call the pip of this environment; the repository's plugins can be installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

import pytest
from click.testing import CliRunner

from places import ROOT
from retrievalkit import registry
from retrievalkit.cli import main

PROJECTS = sorted((ROOT / "plugins").glob("*/pyproject.toml"))
SHIPPED = [path.parent.name for path in PROJECTS if '"retrievalkit.plugins"' in path.read_text()]


def rkit(*words):
    return CliRunner().invoke(main, ["plugins", *map(str, words)])


def test_a_failure_of_pip_is_reported(monkeypatch, tmp_path):
    result = rkit("install", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert f"{sys.executable} -m pip install -- {tmp_path}/nowhere\n" in result.stderr
    assert "pip failed with exit code 1" in result.stderr


def test_a_name_is_never_an_option_of_pip(capfd):
    assert rkit("install", "--", "--index-url=http://example.org").exit_code == 1
    assert "Invalid requirement" in capfd.readouterr().err


def test_an_environment_without_pip_is_shown_the_command_of_uv(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = rkit("remove", "retrievalkit-mvr")
    assert result.exit_code == 2
    assert f"uv pip uninstall retrievalkit-mvr --python {sys.executable}" in result.stderr


def test_only_an_installed_plugin_can_be_removed():
    result = rkit("remove", "retrievalkit-mrv")
    assert result.exit_code == 2
    assert "did you mean 'retrievalkit-mvr'" in result.stderr


# For pip, PIP_NO_BUILD_ISOLATION=0 means --no-build-isolation.
OFFLINE = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.mark.slow
def test_a_plugin_is_installed_and_removed_in_its_own_environment(tmp_path):
    made = rkit("new", "peak", "--output", tmp_path / "retrievalkit-peak")
    assert made.exit_code == 0
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "here.pth").write_text(sysconfig.get_path("purelib"))

    def run(*words):
        ran = subprocess.run(
            [python, "-m", "retrievalkit", "plugins", *words], env=os.environ | OFFLINE | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    folder = tmp_path / "retrievalkit-peak"
    assert run("install", folder) == f"{folder} is installed\n"
    assert "peak " in run("list")
    assert run("remove", "retrievalkit-peak") == "retrievalkit-peak is removed\n"
    assert "peak " not in run("list")


KITS = ("encoder", "pooler", "loss", "indexer", "pretrainer")
CHECK = """
import sys
from retrievalkit_testing.conforming import targets_of

APPROXIMATE = {"impact": {"recall": 0.99}, "lucene_hnsw": {"recall": 0.7}}
for target in targets_of(sys.argv[1]):
    if target.name == "irds":  # its data sets are on the network
        continue
    settings = {**target.settings, **APPROXIMATE.get(target.name, {})}
    target.kit.report(target.name, examples=4, **settings).check()
    print(target.label)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_each_plugin_of_the_repository_installs_and_keeps_the_contract(name, tmp_path):
    environment = os.environ | {"PIP_NO_BUILD_ISOLATION": OFFLINE["PIP_NO_BUILD_ISOLATION"]}
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site"]
    subprocess.run([*words, ROOT / "plugins" / name], env=environment, check=True)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-c", CHECK, name], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (plugin,) = (plugin for plugin in registry.plugins() if plugin.distribution == name)
    checked = [f"{one.kind} '{one.name}'" for one in plugin.components if one.kind in KITS]
    assert set(checked) <= set(ran.stdout.splitlines())
