"""Connections to Milvus: to a server by its address, or to Milvus Lite in this process, on a folder of files.

Both have the same protocol, so the other modules need not distinguish them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from retrievalkit.errors import ArtifactError, InputError, MissingDependencyError, OptionError, RetrievalkitError

TOKEN, TOKEN_FILE = "MILVUS_TOKEN", "MILVUS_TOKEN_FILE"
"""Environment variables: the token, such as USER:PASSWORD; or a file that contains it."""

ADDRESS, PLAINTEXT = "MILVUS_URI", "RKIT_ALLOW_PLAINTEXT_TOKEN"
"""Environment variables: a trusted address; "1" allows sending the token over http."""

CERTIFICATES = {
    "MILVUS_SERVER_CERT": "server_pem_path",
    "MILVUS_CA_CERT": "ca_pem_path",
    "MILVUS_CLIENT_CERT": "client_pem_path",
    "MILVUS_CLIENT_KEY": "client_key_path",
}
"""Environment variables that name PEM files for https, with pymilvus's option names: the certificate of the server or
its issuer; and, for servers that require client certificates, all of the other three."""

SERVER_NAME = "MILVUS_SERVER_NAME"
"""Environment variable: the name in the server's certificate, if it differs from the address."""

RETRIES, PATIENT_RETRIES = 5, 15
"""Attempts per request before a server counts as unreachable: about three seconds when searching, and half a minute
when writing, since servers defer writes under load. pymilvus's default would retry for minutes."""

GRPC_OPTIONS = {"grpc.keepalive_time_ms": 330_000}
"""Channel options of every client. A gRPC server with default settings, such as Milvus Lite, treats more than two
idle keepalive pings within five minutes as an attack and closes the connection; pymilvus sends them every 10 s."""

_VIEW = "rkit-milvus-"
_QUIET = ("pymilvus", "pymilvus.milvus_client", "milvus_lite")


class Connection:
    """A client of a Milvus server; closed by `close`, or when it is garbage-collected or Python exits.

    Attributes:
        client: The `pymilvus.MilvusClient`.
        place: Description of the server in messages.
        lite: True if the server is Milvus Lite, in this process or elsewhere.
        lock: Marks the temporary folder as in use, if there is one.
        close: Closes the connection; further calls do nothing.
    """

    def __init__(self, client: Any, place: str, *, server: Any = None, folder: Path | None = None) -> None:
        self.client = client
        self.place = place
        self.lock: Any = None
        self.close = weakref.finalize(self, _close, client, server, folder)
        with milvus_errors("report its version", place):
            self.lite = client.get_server_version().startswith("milvus_lite")


def connect(uri: str, *, timeout: float, search_timeout: float = 120.0, confirmed: bool = True) -> Connection:
    """Connect to a server.

    Args:
        uri: The server's address, such as http://localhost:19530.
        timeout: Seconds to wait for it.
        search_timeout: Seconds to wait for a response to a search request.
        confirmed: True if the user set the address; false if it is from a manifest or a recipe.

    Raises:
        InputError: No server answers, the server is not Milvus, or it rejects the token; only a file names the
            address; or the token would be sent unencrypted.
    """
    token = _token()
    host = urlsplit(uri).hostname or ""
    try:
        is_here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        is_here = False
    # The address may be a stranger's; a local address may be searched if there is no token.
    if not confirmed and _parts(uri) != _parts(os.environ.get(ADDRESS, "")) and (token or not is_here):
        content = f"the token in {TOKEN}" if token else "the queries or vectors"
        msg = (
            f"the address of Milvus, '{uri}', comes from a manifest or a recipe, and would receive {content}. If you "
            f"trust the server, set {ADDRESS}={uri} in the environment, or --set milvus.uri={uri} when searching."
        )
        raise InputError(msg)
    if token and not (urlsplit(uri).scheme == "https" or is_here or os.environ.get(PLAINTEXT) == "1"):
        msg = (
            f"the token in {TOKEN} would be sent to '{uri}' unencrypted. Use an https address; or, in a trusted "
            f"network, set {PLAINTEXT}=1."
        )
        raise InputError(msg)
    # Set a deadline per read request: pymilvus's own would cover all attempts, including those that fail immediately.
    methods = ("Search", "HybridSearch", "Query")
    names = [{"service": "milvus.proto.milvus.MilvusService", "method": method} for method in methods]
    patience = json.dumps({"methodConfig": [{"name": names, "timeout": f"{search_timeout:g}s"}]})
    options = {**_certificates(uri), "grpc_options": {**GRPC_OPTIONS, "grpc.service_config": patience}}
    # pymilvus would otherwise reuse an earlier client's connection to this address, with its certificates and deadline.
    client = _client(uri, timeout=timeout, token=token, dedicated=True, **options)
    return Connection(client, f"Milvus at '{uri}'")


def embedded_view(folder: Path) -> Connection:
    """Run Milvus Lite on a folder for reading.

    Milvus Lite locks its folder and writes to it even when searching. It therefore runs on a temporary folder of
    links to the files, so that several processes can search an index, and no search can damage it. The links omit
    hidden files and links to folders, because no manifest lists them. Views of killed searches are removed first.
    """

    def unlisted(place: str, names: list[str]) -> list[str]:
        paths = ((name, Path(place, name)) for name in names)
        return [name for name, path in paths if name.startswith(".") or (path.is_symlink() and path.is_dir())]

    def link(source: str, target: str) -> None:
        """Link data files, which Milvus Lite never modifies, and copy the other, small files."""
        with suppress(OSError):
            if Path(source).suffix in (".parquet", ".idx"):
                Path(target).symlink_to(Path(source).absolute())
                return
        shutil.copyfile(source, target)

    # The process that uses a view has locked it.
    for stale in list(Path(tempfile.gettempdir()).glob(f"{_VIEW}*/.lock")):
        with suppress(Timeout, OSError), FileLock(stale, blocking=False):
            shutil.rmtree(stale.parent)
    view = Path(tempfile.mkdtemp(prefix=_VIEW))
    lock = FileLock(view / ".lock")
    lock.acquire()
    try:
        shutil.copytree(folder, view / folder.name, ignore=unlisted, copy_function=link)
        connection = embedded(view / folder.name, remove=view)
        connection.lock = lock
        return connection
    except BaseException:
        shutil.rmtree(view, ignore_errors=True)
        raise


def check_uri(uri: str) -> None:
    """Reject a malformed address, or an address that contains credentials.

    Raises:
        OptionError: The address is malformed or contains credentials.
    """
    try:
        parts = urlsplit(uri)
        secret, complete = "@" in parts.netloc, bool(parts.hostname) and parts.port != 0
    except ValueError:
        # The port is not a number.
        secret, complete = False, False
    if secret:
        msg = f"option 'uri' contains a user or password, which would be stored in the manifest. Set {TOKEN} instead."
        raise OptionError(msg)
    if not complete or parts.scheme not in ("http", "https", "tcp"):
        msg = (
            f"option 'uri' is '{uri}', but must be the address of a Milvus server, such as http://localhost:19530. "
            f"Leave it out to use Milvus Lite, which keeps its files in the index folder."
        )
        raise OptionError(msg)


def _token() -> str:
    if TOKEN in os.environ or not (path := os.environ.get(TOKEN_FILE)):
        return os.environ.get(TOKEN, "")
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{TOKEN_FILE} names '{path}', which cannot be read as text: {getattr(error, 'strerror', None) or error}."
        raise InputError(msg) from error


def _certificates(uri: str) -> dict[str, Any]:
    """Return the files for an encrypted connection, as options of pymilvus."""
    if urlsplit(uri).scheme != "https":
        return {}
    certificates = {name: os.environ[name] for name in CERTIFICATES if os.environ.get(name)}
    for name, path in certificates.items():
        if not Path(path).is_file():
            msg = f"{name} is '{path}', which is not a file. Set it to a PEM file."
            raise InputError(msg)
    client_files = [name for name in certificates if "CLIENT" in name]
    if client_files and len(certificates.keys() - {"MILVUS_SERVER_CERT"}) < 3:
        msg = f"{client_files[0]} is set, but MILVUS_CA_CERT, MILVUS_CLIENT_CERT and MILVUS_CLIENT_KEY are all needed."
        raise InputError(msg)
    if client_files:
        # Otherwise pymilvus would use only the server's certificate.
        certificates.pop("MILVUS_SERVER_CERT", None)
    elif "MILVUS_CA_CERT" in certificates:
        certificates.setdefault("MILVUS_SERVER_CERT", certificates.pop("MILVUS_CA_CERT"))
    name_option = {"server_name": os.environ[SERVER_NAME]} if os.environ.get(SERVER_NAME) else {}
    return {"secure": True, **{CERTIFICATES[name]: path for name, path in certificates.items()}, **name_option}


def _parts(uri: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(uri)
        return parts.scheme, parts.hostname, parts.port
    except ValueError:
        return "", uri, None


@contextmanager
def milvus_errors(doing: str, place: str) -> Iterator[None]:
    """Convert errors of pymilvus to a one-line error that names the operation, the server and the reason.

    Raises:
        RetrievalkitError: Milvus reported an error.
    """
    pymilvus = import_pymilvus()
    import grpc

    try:
        yield
    except (pymilvus.MilvusException, grpc.RpcError) as error:
        msg = f"{place} could not {doing}: {reason(error)}"
        raise RetrievalkitError(msg) from error


def reason(error: Exception) -> str:
    """Return the message of a pymilvus or gRPC error, in one line."""
    text = str(getattr(error, "message", "") or (error.details() if hasattr(error, "details") else error))
    return " ".join(text.split())[:500]


def import_pymilvus() -> Any:
    """Import pymilvus with its logging silenced.

    Raises:
        MissingDependencyError: pymilvus is not installed.
    """
    # gRPC's C++ core logs to the terminal, and its fork handlers interfere with unrelated subprocesses.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    try:
        import pymilvus
    except ImportError as error:
        raise MissingDependencyError("pymilvus", "indexer 'milvus'") from error
    for logger in map(logging.getLogger, _QUIET):
        if logger.level <= logging.CRITICAL:
            logger.setLevel(logging.CRITICAL + 1)
    return pymilvus


def _client(uri: str, **options: Any) -> Any:
    pymilvus = import_pymilvus()
    import grpc

    try:
        return pymilvus.MilvusClient(uri=uri, **{"grpc_options": GRPC_OPTIONS, **options})
    except (pymilvus.MilvusException, grpc.RpcError, ValueError) as error:
        trusted = "that MILVUS_CA_CERT names the issuer of its certificate, " if uri.startswith("https") else ""
        msg = (
            f"no Milvus answers at '{uri}' ({reason(error)}). Check that it runs, that the address is right, "
            f"{trusted}and that {TOKEN} contains its token if it requires a token."
        )
        raise InputError(msg) from error


def embedded(folder: Path, *, remove: Path | None = None) -> Connection:
    """Run Milvus Lite on a folder until the connection is closed; then all data is on disk."""
    import_pymilvus()
    try:
        from milvus_lite.adapter.grpc.server import start_server_in_thread
    except ImportError as error:
        what = "indexer 'milvus' without the option 'uri'"
        raise MissingDependencyError("milvus-lite", what, "'milvus-lite>=3.2.2'") from error
    try:
        server, database, port = start_server_in_thread(str(folder))
    except (OSError, ValueError, RuntimeError) as error:
        msg = f"Milvus Lite cannot open '{folder}': {' '.join(str(error).split())}. Index the vectors again."
        raise ArtifactError(msg) from error
    try:
        client = _client(f"http://127.0.0.1:{port}", timeout=30)
        return Connection(client, "Milvus Lite", server=(server, database), folder=remove)
    except BaseException:
        _close(None, (server, database), remove)
        raise


def _close(client: Any, server: Any, folder: Path | None) -> None:
    if client is not None:
        client.close()
    if server is not None:
        grpc_server, database = server
        try:
            # Without a grace period, gRPC prints a message about cancelled calls, even if there are none.
            grpc_server.stop(grace=5).wait()
        except RuntimeError:  # a grace period needs a thread, which Python 3.12 and later cannot start while exiting
            grpc_server.stop(grace=None).wait()
        database.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
