"""Checkpoints and indexes in the forms of other libraries, which open them without any code of ours.

A target is a module with a function `write`; `targets` names them.
"""
