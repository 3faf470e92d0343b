"""PPO, PPO-Lagrangian and FOCOPS learn in `capax.train`, and refuse inputs that they cannot use."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.toy_envs import echo, grey

import capax
from capax.core.errors import InputError


@pytest.mark.slow
def test_ppo_learns_from_images(tmp_path):
    settings = dict(batch=200, minibatch=25, epochs=8, learning_rate=1e-3, gamma=0.5)
    options = dict(method="ppo", cost_limit=1.0, episode_steps=50, settings=settings)
    env = partial(echo, steps=50, image=True)
    run = capax.train(env, steps=2_000, out=tmp_path / "run", **options)
    first, last = (np.mean([row["return"] for row in part]) for part in (run.episodes[:4], run.episodes[-4:]))
    assert first < 36.0 and last > 41.0  # of 50; an action of 0 in every step earns 33.3
    policy = capax.load(run.folder)
    policy.reset()
    assert policy(grey(250)).shape == (1,)
    assert capax.evaluate(run.folder, env=env, episodes=2).mean_return > 36.0


def test_ppo_learns_to_repeat_its_observations(tmp_path):
    settings = dict(batch=400, learning_rate=3e-3, gamma=0.5)
    run = capax.train(
        partial(echo, steps=100),
        method="ppo",
        steps=16_000,
        cost_limit=1.0,
        episode_steps=100,
        out=tmp_path,
        settings=settings,
    )
    rows = run.episodes
    first, last = (np.mean([row["return"] for row in part]) for part in (rows[:4], rows[-4:]))
    assert first < 70.0 and last > 92.0  # of 100; an action of 0 in every step earns 66.7
    assert rows[0]["phase"] == "plan" and {"multiplier", "kl"} <= set(rows[4]) and rows[-1]["multiplier"] == 0.0


@pytest.mark.parametrize(("method", "under"), [("ppo", False), ("ppo-lag", True)])
def test_only_ppo_lagrangian_keeps_the_limit_of_the_integrator(method, under, tmp_path):
    settings = dict(batch=500, learning_rate=5e-3)
    run = capax.train("capax/Integrator-v0", method=method, steps=30_000, out=tmp_path, settings=settings)
    cost, earned = (np.mean([row[name] for row in run.episodes[-50:]]) for name in ("cost", "return"))
    assert (cost <= 25.0) == under and earned > (30.0 if under else 100.0)  # the optimum within the limit is 34.66


def test_inputs_of_other_methods_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"^ppo learns from its own episodes alone: omit initial_data and initial_policy\.$"
    ):
        capax.train("capax/Integrator-v0", method="ppo", steps=100, out=tmp_path, initial_policy=lambda obs: [0.0])
    with pytest.raises(InputError, match=r"not registered with a cost limit"):
        capax.train(partial(echo, steps=100), method="focops", steps=100, out=tmp_path)
    with pytest.raises(InputError, match=r"there is no setting 'population'"):
        capax.train("capax/Integrator-v0", method="ppo", steps=100, out=tmp_path, settings=dict(population=3))
    with pytest.raises(InputError, match=r"the method is 'ppo': choose cap, ccem, cem, random, calibrated"):
        capax.train("capax/Gridworld-v0", method="ppo", steps=100, out=tmp_path)
