"""From a table of logs to a model on disk: does the learned prior pay?

    python examples/logs_to_model.py

Needs `pip install 'diffprior[logs,plot]' pandas`. Writes shop.model and report.html.
"""

import pandas as pd
from shop import OFFERS, past_visits

import diffprior as dp

table = pd.DataFrame(past_visits())
model = dp.learn(
    table,
    dp.Logistic(),
    task="campaign",
    reward="bought",
    features=["discount", "gift"],
    attributes=["category"],  # known of a campaign before its first visit
    quick=True,  # closed forms alone: seconds; leave it out to try a diffusion model too
)
print(model.report)
model.report.to_html("report.html")
model.save("shop.model")

bandit = dp.load("shop.model").bandit(attributes={"category": "toys"}, seed=0)
decision = bandit.decide(OFFERS, propensity_draws=1000)
print("first offer of a new campaign:", OFFERS[decision.action], f"{decision.propensity:.2f}")
