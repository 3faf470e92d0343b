"""Are PPO, PPO-Lagrangian and FOCOPS what their papers say, and do they learn?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from gymnasium import spaces
from scipy.stats import norm

import capax
from capax.agents import focops, ppo, ppo_lagrangian
from capax.agents.advantage import advantages
from capax.agents.onpolicy import Acting, OnPolicy, OnPolicySettings, Sample, improve, judged, optimiser, padded_to
from capax.agents.sight import Images, Moments, Vectors
from capax.errors import InputError
from capax.kappa import Damped, Feedback, Fixed
from capax.models import actor
from capax.models.actor import Normal
from capax.parts import multiplier
from capax.types import Episode, Spec

SETTINGS = OnPolicySettings()


# Advantages.


def by_a_loop(signal: Any, value: Any, following: Any, terminated: Any, gamma: float, lam: float) -> list[float]:
    found, last = [], 0.0
    for t in reversed(range(len(signal))):
        after = 0.0 if terminated[t] else following[t]
        last = signal[t] + gamma * after - value[t] + gamma * lam * last
        found.append(last)
    return found[::-1]


@pytest.mark.parametrize("terminates", [False, True])
def test_advantages_are_those_of_a_loop(terminates):
    rng = np.random.default_rng(0)
    signal, value, following = rng.normal(size=(3, 17))
    terminated = np.zeros(17)
    terminated[-1] = terminates
    given = signal, value, following, terminated, 0.9, 0.8
    np.testing.assert_allclose(advantages(*given), by_a_loop(*given), atol=1e-12)


def test_advantages_by_hand():
    # δ = (1 + .5·3 − 2, 4 + .5·6 − 3) = (.5, 4), cut off; terminated, the last is 4 − 3 = 1
    given = np.array([1.0, 4.0]), np.array([2.0, 3.0]), np.array([3.0, 6.0])
    np.testing.assert_allclose(advantages(*given, np.zeros(2), 0.5, 0.5), [0.5 + 0.25 * 4.0, 4.0])
    np.testing.assert_allclose(advantages(*given, np.array([0.0, 1.0]), 0.5, 0.5), [0.5 + 0.25 * 1.0, 1.0])


# Surrogates.


def sample(**changes: Any) -> Sample:
    given = dict(ratio=1.5, kl=0.01, advantage=2.0, cost_advantage=1.0, multiplier=3.0) | changes
    return Sample(*(jnp.asarray(given[name]) for name in Sample._fields))


@pytest.mark.parametrize(("ratio", "advantage", "loss"), [
    (1.5, 2.0, -2.4), (1.1, 2.0, -2.2), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6), (0.5, 2.0, -1.0),
])  # fmt: skip
def test_ppo_clips_what_would_gain_more(ratio, advantage, loss):
    got = ppo.surrogate(sample(ratio=ratio, advantage=advantage), SETTINGS)
    assert float(got) == pytest.approx(loss)


def test_the_lagrangian_subtracts_the_cost():
    # (2 − 3·1)/(1 + 3) = −.25, at a ratio of 1.5: −min(−.375, −.3) = .375
    assert float(ppo_lagrangian.surrogate(sample(), SETTINGS)) == pytest.approx(0.375)
    alone = ppo_lagrangian.surrogate(sample(multiplier=0.0), SETTINGS)
    assert float(alone) == float(ppo.surrogate(sample(), SETTINGS))


def test_focops_by_hand():
    # .01 − 1.5·(2 − 3·1)/1.5 = 1.01; beyond the divergence it trusts, nothing
    assert float(focops.surrogate(sample(), SETTINGS)) == pytest.approx(1.01)
    assert float(focops.surrogate(sample(kl=0.03), SETTINGS)) == 0.0
    slope = jax.grad(lambda kl: focops.surrogate(sample(kl=kl), SETTINGS))(0.01)
    assert float(slope) == 1.0


# Multipliers.


@pytest.mark.parametrize("method", ["ppo-lag", "focops"])
def test_a_multiplier_rises_under_violation_and_falls_otherwise(method):
    rule = multiplier(method, 0.5)
    state = rule.init()
    assert state.kappa == 0.0 and rule.update(state, Feedback(0.0, 10.0)).kappa == 0.0
    seen = [state.kappa]
    for paid in [12.0] * 30 + [0.0] * 300:
        state = rule.update(state, Feedback(paid, 10.0))
        seen.append(state.kappa)
    assert all(a < b for a, b in pairwise(seen[:21])) and min(seen) == 0.0 and seen[-1] == 0.0
    assert max(seen) <= (2.0 if method == "focops" else 1e30)


def test_damping_ends_swings():
    # a policy whose cost moves as long as λ is not 1, as one that follows its gradient does
    def swing(rule: Damped) -> float:
        state, cost, seen = rule.init(), 50.0, []
        for _ in range(600):
            state = rule.update(state, Feedback(cost, 100.0))
            cost = max(0.0, cost + 4.0 * (1.0 - state.kappa))
            seen.append(cost)
        return max(seen[-150:]) - min(seen[-150:])

    assert swing(Damped()) < 5.0 and swing(Damped(beta=0.0)) > 50.0


def test_focops_keeps_its_multiplier_at_two_at_most():
    rule = multiplier("focops", 0.5)
    state = rule.init()
    for _ in range(100):
        state = rule.update(state, Feedback(1e6, 10.0))
    assert state.kappa == 2.0


# Networks.


def test_a_normal_policy():
    rng = np.random.default_rng(0)
    mean, other, action = rng.normal(size=(3, 4, 2)).astype(np.float32)
    log_sd, other_sd = jnp.array([0.3, -0.2]), jnp.array([-0.1, 0.4])
    one, two = Normal(mean, log_sd), Normal(other, other_sd)
    wanted = norm.logpdf(action, mean, np.exp(log_sd)).sum(-1)
    np.testing.assert_allclose(one.log_prob(action), wanted, rtol=1e-5)
    drawn = mean + np.exp(log_sd) * rng.normal(size=(200_000, 4, 2))
    estimate = (one.log_prob(drawn) - two.log_prob(drawn)).mean(0)
    np.testing.assert_allclose(one.kl(two), estimate, rtol=0.02)
    assert float(jnp.abs(one.kl(one)).max()) < 1e-6


def test_a_policy_begins_near_zero():
    net = actor.init(jr.key(0), 5, 3, 16)
    x = jr.normal(jr.key(1), (100, 5))
    assert float(jnp.abs(actor.seen(net, x)[0].mean).max()) < 0.1
    assert float(jnp.abs(actor.seen(net, x)[1][0]).mean()) > 0.1
    last = net.value[1].w
    np.testing.assert_allclose(last.T @ last, 2.0 * np.eye(16), atol=1e-4)


def test_acting_on_the_host_is_the_policy():
    net = actor.init(jr.key(0), 5, 3, 16)
    net = jax.tree.map(lambda leaf: leaf + 0.3, net)
    x = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    acting = Acting.of(net)
    np.testing.assert_allclose(acting.mean(x), actor.seen(net, x)[0].mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(acting.sd, np.exp(net.log_sd))


def test_an_episodes_actions_follow_from_its_first_key():
    agent = OnPolicy(Spec(1.0, 0.99), Fixed(0.0), Vectors(2), 1, SETTINGS, ppo.surrogate)
    state, obs = agent.init(jr.key(0)), np.ones(2)

    def played(first: int) -> list[float]:
        carry, actions = agent.begin(state), []
        for step in range(3):
            action, carry, _ = agent.act(state, carry, obs, jr.key(first + step))
            actions.append(float(action[0]))
        return actions

    assert played(3) == played(3) and len(set(played(3))) == 3 and not set(played(3)) & set(played(4))


def test_moments_are_those_of_all_that_was_seen():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3.0, 2.0, size=(n, 2)) for n in (1, 7, 50)]
    moments = Moments(0.0, np.zeros(2), np.zeros(2))
    np.testing.assert_array_equal(moments.normal(parts[0]), parts[0].astype(np.float32))
    for part in parts:
        moments = moments.seen(part)
    whole = np.concatenate(parts)
    np.testing.assert_allclose(moments.normal(whole), (whole - whole.mean(0)) / whole.std(0), rtol=1e-5, atol=1e-6)
    assert float(moments.normal(np.array([1e9, 0.0]))[0]) == 10.0


# Images.

PICTURE = (64, 64, 3)


def test_the_encoder_is_the_papers():
    net = actor.init(jr.key(0), PICTURE, 2, 16)
    x = np.random.default_rng(0).integers(0, 256, (2, 4, *PICTURE), np.uint8)
    assert [layer.w.shape for layer in net.encoder] == [
        (4, 4, 12, 8), (3, 3, 8, 16), (3, 3, 16, 32), (3, 3, 32, 64), (3, 3, 64, 128),
    ]  # fmt: skip
    y = np.moveaxis(x, 1, 3).reshape(2, 64, 64, 12).astype(np.float32) / 255.0  # channels: the frames' in their order
    for layer, stride in zip(net.encoder, (2, 2, 2, 2, 1), strict=True):
        y = jax.lax.conv_general_dilated(
            y, layer.w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.nn.relu(y + layer.b)
    assert y.shape == (2, 1, 1, 128)
    np.testing.assert_allclose(actor.features(net, x), y[:, 0, 0], rtol=1e-4, atol=1e-5)


def filmed(length: int, shade: int) -> Episode:
    """Images that are all of one shade, one more in each step."""
    images = np.broadcast_to(
        np.arange(shade, shade + length + 1, dtype=np.uint8)[:, None, None, None], (length + 1, *PICTURE)
    )
    flat = np.zeros(length)
    return Episode(images[:-1], np.zeros((length, 1)), flat, flat, images[1:], 0.0, 0.0, {}, terminated=flat)


def test_four_images_are_seen_and_never_another_episodes():
    sight, episodes = Images(PICTURE), (filmed(5, 10), filmed(2, 50))
    table = sight.table(sight.begin(), episodes)
    shades = table.rows[:, 0, 0, 0].astype(int)
    assert shades[table.here].tolist() == [
        [10, 10, 10, 10], [10, 10, 10, 11], [10, 10, 11, 12], [10, 11, 12, 13], [11, 12, 13, 14],
        [50, 50, 50, 50], [50, 50, 50, 51],
    ]  # fmt: skip
    assert shades[table.following][:, -1].tolist() == [11, 12, 13, 14, 15, 51, 52]
    before = None
    for at, image in enumerate(episodes[0].obs):  # and acting sees what is learned from
        before = sight.look(sight.begin(), before, image)
        np.testing.assert_array_equal(before, table.rows[table.here[at]])


def test_a_batch_of_images_is_judged_piece_by_piece(monkeypatch):
    agent = OnPolicy(Spec(1.0, 0.99, False, 5), Fixed(0.0), Images(PICTURE), 1, SETTINGS, ppo.surrogate)
    state, episodes = agent.init(jr.key(0)), (filmed(5, 10), filmed(2, 50))
    table = agent.sight.table(state.moments, episodes)
    rows = np.arange(8) % 7
    monkeypatch.setattr("capax.agents.onpolicy.PIECE", 2)
    given = state.model, table.rows, table.here[rows], table.following[rows]
    mean, (value, _), (after, _) = judged.__wrapped__(*given)
    policy, (wanted, _) = actor.seen(state.model, table.rows[table.here])
    np.testing.assert_allclose(mean[:7], policy.mean, atol=1e-5)
    np.testing.assert_allclose(value[:7], wanted, atol=1e-5)
    np.testing.assert_allclose(after[:4], wanted[1:5], atol=1e-5)


class Shades(gym.Env[Any, Any]):
    """Say how bright the image is."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, PICTURE, np.uint8)
        self.action_space = spaces.Box(-1.0, 1.0, (1,))

    def seen(self) -> Any:
        self.x = self.np_random.uniform(-1.0, 1.0)
        return np.full(PICTURE, int(127.5 * (1.0 + self.x)), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        reward, self.t = 1.0 - float(np.square(action[0] - self.x)), self.t + 1
        return self.seen(), reward, False, self.t == 50, {"cost": 0.0}


@pytest.mark.slow
def test_ppo_learns_from_images(tmp_path):
    settings = dict(batch=200, minibatch=25, epochs=8, learning_rate=1e-3, gamma=0.5)
    options = dict(method="ppo", cost_limit=1.0, episode_steps=50, settings=settings)
    run = capax.train(Shades, steps=2_000, out=tmp_path / "run", **options)
    first, last = (np.mean([row["return"] for row in part]) for part in (run.episodes[:4], run.episodes[-4:]))
    assert first < 36.0 and last > 41.0  # of 50; always 0 earns 33.3
    policy = capax.load(run.folder)
    policy.reset()
    assert policy(np.full(PICTURE, 250, np.uint8)).shape == (1,)
    assert capax.evaluate(run.folder, env=Shades, episodes=2).mean_return > 36.0


# Improving.


def test_padding_changes_nothing():
    assert [padded_to(n) for n in (1, 2, 3, 2048, 2049)] == [1, 2, 4, 2048, 4096]


def test_an_epoch_that_goes_too_far_is_the_last():
    agent = OnPolicy(
        Spec(1.0, 0.99, False, 32), Fixed(0.0), Vectors(2), 1, OnPolicySettings(learning_rate=0.1, farthest=1e-3, minibatch=8),
        focops.surrogate,
    )  # fmt: skip
    state = agent.init(jr.key(0))
    rng = np.random.default_rng(0)
    obs, following = rng.normal(size=(2, 32, 2))
    flat = np.zeros(32)
    action, reward = rng.normal(size=(32, 1)), rng.normal(size=32)
    episode = Episode(obs, action, reward, flat, following, 0.0, 0.0, {}, terminated=flat)
    _, told = agent.learn(state, (episode,), jr.key(1))
    assert told["gradient_steps"] == 4  # of 40: an epoch
    batch = agent.batch(state, (episode,))
    order = np.arange(32, dtype=np.int32).reshape(4, 8)
    given = state.model, optimiser(agent.settings).init(state.model), batch, order, np.int32(4), np.int32(4)
    _, _, told = improve(*given, np.float32(0.0), settings=SETTINGS, surrogate=ppo.surrogate)
    assert int(told["gradient_steps"]) == 4 and float(told["kl"]) > 0.0


class Copy(gym.Env[Any, Any]):
    """Say what you see."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1.0, 1.0, 1), 0
        return self.x, {}

    def step(self, action: Any) -> Any:
        reward, self.t = 1.0 - float(np.square(action - self.x).sum()), self.t + 1
        self.x = self.np_random.uniform(-1.0, 1.0, 1)
        return self.x, reward, False, self.t == 100, {"cost": 0.0}


def test_ppo_learns_to_say_what_it_sees(tmp_path):
    settings = dict(batch=400, learning_rate=3e-3, gamma=0.5)
    run = capax.train(
        Copy, method="ppo", steps=16_000, cost_limit=1.0, episode_steps=100, out=tmp_path, settings=settings
    )
    rows = run.episodes
    first, last = (np.mean([row["return"] for row in part]) for part in (rows[:4], rows[-4:]))
    assert first < 70.0 and last > 92.0  # of 100; always 0 earns 66.7
    assert rows[0]["phase"] == "plan" and {"multiplier", "kl"} <= set(rows[4]) and rows[-1]["multiplier"] == 0.0


@pytest.mark.parametrize(("method", "under"), [("ppo", False), ("ppo-lag", True)])
def test_the_limit_of_the_integrator(method, under, tmp_path):
    settings = dict(batch=500, learning_rate=5e-3)
    run = capax.train("capax/Integrator-v0", method=method, steps=30_000, out=tmp_path, settings=settings)
    cost, earned = (np.mean([row[name] for row in run.episodes[-50:]]) for name in ("cost", "return"))
    assert (cost <= 25.0) == under and earned > (30.0 if under else 100.0)  # no more than 34.66 is to be had under it


def test_what_they_do_not_take(tmp_path):
    with pytest.raises(InputError, match=r"^ppo learns from its own episodes alone: leave initial_data"):
        capax.train("capax/Integrator-v0", method="ppo", steps=100, out=tmp_path, initial_policy=lambda obs: [0.0])
    with pytest.raises(InputError, match=r"not registered with a cost limit"):
        capax.train(Copy, method="focops", steps=100, out=tmp_path)
    with pytest.raises(InputError, match=r"there is no setting 'population'"):
        capax.train(Copy, method="ppo", steps=100, out=tmp_path, settings=dict(population=3))
    with pytest.raises(InputError, match=r"the method is 'ppo': choose cap, ccem, cem, random, calibrated"):
        capax.train("capax/Gridworld-v0", method="ppo", steps=100, out=tmp_path)
