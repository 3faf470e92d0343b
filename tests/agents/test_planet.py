"""Image tasks in training, evaluation and films: frames are counted, and wrong images are refused."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import jax.random as jr
import numpy as np
import pytest
from optax.tree_utils import tree_get
from support.episodes import planned_episode
from support.small_settings import IMAGE
from support.tiny_runs import without_times
from support.toy_envs import Toy, grey, image_space

import capax
from capax.agents import planet
from capax.agents.planet import Planet, PlanetSettings
from capax.agents.starters import StickyRandom
from capax.core.errors import EnvironmentFailed, InputError
from capax.core.keys import split_episode_key
from capax.core.loop import Outcome, Progress
from capax.core.types import Spec
from capax.envs.make import make
from capax.envs.task import GymTask
from capax.kappa import binary
from capax.kappa.adam import Adam
from capax.kappa.conformal import Conformal
from capax.models.rssm import RSSMSettings
from capax.planning.ccem import CEM
from capax.runs.config import RunConfig
from capax.training.build import build
from capax.training.collect import EpisodeCollector
from capax.training.evaluate import FRESH
from capax.training.request import Request, resolve
from capax.training.rows import Violations, make_row


def screen_task(
    dtype: Any = np.uint8, repeat: int = 1, change: Callable[[Any], Any] | None = None, reply: Any = None
) -> GymTask:
    """The task of a toy whose image is the number of the step, as a grey level.

    An action earns 1 and 2 in its two frames; the episode ends in the first frame of the fourth step. `change` is done to
    the images from the second step on.
    """

    def move(toy: Toy) -> Any:
        rewards = [1.0] if toy.count == 4 else [1.0, 2.0]
        return toy.count, sum(rewards), {"cost": 0.0, "rewards": rewards, "frames": len(rewards)}

    def show(step: int) -> Any:
        image = grey(step if dtype == np.uint8 else step / 10, dtype)
        return image if change is None or step < 2 else change(image)

    toy = Toy(
        observation_space=image_space(dtype), reply=reply, start=lambda toy: 0, move=move, show=show,
        terminates=lambda toy: toy.count == 4,
    )  # fmt: skip
    toy.spec = gym.envs.registration.EnvSpec("Screen-v0", kwargs={"action_repeat": repeat})
    return GymTask(toy, name="screen", episode_steps=9)


def test_a_uint8_image_is_not_changed():
    task = screen_task()
    first = task.reset(0)
    assert task.image == (64, 64, 3) and first.dtype == np.uint8 and first.shape == (64, 64, 3)
    assert (task.step([0.0, 0.0]).obs == 1).all()


def test_floats_from_0_to_1_become_bytes():
    task = screen_task(dtype=np.float32)
    task.reset(0)
    step = task.step([0.0, 0.0])
    assert step.obs.dtype == np.uint8 and (step.obs == round(0.1 * 255)).all()


WRONG_IMAGES = {
    r"float64 of shape \(64, 64, 3\) in step 2 of the episode: return uint8 of shape": lambda image: image / 1.0,
    r"uint8 of shape \(96, 96, 3\) in step 2": lambda image: np.zeros((96, 96, 3), np.uint8),
    r"not an image|is object": lambda image: [[1, 2], [3]],
    r"is object of shape \(\)|not an image": lambda image: None,
}


@pytest.mark.parametrize("message", WRONG_IMAGES)
def test_images_that_do_not_fit_the_space_are_refused(message):
    task = screen_task(change=WRONG_IMAGES[message])
    task.reset(0)
    task.step([0.0, 0.0])
    with pytest.raises(EnvironmentFailed, match=message):
        task.step([0.0, 0.0])


@pytest.mark.parametrize("change", [lambda image: image + 1, lambda image: image - 1, lambda image: image * np.nan])
def test_floats_outside_0_and_1_are_refused(change):
    task = screen_task(np.float32, change=lambda image: change(image).astype(np.float32))
    task.reset(0)
    task.step([0.0, 0.0])
    with pytest.raises(EnvironmentFailed, match=r"has numbers outside of \[0, 1\] in step 2 of the episode"):
        task.step([0.0, 0.0])


# Frames.


def test_frames_are_counted_and_discounted():
    # three steps of two frames that earn 1 and 2, then one frame that earns 1: 7 frames
    task, spec = screen_task(repeat=2), Spec(0.0, 0.5, False, 9, 2)
    agent = Planet(spec, Conformal(0.1), (64, 64, 3), 2, small_settings())
    episode = EpisodeCollector(task, spec).collect(agent, agent.init(jr.key(0)), jr.key(0))
    assert episode.env_steps == 7 and len(episode.reward) == 4 and episode.earned == 10.0
    config = RunConfig(
        "Screen-v0", "image", "cap", 7, 0, 0.5, False, 0.0, 0.1, episode_steps=9, repeat=2, capacity=7, image=(64, 64, 3),
        action_low=(-1.0, -1.0), action_high=(1.0, 1.0), action_shape=(2,),
    )  # fmt: skip
    assert config.spec() == spec
    row = make_row(Outcome(0, episode, {}, Progress(1, 7, None, ())), config, False, Violations())
    assert row["length"] == 7 and row["return"] == 10.0
    assert row["discounted_return"] == 1 + 2 / 2 + 1 / 4 + 2 / 8 + 1 / 16 + 2 / 32 + 1 / 64
    # a cost is discounted by the frames before its step: γ^(2t)
    np.testing.assert_allclose(spec.discounts(4), 0.25 ** np.arange(4))
    assert spec.scale == 9.0 and spec._replace(discounted=True).scale == pytest.approx(sum(0.25**t for t in range(9)))


def test_a_repeated_action_without_its_rewards_is_refused():
    task = screen_task(repeat=2, reply=lambda toy: (*toy.result()[:4], {"cost": 0.0}))
    task.reset(0)
    with pytest.raises(EnvironmentFailed, match=r"info\['rewards'\]"):
        task.step([0.0, 0.0])


def test_racing_counts_frames(tmp_path):
    run = capax.train("capax/CarRacingSkid-v0", steps=70, out=tmp_path, method="random", episode_steps=20)
    assert [row["length"] for row in run.episodes] == [40, 30] and run.episodes[-1]["steps"] == 70
    config = run.config
    assert (config.violation_rate, config.repeat, config.kind, config.cost_limit) == (0.4, 2, "image", 0.0)


# The agent.


def small_settings() -> PlanetSettings:
    names = ("deter", "stoch", "hidden", "depth", "members", "batch", "chunk", "updates")
    cem = CEM(horizon=3, iterations=2, population=8, elites=2, smoothing=0.0, spread=1.0, clip=True)
    return PlanetSettings(RSSMSettings(**{name: IMAGE[name] for name in names}), cem, start_steps=16)


def train_dot(out: Any, **options: Any) -> Any:
    """A run of four episodes of eight steps; two of them are random."""
    return capax.train("capax/Dot-v0", steps=32, out=out, preset="fast", settings=IMAGE, episode_steps=8, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train_dot(tmp_path_factory.mktemp("image") / "run")


def test_rows_hold_the_losses_of_the_model(run):
    rows = run.episodes
    assert [row["phase"] for row in rows] == ["random"] * 2 + ["plan"] * 2
    assert {"loss_image", "loss_reward", "loss_cost", "loss_kl", "loss_members"} <= set(rows[-1])
    parts = sum(rows[-1][name] for name in rows[-1] if name.startswith("loss_"))
    assert rows[-1]["model_loss"] == pytest.approx(parts)


def test_a_fit_makes_its_gradient_steps_for_every_new_episode(run):
    # for the two random episodes, and for the first planned one; nothing is learned from the last episode
    assert int(tree_get(capax.load(run).state.optimiser, "count")) == 3 * IMAGE["updates"]


def test_a_policy_acts_on_images(run):
    policy = capax.load(run)
    env = gym.make("capax/Dot-v0")
    obs, _ = env.reset(seed=0)
    policy.reset()
    action = policy(obs)
    assert env.action_space.contains(action) and policy.metrics["plan_uncertainty"] > 0.0
    for wrong in (obs / 255.0, obs[:32], "x", None):
        with pytest.raises(InputError, match=r"give an image, uint8 of shape \(64, 64, 3\)|give an array"):
            policy(wrong)


def test_the_belief_is_filtered_as_it_acts(run):
    # the same image gives another belief in the second step, so the carry matters
    policy = capax.load(run)
    image = np.full((64, 64, 3), 80, np.uint8)
    policy.reset()
    policy(image)
    first = np.asarray(policy.carry[0].h)
    policy(image)
    assert not np.allclose(first, policy.carry[0].h)


def kappa_at(share: float) -> float:
    """κ at a share p, if margins rise with log p from 0 to 100."""
    return 100.0 * math.log(share / binary.MIN_SHARE) / math.log(binary.MAX_SHARE / binary.MIN_SHARE)


@pytest.mark.parametrize(("rule", "discounted", "expected"), [
    (Conformal(0.4), True, [kappa_at(0.1), kappa_at(0.1), 100.0]),  # 2 · (1 + .9) are beyond the discounted limit of 2
    (Conformal(0.4), False, [kappa_at(0.1), kappa_at(0.1 / (0.1 + 0.9 * 0.9)), 100.0]),  # 2 beyond the limit: p is .9
    (Adam(start=1.0), False, [1.0, 1.0, 1.0]),
])  # fmt: skip
def test_kappa_within_an_episode(rule, discounted, expected, monkeypatch):
    kappas: list[float] = []
    prepare, real = planet.compiled_step(small_settings(), (64, 64, 3), 2)

    def step(*arguments: Any) -> Any:
        kappas.append(float(planet.unpacked_inputs(arguments[2], (64, 64, 3))[1][0]))
        return real(*arguments)

    monkeypatch.setattr(planet, "compiled_step", lambda *sizes: (prepare, step))
    agent = Planet(Spec(2.0, 0.9, discounted, 9), rule, (64, 64, 3), 2, small_settings())
    state = agent.init(jr.key(0))._replace(fits=1)
    state = state._replace(rule=rule.after_fit(state.rule, tuple(np.linspace(0.0, 100.0, len(binary.LEVELS)))))
    image, carry = np.zeros((64, 64, 3), np.uint8), agent.begin(state)
    for _ in range(3):
        _, carry, metrics = agent.act(state, carry, image, jr.key(1))
        carry = agent.observe_cost(carry, 2.0)  # up to the limit, then beyond
        assert metrics["plan_kappa"] == pytest.approx(kappas[-1])
    assert kappas == pytest.approx(expected, rel=1e-5)


def test_the_spent_budget_follows_the_tasks_convention():
    agent = Planet(Spec(1.0, 0.5, True, 9, 2), Conformal(0.1), (64, 64, 3), 2, small_settings())
    carry = agent.begin(agent.init(jr.key(0)))
    for cost in (1.0, 0.0, 1.0):
        carry = agent.observe_cost(carry, cost)
    assert carry.budget.spent == 1.0 + 0.5**4  # two frames a step


def test_costs_reach_the_agent(run, monkeypatch):
    costs: list[float] = []
    real = Planet.observe_cost
    monkeypatch.setattr(Planet, "observe_cost", lambda self, carry, cost: costs.append(cost) or real(self, carry, cost))
    rows = capax.evaluate(run, episodes=2).rows
    assert len(costs) == sum(row["length"] for row in rows) and sum(costs) == sum(row["cost"] for row in rows)
    policy = capax.load(run)
    policy(np.zeros((64, 64, 3), np.uint8))
    policy(np.zeros((64, 64, 3), np.uint8), cost=3.0)
    assert policy.carry.budget.spent == 3.0


def test_a_film_shows_the_image_and_the_belief(run, tmp_path):
    film = tmp_path / "film.mp4"
    result = capax.evaluate(run, episodes=1, film=film)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(film), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    width, height = 2 * 64 * 6 + 6, 64 * 6 + 44
    raw = subprocess.run(command, capture_output=True, check=True, start_new_session=True).stdout
    frames = np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)
    assert len(frames) == 8 and result.rows[0]["length"] == 8
    # the left half is the task's own first image, enlarged
    task = make("capax/Dot-v0")
    seed, _ = split_episode_key(jr.fold_in(jr.fold_in(jr.key(0), FRESH), 0))
    first = task.reset(int(seed))
    filmed = frames[0][22 : 22 + 64 * 6, : 64 * 6][3::6, 3::6]
    assert np.abs(filmed.astype(int) - first).mean() < 12.0


def test_sizes_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(InputError, match="chunk is 4, but an episode has 3 steps"):
        capax.train("capax/Dot-v0", steps=20, out=tmp_path, preset="fast", settings=IMAGE, episode_steps=3)
    with pytest.raises(InputError, match="there is no setting 'epochs'"):
        capax.train("capax/Dot-v0", steps=20, out=tmp_path, preset="fast", settings={"epochs": 3})
    with pytest.raises(InputError, match="buffer is 3, less than chunk, 4"):
        capax.train("capax/Dot-v0", steps=20, out=tmp_path, preset="fast", settings=IMAGE | {"buffer": 3})


def test_random_actions_before_the_first_fit_are_held():
    agent, carry, actions = StickyRandom(Spec(0.0, 0.99), 2, hold=8), None, []
    for number in range(4000):
        action, carry, _ = agent.act(None, carry, None, jr.key(number))
        actions.append(action)
    played = np.array(actions)
    different = 1 + int(np.any(np.diff(played, axis=0) != 0.0, axis=1).sum())
    assert different == pytest.approx(4000 / 8, rel=0.15) and np.abs(played).max() <= 1.0
    assert np.abs(played.mean(0)).max() < 0.15 and played.std(0) == pytest.approx(np.sqrt(1.0 / 3.0), rel=0.1)


def test_random_gas_and_brake_are_drawn_from_the_games_own_range():
    task = make("capax/CarRacingSkid-v0")
    config = resolve(Request("capax/CarRacingSkid-v0", preset="fast"), task)
    task.close()
    # steering from −1, gas and brake from 0: half of all actions in [−1, 1] would mean no gas
    assert config.random_range == ((-1.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    starter = build(config).starter
    played = np.array([starter.act(None, None, None, jr.key(number))[0] for number in range(300)])
    assert (played[:, 0] < -0.9).any() and played[:, 1:].min() >= 0.0 and played.max() <= 1.0
    assert played.mean(0) == pytest.approx([0.0, 0.5, 0.5], abs=0.1)


@pytest.mark.parametrize("range_", [((-2.0, 0.0), (1.0, 1.0)), ((0.0,), (1.0,)), ((1.0, 1.0), (0.0, 0.0)), "wide", 3])
def test_a_range_of_random_actions_lies_within_the_actions(range_):
    toy = Toy()
    toy.spec = gym.envs.registration.EnvSpec("Toy-v0", kwargs={"random_actions": range_})
    with pytest.raises(InputError, match=r"toy is registered with random_actions=.*: register \(low, high\) within"):
        GymTask(toy, name="toy")


def test_random_episodes_leave_kappa_alone():
    spec = Spec(0.0, 0.99, False, 8)
    agent = Planet(spec, Adam(rate=0.01, start=0.1), (64, 64, 3), 2, small_settings())
    state = agent.init(jr.key(0))
    costly = planned_episode(spec, [1.0, 1.0, 0.0], {})
    state, metrics = agent.adapt(state, costly._replace(random=True))
    assert state.rule == agent.rule.init() and metrics["kappa_next"] == 0.1
    # the first step of Adam is its rate, whatever the cost
    state, metrics = agent.adapt(state, costly)
    assert metrics["kappa"] == 0.1 and metrics["kappa_next"] == pytest.approx(0.11)


# Every method and rule.


@pytest.mark.parametrize("options", [
    {"kappa": "conformal"}, {"kappa": "adam"}, {"kappa": "pi"}, {"kappa": 0.5}, {"method": "ccem"}, {"method": "cem"},
    {"method": "random"},
])  # fmt: skip
def test_every_method_and_rule_plays_all_episodes(options, tmp_path):
    run = train_dot(tmp_path / "run", **options)
    phases = [row["phase"] for row in run.episodes]
    assert phases == ["random"] * 2 + ["random" if options.get("method") == "random" else "plan"] * 2
    kappas = [row["kappa"] for row in run.episodes]
    if "method" in options:
        assert {*kappas} <= {0.0, None}
    elif options["kappa"] == 0.5:
        assert {*kappas[2:]} == {0.5}


def test_the_same_seed_gives_the_same_rows(tmp_path):
    first, second, other = (
        without_times(train_dot(tmp_path / f"{number}", seed=seed).episodes) for number, seed in enumerate((5, 5, 6))
    )
    assert first == second != other


@pytest.mark.slow
def test_the_dot_learns_to_avoid_the_hazard(tmp_path):
    run = capax.train("capax/Dot-v0", steps=2000, out=tmp_path / "run", preset="fast", seed=0)
    last = run.episodes[-10:]
    assert sum(row["return"] for row in last) / 10 > 3.5  # of 4.8; random ones have less than 0
    assert sum(row["violation"] for row in run.episodes if row["phase"] == "plan") <= 6
