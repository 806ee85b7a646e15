"""Imports a plugin's module as `rkit` does at every start, and writes down what that costs.

python -m retrievalkit.testing.package_start MODULE FILE ANSWER
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

HEAVY = frozenset({
    "accelerate", "datasets", "faiss", "fastapi", "huggingface_hub", "ir_datasets", "ir_measures", "jax", "jnius",
    "matplotlib", "mcp", "nltk", "numba", "numpy", "onnxruntime", "pandas", "peft", "polars", "pyarrow", "pydantic",
    "pymilvus", "pyserini", "qdrant_client", "requests", "safetensors", "scipy", "sentence_transformers", "sklearn",
    "spacy", "starlette", "tensorflow", "tokenizers", "torch", "transformers", "uvicorn",
})  # fmt: skip
"""Packages that make `rkit --help` slow."""


def main() -> None:
    """Import the module, and write what was seen as JSON."""
    module, file, answer = sys.argv[1:]
    import pluggy  # noqa: F401 - what every start has imported already

    import retrievalkit.registry  # noqa: F401

    seen: dict[str, Any] = {"heavy": "", "file": "", "line": 0, "error": ""}
    here = set(sys.modules)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import" and not seen["heavy"] and not seen.get("done"):
            name = str(arguments[0]).partition(".")[0]
            if name in HEAVY and name not in here:
                place = _line_in(_home(module, file), sys._getframe(1))
                seen.update(heavy=name, file=place[0], line=place[1])

    sys.addaudithook(look)
    start = time.process_time()
    try:
        _import(module, file)
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        place = (frame.tb_frame.f_code.co_filename, frame.tb_lineno) if frame else ("", 0)
        seen.update(error=f"{type(error).__name__}: {error}", file=place[0], line=place[1])
    seen["done"] = True
    seconds = time.process_time() - start
    found = {name: seen[name] for name in ("heavy", "file", "line", "error")}
    Path(answer).write_text(json.dumps({**found, "seconds": seconds}))


def _home(module: str, file: str) -> str:
    """The file of the plugin, or the folder of its package."""
    if file:
        return file
    origin = sys.modules[module].__file__ if module in sys.modules else None
    if origin is None:
        return ""
    return str(Path(origin).parent) if Path(origin).name == "__init__.py" else origin


def _line_in(home: str, frame: FrameType | None) -> tuple[str, int]:
    """The innermost line of the plugin itself, which may import what is heavy by another module."""
    first = ("", 0)
    while frame is not None:
        here = (frame.f_code.co_filename, frame.f_lineno)
        if home and here[0].startswith(home):
            return here
        if not first[0] and "importlib" not in here[0]:
            first = here
        frame = frame.f_back
    return first


def _import(module: str, file: str) -> None:
    if not file:
        importlib.import_module(module)
        return
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    spec.loader.exec_module(made)


if __name__ == "__main__":
    main()
