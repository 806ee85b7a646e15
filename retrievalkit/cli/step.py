"""A step of a recipe in this process: `rkit run --jobs` and `--ray` start it for each step, see `recipe.apart`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from retrievalkit import oddities
from retrievalkit.cli import signals
from retrievalkit.cli.main import main as rkit
from retrievalkit.errors import RetrievalkitError
from retrievalkit.recipe.apart import Ended, Task
from retrievalkit.recipe.job import Job, StepError
from retrievalkit.recipe.log import StepLog


def main() -> None:
    """Run the step on standard input, and print how it ended."""
    given = json.loads(sys.stdin.buffer.readline())
    task = Task(**{**given, "words": tuple(given["words"])})
    log = StepLog(Path(task.folder), task.name)
    last_word = _to_log(log.path)
    try:
        with signals.handled():
            # From here on, so that a step that is not wanted any more cleans up.
            threading.Thread(target=_watch, daemon=True).start()
            ended = _run(task, log)
    except KeyboardInterrupt:
        ended = Ended(problem="it was interrupted.", code=128 + signal.SIGTERM)
    last_word.write(json.dumps(asdict(ended)) + "\n")
    last_word.flush()
    sys.exit(ended.code)


def _run(task: Task, log: StepLog) -> Ended:
    started = time.perf_counter()
    problem, code = "", 0
    try:
        job = Job.apart(task.name, task.command, task.words, task.output, rkit.with_plugin_commands())
        with oddities.collected(strict=task.strict):
            job.run(rkit.with_plugin_commands(), log, resume=task.resume)
    except StepError as error:
        problem, code = error.reason, error.exit_code
    except (RetrievalkitError, OSError) as error:
        problem, code = str(error), 1
    except Exception as error:  # noqa: BLE001 - a bug, whose traceback is in the log
        traceback.print_exc()
        problem, code = f"{type(error).__name__}: {error}", 1
    return Ended(time.perf_counter() - started, log.result, problem, code)


def _to_log(path: Path) -> TextIO:
    """Send what libraries print past Python to the log; returns the standard output that was."""
    last_word = os.fdopen(os.dup(1), "w")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    return last_word


def _watch() -> None:
    # At the level of the system: Python's own buffer is locked while it reads, which would hold up the end.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
