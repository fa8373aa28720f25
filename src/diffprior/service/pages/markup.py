"""Pieces of pages as HTML. Text is escaped here, wherever it comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from .chart import Chart
from .style import STYLE

LONG = 32  # characters of a cell, beyond which it has several lines
Cell = str | tuple[str, str]  # text, or text and where it leads to


@dataclass(frozen=True)
class Answer:
    """What a stranger wants to know, in one word or two, and why. `mood` is good, bad or empty."""

    question: str
    short: str
    why: str
    mood: str = ""


@dataclass(frozen=True)
class Link:
    """Where a link of the page's navigation leads, and whether one is there already."""

    text: str
    address: str
    current: bool = False


@dataclass(frozen=True)
class Frame:
    """What is around a page: where else one can go, and a button to sign out if one signed in."""

    links: Sequence[Link] = ()
    sign_out: bool = False


def page(
    title: str,
    body: Sequence[str],
    frame: Frame,
    *,
    links: Sequence[Link] = (),
    footer: str = "",
) -> str:
    """A whole page; `links` of its own come before those of the frame."""
    listed = "".join(f"<li>{_link(link)}</li>" for link in [*links, *frame.links])
    sign_out = '<form action="/sign-out" method="post"><button>Sign out</button></form>'
    end = text(footer) + (sign_out if frame.sign_out else "")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · diffprior</title><style>{STYLE}</style></head><body>"
        '<a class="skip" href="#content">Skip to the content</a>'
        '<header><span class="product">diffprior</span>'
        f'<nav aria-label="Pages"><ul>{listed}</ul></nav></header>'
        f'<main id="content"><h1>{escape(title)}</h1>{"".join(body)}</main>'
        f"<footer>{end}</footer></body></html>"
    )


def _link(link: Link) -> str:
    current = ' aria-current="page"' if link.current else ""
    return f'<a href="{escape(link.address)}"{current}>{escape(link.text)}</a>'


def heading(text: str) -> str:
    """The title of a part of the page."""
    return f"<h2>{escape(text)}</h2>"


def text(words: str) -> str:
    """A paragraph."""
    return f"<p>{escape(words)}</p>"


def code(lines: str) -> str:
    """Lines to type."""
    return f'<pre tabindex="0" aria-label="lines to type">{escape(lines)}</pre>'


def answers(found: Sequence[Answer]) -> str:
    """What a stranger wants to know first."""
    inner = "".join(
        f'<li class="answer {escape(one.mood)}"><h2>{escape(one.question)}</h2>'
        f"<strong>{escape(one.short)}</strong><p>{escape(one.why)}</p></li>"
        for one in found
    )
    return f'<ul class="answers">{inner}</ul>'


def cards(charts: Sequence[Chart]) -> str:
    """Pictures beside each other, as many as there is room for."""
    return f'<div class="cards">{"".join(map(_card, charts))}</div>'


def _card(chart: Chart) -> str:
    legend = "".join(
        f'<li><span class="{escape(color)}"></span>{escape(words)}</li>'
        for color, words in chart.legend
    )
    figure = f"<figure>{chart.svg()}</figure>" if chart.plot is not None else ""
    numbers = (
        f'<details><summary>Numbers<span class="unseen"> of {escape(chart.title)}</span></summary>'
        f"{table(chart.title, chart.columns, chart.rows)}</details>"
        if chart.rows
        else ""
    )
    return (
        f'<section class="card"><h3>{escape(chart.title)}</h3><p>{escape(chart.says)}</p>{figure}'
        f"{f'<ul class=legend>{legend}</ul>' if legend else ''}{numbers}</section>"
    )


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    titles = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    name = escape(caption)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table>'
        f"<caption>{name}</caption><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
        "</div>"
    )


def _cell(cell: Cell) -> str:
    words, address = (cell, None) if isinstance(cell, str) else cell
    kind = ' class="long"' if len(words) > LONG else ""
    inner = escape(words) if address is None else f'<a href="{escape(address)}">{escape(words)}</a>'
    return f"<td{kind}>{inner}</td>"


def task_address(model: str, task: str) -> str:
    """The address of a task's page."""
    return f"/tasks/{quote(model, safe='')}/{quote(task, safe='')}"


def model_address(model: str) -> str:
    """The address of a model's dashboard."""
    return f"/?model={quote(model, safe='')}"
