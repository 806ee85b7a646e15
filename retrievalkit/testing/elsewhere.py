"""What the properties of index folders do in a process of its own: search an index, or build one and be killed.

python -m retrievalkit.testing.elsewhere TASK ANSWER
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 60.0
"""Most time of such a process."""


def started(folder: Path, function: str, *arguments: Any) -> tuple[int, Any, str]:
    """Call a function of this module in a new process.

    Args:
        folder: An existing folder, for a file each way.
        function: Its name.
        arguments: Its arguments; they are pickled.

    Returns:
        The exit code, what the function returned (None if it was killed), and the last line of its errors.
    """
    task, answer = folder / "task.pickle", folder / "answer.pickle"
    task.write_bytes(pickle.dumps((function, arguments)))
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "retrievalkit.testing.elsewhere", str(task), str(answer)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return -1, None, f"it did not end within {SECONDS:.0f} s"
    lines = done.stderr.strip().splitlines()
    # Both files are the kit's own.
    found = pickle.loads(answer.read_bytes()) if answer.exists() else None
    return done.returncode, found, lines[-1] if lines else ""


def search(name: str, options: dict[str, Any], index: Path, queries: Any, k: int) -> Any:
    """What an index finds."""
    from retrievalkit import registry

    indexer = registry.create("indexer", name, **options)
    indexer.open(index)
    return indexer.search(queries, k)


def build_and_die(name: str, options: dict[str, Any], source: Path, output: Path) -> None:
    """Run `rkit index` and be killed once the indexer has read the first part of its source, or has come to its end."""
    from retrievalkit import registry
    from retrievalkit.data.corpus import Corpus
    from retrievalkit.data.vectors import VectorStore
    from retrievalkit.indexing.build import build_index

    for owner, method in (
        (VectorStore, "blocks"),
        (VectorStore, "shards"),
        (VectorStore, "lexical"),
        (Corpus, "__iter__"),
    ):
        setattr(owner, method, _cut_short(getattr(owner, method)))
    component: Any = registry.get("indexer", name)
    component.build = _and_die(component.build)
    build_index(source, indexer=name, output=output, options=options)


def _cut_short(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def wrapped(*arguments: Any, **named: Any) -> Iterator[Any]:
        for number, part in enumerate(read(*arguments, **named)):
            if number >= _PARTS and _inside_of_build():
                die()
            yield part

    return wrapped


def _and_die(build: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **named: Any) -> Any:
        build(*arguments, **named)
        die()

    return wrapped


_PARTS = 1


def _inside_of_build() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "build":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def die() -> None:
    """End as a process ends that is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Call what the task names, and write what it returns."""
    task, answer = map(Path, sys.argv[1:])
    function, arguments = pickle.loads(task.read_bytes())
    known: dict[str, Callable[..., Any]] = {"search": search, "build_and_die": build_and_die}
    found = known[function](*arguments)
    answer.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
