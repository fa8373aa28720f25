"""What the build of the site adds to the pages: tutorials with what their cells print and draw,
formulas as MathML, which browsers draw without a script or a network, and the options of the
command line.
"""

import base64
import functools
import html
import re
import struct
import tempfile
from typing import Any

import jupytext
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from typer.cli import get_docs_for_click
from typer.main import get_command

from diffprior.cli import app

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
SHARP = 2  # pixels of a picture for each that it takes on a page
SETTINGS = f"%reset -f\nimport matplotlib; matplotlib.rcParams['figure.dpi'] = {72 * SHARP}"


def on_files(files: Files, *, config: Any) -> Files:
    """Run the tutorials that are Python files in percent format; each becomes a page."""
    sources = [file for file in files if re.match(r"tutorials/.*\.py$", file.src_uri)]
    texts = tuple(source.content_string for source in sources)
    for source, text, cells in zip(sources, texts, _executed(texts), strict=True):
        path, pictures = source.src_uri.removesuffix(".py"), dict[str, bytes]()
        shown = [_shown(cell, source.name, pictures) for cell in cells]
        end = f"[Download this page as a notebook]({source.name}.ipynb)\n"
        plain = jupytext.writes(jupytext.reads(text, fmt="py:percent"), fmt="ipynb")
        files.remove(source)
        files.append(File.generated(config, f"{path}.md", content="\n\n".join([*shown, end])))
        files.append(File.generated(config, f"{path}.ipynb", content=plain))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
    return files


@functools.cache
def _executed(texts: tuple[str, ...]) -> list[list[NotebookNode]]:
    """Cells of the tutorials, run one after another in a process, which shares their programs."""
    tutorials = [jupytext.reads(text, fmt="py:percent").cells for text in texts]
    together = new_notebook()
    for cells in tutorials:
        together.cells += [new_code_cell(SETTINGS), *cells]
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            together,
            timeout=600,
            startup_timeout=600,
            resources={"metadata": {"path": folder}},
            extra_arguments=["--IPKernelApp.log_level=40"],
        ).execute()
    return tutorials


def _shown(cell: NotebookNode, name: str, pictures: dict[str, bytes]) -> str:
    """Markdown of a cell and of its outputs."""
    if cell.cell_type == "markdown":
        return str(cell.source)
    parts = [f"```python\n{cell.source}\n```"]
    for output in cell.outputs:
        data = output.get("data", {})
        if output.get("name") == "stderr":
            raise ValueError(f"{name}: expected no warnings, got {output.text}")
        if "image/png" in data:
            file = f"{name}-{len(pictures) + 1}.png"
            pictures[file] = base64.b64decode(data["image/png"])
            (width,) = struct.unpack(">I", pictures[file][16:20])
            alt = cell.metadata["alt"]
            parts.append(f'![{alt}]({file}){{ width="{width // SHARP}" }}')
        elif "text/html" in data:
            table = data["text/html"]
            table = table.replace("<table>", '<table class="figures">')  # the theme leaves it alone
            parts.append(f'<div class="output" tabindex="0">\n{table}\n</div>')
        else:
            text = output.get("text") or data["text/plain"]
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append what Typer says of each command to the page of the command line."""
    if page.file.src_uri != "reference/command-line.md":
        return markdown
    command = get_command(app)
    context = command.make_context("diffprior", [], resilient_parsing=True)
    options = get_docs_for_click(obj=command, ctx=context, name="diffprior")
    return markdown + "\n" + options[options.index("\n## ") :]


def on_page_content(content: str, **_: Any) -> str:
    """Draw formulas, which arithmatex has kept from Markdown; corners of tables head nothing."""

    def formula(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display)

    return FORMULA.sub(formula, content).replace("<th></th>", "<td></td>")


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog of the search, which the theme leaves without a name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
