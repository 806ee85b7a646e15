"""Services in subprocesses, for tests with real clients."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2  # the client that comes with mcp

TOKEN = "a-token-of-more-than-16-characters"
HOSTILE = {
    "_id": "<img src=x onerror=hacked(1)>",
    "title": "</script><script>hacked(2)</script>",
    "text": "the capital <b>bold</b> of '\"><img src=x onerror=hacked(3)> \u202eevil {{7*7}} javascript:hacked(4) "
    "😀 Peru 😀",
}
"""A passage that tries to run scripts in the reader's browser."""

READY = re.compile(r" at (http://\S+) \(Ctrl-C stops\)")


@dataclass
class Process:
    """A running service."""

    child: subprocess.Popen
    lines: list[str] = field(default_factory=list)
    address: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def client(self, **options):
        return httpx2.Client(base_url=self.address, timeout=30, **options)

    def wait_for(self, pattern, seconds=90):
        """Wait for a line on standard error; returns the match."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self.ended.is_set()
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            assert not ended, "".join(self.lines)
            time.sleep(0.02)
        raise AssertionError("".join(self.lines))

    def stop(self, number=signal.SIGTERM):
        """Send a signal; returns the exit code."""
        self.child.send_signal(number)
        code = self.child.wait(30)
        self.ended.wait(5)
        return code


@contextmanager
def service(*arguments, command=("serve",), env=None, descriptors=None):
    """Run `rkit serve`, optionally with a limit of file descriptors; starts the block when it answers."""
    command = [sys.executable, "-m", "retrievalkit", *command, *map(str, arguments), "--port", "0"]
    if descriptors is not None:
        command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    process = Process(child)

    def read():
        for line in child.stderr:
            process.lines.append(line)
        process.ended.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        process.address = process.wait_for(READY)[1]
        yield process
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(30)
        process.ended.wait(5)
        child.stderr.close()
