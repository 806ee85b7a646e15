"""Java programs composed in Python without a compiler, by binding and chaining method handles.

`method`, `static_method` and `constructor` look up a handle, `bind` fixes some of its arguments, `then` passes the
result of a handle to the next, `gather` computes all arguments from one, and `as_interface` wraps the result as an
object that Java's streams and thread pools can call without returning to Python for each call.
"""

from __future__ import annotations

import importlib
from typing import Any

from retrievalkit_pyserini.java import java_class, java_type

Type = str | type
"""A Java type: the name of a class, or int, float, bool or object for Java's int, float, boolean and Object."""

_PRIMITIVES = {int: "Integer", float: "Float", bool: "Boolean", "long": "Long", "double": "Double", "void": "Void"}


def method(owner: str, name: str, returns: Type, *arguments: Type) -> Any:
    """Return the handle of a public method; its first argument is the object."""
    return _lookup().findVirtual(java_type(owner), name, _signature(returns, *arguments))


def static_method(owner: str, name: str, returns: Type, *arguments: Type) -> Any:
    """Return the handle of a public static method."""
    return _lookup().findStatic(java_type(owner), name, _signature(returns, *arguments))


def constructor(owner: str, *arguments: Type) -> Any:
    """Return the handle of a class's constructor."""
    return _lookup().findConstructor(java_type(owner), _signature("void", *arguments))


def array_constructor(array: str) -> Any:
    """Return a handle (length -> array); `array` is the Java name of its type, such as "[I" for an array of int."""
    return java_class("java.lang.invoke.MethodHandles").arrayConstructor(java_type(array))


def bind(handle: Any, position: int, *values: Any) -> Any:
    """Fix the handle's arguments from `position` on to these values."""
    boxed = [_boxed(value) for value in values]
    return java_class("java.lang.invoke.MethodHandles").insertArguments(handle, position, *boxed)


def then(first: Any, second: Any) -> Any:
    """Chain two handles: the second, which has one argument, receives the result of the first."""
    fitting = java_class("java.lang.invoke.MethodType").methodType(_returned(second), [_returned(first)])
    return java_class("java.lang.invoke.MethodHandles").filterReturnValue(first, second.asType(fitting))


def returning(type_: Type, handle: Any) -> Any:
    """Cast the handle's result to another type."""
    return handle.asType(handle.type().changeReturnType(_type(type_)))


def gather(target: Any, *parts: Any) -> Any:
    """Return a handle that calls each part with its single argument, and the target with their results."""
    handles, types = java_class("java.lang.invoke.MethodHandles"), java_class("java.lang.invoke.MethodType")
    fitting = types.methodType(_returned(target), [_returned(part) for part in parts])
    filtered = handles.filterArguments(target.asType(fitting), 0, *parts)
    single = types.methodType(_returned(target), [_cast(parts[0].type().parameterType(0))])
    return handles.permuteArguments(filtered, single, *[0] * len(parts))


def supply(target: Any, part: Any) -> Any:
    """Fill the handle's first argument with the result of a part, a handle without arguments, called each time."""
    return java_class("java.lang.invoke.MethodHandles").foldArguments(target, part)


def as_interface(name: str, handle: Any) -> Any:
    """Return an object of a Java interface whose single method is the handle."""
    return java_class("java.lang.invoke.MethodHandleProxies").asInterfaceInstance(java_type(name), handle)


def _lookup() -> Any:
    return java_class("java.lang.invoke.MethodHandles").publicLookup()


def _signature(returns: Type, *arguments: Type) -> Any:
    return java_class("java.lang.invoke.MethodType").methodType(_type(returns), list(map(_type, arguments)))


def _returned(handle: Any) -> Any:
    return _cast(handle.type().returnType())


def _cast(type_: Any) -> Any:
    # pyjnius returns the type as one of the interfaces of java.lang.Class, so it must be cast back.
    return importlib.import_module("jnius").cast("java.lang.Class", type_)


def _type(type_: Type) -> Any:
    if type_ in _PRIMITIVES:
        return java_class(f"java.lang.{_PRIMITIVES[type_]}").TYPE
    return java_type("java.lang.Object" if type_ is object else str(type_))


def _boxed(value: Any) -> Any:
    """Box a number: pyjnius mistakes a list that starts with a Python number for an array of numbers."""
    if isinstance(value, bool):
        return java_class("java.lang.Boolean")(value)
    if isinstance(value, float):
        return java_class("java.lang.Float")(value)
    return java_class("java.lang.Integer")(value) if isinstance(value, int) else value
