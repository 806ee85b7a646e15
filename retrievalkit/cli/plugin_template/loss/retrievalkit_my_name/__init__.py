"""Registers the loss `my_name`. Nothing heavy is imported here: this module is imported at every start of rkit."""

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_losses(register: Register) -> None:
    """Register the loss."""
    register("my_name", "retrievalkit_my_name.losses:MyName")
