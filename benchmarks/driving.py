"""Tests CAP's planner on Car-Racing with a model of another driver's data, to tell data, model and planner apart.

A pilot that knows the track drives at different speeds with noise in its actions. A quarter of the episodes are random.
A small model is fitted to these data once. Constrained CEM drives with it, at κ = 0 and at the κ that flags some shares
of the good steps.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from capax.data.image_episodes import ImageBuffer, ImageEpisode
from capax.envs.racing import CarRacingSkid
from capax.kappa import binary
from capax.models import rssm, rssm_rollout
from capax.models.rssm import RSSMSettings
from capax.models.rssm_fit import margin_samples
from capax.planning.ccem import CEM, plan
from capax.planning.scoring import Terms

SETTINGS = RSSMSettings(deter=128, stoch=30, hidden=128, depth=8, batch=16, chunk=20)
PLANNER = CEM(horizon=12, iterations=6, population=300, elites=30, smoothing=0.0, spread=1.0, clip=True)


def pilot(game: Any, speed: float) -> np.ndarray:
    """Steer towards the track five tiles ahead, with little gas up to a speed."""
    hull, track = game.car.hull, np.array(game.track)[:, 2:4]
    near = int(np.argmin(np.sum((track - hull.position) ** 2, 1)))
    (x, y), (ahead_x, ahead_y) = track[(near + 5) % len(track)] - hull.position, hull.GetWorldVector((0, 1))
    angle = math.atan2(ahead_x * y - ahead_y * x, ahead_x * x + ahead_y * y)
    v = math.hypot(*hull.linearVelocity)
    return np.array([np.clip(-angle, -1.0, 1.0), 0.1 * (v < speed), 0.02 * (v > 1.2 * speed)])


def record_episode(env: CarRacingSkid, rng: np.random.Generator, number: int) -> ImageEpisode:
    """An episode: random actions held for six steps, or the pilot with noise."""
    obs, _ = env.reset(seed=1000 + number)
    images, steps, speed, drift, action = [obs], [], rng.uniform(10.0, 60.0), 0.0, np.zeros(3)
    for t in range(500):
        if number % 4 == 0:
            action = rng.uniform(-1.0, 1.0, 3) if t % 6 == 0 else action
        else:
            if t % 10 == 0:
                gas, brake, jitter = rng.uniform(0, 4), (rng.random() < 0.15) * rng.uniform(0, 0.5), rng.uniform(0, 0.3)
            drift = 0.8 * drift + 0.15 * rng.normal()
            steer, push, stop = pilot(env.game, speed)
            noise = jitter * rng.normal(size=2)
            action = np.array([steer + drift, push * gas + noise[0] - 0.05, stop + brake + 0.2 * noise[1] - 0.05])
        action = np.clip(action, -1.0, 1.0)
        obs, reward, ended, _, info = env.step(action)
        images.append(obs)
        steps.append((action, reward, info["cost"]))
        if ended:
            break
    return ImageEpisode(np.stack(images), *(np.array(part, np.float32) for part in zip(*steps, strict=True)))


def drive(env: CarRacingSkid, step: Any, kappa: float, seed: int, steps: int) -> tuple[float, float, float]:
    """Discounted return, return and cost of the planner's own driving."""
    obs, _ = env.reset(seed=seed)
    belief, action, rewards, cost = rssm.initial_belief((), SETTINGS), jnp.zeros(3), [], 0.0
    for t in range(steps):
        action, belief = step(jr.fold_in(jr.key(seed), t), obs, belief, action, np.float32(kappa))
        obs, _, ended, _, info = env.step(np.asarray(action))
        rewards += info["rewards"]
        cost += info["cost"]
        if ended:
            break
    return float(0.99 ** np.arange(len(rewards)) @ rewards), float(np.sum(rewards)), cost


def main() -> None:
    from record import save

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--episodes", type=int, default=40, help="of data")
    parser.add_argument("--drives", type=int, default=5, help="for each κ")
    parser.add_argument("--steps", type=int, default=150, help="of a drive")
    options = parser.parse_args()
    env, rng, start = CarRacingSkid(), np.random.default_rng(0), time.perf_counter()
    episodes = tuple(record_episode(env, rng, number) for number in range(options.episodes))
    buffer = ImageBuffer(episodes, sum(len(episode.reward) for episode in episodes))
    skid_share = np.mean(np.concatenate([episode.cost for episode in episodes]))
    mean_return = np.mean([episode.reward.sum() for episode in episodes])
    print(
        f"data: {buffer.size} steps, {skid_share:.1%} skid, return {mean_return:.0f}",
        flush=True,
    )
    net = rssm.init(jr.key(0), 3, 3, SETTINGS)
    optimiser = rssm.optimiser(SETTINGS).init(net)

    def batch() -> Any:
        return buffer.take(buffer.pick(rng, (SETTINGS.batch,), SETTINGS.chunk), SETTINGS.chunk)

    for number in range(options.updates):
        net, optimiser, _ = rssm.update(
            net, optimiser, batch(), np.bool_(True), jr.fold_in(jr.key(1), number), SETTINGS
        )
    print(f"fitted: {options.updates} updates, {time.perf_counter() - start:.0f} s", flush=True)
    samples = [margin_samples(net, batch(), jr.key(number), SETTINGS) for number in range(20)]
    margins = binary.safety_margins(*(np.concatenate(part) for part in zip(*samples, strict=True)))

    params = rssm_rollout.prepare_rollout(net, SETTINGS)

    @jax.jit
    def step(key: Any, image: Any, belief: Any, last: Any, kappa: Any) -> Any:
        k_filter, k_plan = jr.split(key)
        embedded = rssm.encode(net, rssm.quantise(image)[None] + 0.5 / rssm.GREY_LEVELS)[0]
        noise = jr.normal(k_filter, (SETTINGS.stoch,))
        belief, _, _ = rssm.filter_step(net, belief, last, embedded, noise, min_sd=SETTINGS.min_sd)
        rollout, warm = partial(rssm_rollout.rollout, settings=SETTINGS), jnp.zeros((PLANNER.horizon, 3))
        actions, _, _ = plan(
            k_plan, params, belief, warm, Terms(kappa, np.float32(0), True), rollout=rollout, cem=PLANNER
        )
        return actions[0], belief

    rows = []
    for share in (None, 0.02, 0.1, 0.3):
        kappa = 0.0 if share is None else binary.kappa_at(margins, share)
        drives = np.array([drive(env, step, kappa, seed, options.steps) for seed in range(1, options.drives + 1)])
        label = "κ = 0" if share is None else f"p = {share}, κ = {kappa:.3f}"
        mean = drives.mean(0)
        print(
            f"{label}: discounted return {mean[0]:.1f}, return {mean[1]:.0f}, cost {mean[2]:.1f} in {options.steps} steps, "
            f"{int((drives[:, 2] > 0).sum())} of {len(drives)} skid",
            flush=True,
        )
        means = dict(zip(("discounted return", "return", "skids"), mean.tolist(), strict=True))
        rows.append({"κ": label, "drives": len(drives), **means, "that skid": int((drives[:, 2] > 0).sum())})
    save("driving", rows)


if __name__ == "__main__":
    main()
