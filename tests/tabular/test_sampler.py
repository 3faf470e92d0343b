"""The compiled sampler and the Gymnasium collector draw the same episodes, with the probabilities of the CMDP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import jax.random as jr
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from scipy.stats import chi2
from support.cmdps import agent_knowledge, random_cmdp, random_policy, sparse_copy
from support.step_collector import StepCollector

from capax.agents.tabular import TabularCAP, sample_action
from capax.core.errors import InputError
from capax.core.loop import run
from capax.core.types import Episode, Spec
from capax.envs.gridworld import Gridworld
from capax.kappa.fixed import Fixed
from capax.tabular import CMDP, World, evaluate, gridworld
from capax.tabular.sampler import WorldCollector, draw_outcome, thresholds

PATH_FIELDS = ("obs", "action", "reward", "cost", "next_obs")


@dataclass(frozen=True)
class FixedPolicy:
    """An agent that does not learn. Its state is its policy."""

    def begin(self, state: Any) -> Any:
        return state

    def act(self, state: Any, carry: Any, obs: Any, key: Any) -> Any:
        return sample_action(carry[obs], key), carry, {}


def sample_path(cmdp: CMDP, policy: np.ndarray, steps: int, restarts: int = 1, seed: int = 0) -> Episode:
    """An episode of the compiled sampler."""
    return WorldCollector(cmdp, steps, restarts).collect(FixedPolicy(), policy, jr.key(seed))


def gym_collector(world: World, steps: int, restarts: int = 1) -> StepCollector:
    """A collector of the same episodes that steps the Gymnasium environment."""
    return StepCollector(TimeLimit(Gridworld(world), steps // restarts), steps, world.cmdp.gamma)


def assert_same_path(one: Episode, other: Episode) -> None:
    for column in PATH_FIELDS:
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column), err_msg=column)


# The two collectors agree.


@pytest.mark.parametrize("restarts", [1, 4])
@pytest.mark.parametrize("slip", ["any", "other", "torus"])
def test_compiled_sampler_and_gym_env_give_the_same_path(slip, restarts):
    rng = np.random.default_rng(0)
    world = gridworld(rng, size=5, slip=slip)
    policy = random_policy(rng, world.cmdp)
    for seed in range(5):
        gym_path = gym_collector(world, 200, restarts).collect(FixedPolicy(), policy, jr.key(seed))
        assert_same_path(sample_path(world.cmdp, policy, 200, restarts, seed), gym_path)


def test_paths_are_equal_with_sparse_transitions_and_another_start_distribution():
    rng = np.random.default_rng(1)
    world = gridworld(rng, size=4)
    cmdp = replace(sparse_copy(world.cmdp), mu0=rng.dirichlet(np.full(16, 0.3)))
    policy = random_policy(rng, cmdp)
    gym_path = gym_collector(world._replace(cmdp=cmdp), 100, 5).collect(FixedPolicy(), policy, jr.key(0))
    assert_same_path(sample_path(cmdp, policy, 100, 5), gym_path)


def test_another_key_gives_another_path():
    cmdp = random_cmdp(np.random.default_rng(2))
    policy = random_policy(np.random.default_rng(3), cmdp)
    one, other = (sample_path(cmdp, policy, 200, seed=seed) for seed in (0, 1))
    assert (one.obs != other.obs).any()


@pytest.mark.parametrize("restarts", [1, 3])
def test_path_is_connected_within_an_episode(restarts):
    cmdp = random_cmdp(np.random.default_rng(4))
    path = sample_path(cmdp, random_policy(np.random.default_rng(5), cmdp), 60, restarts)
    obs, next_obs = path.obs.reshape(restarts, -1), path.next_obs.reshape(restarts, -1)
    np.testing.assert_array_equal(obs[:, 1:], next_obs[:, :-1])


def test_restarts_begin_in_the_start_state():
    # Every action leaves state 0 for ever, so it occurs only at the start of an episode.
    P = np.tile(np.eye(2)[1], (2, 1, 1))
    cmdp = CMDP(P, np.zeros((2, 1)), np.zeros((2, 1)), np.array([1.0, 0.0]), 0.9)
    path = sample_path(cmdp, np.ones((2, 1)), 40, restarts=8)
    np.testing.assert_array_equal(np.nonzero(path.obs == 0)[0], np.arange(0, 40, 5))


# The path has the probabilities of the CMDP.


def test_frequencies_are_the_probabilities():
    # Pearson's statistic Σ (count − nP)²/(nP) of each pair is χ² with S − 1 degrees of freedom. The sum over pairs is χ² too.
    rng = np.random.default_rng(6)
    cmdp = random_cmdp(rng, S=4, A=2)
    path = sample_path(cmdp, np.full((4, 2), 0.5), 40_000)
    counts = np.zeros((4, 2, 4))
    np.add.at(counts, (path.obs, path.action, path.next_obs), 1.0)
    n = counts.sum(-1, keepdims=True)
    assert ((counts - n * cmdp.P) ** 2 / (n * cmdp.P)).sum() < chi2.ppf(0.999, 4 * 2 * 3)


@pytest.mark.parametrize("signal", ["reward", "cost"])
def test_rewards_and_costs_are_bernoulli_with_the_means_of_the_cmdp(signal):
    # The sum over T steps of (draw − mean) has variance Σ p(1−p). Four standard deviations are allowed.
    cmdp = random_cmdp(np.random.default_rng(7), S=4, A=2)
    path = sample_path(cmdp, np.full((4, 2), 0.5), 40_000)
    samples = getattr(path, signal)
    assert set(np.unique(samples)) == {0.0, 1.0}
    for s, a in np.ndindex(4, 2):
        in_pair = (path.obs == s) & (path.action == a)
        p = (cmdp.r if signal == "reward" else cmdp.c)[s, a]
        assert abs((samples[in_pair] - p).sum()) < 4.0 * np.sqrt(in_pair.sum() * p * (1 - p))


def test_actions_follow_the_policy():
    cmdp = random_cmdp(np.random.default_rng(8), S=3, A=3)
    policy = np.array([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    path = sample_path(cmdp, policy, 30_000)
    for s, a in np.ndindex(3, 3):
        in_state, p = path.obs == s, policy[s, a]
        count = (path.action[in_state] == a).sum()
        # the allowed difference is 0 if p is 0 or 1
        assert abs(count - p * in_state.sum()) <= 4.0 * np.sqrt(in_state.sum() * p * (1 - p))


def test_outcomes_of_probability_zero_are_never_drawn():
    rng = np.random.default_rng(9)
    cmdp = random_cmdp(rng, S=8, A=3, kind="sparse")
    policy = np.where(rng.random((8, 3)) < 0.5, 0.0, 1.0) + np.eye(8, 3)
    policy /= policy.sum(1, keepdims=True)
    path = sample_path(cmdp, policy, 20_000)
    assert cmdp.P[path.obs, path.action, path.next_obs].min() > 0.0
    assert policy[path.obs, path.action].min() > 0.0


def test_rounding_never_draws_beyond_the_last_possible_outcome():
    # Ten times .1 adds up to 1 − 1.1e-16 in floating point: the largest u < 1 is not below this sum.
    policy, largest = np.append(np.full(10, 0.1), 0.0), np.nextafter(1.0, 0.0)
    assert policy.cumsum()[-1] <= largest
    assert draw_outcome(thresholds(policy), largest) == 9


def test_a_uniform_number_of_zero_skips_outcomes_of_probability_zero():
    assert draw_outcome(thresholds(np.array([0.0, 0.5, 0.5])), 0.0) == 1


def test_sampler_walks_through_a_large_sparse_world():
    world = gridworld(np.random.default_rng(10), size=40)
    policy = np.full((1600, 4), 0.25)
    path = sample_path(world.cmdp, policy, 1000, restarts=10)
    assert (world.successors[path.obs] == path.next_obs[:, None]).any(1).all()
    assert len(np.unique(path.obs)) > 100


def test_compiled_sampler_computes_the_exact_return_and_cost():
    cmdp = random_cmdp(np.random.default_rng(11))
    policy = random_policy(np.random.default_rng(12), cmdp)
    path, exact = sample_path(cmdp, policy, 10), evaluate(cmdp, policy)
    assert path.earned == pytest.approx(exact.reward, abs=1e-14)
    assert path.paid == pytest.approx(exact.cost, abs=1e-14)


# The Gymnasium collector alone.


class ScriptedEnv(gym.Env[np.int64, np.int64]):
    """Episodes of three steps with rewards 1, 2, 3 and costs 4, 5, 6. Odd episodes have ten times as much."""

    observation_space = gym.spaces.Discrete(4)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, ending: str = "terminated", info: str = "cost") -> None:
        self.ending, self.info, self.episode = ending, info, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps_taken, self.episode = 0, self.episode + 1
        return np.int64(0), {}

    def step(self, action: Any) -> Any:
        self.steps_taken += 1
        factor, over = (10.0 if self.episode % 2 else 1.0), self.steps_taken == 3
        flags = (over and self.ending == "terminated", over and self.ending == "truncated")
        cost = factor * (self.steps_taken + 3)
        return np.int64(self.steps_taken), factor * self.steps_taken, *flags, {self.info: cost}


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_gym_collector_discounts_and_normalises_each_episode(ending):
    # γ = .5, so (1−γ)γ^t is .5, .25, .125. Episode 0 has return .5 + .5 + .375 = 1.375 and cost 2 + 1.25 + .75 = 4.
    # Episode 1 has ten times as much: 13.75 and 40. The result is the mean of the two episodes.
    episode = StepCollector(ScriptedEnv(ending), 6, 0.5).collect(FixedPolicy(), np.full((4, 2), 0.5), jr.key(0))
    assert episode.earned == pytest.approx((1.375 + 13.75) / 2, rel=1e-15)
    assert episode.paid == pytest.approx((4 + 40) / 2, rel=1e-15)


def test_gym_collector_excludes_a_cut_off_episode_from_the_means():
    # Two of the three steps of episode 1 would understate its cost. They are still data.
    episode = StepCollector(ScriptedEnv(), 5, 0.5).collect(FixedPolicy(), np.full((4, 2), 0.5), jr.key(0))
    assert (episode.earned, episode.paid) == (1.375, 4.0)
    np.testing.assert_array_equal(episode.reward, [1, 2, 3, 10, 20])
    np.testing.assert_array_equal(episode.obs, [0, 1, 2, 0, 1])
    np.testing.assert_array_equal(episode.next_obs, [1, 2, 3, 1, 2])


def test_gym_collector_starts_no_empty_episode_at_the_end():
    env = ScriptedEnv()
    episode = StepCollector(env, 3, 0.5).collect(FixedPolicy(), np.full((4, 2), 0.5), jr.key(0))
    assert (episode.paid, env.episode) == (4.0, 0)


def test_gym_collector_averages_the_metrics_of_act():
    class Reporting(FixedPolicy):
        def act(self, state: Any, carry: Any, obs: Any, key: Any) -> Any:
            return 0, carry, {"where": float(obs)}

    episode = StepCollector(ScriptedEnv(), 5, 0.5).collect(Reporting(), None, jr.key(0))
    assert episode.means == {"where": pytest.approx((0 + 1 + 2 + 0 + 1) / 5)}


def test_missing_cost_is_refused():
    with pytest.raises(InputError, match=r'info\["cost"\]'):
        StepCollector(ScriptedEnv(info="costs"), 5, 0.5).collect(FixedPolicy(), np.full((4, 2), 0.5), jr.key(0))


# Algorithm 1 with either collector.


def test_the_loop_gets_the_same_data_from_either_collector():
    # κ is fixed and the data are the same, so every plan is the same. Only the cost is exact in one and sampled in the other.
    world = gridworld(np.random.default_rng(13), size=4, gamma=0.9)
    cmdp, steps = world.cmdp, 300
    agent = TabularCAP(agent_knowledge(world), Spec(0.2, cmdp.gamma), Fixed(0.0))
    states, costs = [], []
    for collector in (WorldCollector(cmdp, steps, 6), gym_collector(world, steps, 6)):
        _, *outcomes = run(agent, collector, start=steps, steps=5 * steps, key=jr.key(3))
        states.append(outcomes[-1].state)
        costs.append([outcome.episode.paid for outcome in outcomes])
    np.testing.assert_array_equal(states[0].model.counts, states[1].model.counts)
    np.testing.assert_array_equal(states[0].policy, states[1].policy)
    # The cost of a sampled episode lies in [0, 1], so the mean of 4 × 6 of them has a standard deviation of at most .1.
    assert np.mean(costs[1]) == pytest.approx(np.mean(costs[0]), abs=0.3)


@pytest.mark.parametrize(("steps", "restarts"), [(7, 2), (3, 5), (10, 0)])
def test_steps_that_are_not_a_multiple_of_restarts_are_refused(steps, restarts):
    with pytest.raises(InputError, match="multiple of restarts"):
        WorldCollector(gridworld(np.random.default_rng(0), size=2).cmdp, steps, restarts)


def test_rewards_that_are_not_probabilities_are_refused():
    cmdp = gridworld(np.random.default_rng(0), size=2).cmdp
    with pytest.raises(InputError, match="probabilities"):
        WorldCollector(CMDP(cmdp.P, 5.0 * cmdp.r, cmdp.c, cmdp.mu0, 0.9), 10)


def test_gym_collector_extrapolates_a_single_cut_off_episode():
    # Rewards 1, 2 with weights .5, .25 sum to 1. The weights sum to .75 of a whole episode, so the return is 1/.75 = 4/3.
    # Costs 4, 5 give 3.25/.75.
    episode = StepCollector(ScriptedEnv(), 2, 0.5).collect(FixedPolicy(), np.full((4, 2), 0.5), jr.key(0))
    assert (episode.earned, episode.paid) == pytest.approx((4 / 3, 3.25 / 0.75), rel=1e-15)


def test_sampling_does_not_change_sparse_transitions():
    # a grid that never slips stores zeros; the sampler drops them from a copy
    cmdp = gridworld(np.random.default_rng(0), size=11, slip_probability=0.0).cmdp
    WorldCollector(cmdp, 10).table  # noqa: B018
    assert cmdp.P.sum(axis=1) == pytest.approx(np.ones(484), abs=1e-12)
