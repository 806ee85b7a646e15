"""uniCOIL for retrievalkit. Nothing heavy is imported here: this module is imported at every start of rkit."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_poolers(register: Register) -> None:
    """Register the pooler."""
    register("unicoil", "retrievalkit_unicoil.poolers:UniCoil")
