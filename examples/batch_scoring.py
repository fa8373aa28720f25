"""A nightly job with polars: tomorrow's offer of every running campaign, from its own log so far.

    python examples/logs_to_model.py && python examples/batch_scoring.py

Needs `pip install 'diffprior[logs]' polars`. Writes offers.parquet.
"""

import numpy as np
import polars as pl
from shop import OFFERS, past_visits

import diffprior as dp

model = dp.load("shop.model")
log = pl.DataFrame(past_visits(num_campaigns=20, visits=15))  # of the campaigns that run now
rows = []
for (campaign,), visits in log.group_by("campaign", maintain_order=True):
    bandit = model.bandit(attributes={"category": visits["category"][0]}, seed=campaign)
    bandit.update(visits.select("discount", "gift"), visits["bought"].to_numpy())
    decision = bandit.decide(OFFERS, propensity_draws=1000)
    effects = bandit.posterior(1000, seed=campaign)
    rows.append(
        {
            "campaign": campaign,
            **OFFERS[decision.action],
            "propensity": decision.propensity,  # log it: off-policy estimates need it
            "effect_of_gift": float(effects.mean[-1]),
            "uncertainty": float(np.sqrt(effects.cov[-1, -1])),
        }
    )
offers = pl.DataFrame(rows)
offers.write_parquet("offers.parquet")
print(offers.head())
