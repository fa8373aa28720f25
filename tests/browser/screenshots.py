"""Pictures of the pages with a simulated shop behind them: `python tests/browser/screenshots.py
FOLDER`, with `tests` on the path. The database in FOLDER is used again if it is there."""

import argparse
import time
from pathlib import Path

import httpx
from PIL import Image

from browser.browsing import empty_pictures, opened_browser, serving
from service.shop import Shop, add_models, stretch_time

VIEWS = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 390)}
TASK = "/tasks/shop/campaign-007"
PAGES = {
    "dashboard": "/",
    "task": TASK,
    "traffic": "/traffic?model=shop&version=2&share=75",
    "docs": "/docs",
}
UPPER = 1420  # pixels: the answers, the versions and two rows of pictures


def simulate(path: Path, num_tasks: int, num_decisions: int) -> None:
    """The shop, as if it had been open for a week."""
    with serving(path, required=False) as (engine, _):
        add_models(engine)
        shop = Shop(engine, num_tasks)
        shop.run(1)
        shop.visitors(1)  # whose programs are compiled
        begin = time.time()
        shop.run(num_decisions, visitors=0.1)
        stretch_time(engine, 6.9, begin)


def take(folder: Path, address: str) -> None:
    """One picture for each page and view; an empty picture on a page is an error."""
    while "being computed" in httpx.get(address, timeout=60).text:
        time.sleep(1.0)
    with opened_browser() as browser:
        for name, (scheme, width) in VIEWS.items():
            size = {"width": width, "height": 1000}
            page = browser.new_page(color_scheme=scheme, viewport=size)
            page.set_default_timeout(120_000)
            for what, path in PAGES.items():
                page.goto(path if "://" in path else address + path)
                page.wait_for_load_state("networkidle")
                assert what == "docs" or not empty_pictures(page), empty_pictures(page)
                page.screenshot(path=folder / f"{what}-{name}.png", full_page=True)
            page.close()


def shorten(folder: Path) -> None:
    """The upper part of the dashboard, in few colors: the picture of the documentation."""
    with Image.open(folder / "dashboard-light.png") as whole:
        upper = whole.crop((0, 0, whole.width, UPPER)).convert("RGB")
        upper.quantize(128).save(folder / "dashboard.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", action="append", default=[], help="file of a report, too")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--decisions", type=int, default=10_000)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    PAGES.update({Path(name).stem: Path(name).absolute().as_uri() for name in asked.page})
    database = asked.folder / "shop.sqlite"
    if not database.exists():
        simulate(database, asked.tasks, asked.decisions)
    with serving(database, required=False) as (_, address):
        take(asked.folder, address)
        shorten(asked.folder)
        for path in ("/", TASK):
            time.sleep(2.5)
            begin = time.perf_counter()
            httpx.get(address + path, timeout=60)
            print(f"{path}: {time.perf_counter() - begin:.3f} s")


if __name__ == "__main__":
    main()
