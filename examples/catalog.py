"""A catalog of items, each with parameters of its own; half of them are new today.

    python examples/logs_to_model.py && python examples/catalog.py

Here an item is a campaign, chosen for a visitor whose features are the offer on the page.
"""

import numpy as np
from shop import OFFERS, chances

import diffprior as dp

rng = np.random.default_rng(1)
model = dp.load("shop.model")
categories = {f"item-{i}": ["toys", "books"][i % 2] for i in range(40)}
truth = {name: chances(rng, category) for name, category in categories.items()}

items = model.items(seed=0)
attributes = [{"category": category} for category in categories.values()]
items.add(list(categories)[:20], attributes=attributes[:20])
bought = []
for visit in range(2000):
    if visit == 1000:
        items.remove(list(categories)[:10])
        items.add(list(categories)[20:], attributes=attributes[20:])
    offer = int(rng.integers(len(OFFERS)))
    choice = items.choose(OFFERS[offer])
    bought.append(rng.random() < truth[choice.item][offer])
    items.update(choice.item, OFFERS[offer], float(bought[-1]))

items.save("catalog.items")
for part in np.array_split(np.array(bought), 4):
    print(f"{part.mean():.3f} of {len(part)} visits ended in a purchase")
best = np.max(list(truth.values()), axis=0).mean()
print(f"the best item for each visit, if all were known: {best:.3f}")
