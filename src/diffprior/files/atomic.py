"""Files written atomically: completely, or not at all."""

import contextlib
import hashlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

STALE_SECONDS = 60.0  # after which a temporary file that nobody writes to is removed
MAX_NAME_BYTES = 150  # of a file's name that fit beside what a temporary name adds

AnyPath = str | os.PathLike[str]


def write_atomic(path: AnyPath, content: bytes | str) -> None:
    """Write a file so that a reader finds the old content or the new, never a part."""
    with atomic_writer(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_writer(path: AnyPath) -> Iterator[BinaryIO]:
    """As `write_atomic`, for content that is written piece by piece to the file that it yields.

    The content goes to a temporary file in the same folder, which then takes the file's place. An
    existing file keeps its permissions, a new one gets those of the umask, and a symbolic link
    stays one. Temporary files that killed processes left of the same file are removed later.
    """
    target = Path(os.path.realpath(path))
    found = _status(target)
    _remove_stale(target)
    temporary = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}")
    mode = 0o666 if found is None else stat.S_IMODE(found.st_mode) & 0o777
    binary = getattr(os, "O_BINARY", 0)  # on Windows
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | binary, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            if found is not None:
                _copy_permissions(handle, found)
            yield file
            file.flush()
            os.fsync(handle)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _sync_folder(target.parent)


def _status(target: Path) -> os.stat_result | None:
    """The status of the file, None if there is none; a folder or device is rejected."""
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"`path`: expected an existing folder, found none at {target.parent}; create it first"
        )
    try:
        found = os.stat(target)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"`path`: expected a file, got a folder or device at {target}; rename it")
    return found


def _copy_permissions(handle: int, found: os.stat_result) -> None:
    if sys.platform == "win32":
        return
    with contextlib.suppress(PermissionError):
        os.fchown(handle, found.st_uid, found.st_gid)
    os.fchmod(handle, stat.S_IMODE(found.st_mode))


def _prefix(target: Path) -> str:
    name = os.fsencode(target.name)
    short = name if len(name) <= MAX_NAME_BYTES else hashlib.sha256(name).hexdigest().encode()
    return f".{os.fsdecode(short)}.writing-"


def _remove_stale(target: Path) -> None:
    """Remove temporary files of this target that nobody has written to for a while."""
    prefix, now = _prefix(target), time.time()
    with contextlib.suppress(PermissionError), os.scandir(target.parent) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(prefix)]
        for path in left:
            with contextlib.suppress(OSError):
                if now - os.stat(path).st_mtime > STALE_SECONDS:
                    os.unlink(path)


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a loss of power, where folders can be synchronized."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
