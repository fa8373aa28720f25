"""Objects that can be saved: their schema, and how they become bytes and are read back safely.

An object is a JSON tree and named arrays. An array is named by the path of fields that leads to it,
so that a file cannot swap fields. Classes are looked up by name among those that are defined;
nothing in a file is run or imported.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import io
import json
import os
import stat
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import AbstractArray

from ..checks import on_device
from .atomic import AnyPath, write_atomic
from .container import Header, checksum, read_arrays, read_header, write_container

NON_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
Bytes = bytes | bytearray | memoryview
T = TypeVar("T")


class NotDefinedHere(ValueError):
    """A file names what this program has not defined."""


class Serializable:
    """An object that can be saved; the defaults serve every dataclass and Equinox module.

    `file_version` counts the schema, one up whenever fields change in a way that a default cannot
    make up for; `upgrade` then converts older fields. `former_kinds` are names that the class had
    in older files, and no file of the class is longer than `max_bytes`.
    """

    file_version: ClassVar[int] = 1
    former_kinds: ClassVar[tuple[str, ...]] = ()
    max_bytes: ClassVar[int] = 2**30

    def to_bytes(self) -> bytes:
        """The object as bytes: safetensors with a JSON header and checksums. Never code.

        Returns:
            Bytes that `from_bytes` and `diffprior.load_bytes` read, in any process and precision.

        Raises:
            ValueError: If the object holds what cannot be saved, such as a function or NaN.
        """
        return to_bytes(self)

    @classmethod
    def from_bytes(cls, blob: Bytes) -> Self:
        """The object that `to_bytes` wrote.

        Args:
            blob: The bytes; they may come from anywhere, nothing in them is run.

        Raises:
            ValueError: If the bytes are damaged, or hold an object of another kind.
        """
        return from_bytes(blob, cls)

    def save(self, path: AnyPath) -> None:
        """Write the object to a file, atomically.

        Args:
            path: Where to write. The folder must exist; an existing file is replaced and keeps its
                permissions, and a symbolic link stays one.

        Raises:
            ValueError: If the object holds what cannot be saved, such as a function or NaN.
            OSError: If the file cannot be written; the old one is then unchanged.
        """
        write_atomic(path, to_bytes(self))

    @classmethod
    def load(cls, path: AnyPath) -> Self:
        """Read what `save` wrote, in this version or an earlier one since 0.2.0.

        Args:
            path: The file; it may come from anywhere, nothing in it is run.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or holds an object of another kind.
        """
        return from_path(path, cls)

    @property
    def digest(self) -> str:
        """Hexadecimal digits that identify this object, in every process and precision."""
        return digest_of(self)

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        """The fields that are saved, and the type of each."""
        hints: dict[str, object] = field_hints(cls)  # type: ignore[arg-type]
        return hints

    def file_fields(self) -> dict[str, object]:
        """The fields that are saved, and the value of each."""
        return {name: getattr(self, name) for name in self.file_hints()}

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> Self:
        """An object with these fields. A module is filled, not initialized, as JAX does."""
        if not issubclass(cls, eqx.Module):
            return cls(**fields)
        instance = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(instance, name, value)
        return instance

    @classmethod
    def upgrade(cls, fields: dict[str, object], version: int) -> dict[str, object]:
        """Fields of this version from those of an older one."""
        return fields

    def validate(self) -> None:
        """Reject fields that no valid object has; by default, numbers that are not finite."""
        require_finite(self.file_fields())


def load(path: AnyPath) -> Serializable:
    """Read whatever kind of object a file holds.

    Args:
        path: A file that `save` wrote, in this version or an earlier one; nothing in it is run.

    Returns:
        The prior, evidence, likelihood, sampler, agent or bandit.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or of another program.
    """
    with _opened(path) as stream:
        kind = _outermost(read_header(stream))
    return kind.load(path)


def load_bytes(blob: Bytes) -> Serializable:
    """Read whatever kind of object is in these bytes.

    Args:
        blob: What `to_bytes` returned, in this version or an earlier one; nothing in it is run.

    Returns:
        The prior, evidence, likelihood, sampler, agent or bandit.

    Raises:
        ValueError: If the bytes are damaged, or of another program.
    """
    with _wrapped(blob) as stream:
        kind = _outermost(read_header(stream))
    return kind.from_bytes(blob)


def to_bytes(value: Serializable, by_digest: tuple[Serializable, ...] = ()) -> bytes:
    """An object as bytes, in which the objects `by_digest` are named by their digests only."""
    arrays: dict[str, np.ndarray] = {}
    digests = {id(part): digest_of(part) for part in by_digest}
    return write_container({"object": _encode(value, "", arrays, digests)}, arrays)


def from_bytes(
    blob: Bytes,
    kind: type[T],
    parts: tuple[Serializable, ...] = (),
    changes: dict[str, object] | None = None,
) -> T:
    """The object in these bytes; `parts` were named by digest, `changes` are fields to replace."""
    with _wrapped(blob) as stream:
        return _read(stream, kind, parts, changes or {})


def from_path(
    path: AnyPath,
    kind: type[T],
    parts: tuple[Serializable, ...] = (),
    changes: dict[str, object] | None = None,
) -> T:
    """The object in this file; `parts` were named by digest, `changes` are fields to replace."""
    with _opened(path) as stream:
        return _read(stream, kind, parts, changes or {})


# ---- classes and their schemas


def kind_of(cls: type) -> str:
    """The name of a class in files; with its module in front unless it is one of ours."""
    own = cls.__module__.split(".")[0] == __name__.split(".")[0]
    return cls.__qualname__ if own else f"{cls.__module__}.{cls.__qualname__}"


def known_kinds() -> dict[str, type[Serializable]]:
    """Every class that has instances, by its kind and former kinds; of two, the later one."""
    found: dict[str, type[Serializable]] = {}
    left: list[type[Serializable]] = [Serializable]
    while left:
        cls = left.pop(0)
        kind = kind_of(cls)
        if any(kind_of(base) == kind for base in cls.__bases__):
            continue  # Equinox makes such a subclass for the time of initialization
        found[kind] = cls
        found |= {name: cls for name in cls.__dict__.get("former_kinds", ())}
        left += cls.__subclasses__()
    return {kind: cls for kind, cls in found.items() if _has_instances(cls)}


def import_kinds() -> None:
    """Import every public name of the package, and so each of our classes that files name."""
    package = importlib.import_module(__name__.split(".")[0])
    for name in package.__all__:
        getattr(package, name)


def kinds_in(value: Serializable) -> tuple[type[Serializable], ...]:
    """The classes of an object and of all that it holds, which `pickle` must import."""
    found, left = {type(value)}, [*value.file_fields().values()]
    while left:
        item = left.pop()
        if isinstance(item, Serializable):
            found.add(type(item))
            item = item.file_fields()
        if isinstance(item, dict | tuple):
            left += item.values() if isinstance(item, dict) else item
    return tuple(sorted(found, key=kind_of))


def _has_instances(cls: type[Serializable]) -> bool:
    own_hints = cls.file_hints.__func__ is not Serializable.file_hints.__func__  # type: ignore[attr-defined]
    abstract = inspect.isabstract(cls) or cls.__name__.startswith("Abstract")
    return (dataclasses.is_dataclass(cls) or own_hints) and not abstract


def require_finite(fields: Mapping[str, object]) -> None:
    """Reject floating-point arrays among the fields that hold NaN or infinity."""
    for name, value in fields.items():
        is_float = isinstance(value, jax.Array | np.ndarray) and value.dtype.kind == "f"
        if is_float and not np.all(np.isfinite(value)):  # type: ignore[call-overload]
            raise ValueError(f"`{name}`: expected finite numbers, got NaN or infinity")


@functools.cache
def field_hints(cls: type) -> dict[str, object]:
    """The annotation of every field; Any where a name in it cannot be resolved."""
    try:
        hints = typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in _dataclass_fields(cls)}


def _dataclass_fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def check_fields(cls: type, hints: Mapping[str, object], fields: Mapping[str, object]) -> None:
    """Reject fields of other names, types, dtypes or shapes than the annotations say.

    An axis name means the same length in all fields of an object.
    """
    if fields.keys() != hints.keys():
        odd = sorted(fields.keys() ^ hints.keys())
        raise ValueError(f"has fields {odd} missing or unknown in a {cls.__name__}")
    axes: dict[str, int] = {}
    for name, value in fields.items():
        if not _matches(hints[name], value, axes):
            raise ValueError(f"has a {cls.__name__} whose {name} is {_describe(value)}")


def _matches(hint: Any, value: Any, axes: dict[str, int]) -> bool:
    """Whether a value matches an annotation; `axes` are the named lengths so far."""
    if hint is Any:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(option, value, axes) for option in args)
    if origin is typing.Literal:
        return any(type(value) is type(option) and value == option for option in args)
    if origin is tuple or hint is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            args = args[:1] * len(value) if type(value) is tuple else args
        fits = type(value) is tuple and (not args or len(args) == len(value))
        return fits and all(_matches(*pair, axes) for pair in zip(args, value, strict=False))
    if origin is dict or hint is dict:
        return isinstance(value, dict)
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        fits = _is_array(value) and isinstance(value, hint.dtype[Any, hint.dim_str])
        return fits and _same_axes(hint.dim_str.split(), value.shape, axes)
    if hint in (jax.Array, np.ndarray):
        return _is_array(value)
    if hint is None:
        return value is None
    if hint in (bool, int, float, str):
        return type(value) is hint or (hint is float and type(value) is int)
    return isinstance(hint, type) and isinstance(value, hint)


def _same_axes(names: list[str], shape: tuple[int, ...], axes: dict[str, int]) -> bool:
    """Whether named axes are as long as in the fields before; one name may stand for many axes."""
    many = next((i for i, name in enumerate(names) if name[0] in "*."), len(names))
    last = len(names) - many - 1
    found = [*zip(names, shape[:many], strict=False)]
    found += zip(names[many + 1 :], shape[len(shape) - last :], strict=False)
    return all(axes.setdefault(name, n) == n for name, n in found if name.isidentifier())


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _describe(value: object) -> str:
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}" if isinstance(value, Serializable) else f"{value!r:.60}"


# ---- objects to a JSON tree and arrays, and digests


def _encode(
    value: Any, path: str, arrays: dict[str, np.ndarray], digests: Mapping[int, str]
) -> Any:
    """`value` as JSON; its arrays are put into `arrays` under names that begin with `path`."""
    if isinstance(value, Serializable):
        return _encode_object(value, path, arrays, digests)
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": "numpy"}
    if isinstance(value, jax.Array):
        arrays[path] = _compact(np.asarray(value))
        return {"array": "jax"}
    if type(value) is tuple:
        return [_encode(item, f"{path}.{i}", arrays, digests) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {k: _encode(v, f"{path}.{k}", arrays, digests) for k, v in value.items()}}
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value - value != 0:
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"`save`: expected numbers, arrays, tuples and objects of diffprior, got "
        f"{type(value).__name__} at {path}; save such an object elsewhere"
    )


def _compact(array: np.ndarray) -> np.ndarray:
    """Doubles that singles hold exactly, as singles; JAX will read them in its own precision."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    return single if np.array_equal(single, array, equal_nan=True) else array


def _encode_object(
    value: Serializable, path: str, arrays: dict[str, np.ndarray], digests: Mapping[int, str]
) -> Any:
    cls = type(value)
    if id(value) in digests:
        return {"kind": kind_of(cls), "digest": digests[id(value)]}
    fields = value.file_fields()
    inside = f"{path}." if path else ""
    encoded = {name: _encode(v, inside + name, arrays, digests) for name, v in fields.items()}
    try:
        check_fields(cls, cls.file_hints(), fields)
        value.validate()
    except ValueError as error:
        raise ValueError(f"`save`: {path or 'the object'} {error}; it cannot be saved") from error
    return {"kind": kind_of(cls), "version": cls.file_version, "fields": encoded}


def digest_of(value: Serializable) -> str:
    """Hexadecimal digits that identify an object, the same in every process.

    Numbers count in single precision; fields that do not enter a comparison or have their default
    value do not count: so that neither the precision nor a field that is added later matters.
    """
    return checksum(json.dumps(digest_content(value), sort_keys=True).encode())


def digest_content(value: object) -> object:
    """The content of a digest, as JSON."""
    if isinstance(value, Serializable):
        skipped = {field.name for field in _dataclass_fields(value) if _is_skipped(field, value)}
        fields = value.file_fields().items()
        return [kind_of(type(value)), {k: digest_content(v) for k, v in fields if k not in skipped}]
    if isinstance(value, jax.Array | np.ndarray):
        array = np.asarray(value)
        wide = {"f": "<f4", "i": "<i8", "u": "<u8", "b": "|b1"}[array.dtype.kind]
        with np.errstate(over="ignore"):
            data = array.astype(wide).tobytes()
        return ["array", wide, list(array.shape), checksum(data)]
    if isinstance(value, tuple):
        return [digest_content(item) for item in value]
    if isinstance(value, dict):
        return {key: digest_content(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _is_skipped(field: dataclasses.Field[Any], value: object) -> bool:
    held = getattr(value, field.name, None)
    is_default = not _is_array(held) and not _is_array(field.default) and held == field.default
    return not field.compare or is_default


# ---- bytes to objects


@contextlib.contextmanager
def _wrapped(blob: Bytes) -> Iterator[io.BufferedIOBase]:
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise ValueError(f"`blob`: expected bytes, got {type(blob).__name__}; or `load` a path")
    with _explained("`blob`: this"):
        yield io.BytesIO(blob)


@contextlib.contextmanager
def _opened(path: AnyPath) -> Iterator[io.BufferedIOBase]:
    if not isinstance(path, str | os.PathLike):  # a number would be taken for an open file
        raise ValueError(
            f"`path`: expected the path of a file, got {type(path).__name__}; pass a string or Path"
        )
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"`path`: expected a file, found none at {path}; check the name"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"`path`: expected a file, got a folder or device at {path}; check it")
    with open(path, "rb") as file, _explained(f"`path`: {path}"):
        yield file


@contextlib.contextmanager
def _explained(where: str) -> Iterator[None]:
    """Let errors say which bytes they are about."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} {error}") from error


def _outermost(header: Header) -> type[Serializable]:
    """The class of the object that a file holds."""
    node = header.about.get("object")
    return _class_of(node.get("kind") if isinstance(node, dict) else None, known_kinds())


def _class_of(kind: object, known: dict[str, type[Serializable]]) -> type[Serializable]:
    """The class of a kind; `known` grows where that is one of ours which has not been used yet."""
    if isinstance(kind, str) and kind not in known:
        import_kinds()
        known |= known_kinds()
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"names a class {kind!r:.80} that is not defined here; import the module that "
            "defines it, or upgrade diffprior"
        )
    return known[kind]


def _read(
    stream: io.BufferedIOBase,
    wanted: type[T],
    parts: tuple[Serializable, ...],
    changes: dict[str, object],
) -> T:
    """The object in these bytes; its kind and size are checked before any array is read."""
    header = read_header(stream)
    cls = _outermost(header)
    if not issubclass(cls, wanted):
        raise ValueError(
            f"holds a {cls.__name__}, not a {wanted.__name__}; read it with {cls.__name__}.load"
        )
    if header.size > cls.max_bytes:
        raise ValueError(f"is longer than the {cls.max_bytes} bytes of a {cls.__name__}")
    arrays = read_arrays(stream, header)
    decoder = _Decoder(arrays, {digest_of(part): part for part in parts}, known_kinds())
    found: T = decoder.decode_object(header.about["object"], "", changes)
    if arrays:
        raise ValueError("holds arrays that belong to no object; it was altered; save it again")
    return found


class _Decoder(NamedTuple):
    """Makes objects of a JSON tree: from the arrays that are left, and parts by their digests."""

    arrays: dict[str, np.ndarray]
    parts: Mapping[str, Serializable]
    known: dict[str, type[Serializable]]

    def decode(self, node: Any, path: str) -> Any:
        """The value of a node at a path of fields."""
        if isinstance(node, list):
            return tuple(self.decode(item, f"{path}.{i}") for i, item in enumerate(node))
        if not isinstance(node, dict):
            return node
        if node in ({"array": "jax"}, {"array": "numpy"}) and path in self.arrays:
            array = self.arrays.pop(path)
            return _placed(array) if node["array"] == "jax" else array
        if node.keys() == {"float"} and str(node["float"]) in NON_FINITE:
            return NON_FINITE[node["float"]]
        if node.keys() == {"dict"} and isinstance(node["dict"], dict):
            return {key: self.decode(item, f"{path}.{key}") for key, item in node["dict"].items()}
        if node.keys() == {"kind", "digest"}:
            return self._part(node["kind"], node["digest"])
        return self.decode_object(node, path, {})

    def decode_object(self, node: Any, path: str, changes: dict[str, object]) -> Any:
        """A valid object; fields that were added since it was saved have their defaults."""
        if node.keys() != {"kind", "version", "fields"} or not isinstance(node["fields"], dict):
            raise ValueError(f"has no meaning at {path!r}; it was altered; save it again")
        cls, version = _class_of(node["kind"], self.known), node["version"]
        if type(version) is not int or not 1 <= version <= cls.file_version:
            raise ValueError(
                f"holds a {cls.__name__} of version {version!r:.20}, this program knows versions "
                f"up to {cls.file_version}; upgrade diffprior"
            )
        inside, hints = f"{path}." if path else "", cls.file_hints()
        saved = (field for field in _dataclass_fields(cls) if field.name in hints)
        fields = {f.name: f.default for f in saved if f.default is not dataclasses.MISSING}
        fields |= {name: self.decode(item, inside + name) for name, item in node["fields"].items()}
        if version == cls.file_version:
            check_fields(cls, hints, fields)
        try:
            if version < cls.file_version:
                fields = cls.upgrade(fields, version)
                check_fields(cls, hints, fields)
            found = cls.from_fields(fields | changes)
            found.validate()
        except NotDefinedHere:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            message = f"does not describe a {cls.__name__} ({error}); save it again"
            raise ValueError(message) from error
        return found

    def _part(self, kind: object, digest: object) -> Serializable:
        if not isinstance(digest, str) or digest not in self.parts:
            given = ", ".join(self.parts) or "none"
            raise ValueError(
                f"names a {kind!r:.80} of digest {digest!r:.40} instead of holding it, got "
                f"{given}; pass the same object, loaded from its own file"
            )
        return self.parts[digest]


def _placed(array: np.ndarray) -> jax.Array:
    """An array on the device, in the precision of this process."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(array.astype(dtype), array):
        raise ValueError(f"holds integers beyond {dtype}; set jax_enable_x64")
    return on_device(array.astype(dtype) if array.dtype.kind in "iu" else array)
