"""Invented logs of a shop's past campaigns; replace `past_visits` by your own table."""

import numpy as np

OFFERS = [
    {"discount": discount, "gift": gift} for discount in (0, 10, 20) for gift in (False, True)
]


def chances(rng: np.random.Generator, category: str) -> np.ndarray:
    """Chance of a purchase for each offer in a new campaign of this category."""
    mean = {"toys": [0.02, 1.2], "books": [0.08, -0.4]}[category]
    likes = rng.normal(mean, [0.02, 0.4])
    shown = np.array([[offer["discount"], offer["gift"]] for offer in OFFERS], float)
    return 1 / (1 + np.exp(1.5 - shown @ likes))


def past_visits(num_campaigns: int = 200, visits: int = 30) -> list[dict[str, object]]:
    """One row per visit: campaign, its category, the offer shown at random, and the outcome."""
    rng = np.random.default_rng(0)
    rows = []
    for campaign in range(num_campaigns):
        category = ["toys", "books"][campaign % 2]
        paid = chances(rng, category)
        for _ in range(visits):
            offer = int(rng.integers(len(OFFERS)))
            bought = int(rng.random() < paid[offer])
            rows.append(
                {"campaign": campaign, "category": category, **OFFERS[offer], "bought": bought}
            )
    return rows
