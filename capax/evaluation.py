"""What does a trained policy earn and pay in fresh episodes?"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from capax import video
from capax.agents.planet import Planet
from capax.collect import EpisodeCollector
from capax.configuration import check_count, check_seed, loaded, path_of
from capax.envs.adapt import Cost, Task, make
from capax.errors import InputError
from capax.policy import restore
from capax.recording import discounted_return
from capax.report.imagined import Watched
from capax.runs.run import Run
from capax.training import same_sizes
from capax.types import Spec

FRESH = 0x5EED
"""Folded into the seed, so that an evaluation meets other episodes than the training with the same seed did."""

MEANS = ("return", "discounted_return", "cost", "discounted_cost")


class Evaluation(NamedTuple):
    """Episodes of one policy, and their means."""

    rows: list[dict[str, Any]]
    mean_return: float
    mean_discounted_return: float
    mean_cost: float
    mean_discounted_cost: float
    limit: float | None
    discounted: bool
    violations: int
    video: str | None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        named = self._asdict()
        return {**{name: value for name, value in named.items() if name != "rows"}, "episodes": named["rows"]}


def evaluate(
    run: str | Path | Run,
    *,
    episodes: int = 10,
    seed: int = 0,
    env: Callable[[], Any] | None = None,
    cost: Cost | None = None,
    film: str | Path | None = None,
    on_episode: Callable[[dict[str, Any]], None] = lambda row: None,
) -> Evaluation:
    """Play `episodes` episodes with the policy of a run; nothing is learned from them.

    `env` and `cost` are needed again where the run was made with functions. `film` names an mp4 of the first episode.
    """
    run = run if isinstance(run, Run) else Run(path_of(run))
    config = loaded(run)
    episodes, seed = check_count(episodes, "episodes"), check_seed(seed)
    if config["kind"] == "finite":
        raise InputError(
            f"{run.folder} is of a finite world, whose rows already hold each policy's exact return and cost: read "
            "episodes.jsonl, or act with capax.load(run)."
        )
    task_id = run.task
    agent, state = restore(run)
    if env is None and config["made_by"] == "function":
        raise InputError(
            f"{run.folder} was trained in an environment that a function made: call capax.evaluate(run, env=make)."
        )
    if cost is None and config["own_cost"]:
        raise InputError(f"{run.folder} was trained with a cost function: call capax.evaluate(run, cost=...) with it.")
    watched = film is not None and isinstance(agent, Planet)  # its film shows what it sees, which needs no drawing
    render = None if film is None or watched else "rgb_array"
    if film is not None:
        prepare_film(Path(film), "" if watched else config["task"])
    task = make(env or task_id, cost=cost, episode_steps=config["episode_steps"], render_mode=render)
    limit = math.inf if config["cost_limit"] is None else config["cost_limit"]
    spec = Spec(limit, config["gamma"], config["discounted"], config["episode_steps"], config["repeat"])
    try:
        same_sizes(task, config)
        rows: list[dict[str, Any]] = []
        frames: list[Any] = []
        for number in range(episodes):
            filmed = film is not None and number == 0

            eyes = Watched(agent) if filmed and isinstance(agent, Planet) else None

            def draw(action: Any, step: Any, filmed: bool = filmed, eyes: Any = eyes) -> None:
                if eyes is not None:
                    frames.append(eyes.frame(state, len(frames), step.cost))
                elif filmed:
                    frames.append(video.frame_of(task.render))

            key = jr.fold_in(jr.fold_in(jr.key(seed), FRESH), number)
            actor: Any = agent if eyes is None else eyes
            episode = EpisodeCollector(task, spec, on_step=draw).collect(actor, state, key)
            weights = spec.discounts(len(episode.reward))
            row = {
                "episode": number,
                "return": float(episode.reward.sum()),
                "discounted_return": discounted_return(episode, spec),
                "cost": float(episode.cost.sum()),
                "discounted_cost": float(weights @ episode.cost),
                "violation": episode.paid > limit,
                "length": episode.taken,
            }
            rows.append(row)
            on_episode(row)
        if film is not None:
            video.write(Path(film), frames, fps_of(task))
    finally:
        task.close()
    means: dict[str, Any] = {f"mean_{n}": float(np.mean([row[n] for row in rows])) for n in MEANS}
    return Evaluation(
        rows=rows,
        limit=config["cost_limit"],
        discounted=config["discounted"],
        violations=sum(bool(row["violation"]) for row in rows),
        video=None if film is None else str(film),
        **means,
    )


def prepare_film(film: Path, task: str) -> None:
    """See before the first episode that a film can be drawn and written."""
    if not film.parent.is_dir():
        raise InputError(f"{film.parent} is no folder: name a film in one that is there.")
    try:
        video.headless(mujoco=find_spec("mujoco") is not None)  # any environment may turn out to be MuJoCo's
    except InputError:
        if task.startswith("capax/") and "Velocity" in task:
            raise


def fps_of(task: Task) -> int:
    """Frames per second of the environment's own metadata."""
    return int((getattr(task.env, "metadata", None) or {}).get("render_fps", 30) or 30)
