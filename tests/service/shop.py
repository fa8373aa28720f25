"""A simulated shop: campaigns of three kinds, banners to show, clicks; two versions of a model."""

import time

import numpy as np

import diffprior as dp
from diffprior.service.engine import Engine
from diffprior.service.requests import Choose, Decide, Reward
from diffprior.service.settings import Settings
from diffprior.service.store import decisions, observations, rewards, tasks, versions

BANNERS = ("photo", "price", "video", "review", "new")
KINDS = np.array([[1.6, -1.2, 0.4, -0.6], [-1.4, 1.5, -0.4, -0.6], [-0.6, -0.8, 1.4, 1.2]])
STYLE = np.outer(np.linspace(-0.8, 0.8, len(BANNERS)), [0.0, 0.0, 1.0, 0.0])  # of the banners
DIM, AT_ONCE, WAIT = KINDS.shape[1], 100, 3600.0
TRUTH = dp.MixturePrior([0.4, 0.35, 0.25], KINDS, np.tile(0.15 * np.eye(DIM), (3, 1, 1)))
SETTINGS = Settings(likelihood="logistic", reward_wait=WAIT, propensity_draws=16)


def add_models(engine: Engine, settings: Settings = SETTINGS) -> None:
    """Version 1 knows nothing of the kinds of campaigns; version 2, for half of them, does."""
    vague = dp.GaussianPrior(np.zeros(DIM), 2.0 * np.eye(DIM))
    engine.catalog.put("shop", settings, vague, 1.0)
    engine.catalog.put("shop", settings, TRUTH, 0.5)
    engine.prepare()


class Shop:
    """Customers come to campaigns, see a banner, and click or not.

    Args:
        engine: That decides; started.
        num_tasks: Campaigns, which begin one after the other.
        seed: Of everything random in the shop.
    """

    def __init__(self, engine: Engine, num_tasks: int, seed: int = 0) -> None:
        self._engine, self._rng = engine, np.random.default_rng(seed)
        kinds = self._rng.choice(3, num_tasks, p=np.asarray(TRUTH.weights, float))
        noise = self._rng.standard_normal((num_tasks, DIM))
        self._theta = KINDS[kinds] + np.sqrt(0.15) * noise
        self.clicks: list[tuple[str, float]] = []

    def run(self, num_decisions: int, unrewarded: float = 0.04, visitors: float = 0.0) -> None:
        """So many decisions, all but a share of them rewarded, and visitors for each of them."""
        num_tasks, done = len(self._theta), 0
        while done < num_decisions:
            begun = int(np.ceil(num_tasks * min(1.0, 0.1 + done / num_decisions)))
            size = min(AT_ONCE, num_decisions - done, begun)
            self._customers(self._rng.choice(begun, size, replace=False), unrewarded)
            if visitors:
                self.visitors(round(visitors * size))
            done += size

    def visitors(self, count: int) -> None:
        """Visitors who are each shown one campaign of all, a few at a time, and click or not."""
        self._engine.panels.build("shop")
        for start in range(0, count, AT_ONCE):
            asked = [
                Choose("shop", self._rng.standard_normal((1, DIM)).round(3))
                for _ in range(min(AT_ONCE, count - start))
            ]
            futures = [self._engine.submit(request) for request in asked]
            for request, future in zip(asked, futures, strict=True):
                reply = future.result(60)
                theta = self._theta[int(str(reply["item"]).rpartition("-")[2])]
                click = float(self._rng.random() < 1 / (1 + np.exp(-request.features[0] @ theta)))
                self._engine.submit(Reward(reply["decision_id"], click)).result(60)

    def _customers(self, campaigns: np.ndarray, unrewarded: float) -> None:
        """One customer at each campaign."""
        noise = self._rng.standard_normal((len(campaigns), len(BANNERS), DIM))
        offered = (STYLE + noise).round(3)
        asked = [
            Decide("shop", f"campaign-{c:03d}", features, list(BANNERS))
            for c, features in zip(campaigns, offered, strict=True)
        ]
        futures = [self._engine.submit(request) for request in asked]
        reported = []
        for campaign, request, future in zip(campaigns, asked, futures, strict=True):
            reply = future.result(60)
            phi = request.features[BANNERS.index(reply["action"])]
            click = float(self._rng.random() < 1 / (1 + np.exp(-phi @ self._theta[campaign])))
            self.clicks.append((request.task, click))
            if self._rng.random() >= unrewarded:
                reported.append(self._engine.submit(Reward(reply["decision_id"], click)))
        for future in reported:
            future.result(60)


def stretch_time(engine: Engine, days: float, since: float) -> None:
    """Let everything in the log since then have happened over so many days, up to now."""
    with engine.database.transaction() as connection:
        now = time.time()
        factor = days * 86400 / (now - since)
        for column in (
            versions.c.created,
            tasks.c.created,
            decisions.c.created,
            observations.c.learned,
            rewards.c.received,
        ):
            moved = {column.name: now - (now - column) * factor}
            connection.execute(column.table.update().values(moved))
        connection.execute(decisions.update().values(expires=decisions.c.created + WAIT))
