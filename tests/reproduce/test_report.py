"""A report holds what it is given, escaped, and needs nothing from elsewhere."""

import base64
import getpass
import platform
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from diffprior.reproduce.output import REPORT, write_report
from diffprior.reproduce.parts import Part, Parts
from diffprior.reproduce.report import (
    Figure,
    Heading,
    Table,
    Text,
    closing,
    machine,
    page,
    plain,
    plus_minus,
)

PNG = b"\x89PNG\r\n\x1a\n picture"
BLOCKS = [
    Heading("a < b & c"),
    Text("<script>alert('no')</script>"),
    Figure(PNG, 'regret "curves"'),
    Table(
        ("agent", "R(n)"),
        [["TS <1>", "19 ± 1"], ["DiffTS", "15 ± 1"]],
        "n & m",
        frozenset({(1, 1)}),
    ),
]


class Reader(HTMLParser):
    """Collects the text, the tags and the sources of a page, and whether its tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def reader() -> Reader:
    reader = Reader()
    reader.feed(page("Title <1>", BLOCKS))
    assert not reader.open
    return reader


def test_text_is_escaped(reader: Reader) -> None:
    for words in ("Title <1>", "a < b & c", "<script>alert('no')</script>", "TS <1>", "n & m"):
        assert words in reader.text
    assert "script" not in reader.tags


def test_pictures_are_inside(reader: Reader) -> None:
    (source,) = reader.sources
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == PNG


def test_nothing_comes_from_elsewhere() -> None:
    text = page("t", BLOCKS)
    assert not re.search(r"https?:|@import|url\(|<link", text)


def test_marked_cells_stand_out() -> None:
    assert re.findall(r'<td class="best">(.*?)</td>', page("t", BLOCKS)) == ["15 ± 1"]


def test_the_machine_is_nobodys(tmp_path: Path) -> None:
    told = " ".join(machine().values())
    assert platform.python_version() in told and "cores" in told
    blocks = closing({"runs": "8"}, [Part("prior, cross", 60.0, False), Part("regret", 1.5, True)])
    text = page("t", blocks)
    assert "62 seconds in all, 60 of them to learn" in text
    assert "<td>regret</td><td>1.5</td><td>before</td>" in text
    for secret in (platform.node(), getpass.getuser(), str(Path.home()), str(tmp_path)):
        assert not re.search(
            rf"\b{re.escape(secret)}\b", re.sub(r"<style>.*</style>", "", text, flags=re.S)
        )


def test_the_report_is_written_whole(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "parts")
    parts.numbers("regret, cross", {}, lambda: 1)
    path = write_report(tmp_path / "new", "Title", BLOCKS, {"seed": "0"}, parts)
    assert path == tmp_path / "new" / REPORT
    text = path.read_text(encoding="utf-8")
    assert "<td>seed</td><td>0</td>" in text and "regret, cross" in text


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [(15.52, 0.31, "15.5 ± 0.3"), (0.514, 0.021, "0.51 ± 0.02"), (-2.0, 0.5, "-2.0 ± 0.5")],
)
def test_numbers_have_the_digits_of_their_errors(mean: float, error: float, text: str) -> None:
    assert plus_minus(mean, error) == text


def test_signs() -> None:
    assert plus_minus(0.83, 0.2, signed=True) == "+0.8 ± 0.2"


def test_a_table_as_text() -> None:
    lines = plain(BLOCKS[3]).splitlines()
    assert lines == ["agent     R(n)", "TS <1>  19 ± 1", "DiffTS  15 ± 1"]
