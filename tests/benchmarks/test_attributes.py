"""Priors given attributes where the truth is known."""

import numpy as np

import diffprior as dp
from benchmarks.attributes import World, floors, gains, without_attributes
from benchmarks.judging import Scorer, Size


def test_the_true_prior_is_at_the_floor_wherever_attributes_move_it() -> None:
    world = World("clusters-2", 1)
    scorer = Scorer(world.source, 4, 1, size=Size(8, 60, 8))
    prior = world.source.prior  # type: ignore[attr-defined]
    off = np.random.default_rng(0).normal(0.0, 3.0, (8, 2))
    assert 0.6 < floors(scorer, prior, 0 * off) < 1.6
    assert floors(scorer, prior, off) > 3.0  # prior means are wrong by so much
    moved = prior.moved(-off[0])  # and right again
    assert 0.6 < floors(scorer, moved, np.tile(off[0], (8, 1))) < 1.6


def test_logs_given_attributes_beat_those_without() -> None:
    found = gains(World("clusters-2", 1), 60, 200)
    assert found.attributes[0] > 5 * found.attributes[1]
    assert found.truth is not None and found.truth[0] > -5 * found.truth[1]
    assert found.noise[0] > -0.05 - 5 * found.noise[1]
    logs = World("corners", 2).logs(10, 1, useful=False)
    assert logs.attributes is not None and logs.attributes.shape == (10, 20)
    assert isinstance(without_attributes(logs), dp.Logs)
