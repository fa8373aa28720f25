"""Finding, verifying and fetching data files, with small files and a server of our own."""

import gzip
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from experiments.datasets import VARIABLE, DataFile, read_data

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


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("place", ["", "toy"])
def test_every_form_is_found_in_the_folder_and_below(tmp_path: Path, name: str, place: str) -> None:
    path = put(tmp_path / place / name, FORMS[name])
    assert read_data(TOY, tmp_path) == CONTENT
    assert read_data(TOY, str(path)) == CONTENT


def test_variable_serves_where_no_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "named" / "table.dat", CONTENT)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert read_data(TOY) == CONTENT
    with pytest.raises(FileNotFoundError, match="other"):
        read_data(TOY, tmp_path / "other")


def test_nowhere_to_look_names_address_and_variable() -> None:
    with pytest.raises(FileNotFoundError) as error:
        read_data(TOY)
    assert str(error.value).startswith("`folder`: expected a folder with toy.zip or")
    assert ADDRESS in str(error.value) and VARIABLE in str(error.value)


def test_nowhere_to_put_it_is_refused_before_any_download() -> None:
    with pytest.raises(FileNotFoundError, match=VARIABLE):
        read_data(TOY, download=True)


def test_missing_file_names_the_folder_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        read_data(TOY, tmp_path)
    for part in ("table.dat", str(tmp_path), ADDRESS, "download=True"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", FORMS)
def test_altered_file_is_refused_unread(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, FORMS[name][:-1] + b"?")
    with pytest.raises(ValueError, match=f"`folder`: expected .*{name} with SHA-256.*get it again"):
        read_data(TOY, tmp_path)


class Server:
    """Answers every request with `content`, or with an error where there is none."""

    def __init__(self) -> None:
        self.content: bytes | None = FORMS["toy.zip"]
        self.requests = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests += 1
                self.send_response(404 if owner.content is None else 200)
                self.end_headers()
                self.wfile.write(owner.content or b"")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.file = TOY._replace(address=f"http://127.0.0.1:{self.http.server_port}/toy.zip")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def test_download_is_kept_and_not_repeated(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "new"
    for _ in range(2):
        assert read_data(server.file, folder, download=True) == CONTENT
    assert server.requests == 1
    assert [path.name for path in (folder / "toy").iterdir()] == ["toy.zip"]
    assert read_data(TOY, folder) == CONTENT


def test_nothing_is_fetched_unasked(tmp_path: Path, server: Server) -> None:
    with pytest.raises(FileNotFoundError):
        read_data(server.file, tmp_path)
    assert server.requests == 0


def test_unwritable_folder_says_so(tmp_path: Path, server: Server) -> None:
    put(tmp_path / "toy", b"a file where the folder should be")
    with pytest.raises(OSError, match="`download`: .*exists.*put it there"):
        read_data(server.file, tmp_path, download=True)


@pytest.mark.parametrize("content", [b"a page that says sorry", FORMS["toy.zip"][:-5]])
def test_wrong_download_leaves_nothing_behind(
    tmp_path: Path, server: Server, content: bytes
) -> None:
    server.content = content
    with pytest.raises(ValueError, match="`download`: expected http.*SHA-256"):
        read_data(server.file, tmp_path, download=True)
    assert not list(tmp_path.iterdir())


def test_failed_download_says_where_to_put_the_file(tmp_path: Path, server: Server) -> None:
    server.content = None
    with pytest.raises(OSError, match="`download`: .*toy, got .*404.*put it there"):
        read_data(server.file, tmp_path, download=True)
    assert not list(tmp_path.iterdir())
