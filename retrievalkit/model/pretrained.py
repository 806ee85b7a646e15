"""Pretrained models: where they lie, which they are, their weights, and transformers kept quiet while they load.

Imports nothing heavy at its top: recipes ask where a model lies.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from retrievalkit import artifacts
from retrievalkit.artifacts import NOT_WEIGHTS
from retrievalkit.errors import InputError

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing but errors from transformers; afterwards its settings are as they were."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def model_fingerprint(model: str) -> str:
    """Says which pretrained model this is: by its files where it is a folder, else its name."""
    located = locate_model(model)
    return artifacts.fingerprint_folder(located, skip=NOT_WEIGHTS) if os.path.isdir(located) else located


def locate_model(model: str | Path) -> str:
    """The folder or hub name of a model; `package:NAME/FOLDER` is a folder inside an installed Python package.

    Raises:
        InputError: The package is not installed, or has no such folder.
    """
    name = str(model)
    if not name.startswith("package:"):
        return name
    package, _, inside = name.removeprefix("package:").partition("/")
    try:
        spec = importlib.util.find_spec(package) if package else None
    except ImportError:  # of a package that `package` would be in
        spec = None
    if spec is None or not spec.submodule_search_locations:
        msg = f"model '{name}' is in the Python package '{package}', which is not installed. Install it with pip."
        raise InputError(msg)
    folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not folder.is_dir():
        msg = f"model '{name}': the package '{package}' has no folder '{inside}'."
        raise InputError(msg)
    return str(folder)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write a module's weights; tensors that it uses in two places are stored once."""
    import safetensors.torch

    safetensors.torch.save_model(model, str(path))


def load_weights(model: nn.Module, path: Path) -> None:
    """Read what `save_weights` wrote."""
    import safetensors.torch

    safetensors.torch.load_model(model, str(path))
