"""Selection of the backend that computes layers: a registered backend, or torch. Does not import torch."""

from __future__ import annotations

import os

from retrievalkit import registry
from retrievalkit.contracts.backends import Backend, ExportError
from retrievalkit.errors import InputError, MissingDependencyError, OptionError, PluginError, UnsupportedError
from retrievalkit.reporting import notices

AUTO = "RKIT_BACKEND"
"""Environment variable: the backend that "auto" selects."""


def resolve_backend(name: str, device: str) -> Backend | None:
    """Return the backend that computes an encoder's layers on a type of device; None = torch.

    "auto" is the value of RKIT_BACKEND, else an automatic backend that is available, else torch.

    Raises:
        MissingDependencyError: A package of the backend is not installed.
        OptionError: The environment variable RKIT_BACKEND has an unknown value.
        UnknownNameError: The backend is not registered.
        UnsupportedError: The backend does not compute on the device.
    """
    named = os.environ.get(AUTO, "auto") if name == "auto" else name
    if named == "auto":
        return next((backend for each in registry.names("backend") if (backend := _automatic(each, device))), None)
    if named == "torch":
        return None
    try:
        backend = _create(named)
    except InputError as error:
        if name != "auto" or isinstance(error, PluginError | MissingDependencyError):
            raise
        msg = f"{AUTO} is '{named}'. Set it to {', '.join(('torch', *registry.names('backend')))}."
        raise OptionError(msg) from error
    backend.check(device)
    return backend


def _create(name: str) -> Backend:
    backend: Backend = registry.create("backend", name)
    backend.name = name
    return backend


def _automatic(name: str, device: str) -> Backend | None:
    try:
        backend = _create(name)
        if backend.automatic:
            backend.check(device)
            return backend
    except PluginError as error:
        notices.note(f"Backend '{name}' is not used: {error}", harmless=True)
    except (MissingDependencyError, UnsupportedError):
        pass
    return None


def note_torch(source: str, error: ExportError) -> None:
    """Issue the note that a model could not be exported and runs on torch, with its cost and remedy."""
    notices.note(
        f"'{source}' runs on torch, which takes several times as long on some processors: {str(error).rstrip('.')}. "
        f"With --backend torch nothing is exported."
    )
