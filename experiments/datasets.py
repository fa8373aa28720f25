"""Official files of data sets: found in a folder, and verified by checksum."""

import gzip
import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple


class DataFile(NamedTuple):
    """A file of a data set, packed or unpacked."""

    dataset: str  # also the name of the folder that it may be in
    address: str  # of the packed form
    checksums: dict[str, str]  # SHA-256 by file name, the packed form first
    member: str = ""  # to read of an archive


def read_data(file: DataFile, folder: str | Path | None) -> bytes:
    """Contents of a file, unpacked, from `folder`.

    Raises:
        FileNotFoundError: There is no folder, or no such file in it; the message says where to get
            the file.
        ValueError: The file is not the published one.
    """
    names = " or ".join(file.checksums)
    if folder is None:
        raise FileNotFoundError(
            f"`data`: expected a folder with {names}, got none; get {file.address} and pass the "
            "folder that holds it"
        )
    root = Path(folder).expanduser()
    places = [place / name for place in (root, root / file.dataset) for name in file.checksums]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"`data`: expected {names}, found none in {root} or its folder {file.dataset}; get "
            f"{file.address}"
        )
    data, checksum = path.read_bytes(), file.checksums[path.name]
    got = hashlib.sha256(data).hexdigest()
    if got != checksum:
        raise ValueError(
            f"`data`: expected {path} with SHA-256 {checksum}, got {got}; it is incomplete, "
            "damaged or another edition; get it again"
        )
    return _unpacked(path.name, data, file.member)


def _unpacked(name: str, data: bytes, member: str) -> bytes:
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(member)
    return data
