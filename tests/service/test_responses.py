"""A response over HTTP: named in the settings, decided by its eta, learned row by row."""

import jax
import numpy as np
import pytest

import diffprior as dp
from diffprior.service.settings import Settings
from responses import emax
from service.conftest import PRIOR, MakeService, decide, reward
from service.test_choices import choose

RESPONSE = dp.Response(emax, dp.Linear(0.5), dim=2, num_features=1, name="tests.served")


def test_a_response_decides_chooses_and_learns(make_service: MakeService) -> None:
    client = make_service(
        prior=dp.Model(PRIOR, RESPONSE), propensity_draws=4, panel_draws=16, max_rows=128
    )
    for value in (0.7, 1.2):
        reply = decide(client, "a", features=[[0.5], [1.0], [2.0]])
        assert 0 < reply["propensity"] <= 1
        reward(client, reply["decision_id"], value)
    assert "mean reward: mean and 90 % interval" in client.get("/tasks/shop/a").text
    task = client.get("/v1/models/shop/tasks/a").json()
    assert len(task["posterior"]["mean"]) == 2, task
    body, chosen = {"context": [1.0], "items": ["a", "b"]}, None
    while chosen is None or chosen.status_code == 503:  # while draws of the items are made
        chosen = client.post("/v1/models/shop/choices", json=body)
    assert chosen.status_code == 200, chosen.text
    chosen = choose(client, context=[100.0], items=["b"])  # of which nothing is known
    predicted = client.get(f"/v1/decisions/{chosen['decision_id']}").json()["predicted"]
    thetas = np.asarray(PRIOR.sample(jax.random.key(0), 10_000))
    etas = 3.0 * thetas[:, 0] * 100.0 / (100.0 + np.exp(thetas[:, 1]))
    assert abs(predicted - etas.mean()) < 5 * etas.std() / np.sqrt(15)  # draws that did not decide
    about = client.get("/v1/models/shop").json()
    assert "response:tests.served" in str(about)
    wrong = client.post("/v1/models/shop/tasks/a/decisions", json={"features": [[0.5, 1.0]]})
    assert wrong.status_code == 422


def test_settings_name_a_response_that_is_defined_here() -> None:
    found = Settings().with_likelihood_of(dp.Model(PRIOR, RESPONSE))
    assert found.make_likelihood().function == RESPONSE.function
    assert np.isclose(found.likelihood_options["noise_std"], 0.5)
    with pytest.raises(ValueError, match="'elsewhere' that is not defined here"):
        Settings(likelihood="response:elsewhere").make_likelihood()
