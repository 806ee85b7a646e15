"""Program that runs a single step of a recipe; `rkit run --jobs` starts it for each step (see `recipes.schedule`)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from retrievalkit.cli import signals
from retrievalkit.cli.main import main as rkit
from retrievalkit.errors import RetrievalkitError
from retrievalkit.recipes.job import Job, StepError, commands
from retrievalkit.recipes.log import StepLog
from retrievalkit.recipes.schedule import Ended
from retrievalkit.recipes.step import Step
from retrievalkit.reporting import notices


def main() -> None:
    """Run the step read from standard input, and print its outcome."""
    task = json.loads(sys.stdin.buffer.readline())
    log = StepLog(Path(task["folder"]), task["name"])
    # What libraries print outside of Python is written to the log.
    outcome = os.fdopen(os.dup(1), "w")
    log.path.parent.mkdir(parents=True, exist_ok=True)
    with log.path.open("ab") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
    try:
        with signals.handled():
            # Started here, so that a cancelled step cleans up.
            threading.Thread(target=_watch, daemon=True).start()
            ended = _run(task, log)
    except KeyboardInterrupt:
        ended = Ended(problem="it was interrupted.", code=128 + signal.SIGTERM)
    outcome.write(json.dumps(ended._asdict()) + "\n")
    outcome.flush()
    sys.exit(ended.code)


def _run(task: dict[str, Any], log: StepLog) -> Ended:
    started = time.perf_counter()
    problem, code = "", 0
    try:
        cli = rkit.with_all_commands()
        output = None if task["output"] is None else Path(task["output"])
        job = Job(Step(task["name"], task["command"], {}), commands(cli)[task["command"]], output, tuple(task["words"]))
        with notices.collected(strict=task["strict"]):
            job.run(cli, log, resume=task["resume"])
    except StepError as error:
        problem, code = error.reason, error.exit_code
    except (RetrievalkitError, OSError) as error:
        problem, code = str(error), 1
    except Exception as error:  # noqa: BLE001 - a bug, whose traceback is in the log
        traceback.print_exc()
        problem, code = f"{type(error).__name__}: {error}", 1
    return Ended(time.perf_counter() - started, log.result, problem, code)


def _watch() -> None:
    # By os.read: Python's buffered reader holds a lock while reading, which would delay the exit.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
