"""The conformal rule keeps its violation rate against any opponent (the game of docs/guarantees.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capax.core.types import Feedback
from capax.kappa.conformal import Conformal, ConformalState

LIMIT = 1.0
EDGE = 1e-9
"""Tolerance for rounding in a count of violations."""


# The game of docs/guarantees.md: in each episode an opponent picks κ*, and the episode violates if κ is below it.

Opponent = Callable[[int, float, float, Any], float]
"""(episode, κ, κ_max, rng) → κ* in [0, κ_max]."""
Stream = Callable[[int, float, float, Any], float]
"""(episode, κ, κ*, rng) → residual."""


def play(rule: Any, T: int, kappa_max: float, opponent: Opponent, stream: Stream, seed: int = 0, unit: float = 1.0):
    """The violations of T episodes, as flags, and the final state of the rule."""
    rng, state, violated = np.random.default_rng(seed), rule.init(), np.zeros(T, bool)
    for t in range(T):
        needed = opponent(t, state.kappa, kappa_max, rng)
        assert 0.0 <= needed <= kappa_max
        violated[t] = state.kappa < needed
        paid = 2.0 * LIMIT if violated[t] else LIMIT  # a cost of exactly the limit does not violate
        residual = stream(t, state.kappa, needed, rng)
        state = rule.update(state, Feedback(paid, LIMIT, False, residual, unit * (0.5 + rng.random())))
    return violated, state


def excess(violated: np.ndarray, step: float, rate: float, kappa_max: float) -> float:
    """The largest excess of the violations over  εT + (κ_max + (1−ε)η)/η  for any T; at most 0 if the bound holds."""
    T = np.arange(1, len(violated) + 1)
    extra = kappa_max / step + 1.0 - rate if step > 0.0 else 0.0
    return float(np.max(np.cumsum(violated) - rate * T - extra))


def greedy(t, kappa, kappa_max, rng):
    return kappa_max


def barely(t, kappa, kappa_max, rng):
    """The smallest κ* that violates, if it is at most κ_max."""
    return min(kappa_max, math.nextafter(kappa, math.inf))


def patient(t, kappa, kappa_max, rng):
    """0 in 260 episodes, in which k falls, and then κ_max in 40."""
    return kappa_max if t % 300 >= 260 else 0.0


def ambush(t, kappa, kappa_max, rng):
    """κ_max, more often the lower κ is, and 0 otherwise, so that κ falls."""
    return kappa_max if rng.random() * kappa_max > kappa else 0.0


def drifting(t, kappa, kappa_max, rng):
    return kappa_max * (0.5 + 0.5 * math.sin(0.003 * t) * rng.random())


def periodic(t, kappa, kappa_max, rng):
    return kappa_max * (t // 7 % 2)


def noisy(t, kappa, kappa_max, rng):
    return kappa_max * rng.random()


def falling(t, kappa, kappa_max, rng):
    return kappa_max * max(0.0, 1.0 - t / 1000)


def silent(t, kappa, needed, rng):
    return 0.0


def honest(t, kappa, needed, rng):
    return needed


def huge(t, kappa, needed, rng):
    return 1e300


def hopeless(t, kappa, needed, rng):
    return -1e300


def alternating(t, kappa, needed, rng):
    return 1e300 * (-1) ** t


def misleading(t, kappa, needed, rng):
    """High if κ* is small, low if κ* is large."""
    return kappa - needed


def heavy(t, kappa, needed, rng):
    return float(rng.standard_cauchy())


OPPONENTS = [greedy, barely, patient, ambush, drifting, periodic, noisy, falling]
STREAMS = [silent, honest, huge, hopeless, alternating, misleading, heavy]


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("opponent", OPPONENTS)
def test_the_share_of_violations_is_bounded_at_every_moment_against_any_opponent(opponent, stream):
    for rate in (0.02, 0.05, 0.4):
        for seed, (T, kappa_max) in enumerate([(2500, 0.5), (300, 5.0), (300, 0.03)]):
            violated, state = play(Conformal(rate), T, kappa_max, opponent, stream, seed)
            assert excess(violated, state.step, rate, kappa_max) <= EDGE


episodes = st.tuples(st.floats(0, 1), st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-3, 1e3))


@settings(max_examples=100, deadline=None)
@given(st.lists(episodes, min_size=1, max_size=60), st.sampled_from([0.02, 0.05, 0.4]), st.floats(0, 10))
def test_the_bound_holds_for_any_sequence_of_episodes(sequence, rate, kappa_max):
    rule = Conformal(rate)
    state, violated = rule.init(), []
    for share, residual, unit in sequence:
        violated.append(state.kappa < share * kappa_max)
        state = rule.update(state, Feedback(2.0 if violated[-1] else 0.0, LIMIT, False, residual, unit))
        assert state.kappa >= state.k >= 0.0
        assert state.k <= kappa_max + (1.0 - rate) * state.step + EDGE  # step 1 of the proof
        if state.step > 0.0:  # step 2, which follows from the log without any assumption
            assert sum(violated) <= rate * len(violated) + state.k / state.step + EDGE
    assert excess(np.array(violated), state.step, rate, kappa_max) <= EDGE


def test_the_worst_case_of_the_docs_comes_within_a_hundredth_of_a_violation():
    # η = .1, ε = .02, κ* = .499: k is .098 n after n violations in a row, .49 after 5, .588 after 6; then it falls by .002 an
    # episode and is below .499 again after 45, in the 52nd. At T = 52 there are 7 violations, εT + 5.96; the bound for
    # κ_max = .499 is εT + 4.99 + .98.
    rule, state, violated = Conformal(), ConformalState(), []
    for _ in range(3000):
        violated.append(state.kappa < 0.499)
        state = rule.update(state, Feedback(2.0 if violated[-1] else 0.0, LIMIT, False, 0.0, 1.0))
    assert state.step == 0.1
    assert np.flatnonzero(violated[:100]).tolist() == [0, 1, 2, 3, 4, 5, 51]
    assert [sum(violated[:T]) for T in (6, 50, 100, 300, 1000, 3000)] == [6, 6, 7, 11, 25, 65]
    assert excess(np.array(violated), 0.1, 0.02, 0.499) == pytest.approx(-0.01, abs=1e-9)


# The test of the bound itself: wrong rules fail it.


@dataclass(frozen=True)
class AlteredRule:
    """The conformal rule with another k: `change(old state, new state, violated)`."""

    change: Callable[[ConformalState, ConformalState, bool], float]

    def init(self) -> ConformalState:
        return Conformal().init()

    def update(self, state: ConformalState, feedback: Feedback) -> ConformalState:
        new = Conformal().update(state, feedback)
        k = self.change(state, new, feedback.paid > feedback.limit)
        return new._replace(k=k, kappa=new.kappa - new.k + k)


def max_excess(rule: Any) -> float:
    """The largest excess against any opponent."""
    excesses = []
    for opponent in OPPONENTS:
        violated, state = play(rule, 1000, 0.5, opponent, silent)
        excesses.append(excess(violated, state.step, 0.02, 0.5))
    return max(excesses)


@pytest.mark.parametrize("change", [
    pytest.param(lambda old, new, violated: 0.0, id="k is never raised"),
    pytest.param(lambda old, new, violated: max(0.0, old.k - new.step * (violated - 0.02)), id="sign error"),
    pytest.param(lambda old, new, violated: new.k if violated else 0.0, id="k is forgotten"),
    pytest.param(lambda old, new, violated: max(0.0, old.k + new.step * (violated - 0.04)), id="twice the rate"),
    pytest.param(lambda old, new, violated: max(0.0, old.k + new.step * (0.5 * violated - 0.02)), id="half the step"),
])  # fmt: skip
def test_a_wrong_rule_breaks_the_bound(change):
    assert max_excess(AlteredRule(change)) > 1.0


def test_the_unaltered_rule_keeps_the_bound():
    assert max_excess(AlteredRule(lambda old, new, violated: new.k)) <= EDGE


# The effect of q.


def test_residuals_save_violations():
    # the numbers of docs/guarantees.md: κ* is uniform on [0, .5]; residuals are the κ* of their episodes, or 0
    def mean(stream, T, seeds):
        return np.mean([count(noisy, stream, T, seed) for seed in range(seeds)])

    def count(opponent, stream, T, seed):
        rng, rule, state, total = np.random.default_rng(seed), Conformal(), ConformalState(), 0
        for t in range(T):
            needed = opponent(t, state.kappa, 0.5, rng)
            total += state.kappa < needed
            paid = 2.0 if state.kappa < needed else 0.0
            state = rule.update(state, Feedback(paid, LIMIT, False, stream(t, state.kappa, needed, rng), 1.0))
        return total

    assert mean(silent, 30, 100) == pytest.approx(5.8, abs=0.05)
    assert mean(honest, 30, 100) == pytest.approx(1.8, abs=0.05)
    assert mean(silent, 1000, 3) == 25.0 and 18.0 < mean(honest, 1000, 3) < 23.0
    assert count(falling, silent, 1000, 0) == 20 and count(falling, honest, 1000, 0) == 1
