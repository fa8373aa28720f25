"""Named arrays and a table about them as bytes: a safetensors file with checksums.

Layout, all that another program must know: eight bytes with the length of the header, little end
first; the header, JSON; the arrays, without gaps. The header lists dtype, shape and place of every
array, and under `__metadata__` has `diffprior`, JSON in a string, and `checksum`, the BLAKE2b of
the header with an empty string in place of this checksum.
"""

import hashlib
import json
import math
from io import BufferedIOBase
from typing import Any, NamedTuple

import numpy as np

FORMAT = 2  # of the container; the format of version 0.1.0 had no number
MAX_HEADER = 2**20  # bytes; parsed, they take some twenty times as much memory
MAX_AXES = 8
DTYPES = {
    name: np.dtype(code)
    for name, code in {
        "F64": "<f8",
        "F32": "<f4",
        "I64": "<i8",
        "I32": "<i4",
        "U32": "<u4",
        "U8": "|u1",
        "BOOL": "|b1",
    }.items()
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_FOREIGN = "is not a whole file of diffprior ({}); copy it again or save it anew"


class Tensor(NamedTuple):
    """An array as the header describes it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(NamedTuple):
    """What is in a file, before any array is read."""

    about: dict[str, Any]
    tensors: dict[str, Tensor]


def checksum(data: bytes | memoryview) -> str:
    """Thirty-two hexadecimal digits that change with the data."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_container(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of a file with these arrays; `about` is what JSON can hold.

    Raises:
        ValueError: If an array is of a dtype that no file holds, or the header too long.
    """
    stored = {name: _stored(name, array) for name, array in sorted(arrays.items())}
    order = sorted(stored, key=lambda name: -stored[name].dtype.itemsize)  # keeps them aligned
    blobs = {name: stored[name].tobytes() for name in order}
    about = about | {"checksums": {name: checksum(blob) for name, blob in blobs.items()}}
    header: dict[str, Any] = {
        "__metadata__": {"checksum": "", "diffprior": _json(about | {"format": FORMAT})}
    }
    start = 0
    for name, blob in blobs.items():
        header[name] = {
            "dtype": _NAMES[stored[name].dtype],
            "shape": list(stored[name].shape),
            "data_offsets": [start, start + len(blob)],
        }
        start += len(blob)
    text = _json(header)
    sealed = text.replace('""', f'"{checksum(text.encode())}"', 1).encode()
    sealed += b" " * (-len(sealed) % 8)
    if len(sealed) > MAX_HEADER:
        raise ValueError(
            f"`save`: expected at most {MAX_HEADER} bytes besides arrays, got {len(sealed)}; "
            "keep long tuples as arrays"
        )
    return b"".join([len(sealed).to_bytes(8, "little"), sealed, *blobs.values()])


def read_header(stream: BufferedIOBase, size: int) -> Header:
    """The header of `size` bytes, every number in it checked against the others.

    Raises:
        ValueError: If the bytes are not a whole file, or one that was altered.
    """
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
        raise ValueError(_FOREIGN.format("no header of a fitting length"))
    table, text = _table(raw := stream.read(length)), raw.rstrip(b" ")
    metadata = table.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("diffprior"), str):
        raise ValueError(_FOREIGN.format("written by another program"))
    about = _table(metadata["diffprior"])
    sealed = metadata.get("checksum")
    if "format" in about and about["format"] != FORMAT:
        raise ValueError(f"is of format {about['format']!r}, not {FORMAT}; upgrade diffprior")
    expected = checksum(text.replace(str(sealed).encode(), b"", 1))
    if ("format" in about or sealed is not None) and sealed != expected:
        raise ValueError(_FOREIGN.format("the checksum of the header is another"))
    return Header(about, _tensors(table, size - 8 - length))


def read_arrays(stream: BufferedIOBase, header: Header) -> dict[str, np.ndarray]:
    """The arrays that follow the header, each checked against its checksum.

    Raises:
        ValueError: If the bytes end early or were altered.
    """
    checksums = header.about.get("checksums")
    if "format" in header.about and not (
        isinstance(checksums, dict) and checksums.keys() == header.tensors.keys()
    ):
        raise ValueError(_FOREIGN.format("arrays without checksums"))
    found = {}
    for name, tensor in sorted(header.tensors.items(), key=lambda item: item[1].start):
        data = stream.read(tensor.stop - tensor.start)
        if len(data) != tensor.stop - tensor.start:
            raise ValueError(_FOREIGN.format("it ends early"))
        if isinstance(checksums, dict) and checksums[name] != checksum(data):
            raise ValueError(_FOREIGN.format(f"the checksum of {name!r} is another"))
        if tensor.dtype.kind == "b" and data.translate(None, b"\0\1"):
            raise ValueError(_FOREIGN.format(f"{name!r} holds more than true and false"))
        found[name] = np.frombuffer(data, tensor.dtype).reshape(tensor.shape)
    return found


def _stored(name: str, array: np.ndarray) -> np.ndarray:
    """The array, little end first."""
    little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    if little.dtype not in _NAMES:
        held = ", ".join(dtype.name for dtype in DTYPES.values())
        raise ValueError(
            f"`save`: expected arrays of {held}, got {array.dtype} at {name}; convert it"
        )
    return little


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _table(text: bytes | str) -> dict[str, Any]:
    """A JSON object, in which no key comes twice."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(_FOREIGN.format("its header is not JSON")) from error
    if not isinstance(found, dict):
        raise ValueError(_FOREIGN.format("its header is no table"))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _tensors(table: dict[str, Any], size: int) -> dict[str, Tensor]:
    """The arrays that the header lists, which fill `size` bytes without gap or overlap."""
    tensors = {name: _tensor(name, entry) for name, entry in table.items()}
    place = 0
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != place:
            raise ValueError(_FOREIGN.format("arrays overlap or leave gaps"))
        place = tensor.stop
    if place != size:
        raise ValueError(_FOREIGN.format(f"{size} bytes of arrays where {place} are listed"))
    return tensors


def _tensor(name: str, entry: Any) -> Tensor:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(_FOREIGN.format(f"{name!r} is not described"))
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(_FOREIGN.format(f"{name!r} has dtype {code!r}"))
    if not (_counts(shape) and len(shape) <= MAX_AXES and _counts(offsets) and len(offsets) == 2):
        raise ValueError(_FOREIGN.format(f"{name!r} has no proper shape and place"))
    start, stop = offsets
    if stop - start != math.prod(shape) * DTYPES[code].itemsize:
        raise ValueError(_FOREIGN.format(f"{name!r} has a shape of another size than its place"))
    return Tensor(DTYPES[code], tuple(shape), start, stop)


def _counts(value: Any) -> bool:
    """Whether `value` is a list of sizes that memory could have."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**40 for n in value)
