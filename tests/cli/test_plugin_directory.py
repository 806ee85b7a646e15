"""Known plugins are found, installed and removed by their names; what is not known, or cannot be done, is said."""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import sys
import sysconfig
import threading

import pytest
from click.testing import CliRunner

from places import ROOT
from retrievalkit import registry
from retrievalkit.cli import main, plugin_directory

SHIPPED = sorted(path.name for path in (ROOT / "plugins").iterdir() if (path / "pyproject.toml").is_file())
ENTRY = """
[[plugin]]
name = "retrievalkit-peak"
summary = "Peaks of token states."
components = {{ pooler = ["peak"] }}
licence = "MIT"
home = "https://example.org"
requirement = "{requirement}"
contract = "1"
"""


def rkit(*words):
    return CliRunner().invoke(main, ["plugins", *map(str, words)])


def directory(folder, requirement="retrievalkit-peak>=0.1"):
    path = folder / "directory.toml"
    path.write_text(ENTRY.format(requirement=requirement))
    return path


# --- the list ------------------------------------------------------------------------------------------------------


def test_the_list_has_what_the_plugins_of_the_repository_register():
    """Each of them, with every component: a new one is listed too."""
    listed = {entry.name: entry.components for entry in plugin_directory.read_directory()}
    assert set(SHIPPED) <= set(listed)
    for plugin in registry.plugins():
        if plugin.distribution in SHIPPED:
            assert plugin.error is None
            brought = {}
            for one in plugin.components:
                brought.setdefault(one.kind, []).append(one.name)
            assert {kind: sorted(names) for kind, names in brought.items()} == listed[plugin.distribution]


def test_the_list_of_a_checkout_is_that_of_the_repository():
    """In a wheel it is beside the module: see pyproject.toml."""
    assert plugin_directory.DIRECTORY == ROOT / "plugins" / "directory.toml"
    assert '"plugins/directory.toml" = "retrievalkit/cli/directory.toml"' in (ROOT / "pyproject.toml").read_text()


def test_plugins_are_found_by_words_in_any_of_their_fields():
    result = rkit("search", "VIEWERS")
    assert result.exit_code == 0
    assert re.match(r"retrievalkit-mvr  \(installed: [\d.]+\)\n    Multi-view", result.output)
    assert "pooler viewers; loss global_local" in result.output
    assert [row["name"] for row in json.loads(rkit("search", "pooler", "lucene", "--json").output)] == []
    (row,) = json.loads(rkit("search", "indexer", "lucene", "--json").output)
    assert row["name"] == "retrievalkit-pyserini"
    assert row["kinds"] == ["indexer", "check"]
    assert "No plugin has all" in rkit("search", "nothing-of-the-kind").output


def test_another_list_is_read_from_a_file(tmp_path):
    result = rkit("search", "--directory", directory(tmp_path))
    assert result.output.startswith("retrievalkit-peak  (rkit plugins install retrievalkit-peak)\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[plugin]", "is no list of plugins"),
        ("plugin = 3", "is no list of plugins"),
        ("plugin = [3]", "is no list of plugins"),
        (ENTRY.format(requirement="x").replace("licence", "license"), "did you mean 'licence'"),
        (ENTRY.format(requirement="x").replace('licence = "MIT"', ""), "needs the option 'licence'"),
        (ENTRY.format(requirement="--index-url=http://example.org"), "does not begin with the name"),
        (ENTRY.format(requirement="retrievalkit-peaks"), "does not begin with the name"),
        (ENTRY.format(requirement="-rx").replace("retrievalkit-peak", "-rx"), "does not begin with the name"),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path, text, message):
    (tmp_path / "list.toml").write_text(text)
    result = rkit("search", "--directory", tmp_path / "list.toml")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.fixture
def server(tmp_path):
    """Serves a folder over HTTP on this machine."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def test_another_list_is_fetched_from_an_address(tmp_path, server):
    directory(tmp_path)
    assert "retrievalkit-peak" in rkit("search", "--directory", f"{server}/directory.toml").output
    missing = rkit("search", "--directory", f"{server}/nowhere.toml")
    assert (missing.exit_code, "cannot be fetched (HTTP Error 404" in missing.stderr) == (2, True)


@pytest.mark.parametrize(
    "address", ["http://example.org/list.toml", "ftp://example.org/list.toml", "file:///etc/hosts"]
)
def test_a_list_that_others_may_change_on_the_way_is_refused(address):
    """It says what pip installs."""
    result = rkit("search", "--directory", address)
    assert result.exit_code == 2
    assert "https alone" in result.stderr


# --- installing and removing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["install", "remove"])
def test_what_is_not_in_the_list_is_refused(command):
    """By typing error or by intention: nothing is run."""
    result = rkit(command, "retrievalkit-mrv")
    assert result.exit_code == 2
    assert "did you mean 'retrievalkit-mvr'" in result.stderr
    assert "pip install" not in result.stderr


def test_what_is_not_installed_cannot_be_removed(tmp_path):
    result = rkit("remove", "retrievalkit-peak", "--directory", directory(tmp_path))
    assert (result.exit_code, "is not installed" in result.stderr) == (2, True)


def test_without_network_it_is_said(tmp_path, monkeypatch, capfd):
    """The command is shown before it is run, and pip's own words."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    result = rkit("install", "retrievalkit-peak", "--directory", directory(tmp_path))
    assert result.exit_code == 1
    assert f"{sys.executable} -m pip install 'retrievalkit-peak>=0.1'" in result.stderr
    assert "the package index cannot be reached" in result.stderr


def test_an_environment_without_pip_is_told_the_command_of_uv(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = rkit("install", "retrievalkit-peak", "--directory", directory(tmp_path))
    assert result.exit_code == 2
    assert f"uv pip install 'retrievalkit-peak>=0.1' --python {sys.executable}" in result.stderr


def test_a_python_of_the_operating_system_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    result = rkit("install", "retrievalkit-peak", "--directory", directory(tmp_path))
    assert result.exit_code == 2
    assert "python -m venv" in result.stderr


# pip takes a 0 of PIP_NO_BUILD_ISOLATION for --no-build-isolation.
OFFLINE = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.mark.slow
def test_a_plugin_is_installed_and_removed_in_an_environment_of_its_own(tmp_path):
    """Whose path also has all that is installed here, and the sources under test."""
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

    place = str(directory(tmp_path))
    out = run("install", "retrievalkit-peak", "--directory", place)
    assert out == "retrievalkit-peak is installed: pooler peak\n"
    assert "peak " in run("list")
    assert "(installed: 0.1.0)" in run("search", "--directory", place)
    assert run("remove", "retrievalkit-peak", "--directory", place) == "retrievalkit-peak is removed\n"
    assert "peak " not in run("list")


KITS = ("encoder", "pooler", "loss", "indexer", "pretrainer")
CHECK = """
import sys
from retrievalkit.testing.kits import tried_with

for one in tried_with(sys.argv[1]):
    one.kit.report(one.name, **one.settings).check()
    print(one.label)
"""


@pytest.mark.slow
@pytest.mark.parametrize("entry", plugin_directory.read_directory(), ids=lambda entry: entry.name)
def test_each_entry_installs_and_keeps_the_contract(entry, tmp_path):
    """Built and installed aside, in front of what is installed here; those of the repository from their folders."""
    folder = ROOT / "plugins" / entry.name
    wanted = str(folder) if folder.is_dir() else entry.requirement
    environment = os.environ | {"PIP_NO_BUILD_ISOLATION": OFFLINE["PIP_NO_BUILD_ISOLATION"]}
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", wanted]
    subprocess.run(words, env=environment, check=True)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-c", CHECK, entry.name], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    checked = [f"{kind} '{name}'" for kind in KITS for name in entry.components.get(kind, ())]
    assert set(checked) <= set(ran.stdout.splitlines())
