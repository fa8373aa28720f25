"""Draws readme.png: past tasks, a prior learned from them, and the regret of four starts.

`python docs/figures/readme.py` takes a few minutes.
"""

from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import diffprior as dp
from diffprior.reporting.figures import DATA, LIGHT, MODEL

COLORS = ("#8a8f98", "#c9a227", "#3a9d6b", MODEL)
problem = dp.synthetic("rays")
past = np.asarray(problem.sample_parameters(jax.random.key(0), 10_000))
diffusion = dp.DiffusionPrior.fit(past, seed=0)
starts = {
    "cold": dp.GaussianPrior(np.zeros(2), np.eye(2)),
    "Gaussian": dp.GaussianPrior.fit(past),
    "mixture of two": dp.MixturePrior.fit(past, num_components=2, seed=0),
    "diffusion": diffusion,
}
result = dp.simulate(problem, starts, num_runs=512, num_rounds=200, seed=0)
print(result)

plt.rcParams.update({**LIGHT, "font.size": 13})  # readable at the width of a phone
figure, panels = plt.subplot_mosaic(
    [["past", "draws"], ["regret", "regret"]], figsize=(6.4, 5.6), layout="constrained"
)
draws = np.asarray(diffusion.sample(jax.random.key(1), 2000))
panels["past"].scatter(*past[:2000].T, s=4, color=DATA, lw=0)
panels["past"].set_title("past tasks' parameters", fontsize=13)
panels["draws"].scatter(*draws.T, s=4, color=MODEL, lw=0)
panels["draws"].set_title("draws from the prior", fontsize=13)
for name in ("past", "draws"):
    panels[name].set(xlim=(-3.7, 3.7), ylim=(-3.7, 3.7), xticks=[-3, 0, 3], yticks=[-3, 0, 3])
regret, rounds = panels["regret"], np.arange(1, 201)
for (name, color), raised in zip(
    zip(starts, COLORS, strict=True), (1.2, -0.3, -1.5, 0), strict=True
):
    mean, error = result.mean(name), result.standard_error(name)
    regret.plot(rounds, mean, color=color, lw=2.2)
    regret.fill_between(rounds, mean - 2 * error, mean + 2 * error, color=color, alpha=0.2, lw=0)
    regret.text(203, mean[-1] + raised, name, color=color, va="center", fontsize=13)
regret.set_title("regret on a new task", fontsize=13)
regret.set(xlabel="round", xlim=(0, 262), ylim=(0, None))
regret.set(xticks=[0, 50, 100, 150, 200], yticks=[0, 5, 10, 15])
figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)
