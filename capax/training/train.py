"""`capax.train` and `capax.resume`: from an environment and a limit to a run folder, in one go or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax.random as jr

from capax import runtime
from capax.core.errors import InputError
from capax.core.loop import begin
from capax.core.types import Episode
from capax.data.logged_data import initial_episode
from capax.envs.cost_function import import_cost
from capax.envs.finite_task import FiniteTask
from capax.envs.open_task import open_task
from capax.envs.task import Cost, GymTask
from capax.runs import trusted
from capax.runs.checkpoint import Checkpoints, Saved
from capax.runs.config import RunConfig
from capax.runs.folder import Folder
from capax.runs.loggers import Loggers
from capax.runs.run import CONFIG, EPISODES, INTERRUPTED, Run
from capax.runs.state import state_like
from capax.training.build import Built, UserObjects, build, check_precision, own_rule, starter_of
from capax.training.folders import check_files, check_own, created_folder, on_disk, prepare
from capax.training.foreign import check_data, parts_of
from capax.training.lane_runs import Lanes, train_lanes
from capax.training.recorder import count_interrupted, reconcile
from capax.training.request import Request, check_count, path_of, resolve
from capax.training.run_loop import Hooks, Session, hooks_of, run_loop


def train(
    env: str | Callable[..., Any],
    *,
    steps: int = 100_000,
    out: str | Path | None = None,
    method: str = "cap",
    kappa: Any = None,
    violation_rate: float | None = None,
    cost_limit: float | None = None,
    discounted: bool | None = None,
    cost: str | Cost | None = None,
    allow_negative_costs: bool = False,
    termination_cost: float | None = None,
    initial_data: str | Path | Mapping[str, Any] | None = None,
    initial_policy: Callable[[Any], Any] | None = None,
    episode_steps: int | None = None,
    seed: int = 0,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    loggers: Loggers = None,
    on_episode: Callable[[dict[str, Any]], Any] | None = None,
    force: bool = False,
    resume: bool = False,
    lanes: Lanes | None = None,
) -> Any:
    """Train an agent that keeps the cost of its episodes under a limit while it learns, and return the `Run`.

    `env` is a Gymnasium id, or a function or class that makes an environment, which gets `env_kwargs`. Its cost is
    `info["cost"]`, the cost of a six-item step, or `cost(obs, action, next_obs, info)`, which may be named as
    MODULE:FUNCTION. Negative costs are refused, since they would offset others, unless `allow_negative_costs`. `cost_limit`
    and `discounted` are the task's own if it is registered with them; otherwise the limit is on the undiscounted cost of an
    episode. A termination that a plan imagines saves no cost: each step after it is charged what the plan's steps cost, or
    `termination_cost`, which is 0 where a termination is the goal. If nothing says how long an episode is, the first random
    episode that the environment truncates shows it.

    `kappa` is a rule's name, a number for a κ that stays, or a rule of your own. `preset` is `fast` where JAX has no GPU and
    `paper` where it has one; `published` has the conventions of the authors' code (docs/published.md). An episode that has
    begun is played to its end, so the last one may pass `steps`.

    The run is a folder, `out` (None: `runs/NAME-METHOD-SEED`). With `resume`, a run that exists is continued instead of
    refused; with `force`, it is overwritten. `loggers` get every row in addition to `episodes.jsonl` (None: TensorBoard if
    tensorboardX is installed). `on_episode(row)` is called after every episode; if it returns False, training stops there
    and can be resumed. With `lanes`, several runs are trained at once, each in a folder of its own within `out`: as many as
    `lanes` says, with seeds from `seed` on, or one for each of its sets of options; a list of runs is returned.
    """
    request = Request(
        env=env, steps=steps, out=out, method=method, kappa=kappa, violation_rate=violation_rate, cost_limit=cost_limit,
        discounted=discounted, cost=cost, allow_negative_costs=allow_negative_costs, initial_data=initial_data,
        initial_policy=initial_policy, episode_steps=episode_steps, seed=seed, preset=preset, settings=settings,
        env_kwargs=env_kwargs, loggers=loggers, on_episode=on_episode, force=force, resume=resume,
        termination_cost=termination_cost,
    )  # fmt: skip
    return train_request(request) if lanes is None else train_lanes(train_request, request, lanes)


def train_request(request: Request) -> Run:
    """The run that a request asks for."""
    runtime.configure()
    run, hooks = Run(request.folder), hooks_of(request.loggers, request.on_episode)
    make_task = partial(
        open_task,
        request.env,
        import_cost(request.cost) if isinstance(request.cost, str) else request.cost,
        request.episode_steps,
        request.env_kwargs,
        request.allow_negative_costs,
    )
    task = make_task()
    try:
        exists = request.resume and run.exists
        config = resolve(request, task, run.config if exists else None)
        trusted.remember(trusted.facts_of(config))
        own = UserObjects(
            own_rule(config, request.kappa if config.own_kappa else None), _starter(task, request.initial_policy)
        )
        built = _build(config, task, own)
        initial = _initial(request.initial_data, task)
        with created_folder(run, check_own) as folder:
            if exists:
                return _continue(run, folder, _same_run(run, config), task, make_task, own, hooks, initial)
            prepare(run, folder, request.force)
            at, checkpoints = begin(built.agent, jr.key(config.seed), initial), Checkpoints(folder)
            with on_disk(run):
                folder.write(CONFIG, config.to_json())
                checkpoints.save(at, None, config)
            run_loop(Session(run, folder, config, task, make_task, own, hooks, checkpoints), built, at)
    finally:
        task.close()
    return run


def resume(
    run: str | Path | Run,
    *,
    steps: int | None = None,
    env: str | Callable[..., Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    cost: str | Cost | None = None,
    initial_policy: Callable[[Any], Any] | None = None,
    kappa: Any = None,
    loggers: Loggers = None,
    on_episode: Callable[[dict[str, Any]], Any] | None = None,
) -> Run:
    """Continue a run from its newest whole checkpoint, until it has `steps` steps in all (None: as many as it was to have).

    `env`, `cost`, `initial_policy` and `kappa` are needed again if the run was trained with objects of your own. A folder's own
    names are used only if you have named the same before: `env` (an id), `cost` (MODULE:FUNCTION) and `env_kwargs` name them
    again, and are remembered. On a CPU the rows are those of a run that never stopped.
    """
    runtime.configure()
    run = run if isinstance(run, Run) else Run(path_of(run))
    config = run.config
    if steps is not None:
        config = config.with_steps(check_count(steps, "steps"))
    rule = own_rule(config, kappa)
    hooks = hooks_of(loggers, on_episode)
    parts = parts_of(run, config, "capax.resume", env, env_kwargs, cost)
    make_task = partial(
        open_task, parts.env, parts.cost, config.episode_steps, parts.env_kwargs, config.allow_negative_costs
    )
    task = make_task()
    try:
        own = UserObjects(rule, _starter(task, initial_policy))
        with created_folder(run) as folder:
            return _continue(run, folder, config, task, make_task, own, hooks)
    finally:
        task.close()


def _starter(task: GymTask | FiniteTask, policy: Any) -> Any:
    return None if isinstance(task, FiniteTask) else starter_of(task, policy)


def _initial(data: Any, task: GymTask | FiniteTask) -> list[Episode]:
    return [] if data is None or isinstance(task, FiniteTask) else [initial_episode(data, task)]


def _build(config: RunConfig, task: GymTask | FiniteTask, own: UserObjects) -> Built:
    """The agent and start of a run in this task, which must be the run's."""
    if config.kind != task.kind:
        raise InputError(
            f"config.json is of the kind {config.kind}, its task of the kind {task.kind}: restore that file, or give the "
            "environment that was trained in."
        )
    if isinstance(task, FiniteTask):
        cmdp = task.world.cmdp
        if (config.states, config.actions) != (cmdp.S, cmdp.A):
            raise InputError(f"the world has {cmdp.S} states, the run {config.states}: give the same one.")
        return build(config, task.world, own)
    check_same_spaces(task, config)
    task.episode_steps = config.episode_steps
    return build(config, None, own)


def check_same_spaces(task: GymTask, config: RunConfig) -> None:
    """Refuse an environment with other spaces than the one that was trained in."""
    own = task.obs_dim, task.image, task.low.tolist(), task.high.tolist()
    if own != (config.obs_dim, config.image, list(config.action_low), list(config.action_high)):
        raise InputError(
            f"{task.name} has {task.image or task.obs_dim} observations and actions between {task.low.tolist()} and "
            f"{task.high.tolist()}, the run has {config.image or config.obs_dim} and {list(config.action_low)} to "
            f"{list(config.action_high)}: give the environment that was trained in."
        )


def _same_run(run: Run, config: RunConfig) -> RunConfig:
    """The run's own configuration with the new number of steps; refused if anything else differs."""
    before = run.config
    changed = before.differences(config)
    if before.episode_steps is None and config.episode_steps is not None:  # now the user has said how long episodes are
        changed = [name for name in changed if name != "episode_steps"]
        before = before.with_length(config.episode_steps, config.capacity)
    if changed:
        if "preset" in changed:  # the sizes follow from it
            changed = [name for name in changed if name != "settings"]
        old, new = before.as_dict(), config.as_dict()
        named = ", ".join(text for name in changed for text in _differing(name, old[name], new[name]))
        raise InputError(
            f"the run in {run.folder} was begun with other settings ({named}): give these again, or choose another --out."
        )
    return before.with_steps(config.steps)


def _differing(name: str, old: Any, new: Any) -> Iterator[str]:
    """Each value of the run that differs, with its name; of settings only those that differ."""
    if isinstance(old, dict) and isinstance(new, dict) and name != "env_kwargs":
        for entry in old:
            yield from _differing(entry, old[entry], new.get(entry))
        yield from (f"{entry} by default" for entry in new if entry not in old)
    elif old != new:
        yield f"{name} {old!r}"


def _continue(
    run: Run,
    folder: Folder,
    config: RunConfig,
    task: GymTask | FiniteTask,
    make_task: Callable[[], Any],
    own: UserObjects,
    hooks: Hooks,
    initial: list[Episode] | None = None,
) -> Run:
    """Continue from the newest whole checkpoint; `initial` is what the run begins with, if it is at hand."""
    check_precision(config)
    built = _build(config, task, own)
    key, checkpoints = jr.key(config.seed), Checkpoints(folder)
    check_files(folder)
    with on_disk(run):
        folder.remove_temporaries(CONFIG, EPISODES, INTERRUPTED)
        folder.unshare((EPISODES, INTERRUPTED))
        saved, warnings = checkpoints.newest(config, state_like(built.agent, key))
        if saved is None and run.episodes:
            raise InputError(f"{run.folder} has episodes but no checkpoint: restore one, or retrain with --force.")
        if saved is None:  # stopped before it began
            at = begin(built.agent, key, _logged(run, config, task) if initial is None else initial)
            checkpoints.save(at, None, config)
            saved = Saved(at, None, config.version)
        repeats = count_interrupted(run, folder, checkpoints, config, "killed")
        reconcile(run, folder, saved)
    at, rows = saved.progress, run.episodes
    if at.steps >= config.steps:
        return run
    if at.steps < built.start and config.initial_policy and own.starter is None:
        raise InputError(
            f"{run.folder} was stopped while its initial policy acted: capax.resume(run, initial_policy=...) in Python "
            "continues it."
        )
    if config != run.config:
        with on_disk(run):
            folder.write(CONFIG, config.to_json())
    session = Session(run, folder, config, task, make_task, own, hooks, checkpoints)
    run_loop(session, built, at, rows[-1] if rows else None, warnings, repeats)
    return run


def _logged(run: Run, config: RunConfig, task: GymTask | FiniteTask) -> list[Episode]:
    """The logged data that a run begins with, read again."""
    if not config.initial_data or isinstance(task, FiniteTask):
        return []
    if not isinstance(config.initial_data, str):
        raise InputError(f"{run.folder} was stopped before it began, so nothing is lost: retrain with --force.")
    check_data(run, config.initial_data)
    return _initial(config.initial_data, task)
