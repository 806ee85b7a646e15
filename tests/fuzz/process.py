"""Runs a command in a fork of this process, which has imported everything, within bounds of time, memory and files."""

import contextlib
import faulthandler
import gc
import importlib
import os
import pkgutil
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20
"""Wall-clock bound of a trial."""
CPU_SECONDS = 30
EXTRA_MEMORY = 4 << 30
"""Address space that a command may take beyond what the process has when it starts."""
LARGEST_FILE = 256 << 20
_HEAVY = (
    "accelerate", "datasets", "faiss", "ir_measures", "matplotlib.figure", "matplotlib.backends.backend_agg", "peft",
    "safetensors.torch", "scipy.sparse", "scipy.stats", "tokenizers", "torch", "transformers", "yaml", "pyarrow",
    "transformers.trainer", "transformers.models.bert.modeling_bert", "transformers.models.auto.modeling_auto",
    "rich.console", "rich.progress", "jinja2", "filelock", "pydantic",
)  # fmt: skip
_OWN = (
    "retrievalkit", "retrievalkit_aggretriever", "retrievalkit_cotmae", "retrievalkit_mlr", "retrievalkit_mvr",
    "retrievalkit_openvino", "retrievalkit_pretrain",
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """Result of a command: its exit code or the negative number of a signal, its output, time and memory.

    `memory` counts bytes beyond those of the process that it was forked from; `stack` is where it was when it took too
    long or when the machine stopped it.
    """

    code: int
    out: str
    err: str
    seconds: float
    memory: int
    stack: str = ""
    timed_out: bool = False


def warm():
    """Import once what every command would import; no model is run, so that forks inherit no threads."""
    # The limits that the terminal of a user may have set must not show in tables.
    os.environ |= {"COLUMNS": "120", "NO_COLOR": "1"}
    for name in _HEAVY:
        importlib.import_module(name)
    for name in _OWN:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if "__main__" not in module.name and "plugin_template" not in module.name:
                importlib.import_module(module.name)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def run(command, room, *, before=None):
    """Run `rkit` with these arguments in the folder `room`; returns its result.

    Its standard output, home and temporary files are in folders next to the room. `before` is called in the new process
    before the command.
    """
    beside = Path(room).parent
    for name in ("home", "tmp", "log"):
        (beside / name).mkdir(exist_ok=True)
    out, err, stack = (beside / "log" / name for name in ("out", "err", "stack"))
    started = time.monotonic()
    own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    child = os.fork()
    if child == 0:
        _become(command, Path(room), before=before)
    handle = os.pidfd_open(child)
    timed_out = not select.select([handle], [], [], SECONDS)[0]
    os.close(handle)
    if timed_out:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    seconds = time.monotonic() - started
    # What it started and left behind.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    read = [path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in (out, err, stack)]
    memory = max(0, usage.ru_maxrss * 1024 - own)
    return Ended(os.waitstatus_to_exitcode(status), read[0], read[1], seconds, memory, read[2], timed_out)


def _become(command, room, *, before):
    """Turn this fork into the command; does not return."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _redirect(room.parent / "log")
        os.environ |= {"HOME": str(room.parent / "home"), "TMPDIR": str(room.parent / "tmp")}
        tempfile.tempdir = None
        os.chdir(room)
        _limit()
        if before is not None:
            before()
        code = _perform(command)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(folder):
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    # pytest and others may have replaced them. They are open as long as the process.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    stack = (folder / "stack").open("w")
    faulthandler.enable(stack)
    faulthandler.dump_traceback_later(SECONDS - 1, file=stack)


def bound_memory():
    """Limit the memory of this process and its forks to a few gigabytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + EXTRA_MEMORY, hard))


def _limit():
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Python ignores it; the default would end the process without a word.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    bound_memory()


def _perform(command):
    """Run `rkit`; return the exit code that a new process would have."""
    from retrievalkit.cli import main

    try:
        main([os.fsdecode(one) for one in command], prog_name="rkit")
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
            return 1
        return error.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        return 1
    return 0
