# %% [markdown]
# # A catalog that changes every day
#
# A site shows each visitor one of a hundred articles. Every article has parameters of its own, and every night a tenth
# of the articles is replaced by new ones: most of what was learned yesterday is about articles that will soon be gone.
# This page compares three catalogs: one that starts cold, one with a prior learned from past articles, and one that is
# also given the topic of each article.
#
# ## Learn from past articles
#
# Reading time depends on whether it is morning and on whether the visitor holds a phone, and each article has effects
# of its own, which resemble those of other articles on the same topic. The log has a row for each visit: what was
# shown, to whom, and how many minutes were read.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import diffprior as dp

rng = np.random.default_rng(0)
topics = {"news": [1.5, 1.0, 0.0], "sport": [-0.5, -1.0, 1.0], "music": [-0.5, 0.5, -1.0]}
rows = []
for article in range(300):
    topic = str(rng.choice(list(topics)))
    own = topics[topic] + 0.7 * rng.standard_normal(3)
    for _ in range(20):
        visit = {"morning": int(rng.integers(2)), "phone": int(rng.integers(2))}
        minutes = own @ [1, visit["morning"], visit["phone"]] + rng.standard_normal()
        rows.append({"article": article, "topic": topic, **visit, "minutes": minutes})
table = pd.DataFrame(rows)
table.head()

# %%
model = dp.learn(
    table,
    dp.Linear(),
    task="article",
    reward="minutes",
    attributes="topic",
    families=["gaussian"],
    progress=False,
)
gain = model.report.attributes.gain
print(f"topics explain {gain.mean:.1f} nats more of an article that was held out")

# %% [markdown]
# ## Play thirty days
#
# `model.items()` is a catalog. `add` lets articles be chosen, at the prior that their attributes lead to; `remove` takes
# them out and keeps what was learned, for rewards that come late; `choose` picks one for a visitor; and `update` learns
# from the reward. The cold catalog starts each article at a broad Gaussian.

# %%
DAYS, VISITORS, ARTICLES, REPLACED = 30, 30, 100, 10


def play(catalog: dp.Items, given_topics: bool) -> np.ndarray:
    """Minutes that each day's visitors would have read more, had the best article been shown."""
    rng, own, lost = np.random.default_rng(1), {}, np.zeros(DAYS)
    for day in range(DAYS):
        new = range(len(own), len(own) + (REPLACED if day else ARTICLES))
        names = [str(rng.choice(list(topics))) for _ in new]
        own |= {a: topics[n] + 0.7 * rng.standard_normal(3) for a, n in zip(new, names)}
        if day:
            catalog.remove(rng.choice(sorted(catalog.names), REPLACED, replace=False))
        catalog.add(new, attributes=[{"topic": name} for name in names] if given_topics else None)
        for _ in range(VISITORS):
            visit = {"morning": int(rng.integers(2)), "phone": int(rng.integers(2))}
            x = [1, visit["morning"], visit["phone"]]
            article = catalog.choose(visit).item
            lost[day] += max(own[name] @ x for name in catalog.names) - own[article] @ x
            catalog.update(article, visit, own[article] @ x + rng.standard_normal())
    return lost / VISITORS


wide = dp.GaussianPrior(np.zeros(3), 4 * np.eye(3))
cold = dp.Model(wide, model.likelihood, model.encoder)
without = dp.Model(model.families["Gaussian"], model.likelihood, model.encoder)
catalogs = {
    "cold": (cold.items(seed=0), False),
    "warm": (without.items(seed=0), False),
    "warm, given topics": (model.items(seed=0), True),
}
lost = {name: play(*catalog) for name, catalog in catalogs.items()}

# %% alt="Minutes lost per visitor on each of thirty days: cold, warm, and warm given topics"
figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for name, minutes in lost.items():
    axes.plot(range(1, DAYS + 1), minutes, label=name)
    print(f"{name:20} {minutes.mean():.1f} minutes lost per visitor")
axes.set(xlabel="day", ylabel="minutes lost per visitor", ylim=(0, None))
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# A new article costs the cold catalog the most: it is shown until its parameters are known, and by then the night is
# near. A learned prior says how much articles differ, so fewer visits settle whether one is worth showing; a topic says
# much of it before the first visit.

# %%
catalog, _ = catalogs["warm, given topics"]
catalog

# %% [markdown]
# The `propensity` of a choice is computed when it is read, for off-policy estimates, and `catalog.save("today.items")`
# saves the catalog with its evidence. `python -m experiments.items --data FOLDER` compares the same starts on the
# ratings of MovieLens and InstEval.
