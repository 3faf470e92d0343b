"""`capax.train`: from an environment and a limit to a run folder."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

from capax import __version__
from capax.agents.pets import Pets, PetsSettings
from capax.agents.start import Random, Scripted
from capax.collect import EpisodeCollector
from capax.conformal import Conformal
from capax.envs.adapt import Cost, Task, make
from capax.errors import InputError
from capax.initial import initial_episode
from capax.kappa import PI, Adam, Fixed, Rule
from capax.loop import Outcome
from capax.loop import run as loop
from capax.presets import settings_for
from capax.runs import folder, weights
from capax.runs.live import Live
from capax.runs.run import CONFIG, EPISODES, POLICY, Run
from capax.runs.tensorboard import Events
from capax.types import Agent, Spec

METHODS = ("cap", "ccem", "cem", "random")
RULES = ("conformal", "adam", "pi")
SAVE_EVERY = 5.0
"""Seconds between two savings of the policy, at least; the last one is always saved."""


def train(
    env: str | Callable[[], Any],
    *,
    steps: int,
    out: str | Path,
    method: str = "cap",
    kappa: str | float = "conformal",
    violation_rate: float = 0.02,
    cost_limit: float | None = None,
    discounted: bool | None = None,
    cost: Cost | None = None,
    initial_data: str | Path | Mapping[str, Any] | None = None,
    initial_policy: Callable[[Any], Any] | None = None,
    episode_steps: int | None = None,
    seed: int = 0,
    preset: str = "paper",
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Run:
    """Train an agent that keeps the cost of its episodes under a limit while it learns, and return the run.

    `env` is a Gymnasium id, or a function that makes an environment; its cost arrives as `info["cost"]`, as the cost of
    a six-item step, or through `cost(obs, action, next_obs, info)`. `cost_limit` and `discounted` are the task's own
    where it is registered with them; otherwise the limit is on the undiscounted cost of an episode. An episode that has
    begun is played to its end, so the last one may pass `steps`. The run is a folder, `out`.
    """
    task = make(env, cost=cost, episode_steps=episode_steps)
    try:
        check_run(steps, seed)
        steps, seed = int(steps), int(seed)
        chosen = settings_for(preset, settings)
        limit, spec = convention(task, method, cost_limit, discounted, chosen.gamma)
        agent = make_agent(task, spec, method, kappa, violation_rate, chosen, steps)
        initial = [] if initial_data is None else [initial_episode(initial_data, task)]
        starter = Random(task.action_dim)
        if initial_policy is not None:
            starter = Scripted(task.action_dim, initial_policy, task)
        start = chosen.start_steps if not initial or initial_policy is not None else 0
        config = {
            "task": task.name,
            "method": method,
            "kappa": (kappa if kappa in RULES else float(kappa)) if method == "cap" else None,
            "violation_rate": float(violation_rate),
            "cost_limit": None if math.isinf(limit) else limit,
            "discounted": spec.discounted,
            "gamma": spec.gamma,
            "steps": steps,
            "seed": seed,
            "preset": preset,
            "version": __version__,
            "commit": commit(),
            "episode_steps": spec.episode_steps,
            "made_by": "id" if isinstance(env, str) else "function",
            "own_cost": cost is not None,
            "initial_data": str(initial_data) if isinstance(initial_data, str | Path) else initial_data is not None,
            "initial_policy": initial_policy is not None,
            "obs_dim": task.obs_dim,
            "action_low": task.low.tolist(),
            "action_high": task.high.tolist(),
            "action_shape": list(task.env.action_space.shape),
            "action_dtype": str(task.env.action_space.dtype),
            "settings": asdict(chosen),
            "device": jax.devices()[0].device_kind,
        }
        text, out = folder.to_json(config), Path(out)
        began = out / EPISODES
        failed = began.is_file() and began.stat().st_size == 0  # a run that ended in its first episode: nothing to lose
        folder.prepare(out, (CONFIG, EPISODES, POLICY), force or failed)
        for old in (began, out / POLICY, *out.glob("events.out.tfevents.*")):
            old.unlink(missing_ok=True)
        folder.write(out / CONFIG, text)
        with Live(task=task.name, steps=steps, limit=limit, discounted=spec.discounted) as live:
            counted = Counted(live)
            collector = EpisodeCollector(task, spec, counted.step)
            outcomes = loop(
                agent,
                collector,
                start=steps if method == "random" else start,
                steps=steps,
                key=jr.key(seed),
                starter=starter,
                initial=initial,
            )
            record(outcomes, out, limit, spec, live)
    finally:
        task.close()
    return Run(out)


class Counted:
    """Tells the live line of each step."""

    def __init__(self, live: Live) -> None:
        self.live, self.done = live, 0

    def step(self) -> None:
        self.done += 1
        self.live.step(self.done)


def record(outcomes: Any, out: Path, limit: float, spec: Spec, live: Live) -> None:
    """Write a row per episode as they come, and the policy now and then and at the end."""
    began = mark = time.monotonic()
    violations, before, saved = 0, 0, -math.inf
    last: Outcome | None = None
    events = Events(out)
    try:
        with (out / EPISODES).open("w") as file:
            for outcome in outcomes:
                now = time.monotonic()
                violation = outcome.episode.paid > limit
                violations += violation
                clock = {"seconds": round(now - began, 3), "steps_per_second": rate(outcome.steps - before, now - mark)}
                row = make_row(outcome, limit, spec, violation, violations) | {"time": clock}
                file.write(json.dumps(row, allow_nan=False) + "\n")
                file.flush()
                events.scalars(outcome.steps, scalars(row), time.time())
                live.episode(row)
                if row.get("feasible") == 0.0:
                    live.warn(nothing_feasible(row, planned_to=spec.limit))
                mark, before, last = now, outcome.steps, outcome
                if now - saved > SAVE_EVERY:
                    save_policy(out, outcome.state)
                    saved, last = now, None
    finally:
        events.close()
        if last is not None:
            save_policy(out, last.state)


def make_row(outcome: Outcome, limit: float, spec: Spec, violation: bool, violations: int) -> dict[str, Any]:
    """What `episodes.jsonl` says of an episode; all that depends on the clock is added under `time`."""
    episode, metrics = outcome.episode, dict(outcome.metrics)
    weights = spec.gamma ** np.arange(len(episode.reward))
    row: dict[str, Any] = {
        "episode": outcome.number,
        "steps": outcome.steps,
        "phase": "random" if episode.random else "plan",
        "return": float(episode.reward.sum()),
        "discounted_return": float(weights @ episode.reward),
        "cost": float(episode.cost.sum()),
        "discounted_cost": float(weights @ episode.cost),
        "limit": None if math.isinf(limit) else limit,
        "violation": violation,
        "violations": violations,
        "kappa": metrics.pop("kappa", None),
        "length": len(episode.reward),
        "terminated": bool(episode.terminated[-1]),
        "model_loss": metrics.pop("model_loss", None),
        "feasible": metrics.pop("plan_feasible", None),
    }
    plan_only = {f"plan_{name}" for name in ("cost", "uncertainty", "first_cost", "first_uncertainty", "penalised")}
    row |= {name: value for name, value in metrics.items() if name not in plan_only}
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in row.items()}


def nothing_feasible(row: Mapping[str, Any], planned_to: float) -> str:
    """What to do when the model saw no way to keep the limit; said once, so it names no episode."""
    if math.isinf(planned_to):
        return "in a whole episode no plan was finite: the model has diverged, so lower learning_rate."
    return (
        f"in a whole episode no plan was within the limit of {planned_to:g}, so the least costly was taken; if that goes on, "
        "raise the cost limit or the violation rate, choose a smaller κ (--kappa), or begin with better data (initial_data)."
    )


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row, for TensorBoard."""
    return {
        name: float(value)
        for name, value in {**row, **row["time"]}.items()
        if isinstance(value, int | float) and name not in ("steps", "seconds")
    }


def rate(steps: int, seconds: float) -> float:
    return round(steps / seconds, 2) if seconds > 0.0 else 0.0


def convention(
    task: Task, method: str, cost_limit: float | None, discounted: bool | None, gamma: float
) -> tuple[float, Spec]:
    """The limit that violations are counted by, and what the planner is held to (nothing, for CEM)."""
    if method not in METHODS:
        raise InputError(f"the method is {method!r}: choose {', '.join(METHODS)}.")
    limit = task.cost_limit if cost_limit is None else cost_limit
    if limit is None and method in ("cap", "ccem"):
        raise InputError(
            f"{task.name} is not registered with a cost limit: give one with --cost-limit (cost_limit=), the cost "
            "that an episode may have."
        )
    if limit is not None and (isinstance(limit, bool | str) or not isinstance(limit, int | float | np.number)):
        raise InputError(f"the cost limit is {limit!r}: give a number >= 0.")
    limit = math.inf if limit is None else float(limit)
    if not limit >= 0.0:
        raise InputError(f"the cost limit is {limit}: give a number >= 0.")
    if not isinstance(discounted, bool | np.bool_ | None):
        raise InputError(f"discounted is {discounted!r}: give True, False or None for the task's own convention.")
    by_discount = bool(task.discounted if discounted is None else discounted)
    if task.episode_steps is None and not by_discount:
        raise InputError(
            f"{task.name} sets no end to its episodes, so an undiscounted limit needs one: give --episode-steps "
            "(episode_steps=), or say --discounted."
        )
    if task.episode_steps is None:
        task.episode_steps = round(10.0 / (1.0 - gamma))  # what comes later weighs less than e^−10
    return limit, Spec(math.inf if method == "cem" else limit, gamma, by_discount, task.episode_steps)


def make_agent(
    task: Task, spec: Spec, method: str, kappa: str | float, violation_rate: float, settings: PetsSettings, steps: int
) -> Agent[Any]:
    """The agent that a method names."""
    rule = make_rule(kappa, violation_rate)
    if method == "random":
        return Random(task.action_dim)
    if method in ("ccem", "cem"):
        rule = Fixed(0.0)
    capacity = min(settings.buffer, steps + (spec.episode_steps or 0))
    return Pets(spec, rule, task.obs_dim, task.action_dim, settings, max(capacity, settings.start_steps))


def make_rule(kappa: str | float, violation_rate: float) -> Rule:
    """The rule that `--kappa` names, or a κ that stays."""
    if not isinstance(violation_rate, int | float) or not 0.0 < violation_rate < 1.0:
        raise InputError(f"the violation rate is {violation_rate!r}: give a number above 0 and below 1.")
    if kappa == "conformal":
        return Conformal(violation_rate)
    if kappa == "adam":
        return Adam()
    if kappa == "pi":
        return PI(start=1.0)
    try:
        return Fixed(float(kappa))
    except InputError:
        raise
    except (TypeError, ValueError):
        raise InputError(f"kappa is {kappa!r}: choose {', '.join(RULES)}, or give a number >= 0.") from None


def check_run(steps: int, seed: int) -> None:
    """Refuse what cannot be run."""
    if not isinstance(steps, int | np.integer) or isinstance(steps, bool) or steps < 1:
        raise InputError(f"steps is {steps!r}: give a whole number >= 1.")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise InputError(f"the seed is {seed!r}: give a whole number from 0 to 2147483647.")


def save_policy(out: Path, state: Any) -> None:
    """Keep what acting needs."""
    if getattr(state, "scaling", None) is not None:
        kappa = np.float64(state.rule.kappa)
        kept = {"model": state.model, "scaling": state.scaling, "kappa": kappa, "origin": state.origin}
        weights.save(out / POLICY, kept)


def commit() -> str | None:
    """The commit of the source that runs, if it is a checkout; `CAPAX_COMMIT` says it for a copy of one."""
    if "CAPAX_COMMIT" in os.environ:
        return os.environ["CAPAX_COMMIT"]
    try:
        here = Path(__file__).parent
        command = ["git", "-C", str(here), "rev-parse", "HEAD"]
        inside = ["git", "-C", str(here), "ls-files", "--error-unmatch", __file__]
        if subprocess.run(inside, capture_output=True, timeout=10).returncode:
            return None  # another repository that capax happens to be installed in
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None
