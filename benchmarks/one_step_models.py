"""Measures whether the disagreement u of the one-step models says where an image model is wrong about costs.

    python benchmarks/one_step_models.py --task dot --seeds 0 1 2     # runs/benchmarks/one-step-models-dot.json

A model of the preset `fast` is fitted once to two thirds of the episodes of a scripted driver. The others are imagined in
stretches of a plan's length, with the actions that were taken. For each bootstrap and each input of the one-step models:

- error: rank correlation of u with the squared error of the one-step models' mean, step by step;
- logit, u: area under the curve for "a cost comes in this stretch", by the largest logit and by the largest u;
- κ: the κ·m that separates stretches best by max(logit + κ·m·u), and its area under the curve. A floor under u adds the
  same to all logits: it changes no order, so only u itself can make this area larger than the logit's.
"""

from __future__ import annotations

import argparse
from typing import Any

import driving
import jax
import jax.random as jr
import numpy as np
from record import save
from scipy.stats import rankdata, spearmanr

from capax.data.device_cache import ImageCache
from capax.data.image_episodes import ImageBuffer, ImageEpisode, SequenceIndex
from capax.envs.dot import GOAL, HAZARD, Dot
from capax.envs.racing import CarRacingSkid
from capax.models import rssm, rssm_rollout
from capax.models.rssm import RSSMSettings
from capax.models.rssm_fit import fit
from capax.training.methods import settings_of

WEIGHTS = (0.0, *np.geomspace(1.0, 1e6, 25))
"""Values of κ·m that are tried."""
HORIZON = 6


def dot_episode(env: Dot, rng: np.random.Generator, number: int) -> ImageEpisode:
    """A third random, a third straight to the goal, a third around the hazard; the last two with noise."""
    obs, _ = env.reset(seed=int(rng.integers(2**31)))
    images, steps, held = [obs], [], np.zeros(2)
    for t in range(50):
        held = rng.uniform(-1.0, 1.0, 2) if t % 8 == 0 else held
        aim = GOAL if number % 3 == 1 or env.place[0] > HAZARD[0] else HAZARD - np.array([0.0, rng.uniform(8.0, 16.0)])
        way = (aim - env.place) / max(1.0, float(np.hypot(*(aim - env.place))))
        action = np.clip(held if number % 3 == 0 else way + 0.3 * rng.normal(size=2), -1.0, 1.0)
        obs, reward, _, _, info = env.step(action)
        images.append(obs)
        steps.append((action, reward, info["cost"]))
    return ImageEpisode(np.stack(images), *(np.array(part, np.float32) for part in zip(*steps, strict=True)))


def area(score: np.ndarray, label: np.ndarray) -> float:
    """Area under the curve: how often a stretch with a cost has a higher score than one without."""
    ranks, count = rankdata(score), int(label.sum())
    return float((ranks[label].sum() - count * (count + 1) / 2) / (count * (label.size - count)))


def stretches(net: Any, episodes: tuple[ImageEpisode, ...], settings: RSSMSettings) -> tuple[np.ndarray, ...]:
    """Logit and u `[n, HORIZON]` of imagined stretches, whether each had a cost, and the errors of single steps with their u."""
    observe = jax.jit(lambda data: rssm.infer_beliefs(net, data, jr.key(0), settings))
    params = rssm_rollout.prepare_rollout(net, settings)
    imagine = jax.jit(lambda belief, action: rssm_rollout.rollout(params, belief, action, jr.key(1), settings=settings))
    logits, spreads, costs, errors, steps_u = [], [], [], [], []
    for episode in episodes:
        data = rssm.ImageBatch(*(part[None] for part in episode))
        belief = rssm.Belief(*(part[:, 0] for part in observe(data)[2]))
        first = np.arange(3, len(episode.reward) - HORIZON, 2)
        action = np.stack([episode.action[at : at + HORIZON] for at in first])
        imagined = imagine(rssm.Belief(*(part[first] for part in belief)), action)
        logits.append(imagined.cost[:, 0])
        spreads.append(imagined.uncertainty[:, 0] / settings.multiplier - settings.floor**2)
        costs.append(np.array([episode.cost[at : at + HORIZON].max() > 0.0 for at in first]))
        h = belief.h[1:] if settings.one_step == "next" else belief.h[:-1]
        predicted, u = rssm.disagreement(net.members, h, episode.action)
        errors.append(np.square(predicted.mean(0) - belief.s[1:]).mean(-1))
        steps_u.append(u)
    return tuple(np.concatenate(part) for part in (logits, spreads, costs, errors, steps_u))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("dot", "racing"), default="dot")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=36)
    parser.add_argument("--fits", type=int, default=12, help="of as many updates as the preset makes for an episode")
    parser.add_argument(
        "--variants", nargs="+", default=["none:now", "batch:now", "episodes:now", "none:next", "batch:next"]
    )
    options = parser.parse_args()
    env: Any = Dot() if options.task == "dot" else CarRacingSkid()
    record: Any = dot_episode if options.task == "dot" else driving.record_episode
    figures = []
    for seed in options.seeds:
        rng = np.random.default_rng(seed)
        episodes = tuple(record(env, rng, number + 100 * seed) for number in range(options.episodes))
        tried, fitted = episodes[::3], tuple(e for n, e in enumerate(episodes) if n % 3)
        buffer = ImageBuffer(fitted, sum(len(episode.reward) for episode in fitted))
        for variant in options.variants:
            bootstrap, one_step = variant.split(":")
            changes = {"bootstrap": bootstrap, "one_step": one_step}
            settings = settings_of("cap", "image", "fast", changes).rssm
            net = rssm.init(jr.key(seed), 3, len(episodes[0].action[0]), settings)
            optimiser, cache = rssm.optimiser(settings).init(net), ImageCache(buffer.size, settings.chunk)
            draw = np.random.default_rng(seed)
            for number in range(options.fits):
                pieces: SequenceIndex = buffer.pick(draw, (settings.updates, settings.batch), settings.chunk)
                net, optimiser, _, _ = fit(
                    net, optimiser, cache, buffer, pieces, True, jr.fold_in(jr.key(seed), number), settings
                )
            logit, u, cost, error, step_u = stretches(net, tried, settings)
            areas = [area((logit + weight * u).max(1), cost) for weight in WEIGHTS]
            best = int(np.argmax(areas))
            at = f", at κ·m = {WEIGHTS[best]:.0f}"
            figures.append(
                {
                    "bootstrap": bootstrap,
                    "input": one_step,
                    "seed": seed,
                    "u, median": float(np.median(u)),
                    "rank correlation of u and error": round(float(spearmanr(step_u, error).statistic), 2),
                    "area: logit": f"{areas[0]:.3f}",
                    "area: u": f"{area(u.max(1), cost):.3f}",
                    "area: best logit + κ·m·u": f"{areas[best]:.3f}{at}",
                    "stretches with a cost": f"{int(cost.sum())} of {cost.size}",
                }
            )
            print(figures[-1], flush=True)
            save(f"one-step-models-{options.task}", figures)


if __name__ == "__main__":
    main()
