# %% [markdown]
# # From logs to a model
#
# You do not have the parameters of past tasks. You have a table: the task (campaign, item, user), what was shown, and
# the reward. Most tasks have few rows, and nobody measured the noise.
#
# Fitting a regression per task and a prior to its coefficients gives a prior that is far too wide, because the
# estimation error counts as variation between tasks. `dp.learn` uses the rows themselves.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import diffprior as dp

rng = np.random.default_rng(0)
kind = rng.choice([-1.5, 1.5], (300, 1))  # two kinds of campaigns, unknown to us
thetas = kind + 0.3 * rng.standard_normal((300, 2))
campaign = np.repeat(np.arange(300), rng.geometric(0.2, 300))  # five rows per campaign on average
table = pd.DataFrame(
    {
        "campaign": campaign,
        "discount": rng.uniform(-1, 1, len(campaign)),
        "urgency": rng.uniform(-1, 1, len(campaign)),
    }
)
mean = np.sum(table[["discount", "urgency"]] * thetas[campaign], axis=1)
table["paid"] = mean + rng.standard_normal(len(campaign))
table.head()

# %%
logs = dp.Logs.read(table, task="campaign", reward="paid", intercept=False)
model = dp.learn(logs, dp.Linear(), quick=True, progress=False)
model

# %% [markdown]
# `dp.learn(table, dp.Linear(), task="campaign", reward="paid")` is the same with an intercept. The table may also be
# the path of a CSV or Parquet file, with [text, booleans and missing cells](../how-to/raw-columns.md). For clicks or
# counts, pass `dp.Logistic()` or `dp.Poisson()`, for revenue `"zero-inflated"`, or `"auto"` for what the rewards
# suggest. On the command line:
#
# ```sh
# diffprior learn logs.parquet --task campaign --reward paid --likelihood linear \
#   -o shop.model --report report.html
# ```
#
# The picture compares the true parameters with the two ways of learning from their logs.

# %% alt="True parameters in two clusters, wide least-squares estimates, and the learned prior"
count = np.bincount(campaign)
many = [task for task in range(300) if count[task] > 2]
least_squares = np.array(
    [
        np.linalg.lstsq(
            table.loc[campaign == task, ["discount", "urgency"]], table.paid[campaign == task]
        )[0]
        for task in many
    ]
)
figure, panels = plt.subplots(
    1, 3, figsize=(9, 3.2), sharex=True, sharey=True, layout="constrained"
)
panels[0].scatter(*thetas.T, s=5, color="black")
panels[1].scatter(*least_squares.T, s=5, color="gray")
model.prior.plot(panels[2], num_draws=300)
for panel, title in zip(panels, ("true parameters", "least squares per task", "learned prior")):
    panel.set(title=title, xlabel="discount", ylabel="urgency", xlim=(-5, 5), ylim=(-5, 5))

# %% [markdown]
# ## Read the report
#
# The report begins with a verdict in words: how many rewards of a new task the prior replaces, whether a Gaussian is
# enough, and whether to collect more past tasks. A task starts as if 8 rewards were known if a cold start, N(0, s I)
# with the best s, predicts the last rewards of held-out tasks as well only after their first 8. How many past tasks
# are enough is read off a learning curve of Gaussians from a quarter, a half and all of them.
#
# The table compares the families of priors on held-out tasks, a tenth of them, chosen by their labels: first with the
# cold start, then with the Gaussian. The figures are log evidence, in nats per task, and the reward of first choices.
# A richer family is chosen only if it beats a simpler one by more than a standard error.

# %% alt="Log evidence of each family over a cold start, with two standard errors"
model.report.plot()
model.report

# %% [markdown]
# `print(model.report)` and `model.report.to_html("report.html")` have more. Read two things before you trust the prior:
#
# - **Information of one task** about each direction. Near 0, the logs say nothing about that direction.
# - **Warnings**, above all about selection: a prior learned only from the past tasks that survived is too optimistic
#   about new ones. Include all tasks, also those with a single row.
#
# It does no harm that a policy chose the actions, and its propensities are not needed. Without `quick=True`, `learn`
# goes on where more and more components explain tasks better: it distills a diffusion model from the largest mixture,
# which takes minutes, and simulates the regret of each family. Below 200 tasks only a Gaussian is learned, and fewer
# than ten raise an error.
#
# ## Decide

# %%
bandit = model.bandit(seed=0)  # a new campaign
offers = [{"discount": 1.0, "urgency": 1.0}, {"discount": -1.0, "urgency": -1.0}]
for _ in range(10):
    offer = offers[bandit.decide(offers).action]
    paid = 1.4 * offer["discount"] + 1.6 * offer["urgency"] + rng.standard_normal()
    bandit.update(offer, paid)
decision = bandit.decide(offers, propensity_draws=1000)
print(offers[decision.action], f"with propensity {decision.propensity:.2f}")

# %%
bandit.posterior(1000)

# %% [markdown]
# `model.save("shop.model")` writes everything to one file, which `dp.load`, `diffprior evaluate` and [`diffprior
# serve`](../how-to/serve.md) read.
#
# ## Tables that do not fit in memory
#
# Linear rewards need only counts and sums of products per task. `diffprior statistics` prints SQL that computes them in
# your warehouse, and `diffprior learn --from statistics` reads the result. `dp.Logs.read_statistics` summarizes a
# Parquet file batch by batch. For other rewards, `dp.Logs.read(..., max_rows=2_000_000)` reads whole tasks, chosen by
# their labels, up to that many rows: a hundred thousand tasks teach nearly as much as a million.
