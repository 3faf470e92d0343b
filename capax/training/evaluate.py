"""`capax.evaluate`: what a trained policy earns and pays in fresh episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np

from capax import runtime
from capax.core.contracts import Agent, Imagines
from capax.core.costs import total_cost
from capax.core.errors import InputError
from capax.envs import video
from capax.envs.make import make, registered_spec
from capax.envs.task import Cost, GymTask, Step
from capax.runs.config import RunConfig
from capax.runs.run import Run
from capax.training.collect import EpisodeCollector
from capax.training.film import FilmedAgent
from capax.training.foreign import parts_of
from capax.training.policy import restore
from capax.training.request import check_count, check_seed, path_of
from capax.training.rows import discounted_return
from capax.training.train import check_same_spaces

FRESH = 0x5EED
"""Folded into the seed, so that an evaluation has other episodes than the training with the same seed had."""
MEANS = ("return", "discounted_return", "cost", "discounted_cost")
DEFAULT_FPS = 30


class Evaluation(NamedTuple):
    """Episodes of one policy, and their means. All of them are planned: none is random."""

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
    env: str | Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    cost: str | Cost | None = None,
    kappa: Any = None,
    film: str | Path | None = None,
    on_episode: Callable[[dict[str, Any]], Any] = lambda row: None,
) -> Evaluation:
    """Play `episodes` episodes with the policy of a run. Nothing is learned from them.

    `env`, `cost` and `kappa` are needed again if the run was trained with objects of your own. A folder's own names are used
    only if you have named the same before: `env` (an id), `cost` (MODULE:FUNCTION) and `env_kwargs` name them again, and are
    remembered. `film` names an mp4 of the first episode.
    """
    runtime.configure()
    run = run if isinstance(run, Run) else Run(path_of(run))
    config = run.config
    episodes, seed = check_count(episodes, "episodes"), check_seed(seed)
    if config.kind == "finite":
        raise InputError(
            f"{run.folder} is of a finite world, whose rows already hold each policy's exact return and cost: read "
            "episodes.jsonl, or act with capax.load(run)."
        )
    parts = parts_of(run, config, "capax.evaluate", env, env_kwargs, cost)
    if isinstance(parts.env, str):
        registered_spec(parts.env)  # imports the task's module, which may register the method
    agent, state = restore(run, kappa)
    decoded = film is not None and isinstance(agent, Imagines)  # such a film shows what the agent sees: no drawing
    if film is not None:
        _check_film(Path(film), "" if decoded else config.task)
    render = None if film is None or decoded else "rgb_array"
    task = make(
        parts.env if isinstance(parts.env, str) else partial(parts.env, **parts.env_kwargs),
        cost=parts.cost,
        episode_steps=config.episode_steps,
        render_mode=render,
        env_kwargs=parts.env_kwargs if isinstance(parts.env, str) else None,
        allow_negative_costs=config.allow_negative_costs,
    )
    frames: list[Any] = []
    try:
        check_same_spaces(task, config)
        rows = []
        for number in range(episodes):
            key = jr.fold_in(jr.fold_in(jr.key(seed), FRESH), number)
            filming = frames if film is not None and number == 0 else None
            rows.append(_play(task, config, agent, state, key, number, filming))
            on_episode(dict(rows[-1]))
        if film is not None:
            video.write(Path(film), frames, frames_per_second(task))
    finally:
        task.close()
    means: dict[str, Any] = {f"mean_{n}": float(np.mean([row[n] for row in rows])) for n in MEANS}
    return Evaluation(
        rows=rows,
        limit=config.cost_limit,
        discounted=config.discounted,
        violations=sum(bool(row["violation"]) for row in rows),
        video=None if film is None else str(film),
        **means,
    )


def _play(
    task: GymTask, config: RunConfig, agent: Agent[Any], state: Any, key: Any, number: int, frames: list[Any] | None
) -> dict[str, Any]:
    """The row of one episode; its pictures are appended to `frames`."""
    spec = config.spec()
    filmed = FilmedAgent(agent) if frames is not None and isinstance(agent, Imagines) else None

    def draw(action: Any, step: Step) -> None:
        if frames is None:
            return
        frames.append(video.frame_of(task.render) if filmed is None else filmed.frame(state, len(frames), step.cost))

    actor: Agent[Any] = agent if filmed is None else filmed
    episode = EpisodeCollector(task, spec, on_step=draw).collect(actor, state, key)
    weights = spec.discounts(len(episode.reward))
    return {
        "episode": number,
        "return": float(episode.reward.sum()),
        "discounted_return": discounted_return(episode, spec),
        "cost": total_cost(episode.cost),
        "discounted_cost": total_cost(episode.cost, weights),
        "violation": config.violated_by(episode.paid),
        "length": episode.env_steps,
    }


def _check_film(film: Path, task: str) -> None:
    """Check before the first episode that a film can be drawn and written."""
    if not film.parent.is_dir():
        raise InputError(f"{film.parent} is not a folder: name a film in one that exists.")
    try:
        video.headless(mujoco=find_spec("mujoco") is not None)  # any environment may turn out to be MuJoCo's
    except InputError:
        if task.startswith("capax/") and "Velocity" in task:
            raise


def frames_per_second(task: GymTask) -> int:
    """The frame rate in the environment's own metadata."""
    return int((getattr(task.env, "metadata", None) or {}).get("render_fps", DEFAULT_FPS) or DEFAULT_FPS)
