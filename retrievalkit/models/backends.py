"""Selection of the backend that computes layers: a registered backend, or torch. Does not import torch."""

from __future__ import annotations

import os

from retrievalkit import registry
from retrievalkit.contracts.backends import Backend
from retrievalkit.errors import InputError, OptionError, PluginError, UnknownNameError
from retrievalkit.reporting import notices

AUTO = "RKIT_BACKEND"
"""Environment variable: the backend that "auto" selects."""


def resolve_backend(name: str, device: str) -> Backend | None:
    """Return the backend that computes an encoder's layers on a type of device; None = torch.

    "auto" is the value of RKIT_BACKEND, else the first automatic backend that is available, else torch. A backend that
    is unknown, lacks a package or does not compute on the device is refused (InputError).
    """
    named = os.environ.get(AUTO, "auto") if name == "auto" else name
    if named in ("auto", "torch"):
        return _automatic(device) if named == "auto" else None
    try:
        return _checked(named, device)
    except UnknownNameError as error:
        known = ", ".join(("torch", *registry.names("backend")))
        msg = f"{AUTO if name == 'auto' else 'backend'} is '{named}'. Set it to {known}."
        raise OptionError(msg) from error


def _checked(name: str, device: str) -> Backend:
    backend: Backend = registry.create("backend", name)
    backend.name = name
    backend.check(device)
    return backend


def _automatic(device: str) -> Backend | None:
    for name in registry.names("backend"):
        try:
            backend = _checked(name, device)
        except PluginError as error:
            notices.note(f"Backend '{name}' is not used: {error}", harmless=True)
        except InputError:  # it is not available
            continue
        else:
            if backend.automatic:
                return backend
    return None
