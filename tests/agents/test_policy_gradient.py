"""PPO, PPO-Lagrangian and FOCOPS: formulas, settings, networks, batches and improvements."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import norm

from capax.agents.policy_gradient.acting import HostPolicy
from capax.agents.policy_gradient.agent import PolicyGradient
from capax.agents.policy_gradient.batch import means_and_values, padded_to, prepare_batch
from capax.agents.policy_gradient.focops import focops_surrogate
from capax.agents.policy_gradient.gae import advantages
from capax.agents.policy_gradient.improve import improve, make_optimiser, minibatch_order
from capax.agents.policy_gradient.observations import ImageObservations, Moments, Observations, VectorObservations
from capax.agents.policy_gradient.ppo import ppo_surrogate
from capax.agents.policy_gradient.ppo_lagrangian import ppo_lagrangian_surrogate
from capax.agents.policy_gradient.settings import PolicyGradientSettings
from capax.agents.policy_gradient.surrogate import Sample, Surrogate
from capax.core.contracts import Rule
from capax.core.errors import InputError
from capax.core.types import Episode, Feedback, Spec
from capax.kappa.damped import Damped
from capax.kappa.fixed import Fixed
from capax.kappa.pi import PI
from capax.models import actor_critic
from capax.models.actor_critic import Normal
from capax.runs.config import RunConfig
from capax.training.methods import METHODS, Ingredients

SETTINGS = PolicyGradientSettings()


def make_agent(
    spec: Spec,
    observations: Observations | None = None,
    settings: PolicyGradientSettings = SETTINGS,
    surrogate: Surrogate = ppo_surrogate,
) -> PolicyGradient:
    """An agent with one-dimensional actions and no multiplier; it reads vectors of two numbers by default."""
    return PolicyGradient(spec, Fixed(0.0), observations or VectorObservations(2), 1, settings, surrogate)


def random_episode(length: int) -> Episode:
    """An episode of random vectors, actions and rewards, without costs."""
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, length, 2))
    zeros = np.zeros(length)
    action, reward = rng.normal(size=(length, 1)), rng.normal(size=length)
    return Episode(obs, action, reward, zeros, next_obs, 0.0, 0.0, {}, terminated=zeros)


def advantages_by_loop(
    signal: Any, value: Any, next_value: Any, terminated: Any, gamma: float, lam: float
) -> list[float]:
    """The recursion  Â_t = δ_t + γ λ Â_{t+1}, from the last step to the first."""
    backwards, advantage = [], 0.0
    for t in reversed(range(len(signal))):
        after = 0.0 if terminated[t] else next_value[t]
        advantage = signal[t] + gamma * after - value[t] + gamma * lam * advantage
        backwards.append(advantage)
    return backwards[::-1]


@pytest.mark.parametrize("terminates", [False, True])
def test_advantages_are_those_of_a_loop(terminates):
    rng = np.random.default_rng(0)
    signal, value, next_value = rng.normal(size=(3, 17))
    terminated = np.zeros(17)
    terminated[-1] = terminates
    inputs = signal, value, next_value, terminated, 0.9, 0.8
    np.testing.assert_allclose(advantages(*inputs), advantages_by_loop(*inputs), atol=1e-12)


def test_advantages_by_hand():
    # δ = (1 + .5·3 − 2, 4 + .5·6 − 3) = (.5, 4) where the episode is cut off; the last is 4 − 3 = 1 where it terminates
    inputs = np.array([1.0, 4.0]), np.array([2.0, 3.0]), np.array([3.0, 6.0])
    np.testing.assert_allclose(advantages(*inputs, np.zeros(2), 0.5, 0.5), [0.5 + 0.25 * 4.0, 4.0])
    np.testing.assert_allclose(advantages(*inputs, np.array([0.0, 1.0]), 0.5, 0.5), [0.5 + 0.25 * 1.0, 1.0])


def sample(**changes: Any) -> Sample:
    """A sample of one step."""
    values = dict(ratio=1.5, kl=0.01, advantage=2.0, cost_advantage=1.0, multiplier=3.0) | changes
    return Sample(*(jnp.asarray(values[name]) for name in Sample._fields))


@pytest.mark.parametrize(("ratio", "advantage", "loss"), [
    (1.5, 2.0, -2.4), (1.1, 2.0, -2.2), (1.5, -2.0, 3.0), (0.5, -2.0, 1.6), (0.5, 2.0, -1.0),
])  # fmt: skip
def test_ppo_clips_ratios_that_would_gain_more(ratio, advantage, loss):
    assert float(ppo_surrogate(sample(ratio=ratio, advantage=advantage), SETTINGS)) == pytest.approx(loss)


def test_the_lagrangian_subtracts_the_cost():
    # (2 − 3·1)/(1 + 3) = −.25, at a ratio of 1.5: −min(−.375, −.3) = .375
    assert float(ppo_lagrangian_surrogate(sample(), SETTINGS)) == pytest.approx(0.375)
    without_cost = ppo_lagrangian_surrogate(sample(multiplier=0.0), SETTINGS)
    assert float(without_cost) == float(ppo_surrogate(sample(), SETTINGS))


def test_focops_by_hand():
    # .01 − 1.5·(2 − 3·1)/1.5 = 1.01; 0 where the divergence is above δ
    assert float(focops_surrogate(sample(), SETTINGS)) == pytest.approx(1.01)
    assert float(focops_surrogate(sample(kl=0.03), SETTINGS)) == 0.0
    slope = jax.grad(lambda kl: focops_surrogate(sample(kl=kl), SETTINGS))(0.01)
    assert float(slope) == 1.0


def test_each_setting_refuses_what_it_cannot_use():
    refusals = {
        "hidden": (0, "hidden is 0: give a whole number >= 1"),
        "minibatch": (2.5, "minibatch is 2.5: give a whole number >= 1"),
        "learning_rate": (0.0, "learning_rate is 0.0: give a number above 0, at most 1e+09"),
        "gamma": (1.0, "gamma is 1.0: give a number above 0, at most 0.999999"),
        "lam": (1.5, "lam is 1.5: give a number from 0 to 1"),
        "decay": (-1.0, "decay is -1.0: give a number from 0 to 1e+09"),
    }
    for name, (value, message) in refusals.items():
        with pytest.raises(InputError, match=re.escape(message)):
            PolicyGradientSettings(**{name: value})
    settings = PolicyGradientSettings(batch=np.float64(100.0), lam=np.int64(1))
    assert type(settings.batch) is int and type(settings.lam) is float


def multiplier_rule(method: str) -> Rule:
    """The rule of a method's multiplier where an episode is half of a batch."""
    config = RunConfig(
        "task", "vector", method, 1000, 0, 0.99, True, 10.0, 0.1, episode_steps=SETTINGS.batch // 2, capacity=1000,
        obs_dim=2, action_low=(-1.0,), action_high=(1.0,), action_shape=(1,),
    )  # fmt: skip
    agent = METHODS[method].build(Ingredients(config.spec(), Fixed(0.0), SETTINGS, config, None))
    assert isinstance(agent, PolicyGradient)
    return agent.rule


@pytest.mark.parametrize("method", ["ppo-lag", "focops"])
def test_a_multiplier_rises_under_violation_and_falls_otherwise(method):
    rule = multiplier_rule(method)
    state = rule.init()
    assert state.kappa == 0.0 and rule.update(state, Feedback(0.0, 10.0)).kappa == 0.0
    multipliers = [state.kappa]
    for paid in [12.0] * 30 + [0.0] * 300:
        state = rule.update(state, Feedback(paid, 10.0))
        multipliers.append(state.kappa)
    assert all(a < b for a, b in pairwise(multipliers[:21])) and min(multipliers) == 0.0 and multipliers[-1] == 0.0
    assert max(multipliers) <= (2.0 if method == "focops" else 1e30)


def test_damping_ends_swings():
    # the policy's cost changes as long as λ is not 1, as that of a policy that follows its gradient does
    def swing(rule: Damped) -> float:
        state, cost, costs = rule.init(), 50.0, []
        for _ in range(600):
            state = rule.update(state, Feedback(cost, 100.0))
            cost = max(0.0, cost + 4.0 * (1.0 - state.kappa))
            costs.append(cost)
        return max(costs[-150:]) - min(costs[-150:])

    assert swing(Damped()) < 5.0 and swing(Damped(beta=0.0)) > 50.0


def test_the_multiplier_of_focops_stays_at_most_two():
    rule = multiplier_rule("focops")
    state = rule.init()
    for _ in range(100):
        state = rule.update(state, Feedback(1e6, 10.0))
    assert state.kappa == 2.0


def test_densities_and_divergences_of_a_normal_policy():
    rng = np.random.default_rng(0)
    mean, other, action = rng.normal(size=(3, 4, 2)).astype(np.float32)
    log_sd, other_sd = jnp.array([0.3, -0.2]), jnp.array([-0.1, 0.4])
    one, two = Normal(mean, log_sd), Normal(other, other_sd)
    expected = norm.logpdf(action, mean, np.exp(log_sd)).sum(-1)
    np.testing.assert_allclose(one.log_prob(action), expected, rtol=1e-5)
    actions = mean + np.exp(log_sd) * rng.normal(size=(200_000, 4, 2))
    estimate = (one.log_prob(actions) - two.log_prob(actions)).mean(0)
    np.testing.assert_allclose(one.kl(two), estimate, rtol=0.02)
    assert float(jnp.abs(one.kl(one)).max()) < 1e-6


def test_a_policy_begins_near_zero():
    net = actor_critic.init(jr.key(0), 5, 3, 16)
    x = jr.normal(jr.key(1), (100, 5))
    assert float(jnp.abs(actor_critic.policy_and_values(net, x)[0].mean).max()) < 0.1
    assert float(jnp.abs(actor_critic.policy_and_values(net, x)[1][0]).mean()) > 0.1
    last = net.value[1].w
    np.testing.assert_allclose(last.T @ last, 2.0 * np.eye(16), atol=1e-4)


def test_the_policy_on_the_host_is_that_on_the_device():
    net = actor_critic.init(jr.key(0), 5, 3, 16)
    net = jax.tree.map(lambda leaf: leaf + 0.3, net)
    x = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    policy = HostPolicy.from_network(net)
    np.testing.assert_allclose(policy.mean(x), actor_critic.policy_and_values(net, x)[0].mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy.sd, np.exp(net.log_sd))


def test_an_episodes_actions_follow_from_its_first_key():
    agent = make_agent(Spec(1.0, 0.99))
    state, obs = agent.init(jr.key(0)), np.ones(2)

    def actions_from(first: int) -> list[float]:
        carry, actions = agent.begin(state), []
        for step in range(3):
            action, carry, _ = agent.act(state, carry, obs, jr.key(first + step))
            actions.append(float(action[0]))
        return actions

    assert actions_from(3) == actions_from(3) and len(set(actions_from(3))) == 3
    assert not set(actions_from(3)) & set(actions_from(4))


def test_moments_are_those_of_all_observations():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3.0, 2.0, size=(n, 2)) for n in (1, 7, 50)]
    moments = Moments(0.0, np.zeros(2), np.zeros(2))
    np.testing.assert_array_equal(moments.normalise(parts[0]), parts[0].astype(np.float32))
    for part in parts:
        moments = moments.updated(part)
    whole = np.concatenate(parts)
    np.testing.assert_allclose(moments.normalise(whole), (whole - whole.mean(0)) / whole.std(0), rtol=1e-5, atol=1e-6)
    assert float(moments.normalise(np.array([1e9, 0.0]))[0]) == 10.0


PICTURE = (64, 64, 3)


def test_the_encoder_is_the_papers():
    net = actor_critic.init(jr.key(0), PICTURE, 2, 16)
    x = np.random.default_rng(0).integers(0, 256, (2, 4, *PICTURE), np.uint8)
    assert [layer.w.shape for layer in net.encoder] == [
        (4, 4, 12, 8), (3, 3, 8, 16), (3, 3, 16, 32), (3, 3, 32, 64), (3, 3, 64, 128),
    ]  # fmt: skip
    y = (
        np.moveaxis(x, 1, 3).reshape(2, 64, 64, 12).astype(np.float32) / 255.0
    )  # the channels of the images, one image after the other
    for layer, stride in zip(net.encoder, (2, 2, 2, 2, 1), strict=True):
        y = jax.lax.conv_general_dilated(
            y, layer.w, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = jax.nn.relu(y + layer.b)
    assert y.shape == (2, 1, 1, 128)
    np.testing.assert_allclose(actor_critic.features(net, x), y[:, 0, 0], rtol=1e-4, atol=1e-5)


def episode_of_shades(length: int, shade: int) -> Episode:
    """Each image has one shade, which rises by one in each step."""
    images = np.broadcast_to(
        np.arange(shade, shade + length + 1, dtype=np.uint8)[:, None, None, None], (length + 1, *PICTURE)
    )
    zeros = np.zeros(length)
    return Episode(images[:-1], np.zeros((length, 1)), zeros, zeros, images[1:], 0.0, 0.0, {}, terminated=zeros)


def test_the_policy_reads_four_images_of_one_episode():
    observations, episodes = ImageObservations(PICTURE), (episode_of_shades(5, 10), episode_of_shades(2, 50))
    moments = observations.initial_moments()
    table = observations.table(moments, episodes)
    shades = table.rows[:, 0, 0, 0].astype(int)
    assert shades[table.obs_index].tolist() == [
        [10, 10, 10, 10], [10, 10, 10, 11], [10, 10, 11, 12], [10, 11, 12, 13], [11, 12, 13, 14],
        [50, 50, 50, 50], [50, 50, 50, 51],
    ]  # fmt: skip
    assert shades[table.next_obs_index][:, -1].tolist() == [11, 12, 13, 14, 15, 51, 52]
    previous = None
    for step, image in enumerate(episodes[0].obs):  # acting reads the same images as learning
        previous = observations.network_input(moments, previous, image)
        np.testing.assert_array_equal(previous, table.rows[table.obs_index[step]])


def test_values_of_a_batch_are_computed_piece_by_piece(monkeypatch):
    agent = make_agent(Spec(1.0, 0.99, False, 5), ImageObservations(PICTURE))
    state, episodes = agent.init(jr.key(0)), (episode_of_shades(5, 10), episode_of_shades(2, 50))
    table = agent.observations.table(state.moments, episodes)
    steps = np.arange(8) % 7
    monkeypatch.setattr("capax.agents.policy_gradient.batch.PIECE_SIZE", 2)
    inputs = state.model, table.rows, table.obs_index[steps], table.next_obs_index[steps]
    mean, (value, _), (next_value, _) = means_and_values.__wrapped__(*inputs)
    policy, (expected, _) = actor_critic.policy_and_values(state.model, table.rows[table.obs_index])
    np.testing.assert_allclose(mean[:7], policy.mean, atol=1e-5)
    np.testing.assert_allclose(value[:7], expected, atol=1e-5)
    np.testing.assert_allclose(next_value[:4], expected[1:5], atol=1e-5)


def test_counts_are_padded_to_powers_of_two():
    assert [padded_to(n) for n in (1, 2, 3, 2048, 2049)] == [1, 2, 4, 2048, 4096]


def test_every_epoch_shuffles_the_steps_into_whole_minibatches():
    settings = PolicyGradientSettings(minibatch=4, epochs=3)
    order, count = minibatch_order(jr.key(0), 11, settings)
    assert order.shape == (8, 4) and count == 3 * 2  # 3 steps of each epoch are omitted, 2 minibatches are padding
    epochs = order[:count].reshape(3, 8)
    assert all(len(set(epoch.tolist())) == 8 and epoch.max() < 11 for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3 and not order[count:].any()
    assert minibatch_order(jr.key(0), 3, settings)[0].shape == (4, 3)  # a batch smaller than a minibatch


def test_an_epoch_beyond_the_largest_divergence_is_the_last():
    settings = PolicyGradientSettings(learning_rate=0.1, max_kl=1e-3, minibatch=8)
    agent = make_agent(Spec(1.0, 0.99, False, 32), settings=settings, surrogate=focops_surrogate)
    state, episode = agent.init(jr.key(0)), random_episode(32)
    _, metrics = agent.learn(state, (episode,), jr.key(1))
    assert metrics["gradient_steps"] == 4  # one epoch of ten: 4 of 40 steps
    batch = prepare_batch(state.model, agent.observations, state.moments, (episode,), gamma=0.99, lam=0.95)
    order = np.arange(32, dtype=np.int32).reshape(4, 8)
    inputs = state.model, make_optimiser(settings).init(state.model), batch, order, np.int32(4), np.int32(4)
    _, _, metrics = improve(*inputs, np.float32(0.0), settings=SETTINGS, surrogate=ppo_surrogate)
    assert int(metrics["gradient_steps"]) == 4 and float(metrics["kl"]) > 0.0


def test_an_agent_can_act_once_it_has_improved():
    agent = make_agent(Spec(1.0, 0.99, False, 16), settings=PolicyGradientSettings(hidden=4, batch=16, epochs=1))
    state = agent.init(jr.key(0))
    assert not agent.can_act(state)
    assert agent.learn(state, (), jr.key(1)) == (state, {})
    state, _ = agent.learn(state, (random_episode(16),), jr.key(1))
    assert agent.can_act(state)


@pytest.mark.parametrize("observations", [VectorObservations(2), ImageObservations(PICTURE)])
@pytest.mark.parametrize("rule", [Fixed(0.0), Damped(), PI(start=0.0, most=2.0)])
def test_the_initial_state_is_an_example_of_later_states(observations, rule):
    settings = PolicyGradientSettings(hidden=4, batch=4, epochs=1)
    agent = PolicyGradient(Spec(1.0, 0.99, False, 4), rule, observations, 1, settings, ppo_surrogate)
    episode = random_episode(4) if agent.image is None else episode_of_shades(4, 10)
    initial = agent.init(jr.key(0))
    later, _ = agent.adapt(agent.learn(initial, (episode,), jr.key(1))[0], episode._replace(paid=3.0))

    def layout(state: Any) -> Any:
        """Classes, and types and shapes of arrays."""
        leaves, structure = jax.tree.flatten(state)
        return structure, [(type(leaf), getattr(leaf, "dtype", None), np.shape(leaf)) for leaf in leaves]

    assert layout(agent.example(initial)) == layout(later)
