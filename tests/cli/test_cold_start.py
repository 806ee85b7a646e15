"""Commands that must be instant import nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = (
    "accelerate", "datasets", "faiss", "fastapi", "grpc", "ir_datasets", "ir_measures", "jnius", "matplotlib", "mcp",
    "milvus_lite", "numpy", "pandas", "pydantic", "pymilvus", "pyserini", "safetensors", "scipy", "sklearn",
    "starlette", "tokenizers", "torch", "transformers", "uvicorn",
)  # fmt: skip
# Not imported for a model whose graph was exported before.
UNUSED = {
    "accelerate", "datasets", "faiss", "huggingface_hub", "pandas", "peft", "scipy", "sklearn", "sympy", "torch",
    "torchvision", "transformers",
}  # fmt: skip
PROGRAM = """
import json, sys
from retrievalkit.cli import main
try:
    main({arguments})
except SystemExit as end:
    assert not end.code, end.code
print("\\n" + json.dumps(sorted(sys.modules)))
"""


def modules_after(arguments):
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(arguments=arguments)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["plugins", "list"], ["train", "--help"], ["pretrain", "--help"], ["serve", "--help"]],
    ids=" ".join,
)
def test_help_and_the_list_of_plugins_import_nothing_heavy(arguments):
    loaded = {name.partition(".")[0] for name in modules_after(arguments)}
    assert not loaded.intersection(HEAVY)
    assert "retrievalkit" in loaded


PLUGIN = """
from retrievalkit import hookimpl

@hookimpl
def register_poolers(register):
    register("{name}", "{name}_parts:Pooler")
"""


def test_twenty_more_plugins_import_only_their_own_modules(tmp_path, monkeypatch):
    without = modules_after(["--help"])
    names = [f"acme_{number}" for number in range(20)]
    for name in names:
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(name=name))
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
        (tmp_path / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[retrievalkit.plugins]\n{name} = {name}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    assert modules_after(["--help"]) - without == set(names)


def test_a_search_of_texts_imports_no_torch():
    modules = "sys, retrievalkit.objects.hybrid, retrievalkit.search.interactive"
    program = f"import {modules}; from retrievalkit.contracts import Indexer; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert not loaded & {"torch", "transformers", "scipy", "ir_measures"}


def test_a_search_of_vectors_needs_no_torch(tmp_path, tiny_model, tiny_collection, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setenv("RKIT_BACKEND", "openvino")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vectors, index = str(tmp_path / "vectors"), str(tmp_path / "index")
    for words in (
        ["encode", tiny_model, str(tiny_collection.corpus), "--pooler", "mean", "--output", vectors],
        ["index", vectors, "--output", index],
    ):
        modules_after(words)
    query = ["search", index, "--query", "what is the capital of france", "--k", "2"]
    exported, loaded = modules_after(query), modules_after(query)
    assert "torch" in exported
    assert "tokenizers" in loaded
    assert not loaded & UNUSED
