"""Data files of others: found in a folder, verified by checksum, fetched only when asked for."""

import gzip
import hashlib
import io
import os
import urllib.request
import zipfile
from pathlib import Path
from typing import NamedTuple

from diffprior.files.atomic import write_atomic

VARIABLE = "DIFFPRIOR_DATA"
TIMEOUT = 60.0  # seconds without an answer


class DataFile(NamedTuple):
    """A file of a data set, packed or unpacked."""

    dataset: str  # also the name of the folder that it may lie in
    address: str  # of the packed form
    checksums: dict[str, str]  # SHA-256 by file name, the packed form first
    member: str = ""  # what to read of an archive


def read_data(file: DataFile, folder: str | Path | None = None, *, download: bool = False) -> bytes:
    """Contents of a file, unpacked, from `folder` or else the one that DIFFPRIOR_DATA names.

    A file that is not there is fetched from its official address only with `download=True`.
    """
    root = _root(file, folder)
    path = _find(file, root)
    if path is None:
        if not download:
            raise FileNotFoundError(
                f"`folder`: expected {' or '.join(file.checksums)}, found none in {root} or its "
                f"folder {file.dataset}; get {file.address}, or pass download=True"
            )
        path = _fetch(file, root / file.dataset)
    data = _verified("folder", path, path.read_bytes(), file.checksums[path.name])
    return _unpacked(path.name, data, file.member)


def _root(file: DataFile, folder: str | Path | None) -> Path:
    """The file or folder to look at."""
    named = folder if folder is not None else os.environ.get(VARIABLE)
    if not named:
        raise FileNotFoundError(
            f"`folder`: expected a folder with {' or '.join(file.checksums)}, got none; get "
            f"{file.address} and pass the folder that holds it, or set {VARIABLE} to it"
        )
    return Path(named).expanduser()


def _find(file: DataFile, root: Path) -> Path | None:
    if root.is_file() and root.name in file.checksums:
        return root
    places = [place / name for place in (root, root / file.dataset) for name in file.checksums]
    return next((place for place in places if place.is_file()), None)


def _verified(argument: str, source: str | Path, data: bytes, checksum: str) -> bytes:
    """`data`, which are those that were published."""
    got = hashlib.sha256(data).hexdigest()
    if got != checksum:
        raise ValueError(
            f"`{argument}`: expected {source} with SHA-256 {checksum}, got {got}; it is "
            "incomplete, damaged or another edition; get it again"
        )
    return data


def _unpacked(name: str, data: bytes, member: str) -> bytes:
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(member)
    return data


def _fetch(file: DataFile, folder: Path) -> Path:
    """Fetch the packed form into `folder`, whole and verified or not at all."""
    name, checksum = next(iter(file.checksums.items()))
    try:
        with urllib.request.urlopen(file.address, timeout=TIMEOUT) as source:
            data = _verified("download", file.address, source.read(), checksum)
        return _written(folder / name, data)
    except OSError as error:
        raise OSError(
            f"`download`: expected to bring {file.address} to {folder}, got {error}; get it by "
            "other means and put it there"
        ) from error


def _written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)
    return path
