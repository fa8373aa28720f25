"""Objects as a JSON tree and named arrays, and back.

An array is named by the path of fields that leads to it, so that a file cannot say that one field
is another. Classes are looked up by name among those defined; nothing in a file is run or imported.
"""

import dataclasses
import json
from collections.abc import Mapping
from io import BufferedIOBase
from typing import Any, NamedTuple

import jax
import numpy as np

from ..checks import on_device
from .container import Header, checksum, read_arrays, read_header
from .kinds import (
    Claim,
    Kind,
    Node,
    check_fields,
    fits,
    import_kinds,
    is_array,
    kind_of,
    known_kinds,
)
from .legacy import translate

ODD_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
MISSING = dataclasses.MISSING


def encode(value: Any, path: str, arrays: dict[str, np.ndarray], apart: Mapping[int, str]) -> Any:
    """`value` as JSON; its arrays are put into `arrays` under names that begin with `path`.

    Objects whose id is in `apart` are named by the digest given there.
    """
    if isinstance(value, Kind):
        return _encode_object(value, path, arrays, apart)
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": "numpy"}
    if isinstance(value, jax.Array):
        arrays[path] = _compact(np.asarray(value))
        return {"array": "jax"}
    if type(value) is tuple:
        return [encode(item, f"{path}.{i}", arrays, apart) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        items = {k: encode(v, f"{path}.{k}", arrays, apart) for k, v in value.items()}
        return {"dict": items}
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value - value != 0:
        return {"float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"`save`: expected numbers, arrays, tuples and objects of diffprior, got "
        f"{type(value).__name__} at {path}; keep such an object elsewhere"
    )


def _compact(array: np.ndarray) -> np.ndarray:
    """Doubles that singles hold exactly, as singles; JAX will read them in its own precision."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    return single if np.array_equal(single, array, equal_nan=True) else array


def _encode_object(
    value: Kind, path: str, arrays: dict[str, np.ndarray], apart: Mapping[int, str]
) -> Any:
    cls = type(value)
    if id(value) in apart:
        return {"kind": kind_of(cls), "digest": apart[id(value)]}
    fields = value.file_fields()
    inside = f"{path}." if path else ""
    packed = {name: encode(v, inside + name, arrays, apart) for name, v in fields.items()}
    try:
        check_fields(cls, cls.file_hints(), fields)
        value.validate()
    except ValueError as error:
        raise ValueError(f"`save`: {path or 'the object'} {error}; it cannot be kept") from error
    return {"kind": kind_of(cls), "version": cls.file_version, "fields": packed}


def digest_of(value: Any) -> str:
    """Hexadecimal digits that tell an object from others, the same in every process.

    Numbers count in single precision, fields that do not enter a comparison or have their default
    value not at all: so that neither the precision nor a field that is added later matters.
    """
    return checksum(json.dumps(content_of(value), sort_keys=True).encode())


def content_of(value: Any) -> Any:
    """What a digest is made of, as JSON."""
    if isinstance(value, Kind):
        skipped = {field.name for field in _fields(value) if _is_skipped(field, value)}
        fields = value.file_fields().items()
        return [kind_of(type(value)), {k: content_of(v) for k, v in fields if k not in skipped}]
    if is_array(value):
        array = np.asarray(value)
        wide = {"f": "<f4", "i": "<i8", "u": "<u8", "b": "|b1"}[array.dtype.kind]
        with np.errstate(over="ignore"):
            data = array.astype(wide).tobytes()
        return ["array", wide, list(array.shape), checksum(data)]
    if isinstance(value, tuple):
        return [content_of(item) for item in value]
    if isinstance(value, dict):
        return {key: content_of(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _fields(value: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()


def _is_skipped(field: dataclasses.Field, value: Any) -> bool:
    held = getattr(value, field.name, None)
    is_default = not is_array(held) and not is_array(field.default) and held == field.default
    return not field.compare or is_default


class Source(NamedTuple):
    """Bytes to be read, and what was given beside them."""

    stream: BufferedIOBase
    size: int
    parts: Mapping[str, Kind] = {}  # objects that the bytes may name by digest
    changes: Mapping[str, Any] = {}  # fields to be replaced in the outermost object


def decode_kind(source: Source) -> type[Kind]:
    """The class of the object in these bytes."""
    return _parse(source, read_header(source.stream, source.size))[0].cls


def decode(source: Source, wanted: type) -> Any:
    """The object in these bytes, which must be a `wanted`.

    Names, dtypes, shapes and sizes are checked against the kind before any array is read.

    Raises:
        ValueError: If the bytes are not those of such an object.
    """
    header = read_header(source.stream, source.size)
    node, header = _parse(source, header)
    if not issubclass(node.cls, wanted):
        name = node.cls.__name__
        raise ValueError(f"holds a {name}, not a {wanted.__name__}; read it with {name}.load")
    if source.size > node.cls.max_bytes:
        raise ValueError(f"is longer than the {node.cls.max_bytes} bytes of a {node.cls.__name__}")
    _check(node)
    arrays = read_arrays(source.stream, header)
    return _build(Node(node.cls, node.version, node.fields | dict(source.changes)), "", arrays)


def _parse(source: Source, header: Header) -> tuple[Node, Header]:
    """The outermost object, of claims instead of arrays, and every array claimed once."""
    if "format" not in header.about:
        header = translate(header)
    claimed: set[str] = set()
    known = known_kinds()

    def parse(node: Any, path: str) -> Any:
        if isinstance(node, list):
            return tuple(parse(item, f"{path}.{i}") for i, item in enumerate(node))
        if not isinstance(node, dict):
            return node
        if node in ({"array": "jax"}, {"array": "numpy"}) and path in header.tensors:
            claimed.add(path)
            tensor = header.tensors[path]
            return Claim(tensor.shape, tensor.dtype, node["array"] == "jax")
        if node.keys() == {"float"} and str(node["float"]) in ODD_FLOATS:
            return ODD_FLOATS[node["float"]]
        if node.keys() == {"dict"} and isinstance(node["dict"], dict):
            return {key: parse(item, f"{path}.{key}") for key, item in node["dict"].items()}
        if node.keys() == {"kind", "digest"}:
            return _part(node["kind"], node["digest"], source.parts)
        if node.keys() == {"kind", "version", "fields"} and isinstance(node["fields"], dict):
            inside = f"{path}." if path else ""
            fields = {name: parse(item, inside + name) for name, item in node["fields"].items()}
            return _node(known, node["kind"], node["version"], fields)
        raise ValueError(f"has no meaning at {path!r}; it was altered; save it anew")

    root = parse(header.about.get("object"), "")
    if not isinstance(root, Node) or claimed != header.tensors.keys():
        raise ValueError("holds arrays that belong to no object; it was altered; save it anew")
    return root, header


def _node(known: dict[str, type[Kind]], kind: Any, version: Any, fields: dict[str, Any]) -> Node:
    """A node of a known kind and version; fields added since then have their defaults."""
    if isinstance(kind, str) and kind not in known:
        import_kinds()
        known |= known_kinds()
    cls = known.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ValueError(
            f"speaks of a class {kind!r:.80} that is not defined here; import the module that "
            "defines it, or upgrade diffprior"
        )
    if type(version) is not int or not 0 <= version <= cls.file_version:
        raise ValueError(
            f"holds a {cls.__name__} of version {version!r:.20}, this program knows versions up to "
            f"{cls.file_version}; upgrade diffprior"
        )
    added = {f.name: f.default for f in _fields(cls) if f.default is not MISSING}
    return Node(cls, version, added | fields)


def _part(kind: Any, digest: Any, parts: Mapping[str, Kind]) -> Kind:
    if not isinstance(digest, str) or digest not in parts:
        given = ", ".join(parts) or "none"
        raise ValueError(
            f"names a {kind!r:.80} of digest {digest!r:.40} instead of holding it, got {given}; "
            "pass the very object, loaded from its own file"
        )
    return parts[digest]


def _check(value: Any) -> None:
    """Check every node of the present version; older ones are when they have been upgraded."""
    if isinstance(value, tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check(item)
    if isinstance(value, Node):
        if value.version == value.cls.file_version:
            check_fields(value.cls, value.cls.file_hints(), value.fields)
        _check(value.fields)


def _build(value: Any, path: str, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, Claim):
        return _placed(arrays[path]) if value.on_device else arrays[path]
    if isinstance(value, tuple):
        return tuple(_build(item, f"{path}.{i}", arrays) for i, item in enumerate(value))
    if isinstance(value, dict):
        return {key: _build(item, f"{path}.{key}", arrays) for key, item in value.items()}
    if not isinstance(value, Node):
        return _placed(value) if isinstance(value, np.ndarray) else value
    inside = f"{path}." if path else ""
    fields = {name: _build(item, inside + name, arrays) for name, item in value.fields.items()}
    return _object(value.cls, value.version, fields)


def _object(cls: type[Kind], version: int, fields: dict[str, Any]) -> Kind:
    """A valid object with these fields."""
    try:
        if version < cls.file_version:
            fields = _arrays_for_numbers(cls.upgrade(fields, version), cls.file_hints())
            check_fields(cls, cls.file_hints(), fields)
        found = cls.from_fields(fields)
        found.validate()
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"does not describe a {cls.__name__} ({error}); save it anew") from error
    return found


def _arrays_for_numbers(fields: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    """Numbers of an older version as arrays, where the fields have become arrays since."""
    found = dict(fields)
    for name, value in fields.items():
        hint = hints.get(name, Any)
        if isinstance(value, int | float) and not fits(hint, value, {}):
            array = np.asarray(value, float)
            found[name] = on_device(array) if fits(hint, array, {}) else value
    return found


def _placed(array: np.ndarray) -> jax.Array:
    """An array on the device, in the precision of this process."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(array.astype(dtype), array):
        raise ValueError(f"holds integers beyond {dtype}; set jax_enable_x64")
    return on_device(array.astype(dtype) if array.dtype.kind in "iu" else array)
