"""Tables, pages and figures: complete, escaped and readable."""

import html.parser

import numpy as np

from diffprior.reporting.page import Callout, Code, Heading, Picture, SideBySide, Text, page
from diffprior.reporting.tables import Link, Table, plus_minus

TABLE = Table(
    ("agent", "R <n>"), [("TS", "19 ± 1"), ("A&B", "15 ± 1")], "x < y", frozenset({(1, 1)})
)
ROWS = np.random.default_rng(0).standard_normal((60, 8))
NAMES = ("price", "2", "clicks", "visits", "e", "f", "g", "h")
VOID = ("meta", "img", "source")


class Balance(html.parser.HTMLParser):
    """Checks that every tag is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_is_whole_and_escaped() -> None:
    blocks = [
        Heading("What <it> says"),
        Text("a & b"),
        Callout("look <here>", "bad"),
        Code("diffprior fit <file>"),
        SideBySide([TABLE, Table((), [("words", Link("of <any> kind", '/?"a'))], words=True)]),
        Picture(b"light", b"dark", "a <caption>"),
    ]
    text = page("A & B", Callout("yes"), blocks, Code("next"))
    reader = Balance()
    reader.feed(text)
    assert not reader.open
    for words in (
        "diffprior",
        "What <it> says",
        "a & b",
        "of <any> kind",
        "R <n>",
        "a <caption>",
        "look <here>",
    ):
        assert words in reader.text
    assert text.index(">yes<") < text.index("What &lt;it&gt;") < text.index("Next step")
    assert '<a href="/?&#34;a">' in text
    assert '<td class="best number">15 ± 1</td>' in text and 'best number">19' not in text
    assert "prefers-color-scheme: dark" in text and "http" not in text


def test_numbers_have_the_digits_of_their_errors() -> None:
    for value, error, text in (
        (15.52, 0.31, "15.5 ± 0.3"),
        (0.514, 0.021, "0.51 ± 0.02"),
        (-2.0, 0.5, "-2.0 ± 0.5"),
        (526.3, 12.0, "526 ± 12"),
        (0.5, 0.12, "0.50 ± 0.12"),
        (3.0, float("nan"), "3"),
    ):
        assert plus_minus(value, error) == text
    assert plus_minus(0.83, 0.2, signed=True) == "+0.8 ± 0.2"


def test_a_table_as_text() -> None:
    assert str(TABLE) == "x < y\nagent   R <n>\nTS     19 ± 1\nA&B    15 ± 1"
    assert TABLE.to_text(bold=True).endswith("A&B    \x1b[1m15 ± 1\x1b[0m")
    assert str(Table((), [("a", "b"), ("cc", "d")], words=True)) == "a   b\ncc  d"
    assert str(Table(("a",), [])) == "a"
