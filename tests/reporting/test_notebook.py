"""Results in a notebook: HTML tables, figures in given axes, draws for ArviZ."""

from html.parser import HTMLParser

import jax
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import diffprior as dp
from diffprior.evaluate import Comparison, Coverage, LogEvidence
from diffprior.reporting.figures import MAX_INTERVALS, AbstractResult, plot_intervals

matplotlib.use("Agg")
DRAWS = np.random.default_rng(0).standard_normal((500, 3)) * [1.0, 2.0, 3.0]
REGRET = {"TS": np.array([[1.0, 2.0], [3.0, 6.0]]), "LinUCB": np.ones((2, 2))}
VALUES = np.array([-1.0, -2.0, -4.0])


def simulation() -> dp.SimulationResult:
    counts, seconds = dict.fromkeys(REGRET, 0), dict.fromkeys(REGRET, 0.5)
    actions = {name: np.zeros((2, 2), np.int64) for name in REGRET}
    return dp.SimulationResult(REGRET, actions, counts, seconds, seconds, 0)


def comparison() -> Comparison:
    found = {"cold start": VALUES, "a": VALUES + [1.0, 1.0, 2.5]}
    evidence = {name: LogEvidence(values, np.zeros(3)) for name, values in found.items()}
    return Comparison(evidence, found, "a", np.array([1, 2, 3]))


class Cells(HTMLParser):
    """The cells of the tables of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.inside = tag in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside and data.strip():
            self.found.append(data.strip())


RESULTS: dict[str, AbstractResult] = {
    "posterior": dp.Posterior(DRAWS, ("age", "<b>", "x")),
    "simulation": simulation(),
    "comparison": comparison(),
    "coverage": Coverage(0.9, 0.01, np.array([0.88, 0.92]), 0.9, 100, 50, 0),
}


def test_a_result_is_the_same_table_as_text_and_in_a_notebook() -> None:
    for name, result in RESULTS.items():
        table, text, page = result.table(), str(result), result._repr_html_()
        assert repr(result) == text and page is not None
        cells = [cell for row in table.rows for cell in row if cell]
        assert Cells(page).found == [*(column for column in table.columns if column), *cells], name
        assert all(cell in text for cell in cells)
        assert "<b>" not in page


def test_figures_show_the_numbers() -> None:
    axes = Figure().subplots(1, 4)
    drawn = [result.plot(ax) for result, ax in zip(RESULTS.values(), axes, strict=True)]  # type: ignore[attr-defined]
    assert drawn == list(axes)
    posterior, regret, gains, coverage = axes
    assert [label.get_text() for label in posterior.get_yticklabels()] == ["age", "<b>", "x"]
    ends = np.array([path.vertices[:, 0] for path in posterior.collections[0].get_paths()])
    np.testing.assert_allclose(ends, np.quantile(DRAWS, (0.05, 0.95), axis=0).T)
    assert {line.get_label(): list(line.get_ydata()) for line in regret.lines} == {
        "TS": [2.0, 4.0],
        "LinUCB": [1.0, 1.0],
    }
    (segment,) = (path.vertices[:, 0] for path in gains.collections[0].get_paths())
    np.testing.assert_allclose(segment, [0.5, 2.5])  # 1.5 and two standard errors of 0.5
    np.testing.assert_allclose(coverage.lines[-1].get_xdata(), [0.88, 0.92])


def test_priors_models_and_items_are_tables() -> None:
    prior = dp.GaussianPrior([1.0, -2.0], np.diag([4.0, 0.25]))
    page = prior._repr_html_()
    assert page is not None and "GaussianPrior(dim=2)" in page
    rows = ["parameter 1", "1", "2", "parameter 2", "-2", "0.5"]
    assert Cells(page).found == ["mean", "std", *rows]
    model = dp.Model(prior, dp.Linear(1.0))
    items = model.items(seed=0)
    items.add(["a", "b"])
    for shown, wanted in ((items, ["items", "2"]), (model, ["likelihood", "Linear(noise_std=1)"])):
        page = shown._repr_html_()
        assert page is not None
        found = Cells(page).found
        assert wanted == found[found.index(wanted[0]) :][:2]


def test_a_prior_is_plotted_by_its_draws() -> None:
    for dim, kind in ((1, "patches"), (2, "collections"), (3, "collections")):
        prior = dp.GaussianPrior(np.zeros(dim), np.eye(dim))
        axes = prior.plot(num_draws=50)
        assert getattr(axes, kind) and axes.get_figure() is not None
        draws = np.asarray(prior.sample(jax.random.key(0), 50))
        if dim == 2:
            np.testing.assert_allclose(axes.collections[0].get_offsets(), draws)
    matplotlib.pyplot.close("all")


def test_many_parameters_are_cut_to_a_readable_number() -> None:
    names = [str(i) for i in range(100)]
    axes = plot_intervals(Figure().subplots(), names, np.zeros(100), np.ones((100, 2)), "x")
    assert len(axes.get_yticklabels()) == MAX_INTERVALS


@pytest.mark.filterwarnings("ignore:\\s*ArviZ is undergoing:FutureWarning")
def test_draws_go_to_arviz() -> None:
    import arviz

    posterior = dp.Posterior(DRAWS, ("age", "price", "x")).to_arviz()
    summary = arviz.summary(posterior, kind="stats", round_to="none")
    np.testing.assert_allclose(summary["mean"], DRAWS.mean(axis=0))
    assert list(summary.index) == ["theta[age]", "theta[price]", "theta[x]"]
