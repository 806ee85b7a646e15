"""Parts of the conformance tests that need a separate process: results, and the start-up of plugins.

python -m retrievalkit_testing.processes TASK ANSWER
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HEAVY = frozenset({
    "accelerate", "datasets", "faiss", "fastapi", "huggingface_hub", "ir_datasets", "ir_measures", "jax", "jnius",
    "matplotlib", "mcp", "nltk", "numba", "numpy", "onnxruntime", "pandas", "peft", "polars", "pyarrow", "pydantic",
    "pymilvus", "pyserini", "qdrant_client", "requests", "safetensors", "scipy", "sentence_transformers", "sklearn",
    "spacy", "starlette", "tensorflow", "tokenizers", "torch", "transformers", "uvicorn",
})  # fmt: skip
"""Packages that slow down `rkit --help`."""


def started(function: str, *arguments: Any, seconds: float = 300.0) -> tuple[int, Any, str]:
    """Call a function of this module in a new process; returns its exit code, its result and what it printed."""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    with TemporaryDirectory(prefix="rkit-check-") as folder:
        task, answer = Path(folder, "task.pickle"), Path(folder, "answer.pickle")
        task.write_bytes(pickle.dumps((function, arguments)))
        command = [sys.executable, "-m", "retrievalkit_testing.processes", str(task), str(answer)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False, env=environment
            )
        except subprocess.TimeoutExpired:
            return -1, None, f"it did not end within {seconds:.0f} s"
        # The kit itself wrote both files.
        result = pickle.loads(answer.read_bytes()) if answer.exists() else None
    return done.returncode, result, (done.stdout + done.stderr).strip()


def answers(kind: str, name: str, settings: dict[str, Any], number: int) -> Any:
    """Compute the answers of a case to its typical inputs, with a new component."""
    from retrievalkit_testing.conforming import kit_of

    kit: Any = kit_of(kind)
    case = kit.cases(name, **settings)[number]
    return [case.answer(case.fresh(drawn), case.inputs(drawn)) for drawn in case.typical]


def import_plugin(module: str, file: str) -> dict[str, Any]:
    """Import a plugin's module as every start of `rkit` does: its error and where, a heavy import, the time."""
    import pluggy  # noqa: F401 - imported at every start anyway

    import retrievalkit.registry  # noqa: F401

    seen: dict[str, Any] = {"file": "", "line": 0, "error": ""}
    before, start = set(sys.modules), time.process_time()
    try:
        if file:
            spec: Any = importlib.util.spec_from_file_location(module, file)
            sys.modules[module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module])
        else:
            importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
        last = traceback.extract_tb(error.__traceback__)[-1]
        seen |= {"error": f"{type(error).__name__}: {error}", "file": last.filename, "line": last.lineno}
    heavy = min(HEAVY & (set(sys.modules) - before), default="", key=list(sys.modules).index)
    return {**seen, "heavy": heavy, "seconds": time.process_time() - start}


if __name__ == "__main__":
    _name, _arguments = pickle.loads(Path(sys.argv[1]).read_bytes())
    _functions: dict[str, Callable[..., Any]] = {"answers": answers, "import_plugin": import_plugin}
    Path(sys.argv[2]).write_bytes(pickle.dumps(_functions[_name](*_arguments)))
