"""Which classes files may speak of, and what the fields of each may hold."""

import dataclasses
import functools
import importlib
import inspect
import types
import typing
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import AbstractArray


@dataclasses.dataclass(frozen=True)
class Claim:
    """An array that has not been read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype
    on_device: bool = True


class Kind:
    """What a class says of its files; the defaults serve every dataclass and Equinox module.

    `file_version` counts the schema, one up whenever fields change in a way that a default cannot
    make up for; `upgrade` then brings older fields up to date. `former_kinds` are names that the
    class had in older files, and no file of the class is longer than `max_bytes`.
    """

    file_version: ClassVar[int] = 1
    former_kinds: ClassVar[tuple[str, ...]] = ()
    max_bytes: ClassVar[int] = 2**30

    @classmethod
    def file_hints(cls) -> dict[str, Any]:
        """The fields that are kept, and what each may hold."""
        known: Any = cls
        return field_hints(known)

    def file_fields(self) -> dict[str, Any]:
        """The fields that are kept, and what each holds."""
        return {name: getattr(self, name) for name in self.file_hints()}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Any:
        """An object with these fields. A module is filled, not initialized, as JAX does."""
        if not issubclass(cls, eqx.Module):
            return cls(**fields)
        instance = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(instance, name, value)
        return instance

    @classmethod
    def upgrade(cls, fields: dict[str, Any], version: int) -> dict[str, Any]:
        """Fields of this version from those of an older one."""
        return fields

    def validate(self) -> None:
        """Refuse fields that no honest object has; by default, numbers that are not finite.

        Raises:
            ValueError: If a field holds what the class never would.
        """
        require_finite(self.file_fields())


@dataclasses.dataclass(frozen=True)
class Node:
    """An object that has not been built yet: its class, and its fields as of a version."""

    cls: type[Kind]
    version: int
    fields: dict[str, Any]


def kind_of(cls: type) -> str:
    """What files call a class: its name, with the module in front unless it is one of ours."""
    own = cls.__module__.split(".")[0] == __name__.split(".")[0]
    return cls.__qualname__ if own else f"{cls.__module__}.{cls.__qualname__}"


def known_kinds() -> dict[str, type[Kind]]:
    """Every class that has instances, by its kind and former kinds; of two, the later one."""
    found: dict[str, type[Kind]] = {}
    left: list[type[Kind]] = [Kind]
    while left:
        cls = left.pop(0)
        kind = kind_of(cls)
        if any(kind_of(base) == kind for base in cls.__bases__):
            continue  # Equinox makes such a subclass for the time of initialization
        found[kind] = cls
        found |= {name: cls for name in cls.__dict__.get("former_kinds", ())}
        left += cls.__subclasses__()
    return {kind: cls for kind, cls in found.items() if _has_objects(cls)}


def import_kinds() -> None:
    """Import every public name of the package, and so each class of ours that files speak of."""
    package = importlib.import_module(__name__.split(".")[0])
    for name in package.__all__:
        getattr(package, name)


def _has_objects(cls: type[Kind]) -> bool:
    own_hints = cls.file_hints.__func__ is not Kind.file_hints.__func__  # type: ignore[attr-defined]
    return (dataclasses.is_dataclass(cls) or own_hints) and not inspect.isabstract(cls)


def require_finite(fields: dict[str, Any]) -> None:
    """Refuse floating-point arrays among the fields that hold NaN or infinity."""
    for name, value in fields.items():
        if is_array(value) and value.dtype.kind == "f" and not np.all(np.isfinite(value)):
            raise ValueError(f"`{name}`: expected finite numbers, got NaN or infinity")


@functools.cache
def field_hints(cls: Any) -> dict[str, Any]:
    """The annotation of every field; Any where it cannot be told what a name in it means."""
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(cls)}


def check_fields(cls: type, hints: dict[str, Any], fields: dict[str, Any]) -> None:
    """Refuse fields of other names, types, dtypes or shapes than the annotations say.

    A name of an axis means the same length in all fields of an object.

    Raises:
        ValueError: If a field does not fit.
    """
    if fields.keys() != hints.keys():
        odd = sorted(fields.keys() ^ hints.keys())
        raise ValueError(f"has fields {odd} missing or unknown in a {cls.__name__}")
    axes: dict[str, int] = {}
    for name, value in fields.items():
        if not fits(hints[name], value, axes):
            raise ValueError(f"has a {cls.__name__} whose {name} is {_describe(value)}")


def fits(hint: Any, value: Any, axes: dict[str, int]) -> bool:
    """Whether a value, a claim or a node may stand where the annotation is `hint`.

    `axes` are the lengths of named axes so far; those of the value are added.
    """
    if hint is Any:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(option, value, axes) for option in args)
    if origin is typing.Literal:
        return any(type(value) is type(option) and value == option for option in args)
    if origin is tuple or hint is tuple:
        return isinstance(value, tuple) and _fits_each(args, value, axes)
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return is_array(value) and _fits_array(hint, _claim(value), axes)
    if hint in (jax.Array, np.ndarray):
        return is_array(value)
    if hint is None or hint is type(None):
        return value is None
    if hint in (bool, int, float, str):
        return type(value) is hint or (hint is float and type(value) is int)
    if isinstance(hint, type):
        return issubclass(value.cls, hint) if isinstance(value, Node) else isinstance(value, hint)
    return hint is ClassVar


def _fits_each(args: tuple[Any, ...], values: tuple[Any, ...], axes: dict[str, int]) -> bool:
    if not args:
        return True
    if len(args) == 2 and args[1] is Ellipsis:
        return all(fits(args[0], value, axes) for value in values)
    pairs = zip(args, values, strict=False)
    return len(args) == len(values) and all(fits(hint, value, axes) for hint, value in pairs)


def _fits_array(hint: Any, claim: Claim, axes: dict[str, int]) -> bool:
    """Whether dtype and shape are those of a jaxtyping annotation, given the axes so far."""
    if not isinstance(claim, hint.dtype[Claim, hint.dim_str]):
        return False
    names = hint.dim_str.split()
    many = next((i for i, name in enumerate(names) if name[0] in "*."), len(names))
    last = len(names) - many - 1
    found = list(zip(names[:many], claim.shape, strict=False))
    found += zip(names[many + 1 :], claim.shape[len(claim.shape) - last :], strict=False)
    return all(axes.setdefault(name, n) == n for name, n in found if name.isidentifier())


def is_array(value: Any) -> bool:
    """Whether `value` is an array, or will be one."""
    return isinstance(value, Claim | jax.Array | np.ndarray)


def _claim(value: Any) -> Claim:
    return Claim(tuple(value.shape), np.dtype(value.dtype))


def _describe(value: Any) -> str:
    if isinstance(value, Claim):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, Node):
        return f"a {value.cls.__name__}"
    return f"{value!r:.60}"
