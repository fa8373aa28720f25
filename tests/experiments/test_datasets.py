"""Finding and verifying data files."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from experiments.datasets import DataFile, read_data, read_table

CONTENT = b"1::2::3::4\n"
ADDRESS = "https://example.org/toy.zip"


def zipped(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("toy/README", "other things")
        archive.writestr("toy/table.dat", content)
    return packed.getvalue()


FORMS = {
    "toy.zip": zipped(CONTENT),
    "table.dat.gz": gzip.compress(CONTENT),
    "table.dat": CONTENT,
}
TOY = DataFile(
    dataset="toy",
    address=ADDRESS,
    checksums={name: hashlib.sha256(data).hexdigest() for name, data in FORMS.items()},
    member="toy/table.dat",
)


def test_file_is_read_of_an_archive_in_an_archive(tmp_path: Path) -> None:
    inner = tarred("table.dat", CONTENT)
    checksum = hashlib.sha256(outer := tarred("deep/inner.tar.gz", inner)).hexdigest()
    put(tmp_path / "toy.tar.gz", outer)
    file = DataFile("toy", ADDRESS, {"toy.tar.gz": checksum}, "deep/inner.tar.gz:table.dat")
    assert read_data(file, tmp_path) == CONTENT


def tarred(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_every_form_is_found_in_the_folder_and_below(tmp_path: Path) -> None:
    for name in FORMS:
        for place in ("", "toy"):
            path = put(tmp_path / place / name, FORMS[name])
            assert read_data(TOY, tmp_path) == CONTENT
            path.unlink()


def test_missing_folder_names_the_address() -> None:
    with pytest.raises(FileNotFoundError) as error:
        read_data(TOY, None)
    assert str(error.value).startswith("`data`: expected a folder with toy.zip or")
    assert ADDRESS in str(error.value)


def test_missing_file_names_the_folder_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        read_data(TOY, tmp_path)
    for part in ("table.dat", str(tmp_path), ADDRESS):
        assert part in str(error.value)


@pytest.mark.parametrize("name", FORMS)
def test_altered_file_raises(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, FORMS[name][:-1] + b"?")
    with pytest.raises(ValueError, match=f"`data`: expected .*{name} with SHA-256.*get it again"):
        read_data(TOY, tmp_path)


def test_columns_of_a_table_have_their_names(tmp_path: Path) -> None:
    table = b'id,who\n1,"a, b"\n2,c\n'
    file = DataFile("toy", ADDRESS, {"t.csv": hashlib.sha256(table).hexdigest()})
    put(tmp_path / "t.csv", table)
    expected = {"id": ["1", "2"], "who": ["a, b", "c"]}
    assert read_table(file, tmp_path, "id").to_pydict() == expected
