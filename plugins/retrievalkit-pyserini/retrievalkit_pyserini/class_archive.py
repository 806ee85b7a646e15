"""An archive of Lucene's classes in Java's memory layout ("class data sharing"), which halves Java's start-up time.

It is stored in the user's cache folder. Java checks that the archive matches the jar and its own version, and starts
without the archive otherwise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_MOST = 4
_SECONDS = 60


def archive_of(home: Path, version: str, jar: Path) -> Path | None:
    """Return the path of the archive for a Java and a jar, even if it does not exist; None without a cache folder."""
    folder = _folder()
    if folder is None or os.pathsep in str(folder):
        return None
    status = jar.stat()
    parts = (str(home), version, str(jar), status.st_size, status.st_mtime_ns)
    return folder / f"{hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()}.jsa"


def archive_options(archive: Path | None) -> list[str]:
    """Return Java's options for starting with an archive; none if it does not exist."""
    if archive is None or not archive.is_file():
        return []
    # Java would print to standard output if an archive does not fit.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def make_archive(archive: Path, jnius: Any) -> None:
    """Write an archive of the classes that this process has loaded; on failure, write nothing.

    Args:
        archive: Its path.
        jnius: The jnius module, which has started Java.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError, jnius.JavaException):
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            staging, listed = Path(folder) / archive.name, Path(folder) / "classes"
            _list_classes(listed, jnius)
            known = jnius.autoclass("java.lang.System").getProperty
            command = [f"{known('java.home')}/bin/java", "-cp", known("java.class.path"), "-Xshare:dump"]
            command += [f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={staging}"]
            environment = {name: value for name, value in os.environ.items() if not name.endswith("JAVA_OPTIONS")}
            environment.pop("JAVA_TOOL_OPTIONS", None)
            subprocess.run(command, env=environment, capture_output=True, check=True, timeout=_SECONDS)
            with staging.open("rb") as stream:
                os.fsync(stream.fileno())
            # If another process writes the same archive, either copy will do.
            staging.replace(archive)
        for old in sorted(archive.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime)[:-_MOST]:
            old.unlink(missing_ok=True)


def _list_classes(path: Path, jnius: Any) -> None:
    class Sharing(jnius.JavaClass, metaclass=jnius.MetaJavaClass):  # type: ignore[misc]
        __javaclass__ = "jdk/internal/misc/CDS"
        # Private in Java 21, the only version that is started; `jcmd PID VM.cds` calls it.
        dumpClassList = jnius.JavaStaticMethod("(Ljava/lang/String;)V")  # noqa: N815 - Java's name

    Sharing.dumpClassList(str(path))


def _folder() -> Path | None:
    # As in retrievalkit.storage.memory.
    place = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(place):
        place = os.path.expanduser("~/.cache")
    return Path(place) / "retrievalkit" / "java" if os.path.isabs(place) else None
