"""HTML pages in one file each: the templates, the stylesheet, and reports built from blocks."""

import base64
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tables import Table

if TYPE_CHECKING:
    import jinja2

FOLDER = Path(__file__).parent
STYLE = (FOLDER / "style.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


class Heading(Text):
    """The title of a section."""


class Code(Text):
    """Lines to type."""


@dataclass(frozen=True)
class Callout(Text):
    """A paragraph that stands out; `status` is good, bad (a warning) or empty."""

    status: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure, as PNG bytes for a light page and for a dark one."""

    light: bytes
    dark: bytes
    caption: str


@dataclass(frozen=True)
class SideBySide:
    """Blocks side by side, as many as the width allows."""

    blocks: Sequence["Block"]


Block = Text | Picture | Table | SideBySide


@functools.cache
def templates(*folders: Path) -> "jinja2.Environment":
    """Templates of this package and of other folders, which share its base page and stylesheet."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([FOLDER / "templates", *folders]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = Markup(STYLE)
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["png"] = lambda data: (
        "data:image/png;base64," + base64.b64encode(data).decode()
    )
    return environment


def fragment(blocks: Sequence[Block]) -> str:
    """Render blocks as a part of another page, such as a notebook, whose look they take."""
    macros: Any = templates().get_template("macros.html").module
    return "".join(macros.show(block) for block in blocks)


def page(title: str, verdict: Callout, blocks: Sequence[Block], next_step: Code) -> str:
    """Render a report: first what it finds, at the end what to type next."""
    shown = (verdict, *blocks, Heading("Next step"), next_step)
    return templates().get_template("base.html").render(title=title, blocks=shown)
