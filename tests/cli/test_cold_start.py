"""What must be instant imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "accelerate", "datasets", "faiss", "grpc", "ir_datasets", "ir_measures", "jnius", "matplotlib",
    "milvus_lite", "numpy", "pandas", "pydantic", "pymilvus", "pyserini", "safetensors", "scipy", "sklearn",
    "tokenizers", "torch", "transformers",
)  # fmt: skip
PROGRAM = """
import json, sys
from retrievalkit.cli import main
try:
    main({arguments})
except SystemExit as end:
    assert not end.code, end.code
print("\\n" + json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["plugins", "list"], ["train", "--help"], ["pretrain", "--help"]],
    ids=" ".join,
)
def test_help_and_the_list_of_plugins_import_nothing_heavy(arguments):
    """With every plugin that is installed."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(arguments=arguments)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout.splitlines()[-1])}
    assert not loaded.intersection(HEAVY)
    assert "retrievalkit" in loaded


def test_a_search_of_texts_imports_no_torch():
    """Importing torch takes longer than the whole search of a Lucene index."""
    program = "import sys, retrievalkit.search.program; from retrievalkit.contracts import Indexer; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    assert not loaded & {"torch", "transformers", "scipy", "ir_measures"}
