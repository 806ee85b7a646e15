"""Java programs put together from Python, without a compiler: method handles, bound and chained.

`method` finds a Java method as a handle, `bind` fixes some of its arguments, `then` gives what one returns to the next,
and `as_interface` makes an object of the outcome that Java's own streams and thread pools can call, with no way back
into Python for each call.
"""

from __future__ import annotations

import importlib
from typing import Any

from retrievalkit_pyserini.java import java_class, java_type

Type = str | type
"""A Java type: the name of a class, or int, bool or object for Java's int, boolean and Object."""


def method(owner: str, name: str, returns: Type, *arguments: Type) -> Any:
    """The handle of a public method; its first argument is the object that it is called on."""
    lookup = java_class("java.lang.invoke.MethodHandles").publicLookup()
    types = java_class("java.lang.invoke.MethodType").methodType(_type(returns), [_type(one) for one in arguments])
    return lookup.findVirtual(java_type(owner), name, types)


def bind(handle: Any, position: int, *values: Any) -> Any:
    """The handle with its arguments from a position on fixed to these values."""
    boxed = [_boxed(value) for value in values]
    return java_class("java.lang.invoke.MethodHandles").insertArguments(handle, position, *boxed)


def then(first: Any, second: Any) -> Any:
    """The handle that gives what the first returns to the second, which takes one argument."""
    fitting = java_class("java.lang.invoke.MethodType").methodType(_returned(second), [_returned(first)])
    return java_class("java.lang.invoke.MethodHandles").filterReturnValue(first, second.asType(fitting))


def as_interface(name: str, handle: Any) -> Any:
    """An object of a Java interface with one method, which the handle carries out."""
    return java_class("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(java_type(name), handle)


def _returned(handle: Any) -> Any:
    # pyjnius gives what a handle returns as another of that class's interfaces.
    return importlib.import_module("jnius").cast("java.lang.Class", handle.type().returnType())


def _type(type_: Type) -> Any:
    if type_ is int:
        return java_class("java.lang.Integer").TYPE
    if type_ is bool:
        return java_class("java.lang.Boolean").TYPE
    return java_type("java.lang.Object" if type_ is object else str(type_))


def _boxed(value: Any) -> Any:
    """Numbers as Java objects: pyjnius takes a list that starts with a bare number for an array of numbers."""
    if isinstance(value, bool):
        return java_class("java.lang.Boolean")(value)
    return java_class("java.lang.Integer")(value) if isinstance(value, int) else value
