"""One bandit and many threads: nothing is lost, and nothing is torn."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import standard_prior
from diffprior.bandits.bandit import Bandit
from diffprior.bandits.decisions import Request

THREADS, ROUNDS = 8, 25
FEATURES = np.random.default_rng(2).standard_normal((7, 2))


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], None]) -> None:
    """Run the same work in every thread; what one raises is raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors


@pytest.mark.parametrize("likelihood", [dp.Linear(0.5), dp.Logistic()], ids=["linear", "logistic"])
def test_every_reward_and_decision_counts(
    likelihood: dp.AbstractLikelihood, eager_switching: None
) -> None:
    bandit = Bandit(standard_prior(), likelihood, seed=0, max_rows=256)
    bandit.warm_up(7)

    def work(number: int) -> None:
        for i in range(ROUNDS):
            action = bandit.decide(FEATURES).action
            bandit.update(FEATURES[action], float((number + i) % 2))

    in_threads(work)
    assert bandit.num_decisions == THREADS * ROUNDS
    evidence = bandit.evidence
    if isinstance(evidence, dp.LinearEvidence):
        assert float(evidence.count) == THREADS * ROUNDS
        successes = float(evidence.sum_squares) * 0.5**2
    else:
        assert float(np.sum(evidence.weights)) == THREADS * ROUNDS
        successes = float(np.sum(evidence.weights * evidence.rewards))
    expected = sum((n + i) % 2 for n in range(THREADS) for i in range(ROUNDS))
    assert successes == pytest.approx(expected)


def test_no_two_threads_take_the_same_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they take those that one thread alone would have taken, although each lets the
    others go first between the number of a decision and that of the next."""

    def hesitant_size(request: Request) -> int:
        time.sleep(1e-4)
        return len(request.features)

    monkeypatch.setattr(Request, "size", property(hesitant_size))
    shared, alone = (Bandit(standard_prior(), dp.Linear(0.5), seed=5) for _ in range(2))
    shared.decide(FEATURES)
    alone.decide(FEATURES)
    scores: list[tuple[float, ...]] = []
    in_threads(lambda _: scores.extend(tuple(shared.decide(FEATURES).scores) for _ in range(20)))
    expected = [tuple(alone.decide(FEATURES).scores) for _ in range(20 * THREADS)]
    assert sorted(scores) == sorted(expected)


def test_a_file_holds_one_moment(tmp_path: Path, eager_switching: None) -> None:
    """A decision is taken before its reward is learned, so that no file may have more rewards."""
    bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=0)
    bandit.warm_up(7)

    def work(number: int) -> None:
        for i in range(8):
            if number == 0:
                bandit.save(tmp_path / str(i))
            else:
                bandit.decide(FEATURES)
                bandit.update(FEATURES[0], 1.0)

    in_threads(work)
    for i in range(8):
        saved = dp.Bandit.load(tmp_path / str(i))
        assert saved.num_decisions - (THREADS - 1) <= float(saved.evidence.count)
        assert float(saved.evidence.count) <= saved.num_decisions
