"""What every kept object can do: be written to bytes or a file, and be read from them."""

import io
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .atomic import AnyPath, write_whole
from .codec import Source, decode, decode_kind, digest_of, encode
from .container import write_container
from .kinds import Kind, kind_of

T = TypeVar("T")


class Serializable(Kind):
    """Can be kept: `save` and `load`, `to_bytes` and `from_bytes`, and a `digest`."""

    def to_bytes(self) -> bytes:
        """The object as bytes: safetensors with a JSON header and checksums. Never code.

        Returns:
            What `from_bytes` and `diffprior.load_bytes` read, in any process and precision.

        Raises:
            ValueError: If the object holds what cannot be kept, such as a function or NaN.
        """
        return to_bytes(self)

    @classmethod
    def from_bytes(cls: type[T], blob: Any) -> T:
        """The object that `to_bytes` wrote.

        Args:
            blob: The bytes; they may come from anywhere, nothing in them is run.

        Raises:
            ValueError: If the bytes are damaged, or hold an object of another kind.
        """
        return from_bytes(blob, cls)

    def save(self, path: AnyPath) -> None:
        """Write the object to a file, whole or not at all.

        Args:
            path: Where to write. The folder must exist; an existing file is replaced and keeps its
                permissions, and a symbolic link stays one.

        Raises:
            ValueError: If the object holds what cannot be kept, such as a function or NaN.
            OSError: If the file cannot be written; the old one is then as it was.
        """
        write_whole(path, to_bytes(self))

    @classmethod
    def load(cls: type[T], path: AnyPath) -> T:
        """Read what `save` wrote, in this version or an earlier one.

        Args:
            path: The file; it may come from anywhere, nothing in it is run.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or holds an object of another kind.
        """
        return from_path(path, cls)

    @property
    def digest(self) -> str:
        """Hexadecimal digits that tell this object from others, in every process and precision."""
        return digest_of(self)


def load(path: AnyPath) -> Any:
    """Read whatever kind of object a file holds.

    Args:
        path: A file that `save` wrote, in this version or an earlier one; nothing in it is run.

    Returns:
        The prior, evidence, likelihood, sampler, agent or bandit.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or of another program.
    """
    kind: Any = _read_path(path, decode_kind)
    return kind.load(path)


def load_bytes(blob: Any) -> Any:
    """Read whatever kind of object is in these bytes.

    Args:
        blob: What `to_bytes` returned, in this version or an earlier one; nothing in it is run.

    Returns:
        The prior, evidence, likelihood, sampler, agent or bandit.

    Raises:
        ValueError: If the bytes are damaged, or of another program.
    """
    kind: Any = _read_blob(blob, decode_kind)
    return kind.from_bytes(blob)


def to_bytes(value: Kind, apart: tuple[Kind, ...] = ()) -> bytes:
    """An object as bytes, in which the objects `apart` are named by their digests only."""
    arrays: dict[str, Any] = {}
    digests = {id(part): digest_of(part) for part in apart}
    return write_container({"object": encode(value, "", arrays, digests)}, arrays)


def kinds_in(value: Kind) -> tuple[type[Kind], ...]:
    """The classes of an object and of all that it holds, as `copyreg` wants to know of them."""
    found, left = {type(value)}, [value.file_fields()]
    while left:
        item = left.pop()
        if isinstance(item, Kind):
            found.add(type(item))
            item = item.file_fields()
        if isinstance(item, dict | tuple):
            left += item.values() if isinstance(item, dict) else item
    return tuple(sorted(found, key=kind_of))


def from_bytes(
    blob: Any, kind: Any, parts: tuple[Kind, ...] = (), changes: Mapping[str, Any] | None = None
) -> Any:
    """The object in these bytes; `parts` were named by digest, `changes` are fields to replace."""
    return _read_blob(blob, _decoder(kind, parts, changes))


def from_path(
    path: AnyPath, kind: Any, parts: tuple[Kind, ...] = (), changes: Mapping[str, Any] | None = None
) -> Any:
    """The object in this file; `parts` were named by digest, `changes` are fields to replace."""
    return _read_path(path, _decoder(kind, parts, changes))


def _decoder(
    kind: Any, parts: tuple[Kind, ...], changes: Mapping[str, Any] | None
) -> Callable[[Source], Any]:
    given = {digest_of(part): part for part in parts}
    return lambda source: decode(source._replace(parts=given, changes=changes or {}), kind)


def _read_blob(blob: Any, read: Callable[[Source], Any]) -> Any:
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise ValueError(f"`blob`: expected bytes, got {type(blob).__name__}; or `load` a path")
    return _explain("`blob`: this", Source(io.BytesIO(blob), len(blob)), read)


def _read_path(path: AnyPath, read: Callable[[Source], Any]) -> Any:
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
    with open(path, "rb") as file:
        return _explain(f"`path`: {path}", Source(file, os.fstat(file.fileno()).st_size), read)


def _explain(where: str, source: Source, read: Callable[[Source], Any]) -> Any:
    """What `read` returns; its refusals say which bytes they are about."""
    try:
        return read(source)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} {error}") from error
