"""Random actions under a budget are often near to doing nothing, and are held for some steps."""

from __future__ import annotations

from itertools import pairwise

import jax.random as jr
import numpy as np
import pytest
from support.small_settings import VECTOR
from support.tiny_runs import train_tiny
from support.toy_envs import limited, walk

from capax.agents.starters import QUIET_HOLD, QUIET_SHARES, QuietRandom
from capax.core.types import Spec

REST = (-0.5, 0.25)


def quiet_actions(count: int, **options: object) -> np.ndarray:
    """The first actions of an episode, `[count, 2]`."""
    starter = QuietRandom(Spec(1.0, 0.99, discounted=False), 2, hold=QUIET_HOLD, rest=REST, **options)
    carry, actions = None, []
    for key in jr.split(jr.key(0), count):
        action, carry, _ = starter.act(None, carry, None, key)
        actions.append(action)
    return np.array(actions)


def test_a_share_of_the_way_from_rest():
    # a fifth of the actions are rest, and another fifth are at most a tenth of the way away from it
    actions = quiet_actions(2000)
    farthest = np.array([1.5, 1.25])  # from rest to the farther bound
    distance = (np.abs(actions - REST) / farthest).max(1)
    assert (np.abs(actions) <= 1.0).all()
    assert np.mean(distance == 0.0) == pytest.approx(1 / len(QUIET_SHARES), abs=0.05)
    assert np.mean((distance > 0.0) & (distance <= 0.1)) > 1 / len(QUIET_SHARES)
    assert distance.max() > 0.9


def test_an_action_is_held_for_some_steps():
    actions = quiet_actions(2000)
    changes = (np.diff(actions, axis=0) != 0.0).any(1).mean()
    # a new one in a quarter of the steps, but after rest comes rest in a fifth of these
    assert changes == pytest.approx((1 / QUIET_HOLD) * (1 - 1 / 25), abs=0.03)


def test_the_range_of_random_actions_is_kept():
    actions = quiet_actions(500, low=(-0.5, 0.0), high=(0.5, 0.5))
    assert (actions >= [-0.5, 0.0]).all() and (actions <= [0.5, 0.5]).all()


@pytest.mark.parametrize(("options", "quiet"), [
    ({}, True),
    ({"discounted": True}, False),
    ({"settings": VECTOR | {"start_steps": 40, "undiscounted_limit": "pace"}}, False),
    ({"method": "random"}, False),  # what others are compared with
], ids=["budget", "discounted", "pace", "random"])  # fmt: skip
def test_only_an_agent_with_a_budget_has_a_quiet_start(tmp_path, options, quiet):
    sent = []

    def cost(obs, action, next_obs, info):
        sent.append(np.array(action, np.float64))
        return 0.0

    train_tiny(
        tmp_path,
        limited(walk, 20),
        **{"steps": 40, "settings": VECTOR | {"start_steps": 40}, "cost": cost, "discounted": False} | options,
    )
    repeated = sum(np.array_equal(one, other) for one, other in pairwise(sent))
    assert (repeated > 10) == quiet
