"""Figures of a prior: every pair with its names, and nothing under a legend."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from diffprior.reporting.figures import MAX_SHOWN, prior_figure, save_prior_figure

ROWS = np.random.default_rng(0).standard_normal((60, 8))
NAMES = ("price", "2", "clicks", "visits", "e", "f", "g", "h")


@pytest.mark.parametrize("dim", [1, 2, 4, 8])
def test_every_pair_is_shown_with_names(dim: int) -> None:
    figure = prior_figure(ROWS[:, :dim], ROWS[::-1, :dim], NAMES[:dim])
    shown = min(dim, MAX_SHOWN)
    visible = [axis for axis in figure.axes if axis.get_visible()]
    scattered = [axis for axis in visible if axis.collections]
    assert len(scattered) == shown * (shown - 1) // 2
    assert len(visible) - len(scattered) == shown
    labels = {axis.get_xlabel() for axis in visible} - {""}
    assert labels == {f"parameter {n}" if n == "2" else n for n in NAMES[:shown]}
    pairs = {tuple(axis.collections[0].get_offsets()[0]) for axis in scattered}
    assert pairs == {(ROWS[0, j], ROWS[0, i]) for i in range(shown) for j in range(i)}


def test_the_legend_covers_no_axes() -> None:
    figure = prior_figure(ROWS[:, :4], ROWS[:, :4], NAMES[:4])
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    for axis in (axis for axis in figure.axes if axis.get_visible()):
        assert not box.overlaps(axis.get_window_extent())


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")]
)
def test_files(tmp_path: Path, ending: str, start: bytes) -> None:
    path = tmp_path / f"a.{ending}"
    save_prior_figure(path, ROWS[:, :1], ROWS[:, :1], ("a",))
    assert path.read_bytes().startswith(start)
