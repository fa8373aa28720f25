"""Named arrays and a JSON object about them as bytes: a safetensors file with checksums.

The header of the file has `diffprior` under `__metadata__`, JSON in a string with a checksum of
every array, and `checksum`, the BLAKE2b of the header with an empty string in its place.
"""

import hashlib
import json
from io import SEEK_END, BufferedIOBase
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

FORMAT = 2  # version of this layout
MAX_HEADER = 2**20  # bytes; parsed, they take some twenty times as much memory
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
_INVALID = (
    "is not a complete diffprior file ({}); pass what `save` or `diffprior learn` wrote, or save "
    "it again"
)


class Header(NamedTuple):
    """The content of a file before any array is read."""

    about: dict[str, Any]
    raw: bytes
    size: int  # of the whole file


def checksum(data: bytes | bytearray) -> str:
    """Thirty-two hexadecimal digits of BLAKE2b."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_container(about: dict[str, object], arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of a file with these arrays, and with `about` as JSON."""
    stored = {name: _storable(name, array) for name, array in sorted(arrays.items())}
    blob = save(stored)
    end = 8 + int.from_bytes(blob[:8], "little")
    sums = {name: checksum(array.tobytes()) for name, array in stored.items()}
    text = _json(about | {"checksums": sums, "format": FORMAT})
    plain = _json({"__metadata__": {"checksum": "", "diffprior": text}, **json.loads(blob[8:end])})
    header = plain.replace('""', f'"{checksum(plain.encode())}"', 1).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER:
        raise ValueError(
            f"`save`: expected at most {MAX_HEADER} bytes besides arrays, got {len(header)}; "
            "store long tuples as arrays"
        )
    return b"".join([len(header).to_bytes(8, "little"), header, blob[end:]])


def read_header(stream: BufferedIOBase) -> Header:
    """The header, checked before any array is read."""
    size = stream.seek(0, SEEK_END)
    stream.seek(0)
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if size < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
        raise ValueError(_INVALID.format("no header of a valid length"))
    raw = stream.read(length)
    table = _parse_json(raw)
    metadata = table.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("diffprior"), str):
        raise ValueError(_INVALID.format("written by another program"))
    about, seal = _parse_json(metadata["diffprior"]), str(metadata.get("checksum"))
    if about.get("format") != FORMAT:
        raise ValueError(
            f"has format {about.get('format')!r:.20}, expected {FORMAT}; upgrade diffprior, or "
            "save it with version 0.2.0 if it is older"
        )
    if seal != checksum(raw.rstrip(b" ").replace(seal.encode(), b"", 1)):
        raise ValueError(_INVALID.format("wrong checksum of the header"))
    return Header(about, start + raw, size)


def read_arrays(stream: BufferedIOBase, header: Header) -> dict[str, np.ndarray]:
    """The arrays that follow the header, each checked against its checksum."""
    try:
        entries = dict(deserialize(header.raw + stream.read()))
    except SafetensorError as error:
        raise ValueError(_INVALID.format(str(error))) from error
    checksums, found = header.about.get("checksums"), {}
    if not isinstance(checksums, dict) or checksums.keys() != entries.keys():
        raise ValueError(_INVALID.format("arrays without checksums"))
    for name, entry in entries.items():
        data, dtype = entry["data"], DTYPES.get(entry["dtype"])
        if checksums[name] != checksum(data):
            raise ValueError(_INVALID.format(f"wrong checksum of {name!r}"))
        if dtype is None or (dtype.kind == "b" and data.translate(None, b"\0\1")):
            raise ValueError(_INVALID.format(f"{name!r} has dtype {entry['dtype']}"))
        try:
            found[name] = np.frombuffer(data, dtype).reshape(entry["shape"])
        except OverflowError as error:
            raise ValueError(_INVALID.format(f"{name!r} has no valid shape")) from error
        found[name].flags.writeable = False
    return found


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    """The array in little-endian order and contiguous."""
    little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    if little.dtype not in DTYPES.values():
        names = ", ".join(dtype.name for dtype in DTYPES.values())
        raise ValueError(
            f"`save`: expected arrays of {names}, got {array.dtype} at {name}; convert it"
        )
    return little


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _parse_json(text: bytes | str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(_INVALID.format("its header is not JSON")) from error
    if not isinstance(found, dict):
        raise ValueError(_INVALID.format("its header is not an object"))
    return found
