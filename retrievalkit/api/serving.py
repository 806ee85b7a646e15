"""Indexes served over HTTP, on a page and to language models' agents."""

from __future__ import annotations

import os
from typing import Any

from retrievalkit.api.index import Index
from retrievalkit.api.options import call, options_of
from retrievalkit.data import inputs as given


@options_of("serve", without=("indexes",))
def serve(*indexes: str | os.PathLike[str] | Index, **options: Any) -> None:
    """Search indexes over HTTP until Ctrl-C or SIGTERM; not from a notebook, which has an event loop of its own.

    Args:
        *indexes: Their folders. Of an open index the folder is opened again.
        **options: Of `rkit serve`.

    Raises:
        InputError: Something cannot be opened, or an option does not fit.
    """
    places = [one.folder if isinstance(one, Index) else given.place(one, "an index") for one in indexes]
    call("serve", {"indexes": places, **options})
