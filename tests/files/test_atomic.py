"""The writer: whole or not at all, with the permissions there were, and no litter."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from diffprior.files import atomic
from diffprior.files.atomic import write_atomic


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_follows_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_atomic(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_an_existing_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    write_atomic(path, "new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o7777 == mode


def test_the_umask_of_the_process_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> int:
        raise AssertionError("the umask belongs to all threads")

    monkeypatch.setattr(os, "umask", fail)
    write_atomic(tmp_path / "file", b"new")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link, again = tmp_path / "here" / "target", tmp_path / "link", tmp_path / "again"
    target.parent.mkdir()
    link.symlink_to(target)
    again.symlink_to(link)
    for text in ("new", "newer"):  # at first the link leads to nothing
        write_atomic(again, text)
        assert link.is_symlink() and again.is_symlink() and target.read_text() == text


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(atomic.os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """A limit on the size of files, which fails in the kernel as a full disk does."""
    path = tmp_path / "file"
    path.write_text("old")
    code = (
        "import resource, runpy, signal, sys\n"
        "write_atomic = runpy.run_path(sys.argv[2])['write_atomic']\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "write_atomic(sys.argv[1], b'x' * 100_000)"
    )
    command = [sys.executable, "-c", code, str(path), atomic.__file__]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "File too large" in done.stderr
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, "a b\n.c"])
def test_any_name_will_do(tmp_path: Path, name: str) -> None:
    for text in ("old", "new"):
        write_atomic(tmp_path / name, text)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("kind", ["folder", "device", "missing"])
def test_what_is_no_file_is_rejected(tmp_path: Path, kind: str) -> None:
    if kind == "missing":
        with pytest.raises(FileNotFoundError, match="`path`: expected an existing folder"):
            write_atomic(tmp_path / "none" / "file", b"")
        return
    path = tmp_path if kind == "folder" else Path("/dev/null")
    with pytest.raises(ValueError, match="`path`: expected a file, got a folder or device"):
        write_atomic(path, b"")
    assert kind == "folder" or Path("/dev/null").is_char_device()


def test_killed_processes_leave_whole_files(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("kills.py")), str(tmp_path), "15"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert found["unreadable"] == 0 and found["killed"] == 15
    assert found["litter"] >= 3, "kills must hit the writing for this test to say something"


def test_only_old_litter_of_the_same_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    busy, other, unlike = (
        tmp_path / name for name in (".file.writing-00", ".file2.writing-00", ".file.notes")
    )
    for made in (busy, other, unlike):
        made.write_text("")
    write_atomic(path, b"")
    assert set(tmp_path.iterdir()) == {path, busy, other, unlike}
    long_ago = time.time() - 2 * atomic.STALE_SECONDS
    for made in (busy, other, unlike):
        os.utime(made, (long_ago, long_ago))
    write_atomic(path, b"")
    assert set(tmp_path.iterdir()) == {path, other, unlike}


def test_threads_may_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = [letter * 50_000 for letter in "abcd"]

    def write(text: str) -> None:
        for _ in range(10):
            write_atomic(path, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts and list(tmp_path.iterdir()) == [path]
