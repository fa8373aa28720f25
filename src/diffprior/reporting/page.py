"""A page as one HTML file that needs nothing else: text, tables and pictures, light and dark."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass

from .tables import Table

PRODUCT = "diffprior"


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to type."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A picture, as the bytes of two PNG files: for a light page and for a dark one."""

    light: bytes
    dark: bytes
    caption: str


@dataclass(frozen=True)
class Columns:
    """Blocks beside each other, as many as the width has room for."""

    blocks: Sequence["Block"]


Block = Heading | Text | Code | Picture | Table | Columns


def page(title: str, blocks: Sequence[Block]) -> str:
    """The page as HTML."""
    body = "\n".join(map(_block, blocks))
    name = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} · {PRODUCT}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header><span class="product">{PRODUCT}</span> cold start from your past tasks</header>\n'
        f"<main>\n<h1>{name}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h2>{html.escape(block.text)}</h2>"
    if isinstance(block, Text):
        return f"<p>{html.escape(block.text)}</p>"
    if isinstance(block, Code):
        return f"<pre>{html.escape(block.text)}</pre>"
    if isinstance(block, Picture):
        return _picture(block)
    if isinstance(block, Columns):
        inner = "\n".join(f"<div>{_block(one)}</div>" for one in block.blocks)
        return f'<div class="columns">{inner}</div>'
    return _table(block)


def _picture(picture: Picture) -> str:
    light, dark = (
        "data:image/png;base64," + base64.b64encode(png).decode()
        for png in (picture.light, picture.dark)
    )
    caption = html.escape(picture.caption)
    return (
        f'<figure><div class="wide"><picture><source srcset="{dark}" '
        f'media="(prefers-color-scheme: dark)"><img src="{light}" alt="{caption}"></picture></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    titles = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns)
    head = f"<thead><tr>{titles}</tr></thead>" if titles else ""
    rows = "\n".join(
        f"<tr>{''.join(_cell(cell, (i, j) in table.marked) for j, cell in enumerate(row))}</tr>"
        for i, row in enumerate(table.rows)
    )
    caption = f'<p class="caption">{html.escape(table.caption)}</p>' if table.caption else ""
    kind = ' class="words"' if table.words else ""
    return f'{caption}<div class="wide"><table{kind}>{head}<tbody>\n{rows}\n</tbody></table></div>'


def _cell(text: str, marked: bool) -> str:
    mark = ' class="best"' if marked else ""
    return f"<td{mark}>{html.escape(text)}</td>"


_STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfb; --ink: #1f2328; --faint: #5a6270;
  --line: #dfe2e6; --accent: #23599c; --code: #f0f2f4; }
@media (prefers-color-scheme: dark) { :root { --paper: #191c20; --ink: #d8dbe0; --faint: #98a1ad;
  --line: #343a42; --accent: #82b1ec; --code: #23272d; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
header, main { max-width: 92rem; margin: 0 auto; padding: 0 clamp(1rem, 3vw, 3rem); }
header { padding-top: 1.2rem; color: var(--faint); font-size: .9rem; }
.product { font-weight: 700; color: var(--accent); font-size: 1.05rem; margin-right: .6rem; }
main { padding-bottom: 4rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: .6rem 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; }
p { max-width: 50rem; margin: .5rem 0; }
pre { background: var(--code); padding: .8rem 1rem; border-radius: .4rem; overflow-x: auto;
  font-size: .9rem; max-width: 60rem; }
figure { margin: 1.4rem 0; }
img { max-width: 100%; min-width: 40rem; height: auto; display: block; }
.caption, figcaption { font-size: .88rem; color: var(--faint); margin: 1rem 0 .3rem; }
.columns { display: grid; gap: 0 3rem;
  grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr)); }
.columns > div { min-width: 0; }
.wide { overflow-x: auto; margin: .3rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem 1.1rem .28rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; border-bottom: 2px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
td.best { font-weight: 700; color: var(--accent); }
table.words th, table.words td { text-align: left; white-space: normal; vertical-align: top; }
"""
