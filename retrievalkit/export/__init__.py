"""Checkpoints and indexes in the forms of other libraries, which open them without any code of ours.

A target is a module with a function `write`; `targets` names them.
"""

from retrievalkit.modules import make_callable

make_callable(__name__, "retrievalkit.api.exporting:export")
