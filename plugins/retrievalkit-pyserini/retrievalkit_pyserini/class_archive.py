"""An archive of Lucene's classes in Java's memory layout ("class data sharing"), which halves Java's start-up time.

It is stored in the user's cache folder. Java checks that the archive matches the jar and its own version, and starts
without the archive otherwise.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import Any

from retrievalkit.contracts.commands import read_entry, write_entry

_CACHE, _FILE = "java", "lucene.jsa"
_MOST = 4
_SECONDS = 60


def identity_of(home: Path, version: str, jar: Path) -> tuple[Any, ...]:
    """Return what an archive depends on: a Java and a jar."""
    status = jar.stat()
    return str(home), version, str(jar), status.st_size, status.st_mtime_ns


def archive_of(identity: tuple[Any, ...]) -> Path | None:
    """Return the archive for a Java and a jar; None if there is none that Java can be trusted to map."""
    entry = read_entry(_CACHE, identity, str)
    return None if entry is None or os.pathsep in str(entry.folder) else entry.folder / _FILE


def archive_options(archive: Path | None) -> list[str]:
    """Return Java's options for starting with an archive."""
    if archive is None:
        return []
    # Java would print to standard output if an archive does not fit.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def make_archive(identity: tuple[Any, ...], jnius: Any) -> None:
    """Write an archive of the classes that this process has loaded; on failure, write nothing.

    Args:
        identity: The Java and the jar.
        jnius: The jnius module, which has started Java.
    """

    def write(folder: Path) -> None:
        archive, listed = folder / _FILE, folder / "classes"
        _list_classes(listed, jnius)
        known = jnius.autoclass("java.lang.System").getProperty
        command = [f"{known('java.home')}/bin/java", "-cp", known("java.class.path"), "-Xshare:dump"]
        command += [f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={archive}"]
        environment = {name: value for name, value in os.environ.items() if not name.endswith("JAVA_OPTIONS")}
        environment.pop("JAVA_TOOL_OPTIONS", None)
        subprocess.run(command, env=environment, capture_output=True, check=True, timeout=_SECONDS)
        listed.unlink()

    with contextlib.suppress(subprocess.SubprocessError, jnius.JavaException):
        write_entry(_CACHE, identity, identity[1], write, most=_MOST)


def _list_classes(path: Path, jnius: Any) -> None:
    class Sharing(jnius.JavaClass, metaclass=jnius.MetaJavaClass):  # type: ignore[misc]
        __javaclass__ = "jdk/internal/misc/CDS"
        # Private in Java 21, the only version that is started; `jcmd PID VM.cds` calls it.
        dumpClassList = jnius.JavaStaticMethod("(Ljava/lang/String;)V")  # noqa: N815 - Java's name

    Sharing.dumpClassList(str(path))
