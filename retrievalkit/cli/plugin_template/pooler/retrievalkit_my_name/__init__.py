"""Registers the pooler `my_name`. Nothing heavy is imported here: this module is imported at every start of rkit."""

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_poolers(register: Register) -> None:
    """Register the pooler."""
    register("my_name", "retrievalkit_my_name.poolers:MyName")
