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
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

HEAVY = frozenset({
    "accelerate", "datasets", "faiss", "fastapi", "huggingface_hub", "ir_datasets", "ir_measures", "jax", "jnius",
    "matplotlib", "mcp", "nltk", "numba", "numpy", "onnxruntime", "pandas", "peft", "polars", "pyarrow", "pydantic",
    "pymilvus", "pyserini", "qdrant_client", "requests", "safetensors", "scipy", "sentence_transformers", "sklearn",
    "spacy", "starlette", "tensorflow", "tokenizers", "torch", "transformers", "uvicorn",
})  # fmt: skip
"""Packages that slow down `rkit --help`."""


def started(function: str, *arguments: Any, seconds: float = 300.0, path: Path | None = None) -> tuple[int, Any, str]:
    """Call a function of this module in a new process."""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(path), environment.get("PYTHONPATH")]))
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
        found = pickle.loads(answer.read_bytes()) if answer.exists() else None
    return done.returncode, found, (done.stdout + done.stderr).strip()


def answers(kind: str, name: str, settings: dict[str, Any], number: int) -> Any:
    """The answers of a case to its typical inputs, with the component created again."""
    from retrievalkit_testing.conforming import kit_of

    kit: Any = kit_of(kind)
    case = kit.cases(name, **settings)[number]
    return [case.answer(case.fresh(drawn), case.given(drawn)) for drawn in case.typical]


def import_plugin(module: str, file: str) -> dict[str, Any]:
    """Import a plugin's module as every start of `rkit` does: its error, the first heavy import and where, the time."""
    import pluggy  # noqa: F401 - imported at every start anyway

    import retrievalkit.registry  # noqa: F401

    seen: dict[str, Any] = {"heavy": "", "file": "", "line": 0, "error": ""}
    here, done = set(sys.modules), False

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        name = str(arguments[0]).partition(".")[0] if event == "import" else ""
        if name in HEAVY and name not in here and not seen["heavy"] and not done:
            origin = file or getattr(sys.modules.get(module), "__file__", None) or ""
            home = origin.removesuffix("__init__.py")
            # The innermost line of the plugin itself, which may import a heavy package through another module.
            frame: FrameType | None = sys._getframe(1)
            place = ("", 0)
            while frame is not None:
                line = (frame.f_code.co_filename, frame.f_lineno)
                if home and line[0].startswith(home):
                    place = line
                    break
                if not place[0] and "importlib" not in line[0]:
                    place = line
                frame = frame.f_back
            seen.update(heavy=name, file=place[0], line=place[1])

    sys.addaudithook(look)
    start = time.process_time()
    try:
        if file:
            spec: Any = importlib.util.spec_from_file_location(module, file)
            sys.modules[module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module])
        else:
            importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = (frame.tb_frame.f_code.co_filename, frame.tb_lineno) if frame else ("", 0)
        seen.update(error=f"{type(error).__name__}: {error}", file=place[0], line=place[1])
    done = True
    return {**seen, "seconds": time.process_time() - start}


if __name__ == "__main__":
    _name, _arguments = pickle.loads(Path(sys.argv[1]).read_bytes())
    _known: dict[str, Callable[..., Any]] = {one.__name__: one for one in (answers, import_plugin)}
    _found = _known[_name](*_arguments)
    Path(sys.argv[2]).write_bytes(pickle.dumps(_found))
