"""Do image tasks go through training, evaluation and films, with frames counted and odd images refused?"""

from __future__ import annotations

import json
import math
import subprocess
from typing import Any

import gymnasium as gym
import imageio_ffmpeg
import jax.random as jr
import numpy as np
import pytest
from gymnasium import spaces
from optax.tree_utils import tree_get

import capax
from capax import flags
from capax.agents import planet
from capax.agents.planet import Planet, PlanetSettings
from capax.agents.start import HOLD, Held
from capax.collect import EpisodeCollector, split
from capax.conformal import Conformal
from capax.envs.adapt import Task, make
from capax.errors import EnvironmentFailed, InputError
from capax.evaluation import FRESH
from capax.kappa import Adam
from capax.loop import Outcome, Progress
from capax.models.rssm import RSSMSettings
from capax.planning.ccem import CEM
from capax.recording import make_row
from capax.types import Spec

TINY: dict[str, Any] = dict(
    deter=6, stoch=3, hidden=6, depth=1, members=2, batch=2, chunk=4, updates=2, horizon=3, iterations=2, population=8,
    elites=2, start_steps=16,
)  # fmt: skip


class Screen(gym.Env[Any, Any]):
    """Shows its step as a grey level; each action earns 1 and 2 in its two frames, and the fourth step ends early."""

    shown: Any = None

    def __init__(self, dtype: Any = np.uint8, repeat: int = 1) -> None:
        self.observation_space = spaces.Box(0, 255 if dtype == np.uint8 else 1, (64, 64, 3), dtype)
        self.action_space = spaces.Box(-1.0, 1.0, (2,))
        self.dtype, self.repeat, self.t = dtype, repeat, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros((64, 64, 3), self.dtype), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ended = self.t == 4
        rewards = [1.0] if ended else [1.0, 2.0]
        image = np.full((64, 64, 3), self.t if self.dtype == np.uint8 else self.t / 10, self.dtype)
        seen = image if self.shown is None or self.t < 2 else type(self).shown(image)
        return seen, sum(rewards), ended, False, {"cost": 0.0, "rewards": rewards, "frames": len(rewards)}


def screen(**options: Any) -> Task:
    env = Screen(**options)
    env.spec = gym.envs.registration.EnvSpec("Screen-v0", kwargs={"action_repeat": options.get("repeat", 1)})
    return Task(env, name="screen", episode_steps=9)


def test_an_image_arrives_as_it_is():
    task = screen()
    first = task.reset(0)
    assert task.image == (64, 64, 3) and first.dtype == np.uint8 and first.shape == (64, 64, 3)
    assert (task.step([0.0, 0.0]).obs == 1).all()


def test_floats_from_0_to_1_become_bytes():
    task = screen(dtype=np.float32)
    task.reset(0)
    step = task.step([0.0, 0.0])
    assert step.obs.dtype == np.uint8 and (step.obs == round(0.1 * 255)).all()


ODD = {
    r"float64 of shape \(64, 64, 3\) in step 2 of the episode: return uint8 of shape": lambda image: image / 1.0,
    r"uint8 of shape \(96, 96, 3\) in step 2": lambda image: np.zeros((96, 96, 3), np.uint8),
    r"which is no image|is object": lambda image: [[1, 2], [3]],
    r"is object of shape \(\)|no image": lambda image: None,
}


@pytest.mark.parametrize("words", ODD)
def test_images_that_change_are_refused(words, monkeypatch):
    monkeypatch.setattr(Screen, "shown", staticmethod(ODD[words]))
    task = screen()
    task.reset(0)
    task.step([0.0, 0.0])
    with pytest.raises(EnvironmentFailed, match=words):
        task.step([0.0, 0.0])


@pytest.mark.parametrize("change", [lambda image: image + 1, lambda image: image - 1, lambda image: image * np.nan])
def test_floats_outside_of_0_and_1_are_refused(change, monkeypatch):
    monkeypatch.setattr(Screen, "shown", staticmethod(lambda image: change(image).astype(np.float32)))
    task = screen(dtype=np.float32)
    task.reset(0)
    task.step([0.0, 0.0])
    with pytest.raises(EnvironmentFailed, match=r"has numbers outside of \[0, 1\] in step 2 of the episode"):
        task.step([0.0, 0.0])


# Frames.


def test_frames_are_counted_and_discounted():
    # three steps of two frames that earn 1 and 2, then one frame that earns 1: 7 frames
    task, spec = screen(repeat=2), Spec(0.0, 0.5, False, 9, 2)
    agent = Planet(spec, Conformal(0.1), (64, 64, 3), 2, small())
    episode = EpisodeCollector(task, spec).collect(agent, agent.init(jr.key(0)), jr.key(0))
    assert episode.taken == 7 and len(episode.reward) == 4 and episode.earned == 10.0
    row = make_row(Outcome(0, episode, {}, Progress(1, 7, None, ())), 0.0, spec, False, 0)
    assert row["length"] == 7 and row["return"] == 10.0
    assert row["discounted_return"] == 1 + 2 / 2 + 1 / 4 + 2 / 8 + 1 / 16 + 2 / 32 + 1 / 64
    # a cost is discounted by the frames before its step: γ^(2t)
    np.testing.assert_allclose(spec.discounts(4), 0.25 ** np.arange(4))
    assert spec.scale == 9.0 and spec._replace(discounted=True).scale == pytest.approx(sum(0.25**t for t in range(9)))


def test_a_repeated_action_without_its_rewards_is_refused(monkeypatch):
    real = Screen.step
    monkeypatch.setattr(Screen, "step", lambda self, action: (*real(self, action)[:4], {"cost": 0.0}))
    task = screen(repeat=2)
    task.reset(0)
    with pytest.raises(EnvironmentFailed, match=r"info\['rewards'\]"):
        task.step([0.0, 0.0])


def test_racing_counts_frames(tmp_path):
    run = capax.train("capax/CarRacingSkid-v0", steps=70, out=tmp_path, method="random", episode_steps=20)
    assert [row["length"] for row in run.episodes] == [40, 30] and run.episodes[-1]["steps"] == 70
    config = run.config
    assert (config["violation_rate"], config["repeat"], config["kind"], config["cost_limit"]) == (0.4, 2, "image", 0.0)


# The agent.


def small() -> PlanetSettings:
    parts = {name: TINY[name] for name in ("deter", "stoch", "hidden", "depth", "members", "batch", "chunk", "updates")}
    cem = CEM(horizon=3, iterations=2, population=8, elites=2, smoothing=0.0, spread=1.0, clip=True)
    return PlanetSettings(RSSMSettings(**parts), cem, start_steps=16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("image") / "run"
    return capax.train("capax/Dot-v0", steps=32, out=out, preset="fast", settings=TINY, episode_steps=8)


def test_rows_say_how_the_model_learns(run):
    rows = run.episodes
    assert [row["phase"] for row in rows] == ["random"] * 2 + ["plan"] * 2
    assert {"loss_image", "loss_reward", "loss_cost", "loss_kl", "loss_members"} <= set(rows[-1])
    parts = sum(rows[-1][name] for name in rows[-1] if name.startswith("loss_"))
    assert rows[-1]["model_loss"] == pytest.approx(parts)


def test_a_fit_makes_its_gradient_steps_for_every_new_episode(run):
    # after two random episodes, and again after one that was planned; the last one is not learned from any more
    assert int(tree_get(capax.load(run).state.optimiser, "count")) == 3 * TINY["updates"]


def test_a_policy_sees_images(run):
    policy = capax.load(run)
    env = gym.make("capax/Dot-v0")
    obs, _ = env.reset(seed=0)
    policy.reset()
    action = policy(obs)
    assert env.action_space.contains(action) and policy.said["plan_uncertainty"] > 0.0
    for wrong in (obs / 255.0, obs[:32], "x", None):
        with pytest.raises(InputError, match=r"give an image, uint8 of shape \(64, 64, 3\)|give an array"):
            policy(wrong)


def test_the_belief_is_filtered_as_it_acts(run):
    # the same images after different pasts give different beliefs: the carry matters
    policy = capax.load(run)
    image = np.full((64, 64, 3), 80, np.uint8)
    policy.reset()
    policy(image)
    first = np.asarray(policy.carry[0].h)
    policy(image)
    assert not np.allclose(first, policy.carry[0].h)


def at_share(share: float) -> float:
    """κ where margins rise with log p, from 0 to 100."""
    return 100.0 * math.log(share / flags.LEAST_SHARE) / math.log(flags.MOST_SHARE / flags.LEAST_SHARE)


@pytest.mark.parametrize(("rule", "discounted", "expected"), [
    (Conformal(0.4), True, [at_share(0.1), at_share(0.1), 100.0]),  # a discounted limit: 2 · (1 + .9) of 2 is too much
    (Conformal(0.4), False, [at_share(0.1), at_share(0.1 / (0.1 + 0.9 * 0.9)), 100.0]),  # two beyond, and p is .9
    (Adam(start=1.0), False, [1.0, 1.0, 1.0]),
])  # fmt: skip
def test_kappa_within_an_episode(rule, discounted, expected, monkeypatch):
    used: list[float] = []
    ready, real = planet.stepping(small(), (64, 64, 3), 2)

    def step(*arguments: Any) -> Any:
        used.append(float(planet.apart(arguments[2], (64, 64, 3))[1][0]))
        return real(*arguments)

    monkeypatch.setattr(planet, "stepping", lambda *sizes: (ready, step))
    agent = Planet(Spec(2.0, 0.9, discounted, 9), rule, (64, 64, 3), 2, small())
    state = agent.init(jr.key(0))._replace(fits=1)
    known = rule.fitted(state.rule, tuple(np.linspace(0.0, 100.0, len(flags.LEVELS))))
    image, carry = np.zeros((64, 64, 3), np.uint8), agent.begin(state)
    for _ in range(3):
        _, carry, said = agent.act(state._replace(rule=known), carry, image, jr.key(1))
        carry = agent.paid(carry, 2.0)  # up to the limit, then beyond
        assert said["plan_kappa"] == pytest.approx(used[-1])
    assert used == pytest.approx(expected, rel=1e-5)


def test_what_was_paid_follows_the_tasks_convention():
    agent = Planet(Spec(1.0, 0.5, True, 9, 2), Conformal(0.1), (64, 64, 3), 2, small())
    carry = agent.begin(agent.init(jr.key(0)))
    for cost in (1.0, 0.0, 1.0):
        carry = agent.paid(carry, cost)
    assert carry.purse.spent == 1.0 + 0.5**4  # two frames a step


def test_costs_reach_the_agent(run, monkeypatch):
    told: list[float] = []
    real = Planet.paid
    monkeypatch.setattr(Planet, "paid", lambda self, carry, cost: told.append(cost) or real(self, carry, cost))
    rows = capax.evaluate(run, episodes=2).rows
    assert len(told) == sum(row["length"] for row in rows) and sum(told) == sum(row["cost"] for row in rows)
    policy = capax.load(run)
    policy(np.zeros((64, 64, 3), np.uint8))
    policy(np.zeros((64, 64, 3), np.uint8), cost=3.0)
    assert policy.carry.purse.spent == 3.0


def test_a_film_shows_what_is_seen_and_believed(run, tmp_path):
    film = tmp_path / "film.mp4"
    result = capax.evaluate(run, episodes=1, film=film)
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(film), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    width, height = 2 * 64 * 6 + 6, 64 * 6 + 44
    raw = subprocess.run(command, capture_output=True, check=True, start_new_session=True).stdout
    frames = np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)
    assert len(frames) == 8 and result.rows[0]["length"] == 8
    # the left half is the task's own first image, enlarged
    task = make("capax/Dot-v0")
    seed, _ = split(jr.fold_in(jr.fold_in(jr.key(0), FRESH), 0))
    first = task.reset(int(seed))
    shown = frames[0][22 : 22 + 64 * 6, : 64 * 6][3::6, 3::6]
    assert np.abs(shown.astype(int) - first).mean() < 12.0


def test_sizes_that_contradict_each_other(tmp_path):
    with pytest.raises(InputError, match="chunk is 4, but an episode has 3 steps"):
        capax.train("capax/Dot-v0", steps=20, out=tmp_path, preset="fast", settings=TINY, episode_steps=3)
    with pytest.raises(InputError, match="there is no setting 'epochs'"):
        capax.train("capax/Dot-v0", steps=20, out=tmp_path, preset="fast", settings={"epochs": 3})
    with pytest.raises(InputError, match="buffer is 3, less than chunk, 4"):
        capax.train("capax/Dot-v0", steps=20, out=tmp_path, preset="fast", settings=TINY | {"buffer": 3})


def test_random_actions_before_the_first_fit_last():
    agent, carry, actions = Held(2), None, []
    for number in range(4000):
        action, carry, _ = agent.act(None, carry, None, jr.key(number))
        actions.append(action)
    taken = np.array(actions)
    fresh = 1 + int(np.any(np.diff(taken, axis=0) != 0.0, axis=1).sum())
    assert fresh == pytest.approx(4000 / HOLD, rel=0.15) and np.abs(taken).max() <= 1.0
    assert np.abs(taken.mean(0)).max() < 0.15 and taken.std(0) == pytest.approx(np.sqrt(1.0 / 3.0), rel=0.1)


# Every method and rule.


def trained(out, **options):
    return capax.train("capax/Dot-v0", steps=32, out=out, preset="fast", settings=TINY, episode_steps=8, **options)


def told(run):
    """Its rows without what clocks say."""
    return [json.dumps({name: value for name, value in row.items() if name != "time"}) for row in run.episodes]


@pytest.mark.parametrize("options", [
    {"kappa": "conformal"}, {"kappa": "adam"}, {"kappa": "pi"}, {"kappa": 0.5}, {"method": "ccem"}, {"method": "cem"},
    {"method": "random"},
])  # fmt: skip
def test_every_method_and_rule(options, tmp_path):
    run = trained(tmp_path / "run", **options)
    phases = [row["phase"] for row in run.episodes]
    assert phases == ["random"] * 2 + ["random" if options.get("method") == "random" else "plan"] * 2
    kappas = [row["kappa"] for row in run.episodes]
    if "method" in options:
        assert {*kappas} <= {0.0, None}
    elif options["kappa"] == 0.5:
        assert {*kappas[2:]} == {0.5}


def test_the_same_seed_gives_the_same_rows(tmp_path):
    first, second, other = (trained(tmp_path / f"{at}", seed=seed) for at, seed in enumerate((5, 5, 6)))
    assert told(first) == told(second) != told(other)


@pytest.mark.slow
def test_the_dot_goes_around_the_hazard(tmp_path):
    run = capax.train("capax/Dot-v0", steps=2000, out=tmp_path / "run", preset="fast", seed=0)
    last = run.episodes[-10:]
    assert sum(row["return"] for row in last) / 10 > 3.5  # of 4.8; random ones have less than 0
    assert sum(row["violation"] for row in run.episodes if row["phase"] == "plan") <= 6
