"""The error of a model in episodes under a budget, and where those episodes are in the buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.episodes import planned_episode

from capax.agents.budget_feedback import (
    Played,
    budget_feedback,
    costly_runs,
    episode_error,
    sight_of,
    start_error,
    stretches,
    unbroken,
)
from capax.core.types import Spec
from capax.models.replay import Replay

SPEC = Spec(10.0, 0.99, discounted=False, episode_steps=4)


def test_the_error_is_what_was_paid_beyond_the_prediction():
    # paid 1 + 3, predicted 2 · .5; the errors of the steps are .5 and 2.5
    error = episode_error(np.array([1.0, 3.0]), np.full(2, 0.5), np.full(2, 0.25), whole=1.0)
    assert (error.error, error.uncertainty, error.predicted) == (3.0, 0.5, 1.0)
    assert error.noise == pytest.approx(np.sqrt((0.25 + 6.25) / 2.0))


def test_an_episode_that_ended_early_counts_as_if_it_had_continued():
    short = episode_error(np.array([1.0, 3.0]), np.full(2, 0.5), np.full(2, 0.25), whole=2.0)
    assert (short.error, short.uncertainty) == (6.0, 1.0)


def test_the_first_error_is_an_upper_bound_for_a_whole_episode():
    # eight start steps in stretches of two with the errors 0, 2, 0, 2: an episode of four steps has two of them, a mean error
    # of 2, and a standard deviation of 1 · √2
    cost = np.array([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    error = start_error(cost, np.zeros(8), np.full(8, 0.5), horizon=2, steps=4)
    assert error.error == pytest.approx(2.0 + 2.0 * np.sqrt(2.0))
    assert error.uncertainty == pytest.approx(2.0)


def test_a_violation_by_the_models_error_has_a_residual_above_the_kappa_that_was_planned_with():
    # planned to the edge of an allowance of 10 at κ = .5: predicted 8 plus .5 · 4. If the actions cost 11, the residual is
    # (11 − 8)/4 = .75, above .5
    cost = np.array([2.0, 3.0, 3.0, 3.0])
    error = episode_error(cost, np.full(4, 2.0), np.full(4, 1.0), whole=1.0)
    feedback, metrics = budget_feedback(SPEC, error, 10.0, planned_episode(SPEC, cost, {}))
    assert feedback.violated and feedback.residual == pytest.approx(0.75) == metrics["residual"]
    assert feedback.unit == pytest.approx(2.5)  # 10 / 4
    assert (feedback.allowance, feedback.uncertainty) == (10.0, 4.0)


def test_episodes_are_found_again_in_a_buffer_that_drops_old_steps():
    buffer = SimpleNamespace(added=30, size=20)  # steps 10 to 29 are held
    assert stretches(buffer, [Played(5, 5), Played(10, 5), Played(25, 5)]) == [None, slice(0, 5), slice(15, 20)]


def chained(lengths: list[int]) -> Any:
    """A buffer of episodes with these lengths, each from another place."""
    obs = [100.0 * number + np.arange(count + 1.0) for number, count in enumerate(lengths)]
    before, after = (np.concatenate(parts)[:, None] for parts in ([o[:-1] for o in obs], [o[1:] for o in obs]))
    return SimpleNamespace(obs=before, next_obs=after, size=len(before))


def test_stretches_do_not_cross_the_end_of_an_episode():
    buffer = chained([3, 1, 4])
    assert unbroken(buffer, slice(None)) == [slice(0, 3), slice(3, 4), slice(4, 8)]
    assert unbroken(buffer, slice(2, 6)) == [slice(2, 3), slice(3, 4), slice(4, 6)]
    assert unbroken(buffer, slice(4, None)) == [slice(4, 8)]


def replayed(*rows: list[float]) -> Replay:
    """The replay of an episode of four steps, one in each part of a plan."""
    return Replay(np.array(rows), np.zeros((4, 4)), part=1)


NAN = float("nan")


def test_a_plan_counts_up_to_where_its_predictions_are_far_too_high():
    # 1 is paid in each step. The first two parts predict that; the third predicts 12 for two steps, above 2 · (2 + 2)
    replay = replayed([1.0] * 4, [NAN, 1.0, 1.0, 1.0], [NAN, NAN, 12.0, 12.0], [NAN, NAN, NAN, 90.0])
    assert sight_of([np.ones(4)], [replay], limit=8.0) == 2
    assert sight_of([np.full(4, 9.0)], [replay], limit=8.0) == 3  # 24 are no more than 2 · (18 + 9 / 2), but 90 are
    assert sight_of([np.full(4, 90.0)], [replay], limit=8.0) == 4


def test_a_plan_counts_for_at_least_one_part():
    assert sight_of([np.zeros(4)], [replayed([9.0] * 4, *[[NAN] * 4] * 3)], limit=0.0) == 1


def test_few_predictions_that_are_too_high_are_no_evidence():
    # half a cost is believed in beforehand: .9 predicted and none paid is less than twice that
    assert sight_of([np.zeros(4)], [replayed([0.2] * 4, *[[NAN] * 4] * 3)], limit=0.0) == 4


def buffer_of(cost: Any, episodes: list[int]) -> Any:
    """Steps with these costs, in episodes of these lengths that begin far from where the one before ended."""
    number = np.arange(len(cost), dtype=float) + 100.0 * np.repeat(np.arange(len(episodes)), episodes)
    return SimpleNamespace(obs=number[:, None], next_obs=number[:, None] + 1.0, cost=np.array(cost, float))


def test_runs_of_costs_end_with_their_episode():
    # an episode of 5 steps with a run of 2 and one of 1 at its end, and one of 4 that begins with a run of 2
    assert costly_runs(buffer_of([1, 1, 0, 0, 1, 1, 1, 0, 0], [5, 4])).tolist() == [2, 1, 2]
    assert costly_runs(buffer_of([1, 1, 0, 0, 1, 1, 1, 0, 0], [9])).tolist() == [2, 3]


@pytest.mark.parametrize(("cost", "runs"), [([0, 0, 0], []), ([1, 1, 1], [3]), ([1], [1]), ([0, 0, 1], [1])])
def test_runs_at_the_edges_of_the_buffer(cost, runs):
    assert costly_runs(buffer_of(cost, [len(cost)])).tolist() == runs
