# %% [markdown]
# # The paper's figures
#
# Figure 1 of *Online Posterior Sampling with a Diffusion Prior* (Kveton et al., NeurIPS 2024): priors learned from the
# parameters of past tasks, and the regret of Thompson sampling with them on new ones. This page was built with `QUICK`.
# Set it to `False` for the paper's effort, two minutes on two cores.

# %%
import dataclasses

import jax
import matplotlib.pyplot as plt
import numpy as np

import diffprior as dp

QUICK = True
PROBLEMS = ("cross", "rays", "triangles")
NUM_PAST, NUM_RUNS = (2000, 128) if QUICK else (10_000, 512)

problems = {name: dp.synthetic(name) for name in PROBLEMS}  # 100 actions, noise 1
past = {
    name: np.asarray(problem.sample_parameters(jax.random.key(0), NUM_PAST))
    for name, problem in problems.items()
}
# %% [markdown]
# ## Priors
#
# `FitConfig.paper()` is the paper's denoiser: 100 stages, each with a regressor of its own.

# %% alt="Parameters of past tasks and samples from diffusion priors for cross, rays and triangles"
config = dp.FitConfig.paper()
if QUICK:
    config = dataclasses.replace(config, num_steps=500, batch_size=64)
diffusion = {
    name: dp.DiffusionPrior.fit(samples, config=config, seed=0, progress=False)
    for name, samples in past.items()
}

figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.5), sharex=True, sharey=True, layout="constrained"
)
for panel, name in zip(panels, PROBLEMS):
    panel.scatter(*past[name][:1000].T, s=3, color="C0", label="past tasks")
    diffusion[name].plot(panel).collections[-1].set_label("diffusion prior")
    panel.set(title=name, xlim=(-4, 4), ylim=(-4, 4), aspect="equal")
panels[0].legend()
plt.show()

# %% [markdown]
# ## Regret
#
# The agents of Section 6.1: Thompson sampling without a past (TS), with a Gaussian (TunedTS), with a mixture of two
# (MixTS), and the paper's algorithm (DiffTS), which is LaplaceDPS with the reverse covariance of Theorem 2.

# %% alt="Regret of TS, TunedTS, MixTS and DiffTS on the three problems"
figure, panels = plt.subplots(1, 3, figsize=(10, 3.5), sharey=True, layout="constrained")
results = {}
for panel, (name, problem) in zip(panels, problems.items()):
    agents = {
        "TS": dp.GaussianPrior(np.zeros(2), np.eye(2)),
        "TunedTS": dp.GaussianPrior.fit(past[name]),
        "MixTS": dp.MixturePrior.fit(past[name], num_components=2),
        "DiffTS": dp.LaplaceDPS(diffusion[name], covariance="paper"),
    }
    results[name] = dp.simulate(problem, agents, num_runs=NUM_RUNS, seed=0, progress=False)
    results[name].plot(panel).set_title(name)

# %%
results["triangles"]

# %% [markdown]
# DiffTS also explores less than an exact posterior would, which by itself lowers regret over 200 rounds:
# [Results](../explanation/results.md) separates the two effects, compares eight more agents, and has the problems with
# real data. `python -m experiments.synthetic` runs all of them and writes a report.
