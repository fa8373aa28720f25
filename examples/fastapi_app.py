"""A bandit inside your own FastAPI application, one per campaign, saved as it stops.

    python examples/logs_to_model.py && uvicorn --app-dir examples fastapi_app:app

    curl localhost:8000/toys-1/offer -X POST
    curl localhost:8000/toys-1/reward -H 'content-type: application/json' \
        -d '{"offer": {"discount": 10, "gift": true}, "bought": 1}'

Bandits are safe between threads. With several worker processes, or when no reward may be lost, run
`diffprior serve` instead, which keeps its log in a database.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel
from shop import OFFERS

import diffprior as dp

FOLDER = Path("bandits")
model = dp.load("shop.model")
bandits: dict[str, dp.Bandit] = {}


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    FOLDER.mkdir(exist_ok=True)
    bandits.update((path.stem, dp.Bandit.load(path)) for path in FOLDER.glob("*.bandit"))
    yield
    for campaign, bandit in bandits.items():
        bandit.save(FOLDER / f"{campaign}.bandit")


app = FastAPI(lifespan=lifespan)


class Outcome(BaseModel):
    offer: dict[str, object]
    bought: int


def bandit_of(campaign: str) -> dp.Bandit:
    category = campaign.partition("-")[0]
    return bandits.setdefault(campaign, model.bandit(attributes={"category": category}))


@app.post("/{campaign}/offer")
def offer(campaign: str) -> dict[str, object]:
    return OFFERS[bandit_of(campaign).decide(OFFERS).action]


@app.post("/{campaign}/reward")
def reward(campaign: str, outcome: Outcome) -> None:
    bandit_of(campaign).update(outcome.offer, outcome.bought)
