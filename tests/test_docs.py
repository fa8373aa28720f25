"""The documentation runs: pages print what they say, the site builds, every name is on it."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import diffprior as dp
from browser.browsing import is_too_wide, opened_browser, violations

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    page.relative_to(ROOT).as_posix()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in page.read_text(encoding="utf-8")
)
EXAMPLE = "examples/exact_inference.py"

# Runs the blocks that it reads, each on its own, and prints what each of them printed. Priors are
# learned in fewer steps than a reader's, and processes are threads, which moves no figure shown.
RUNNER = """
import contextlib, functools, io, json, sys
import diffprior, diffprior.executors as executors
fit = diffprior.DiffusionPrior.fit
config = diffprior.FitConfig.tiny()
diffprior.DiffusionPrior.fit = staticmethod(functools.partial(fit, config=config))
executors.Processes = executors.InProcess
printed = []
for block in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(compile(block, "block", "exec"), {"__name__": "__main__"})
    printed.append(text.getvalue())
print(json.dumps(printed))
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """Python blocks of a page, each with the text block that follows it."""
    found = re.findall(
        r"^```python\n(.*?)^```\n(?:\s*```text\n(.*?)^```)?",
        (ROOT / page).read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return [(code, output) for code, output in found]


def run(*command: str, given: str = "", folder: Path = ROOT) -> str:
    """Output of a program, run as a reader would: in a process of its own, with no settings."""
    result = subprocess.run(
        [sys.executable, *command],
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_examples_print_what_the_pages_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one process, which shares their programs; the example last."""
    monkeypatch.delenv("JAX_ENABLE_X64", raising=False)
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    examples = [(page, *block) for page in PAGES for block in blocks(page)]
    codes = [code for _, code, _ in examples]
    given = json.dumps([*codes, (ROOT / EXAMPLE).read_text(encoding="utf-8")])
    *printed, table = json.loads(run("-c", RUNNER, given=given, folder=tmp_path))
    for (page, code, expected), got in zip(examples, printed, strict=True):
        assert got == expected, f"{page}\n{code}"
    rows = re.findall(r"^(linear|logistic) +(\S.*?)  +([\d.]+) +(\d+)%$", table, re.MULTILINE)
    errors = {(model, prior): float(error) for model, prior, error, _ in rows}
    for model in ("linear", "logistic"):
        assert errors[model, "mixture"] < errors[model, "Gaussian"] < errors[model, "N(0, I)"]


def test_the_hedge_of_the_page_takes_a_learned_prior() -> None:
    """A task unlike any that a learned prior has seen is found with the hedge."""
    (code, _), *_ = blocks("docs/how-to/extending.md")
    page: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code.split("past = ")[0], "page", "exec"), page)
    learned = dp.load(ROOT / "tests" / "data" / "v0.2.0" / "learned")
    moments = learned.moments()
    theta = np.asarray(moments.mean) + 8 * np.sqrt(np.diagonal(moments.cov))
    wide = dp.GaussianPrior(np.asarray(moments.mean), 25 * np.asarray(moments.cov))
    precision = jax.device_put(40 * np.eye(3))  # of forty rewards along each axis
    found = page["Hedged"](learned, wide, 0.01).denoise(precision, precision @ theta)
    assert np.max(np.abs(np.asarray(found.mean) - theta)) < 0.2
    assert np.all(np.isfinite(found.cov)) and np.all(np.diagonal(found.cov) < 0.05)


def build_site(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The site of a folder, built by the command of `make docs`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (options,) = re.findall(r"mkdocs (build .*)$", makefile, flags=re.MULTILINE)
    command = [sys.executable, "-m", "mkdocs", *options.split(), "--site-dir", str(site)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)


def test_the_site_builds_strictly_and_reads_from_files(tmp_path: Path) -> None:
    built = build_site(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    paths = sorted(tmp_path.rglob("*.html"))
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in paths}
    anchors = {
        name for text in pages.values() for name in re.findall(r'id="(diffprior[\w.]*)"', text)
    }
    wanted = [f"diffprior.{name}" for name in dp.__all__]
    wanted += [f"diffprior.evaluate.{name}" for name in dp.evaluate.__all__]
    assert not [name for name in wanted if name not in anchors]
    assert (
        "arithmatex" not in "".join(pages.values())
        and pages["explanation/notation.html"].count("</math>") > 50
    )
    for path in (ROOT / "docs" / "tutorials").glob("*.py"):
        source = path.read_text(encoding="utf-8")
        page = pages[f"tutorials/{path.stem}.html"]
        assert all(f'alt="{alt}"' in page for alt in re.findall('alt="([^"]*)"', source))
        assert (tmp_path / "tutorials" / f"{path.stem}.ipynb").stat().st_size > 1000
    assert not [name for name, text in pages.items() if re.search(r"<m[io]>\\", text)]
    tutorials = [text for name, text in pages.items() if name.startswith("tutorials/")]
    assert len(tutorials) == 6 and all('<img alt="' in text for text in tutorials)
    for command in ("learn", "serve", "token create"):
        assert f"<code>diffprior {command}</code>" in pages["reference/command-line.html"]
    read_site(tmp_path)


def read_site(site: Path) -> None:
    """Search, accessibility and the width of a phone, without a server or a network."""
    with opened_browser() as browser:
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: requests.append(f"script: {error}"))
        for name in ("tutorials/logs", "explanation/results", "reference/evaluate", "index"):
            page.goto((site / f"{name}.html").as_uri())
            assert not violations(page), name
        page.emulate_media(color_scheme="dark")
        assert not violations(page, rules=["color-contrast"])
        page.locator(".md-search__input").click()
        page.keyboard.type("particles degenerate")
        page.locator(".md-search-result__link", has_text="Choosing a prior").first.click()
        page.get_by_role("heading", name="Choosing a prior and a sampler").wait_for()
        page.set_viewport_size({"width": 390, "height": 844})
        for path in sorted(site.rglob("*.html")):
            page.goto(path.as_uri())
            assert not is_too_wide(page), path
        elsewhere = [url for url in requests if not url.startswith(("file:", "data:", "about:"))]
        assert not elsewhere, elsewhere


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """On a page of its own, with the settings of the site but for the pages that it lists."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = settings.split("nav:\n  -")[0].split("hooks:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    bad = ("missing.md", "index.md#missing", "/docs/index.md", "folder/missing.png")
    links = "".join(f"\n[link]({link})\n" for link in ("index.md#title", *bad))
    (tmp_path / "docs" / "index.md").write_text(f"# Title\n{links}", encoding="utf-8")
    built = build_site(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert all(re.search(rf"WARNING.*{link}", built.stderr) for link in bad)
    assert "index.md#title" not in built.stderr


def test_links_of_the_readme_lead_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
        missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
        assert not missing, f"{page}: {missing}"
