"""Old names of modules that plugins and scripts import: they still work, with a DeprecationWarning, until version 0.3.

Only modules that a plugin could need are here; every other old name is gone.
"""

from __future__ import annotations

import importlib
import importlib.abc
import warnings
from collections.abc import Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

REMOVED_IN = "0.3"

MOVED = {
    "retrievalkit.data.batches": "retrievalkit.model.batches",
    "retrievalkit.data.csr": "retrievalkit.data.vectors.csr",
    "retrievalkit.data.garbage": "retrievalkit.data.files",
    "retrievalkit.data.ids": "retrievalkit.data.vectors.ids",
    "retrievalkit.data.postings": "retrievalkit.data.vectors.postings",
    "retrievalkit.data.sampling": "retrievalkit.train.sampling",
    "retrievalkit.data.tokens": "retrievalkit.train.pretrain_tokens",
    "retrievalkit.gradcache": "retrievalkit.train.gradcache",
    "retrievalkit.precision": "retrievalkit.model.precision",
    "retrievalkit.prediction": "retrievalkit.lexical",
    "retrievalkit.quiet": "retrievalkit.model.pretrained",
    "retrievalkit.retriever": "retrievalkit.model.retriever",
    "retrievalkit.tiles": "retrievalkit.score.tiles",
}
"""Old module -> the module that holds its definitions now."""

# Where a plugin should import from, if that is not the module itself.
_PROMISED = {
    "retrievalkit.data.csr": "retrievalkit.data.vectors",
    "retrievalkit.data.ids": "retrievalkit.data.vectors",
    "retrievalkit.tiles": "retrievalkit.score",
}


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module by its old name: a module that takes every attribute from the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old name, None for any other; Python asks only if there is no such file."""
        del path, target
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and forward attributes to the new module."""
        old = module.__name__
        msg = (
            f"'{old}' is now '{_PROMISED.get(old, MOVED[old])}'. The old name will be removed in retrievalkit "
            f"{REMOVED_IN}: change the import."
        )
        # Python leaves out its own frames of importing, so that 2 is the importing line.
        warnings.warn(msg, DeprecationWarning, stacklevel=2)
        # Forwarded, not copied: a name that is replaced in the new module is replaced under the old name too.
        module.__dict__["__getattr__"] = partial(getattr, importlib.import_module(MOVED[old]))
