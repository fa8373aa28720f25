"""Annotations checked at run time, but for those of arguments that the package checks itself.

Whatever a user may pass by mistake (an array, a path, bytes) is rejected by the package, with a
message that says what was expected. Such a message is tested, so the type checker must not come
first: it leaves `ArrayLike`, paths and bytes alone, and `Self`, which it does not know, and checks
all other annotations.
"""

import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from beartype import beartype
from numpy.typing import ArrayLike

# Members by which the unions are known: of `numpy.typing.ArrayLike`, of `jax.typing.ArrayLike`, of
# paths and of bytes.
LEFT_ALONE = {typing.get_origin(part) for part in typing.get_args(ArrayLike)} - {None}
LEFT_ALONE |= {np.number, os.PathLike, memoryview, Mapping}
LEFT_ALONE_NAMES = {"Logs"}  # classes of the package, which is not imported yet


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations checked by beartype."""
    hints = getattr(function, "__annotations__", {})
    kept = {name: hint for name, hint in hints.items() if not _is_loose(name, hint)}
    if len(kept) < len(hints):
        function.__annotations__ = kept
    return beartype(function)


def _is_loose(name: str, hint: Any) -> bool:
    members = set(_members(hint))
    names = {getattr(member, "__name__", "") for member in members}
    is_loose = bool(LEFT_ALONE & members or LEFT_ALONE_NAMES & names)
    return typing.Self in members or (name != "return" and is_loose)


def _members(hint: Any) -> Iterator[Any]:
    """A hint, and what it is a union or an alias of."""
    hint = getattr(hint, "__value__", hint)  # of `type X = ...`
    if isinstance(hint, typing.Hashable):  # `P.args` is not
        yield hint
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _members(part)
    elif isinstance(origin, typing.Hashable):
        yield origin
