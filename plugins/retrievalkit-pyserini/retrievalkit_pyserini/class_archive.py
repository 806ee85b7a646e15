"""An archive of Lucene's classes as Java lays them out in memory ("class data sharing"), which halves Java's start.

It lies in the user's cache folder. Java itself checks that it fits the jar and the Java that it was made from, and
otherwise starts without it.
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
    """Where the archive of a Java and a jar lies once it was made; None = the user has no cache folder."""
    folder = _folder()
    if folder is None or os.pathsep in str(folder):
        return None
    found = jar.stat()
    parts = (str(home), version, str(jar), found.st_size, found.st_mtime_ns)
    return folder / f"{hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()}.jsa"


def archive_options(archive: Path | None) -> list[str]:
    """Java's options to start with an archive, if it was made."""
    if archive is None or not archive.is_file():
        return []
    # Java would print to standard output that an archive does not fit.
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"]


def make_archive(archive: Path, jnius: Any) -> None:
    """Make the archive of the classes that this process has loaded; where that fails, there is none.

    Args:
        archive: Its path.
        jnius: The module, with a Java that it has started.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError, jnius.JavaException):
        archive.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            made, listed = Path(folder) / archive.name, Path(folder) / "classes"
            _list_classes(listed, jnius)
            known = jnius.autoclass("java.lang.System").getProperty
            command = [f"{known('java.home')}/bin/java", "-cp", known("java.class.path"), "-Xshare:dump"]
            command += [f"-XX:SharedClassListFile={listed}", f"-XX:SharedArchiveFile={made}"]
            environment = {name: value for name, value in os.environ.items() if not name.endswith("JAVA_OPTIONS")}
            environment.pop("JAVA_TOOL_OPTIONS", None)
            subprocess.run(command, env=environment, capture_output=True, check=True, timeout=_SECONDS)
            with made.open("rb") as stream:
                os.fsync(stream.fileno())
            # Another process that makes the same makes it as good.
            made.replace(archive)
        for old in sorted(archive.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime)[:-_MOST]:
            old.unlink(missing_ok=True)


def _list_classes(path: Path, jnius: Any) -> None:
    class Sharing(jnius.JavaClass, metaclass=jnius.MetaJavaClass):  # type: ignore[misc]
        __javaclass__ = "jdk/internal/misc/CDS"
        # Private in Java 21, which is the only version that is started; `jcmd PID VM.cds` calls it.
        dumpClassList = jnius.JavaStaticMethod("(Ljava/lang/String;)V")  # noqa: N815 - Java's name

    Sharing.dumpClassList(str(path))


def _folder() -> Path | None:
    # As in retrievalkit.storage.memory.
    place = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(place):
        place = os.path.expanduser("~/.cache")
    return Path(place) / "retrievalkit" / "java" if os.path.isabs(place) else None
