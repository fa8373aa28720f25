# %% [markdown]
# # A first bandit
#
# A shop sends newsletters. Each campaign responds to two features of a newsletter with a parameter vector $\theta$ of
# two numbers, and past campaigns were of two kinds. We learn a prior from them and use it to decide in a new campaign.

# %% alt="Draws from the learned prior around the two kinds of past campaigns"
import matplotlib.pyplot as plt
import numpy as np

import diffprior as dp

rng = np.random.default_rng(0)
kinds = np.array([[-2.0, 1.0], [2.0, 0.5]])
past = kinds[rng.integers(0, 2, 500)] + 0.3 * rng.standard_normal((500, 2))
prior = dp.MixturePrior.fit(past, num_components=2)

figure, axes = plt.subplots(figsize=(5, 3))
axes.scatter(*past.T, s=8, color="black", label="past campaigns")
prior.plot(axes).legend()
plt.show()

# %% [markdown]
# The red points are draws from the prior. If past campaigns do not fall into a few kinds, `dp.DiffusionPrior.fit(past)`
# learns a distribution of any shape, and nothing else changes.
#
# ## Ten decisions
#
# A bandit needs a **prior** and a **likelihood**, the distribution of rewards given $\theta$. It can decide before it
# has any data, and each reward makes its posterior narrower.

# %% alt="Posterior draws before any reward, after one, and after ten, around the true parameter"
theta = np.array([1.8, 0.4])  # of the new campaign; unknown to the bandit
bandit = dp.Bandit(prior, dp.Linear(noise_std=1.0), seed=0)
figure, panels = plt.subplots(1, 3, figsize=(9, 3), sharex=True, sharey=True, layout="constrained")
for rewards in range(11):
    if rewards in (0, 1, 10):
        panel = panels[(0, 1, 10).index(rewards)]
        bandit.posterior(500).plot(panel)
        panel.plot(*theta, "k*", ms=12)
        panel.set_title(f"{rewards} rewards" if rewards != 1 else "1 reward")
    features = rng.uniform(-1, 1, (5, 2))  # five newsletters to choose from
    chosen = features[bandit.decide(features).action]
    bandit.update(chosen, chosen @ theta + rng.standard_normal())

# %% [markdown]
# The star is the true $\theta$. One noisy reward is nearly enough to tell the two kinds apart, and ten alone would not
# determine $\theta$ this well: the prior says which values are plausible.

# %%
bandit.posterior(1000)

# %% [markdown]
# ## What the prior is worth
#
# Regret is the reward lost by not always choosing the best action. `dp.simulate` measures it on many new campaigns,
# here without knowledge of the past, with a single Gaussian, and with the mixture.

# %% alt="Regret over fifty rounds: highest cold, lower with a Gaussian, lowest with the mixture"
problem = dp.RowProblem(past, rng.uniform(-1, 1, (200, 2)), dp.Linear(noise_std=1.0), num_actions=5)
agents = {
    "cold: N(0, 4 I)": dp.GaussianPrior(np.zeros(2), 4 * np.eye(2)),
    "Gaussian": dp.GaussianPrior.fit(past),
    "mixture": prior,
}
result = dp.simulate(problem, agents, num_runs=200, num_rounds=50, progress=False)
result.plot()
result

# %% [markdown]
# Parameters of past tasks are rarely known: [the next page](logs.md) starts from a table of logs. [Choosing a prior and
# a sampler](../explanation/choosing.md) says when a diffusion prior pays.
