"""Before a launch: what would the learned prior have earned on your own log?

    python examples/logs_to_model.py && python examples/off_policy_check.py

The log needs, for each decision, all actions that were offered, the one taken, its propensity (the
probability with which it was taken) and its reward. Here offers were shown at random, so that each
had propensity 1/6; log `decision.propensity` of `Bandit.decide(..., propensity_draws=1000)`.
"""

import numpy as np
from shop import OFFERS, past_visits

import diffprior as dp

model = dp.load("shop.model")
log = [row for row in past_visits(num_campaigns=300) if row["campaign"] >= 200]  # not learned from
offers = model.encoder.encode(OFFERS)
taken = [OFFERS.index({"discount": row["discount"], "gift": row["gift"]}) for row in log]
decisions = dp.evaluate.LoggedDecisions.from_arrays(
    tasks=[row["campaign"] for row in log],
    features=np.repeat(offers[None], len(log), axis=0),
    actions=taken,
    rewards=[row["bought"] for row in log],
    propensities=np.full(len(log), 1 / len(OFFERS)),
)
for name, prior in {
    "learned": model.prior_given(None),  # of a campaign whose category is not known
    "cold": dp.GaussianPrior(np.zeros(offers.shape[1]), 4 * np.eye(offers.shape[1])),
}.items():
    found = dp.evaluate.off_policy(prior, decisions, model.likelihood, seed=0)
    print(f"{name}\n{found}\n")
