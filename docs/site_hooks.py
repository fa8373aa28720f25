"""What the build of the site adds to the pages: formulas as MathML, which browsers draw without a
script or a network, and the options of the command line.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from typer.cli import get_docs_for_click
from typer.main import get_command

from diffprior.cli import app

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append what Typer says of each command to the page of the command line."""
    if page.file.src_uri != "reference/command-line.md":
        return markdown
    command = get_command(app)
    context = command.make_context("diffprior", [], resilient_parsing=True)
    options = get_docs_for_click(obj=command, ctx=context, name="diffprior")
    return markdown + "\n" + options[options.index("\n## ") :]


def on_page_content(content: str, **_: Any) -> str:
    """Draw formulas, which the extension arithmatex has kept from Markdown."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display)

    return FORMULA.sub(formula, content)


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog of the search, which the theme leaves without a name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
