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

plt.rcParams.update({**LIGHT, "font.size": 10})
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.3), layout="constrained")
draws = np.asarray(diffusion.sample(jax.random.key(1), 2000))
left.scatter(*past[:2000].T, s=3, color=DATA, lw=0)
middle.scatter(*draws.T, s=3, color=MODEL, lw=0)
left.set_title("parameters of past tasks")
middle.set_title("draws from the learned prior")
for panel in (left, middle):
    panel.set(xlim=(-3.7, 3.7), ylim=(-3.7, 3.7), xticks=[-3, 0, 3], yticks=[-3, 0, 3])
rounds = np.arange(1, 201)
for (name, color), raised in zip(
    zip(starts, COLORS, strict=True), (1.0, 0.1, -0.8, 0), strict=True
):
    mean, error = result.mean(name), result.standard_error(name)
    right.plot(rounds, mean, color=color, lw=1.8)
    right.fill_between(rounds, mean - 2 * error, mean + 2 * error, color=color, alpha=0.2, lw=0)
    right.text(204, mean[-1] + raised, name, color=color, va="center", fontsize=9)
right.set(title="regret on a new task", xlabel="round", xlim=(0, 280), ylim=(0, None))
right.set(xticks=[0, 100, 200], yticks=[0, 5, 10, 15])
figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)
