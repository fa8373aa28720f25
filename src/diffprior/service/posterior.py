"""Fresh draws of a task's parameters, for those who look."""

import time

import numpy as np
from jaxtyping import Float

from .tasks import TaskState
from .version import Version

FIRST_NUMBER = 2**31  # no decision has such a number


def posterior_draws(
    version: Version, state: TaskState, num_decisions: int, num_calls: int
) -> Float[np.ndarray, "n d"]:
    """Draws given what a task has shown: 1 + `propensity_draws` for each call of the program."""
    moment = version.moment(num_decisions, time.time())
    numbers = range(FIRST_NUMBER, FIRST_NUMBER + num_calls)
    requests = [state.draw_request(version, number, moment) for number in numbers]
    drawn = version.posterior_program(requests)
    return np.concatenate([drawn.theta, drawn.others.reshape(-1, version.dim)])
