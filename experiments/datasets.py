"""Official files of data sets: found in a folder, and verified by the checksums of SHA256SUMS."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import csv


class DataFile(NamedTuple):
    """A file of a data set, packed or unpacked."""

    dataset: str  # also the name of the folder that it may be in
    address: str  # of the packed form
    checksums: dict[str, str]  # SHA-256 by file name, the packed form first
    member: str = ""  # to read of an archive; after a colon, of an archive in there


SUMS = Path(__file__).with_name("SHA256SUMS").read_text(encoding="utf-8").splitlines()


def data_file(dataset: str, address: str, *names: str, member: str = "") -> DataFile:
    """A file by its names, with their checksums."""
    known = {name: checksum for checksum, name in map(str.split, SUMS)}
    return DataFile(dataset, address, {name: known[name] for name in names}, member)


def rdataset(name: str) -> DataFile:
    """A data set of one of R's packages, as CSV."""
    address = f"https://vincentarelbundock.github.io/Rdatasets/csv/{name}.csv"
    file = f"{name.partition('/')[2]}.csv"
    return data_file("multitask", address, f"{file}.gz", file)


INSTEVAL = rdataset("lme4/InstEval")


def read_table(file: DataFile, folder: str | Path | None, *texts: str) -> pa.Table:
    """A table of comma-separated values, with codes of categories as texts.

    Raises:
        FileNotFoundError, ValueError: As of `read_data`.
    """
    options = csv.ConvertOptions(column_types={column: pa.string() for column in texts})
    return csv.read_csv(io.BytesIO(read_data(file, folder)), convert_options=options)


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
    path = find_data(file, folder)
    if path is None:
        raise FileNotFoundError(
            f"`data`: expected {names}, found none in {folder} or its folder {file.dataset}; get "
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


def find_data(file: DataFile, folder: str | Path) -> Path | None:
    """Where a file is in `folder`, or in the folder of its data set in there."""
    root = Path(folder).expanduser()
    places = [place / name for place in (root, root / file.dataset) for name in file.checksums]
    return next((place for place in places if place.is_file()), None)


def _unpacked(name: str, data: bytes, member: str) -> bytes:
    if name.endswith(".tar.gz"):
        for part in member.split(":"):
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                found = archive.extractfile(part)
                assert found is not None
                data = found.read()
        return data
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.read(member)
    return data
