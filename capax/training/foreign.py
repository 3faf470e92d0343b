"""The parts of an existing run's task: those that are handed over now, or those that its folder names, if they are trusted.

A folder may come from somebody else. So nothing that it names is imported, constructed or opened unless the user has named
the same before (`capax.runs.trusted`), or names it now.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from capax.core.checks import one_line
from capax.core.errors import InputError
from capax.envs.cost_function import import_cost
from capax.envs.task import Cost
from capax.runs import trusted
from capax.runs.config import RunConfig, Table
from capax.runs.run import Run
from capax.runs.trusted import Fact

MAX_SHOWN = 160
"""Letters of a name that a message shows."""


class Parts(NamedTuple):
    """All that makes the task of a run."""

    env: str | Callable[..., Any]
    env_kwargs: Mapping[str, Any]
    cost: Cost | None


def parts_of(
    run: Run,
    config: RunConfig,
    call: str,
    env: str | Callable[..., Any] | None,
    env_kwargs: Mapping[str, Any] | None,
    cost: str | Cost | None,
) -> Parts:
    """Take what the user hands over, in place of what the folder names. All else that it names must be trusted.

    `call` is the function in Python that takes the missing objects, for messages.
    """
    kwargs = config.env_kwargs if env_kwargs is None else Table()("env_kwargs", env_kwargs)
    named = (
        trusted.env_fact(env) if isinstance(env, str) else None,
        trusted.cost_fact(cost) if isinstance(cost, str) else None,
        None if env_kwargs is None else trusted.kwargs_fact(config.task, kwargs),
    )
    trusted.remember(fact for fact in named if fact is not None)
    if env is None:
        if config.made_by == "function":
            raise InputError(
                f"{run.folder} was trained in an environment that a function made: call {call}(run, env=make) in Python."
            )
        _check_env(run, config.task)
    if env_kwargs is None:
        _check_kwargs(run, config)
    if cost is None and config.own_cost:
        if config.cost_function is None:
            raise InputError(
                f"{run.folder} was trained with a cost function: give it again with --cost MODULE:FUNCTION, or call "
                f"{call}(run, cost=...) with it."
            )
        _check_cost(run, config.cost_function)
        cost = config.cost_function
    env = config.task if env is None else env
    _check_package(
        run,
        trusted.env_fact(env) if isinstance(env, str) else None,
        trusted.cost_fact(cost) if isinstance(cost, str) else None,
    )
    return Parts(env, kwargs, import_cost(cost) if isinstance(cost, str) else cost)


def check_data(run: Run, path: str) -> None:
    """Refuse a file of logged data that this user has never named."""
    if not trusted.is_trusted(trusted.data_fact(path)):
        raise InputError(
            f"{run.folder} begins with logged data that you have never named, {_shown(path)}: begin the run again, with "
            "--initial-data and --force."
        )


def _check_env(run: Run, task: str) -> None:
    module = task.rpartition(":")[0]
    if module:
        _check_module(run, module, trusted.env_fact(task), "--env", task)


def _check_cost(run: Run, function: str) -> None:
    _check_module(run, function, trusted.cost_fact(function), "--cost", function)


def _check_module(run: Run, name: str, fact: Fact | None, option: str, value: str) -> None:
    """Refuse a module, or a function of one, that this user has never named, or that is in another file now."""
    allow = f"allow it with {option} {shlex.quote(_shown(value))} ({option[2:]}= in Python)"
    what = "the module" if option == "--env" else "the cost function"
    if fact is None:
        raise InputError(
            f"{run.folder} names {what} {_shown(name)}, which is not found here: go to the folder of its module or install "
            f"it, and if you trust it, {allow}."
        )
    if trusted.is_trusted(fact):
        return
    file = _shown(fact[-1]) or "no file"
    if trusted.was_another_file(fact):
        raise InputError(
            f"{run.folder} names {what} {_shown(name)}, which is now in another file than the one that you have named, "
            f"{file}: if you trust that file, {allow}, which runs it."
        )
    raise InputError(
        f"{run.folder} names {what} {_shown(name)} of {file}, which you have never named: if you trust that file, {allow}, "
        "which runs it."
    )


def _check_package(run: Run, *used: Fact | None) -> None:
    """Refuse a run folder that a module of the user's may import by mistake: as a package it comes before a file of its name."""
    files = {file for fact in used if fact is not None for file in fact[2:]}
    own = [path for path in sorted(run.folder.glob("__init__.*")) if os.path.realpath(path) not in files]
    if files and own:
        raise InputError(
            f"{run.folder} holds {_shown(own[0].name)}, so a module of yours could import the folder: delete that file, since "
            "run folders hold no code."
        )


def _check_kwargs(run: Run, config: RunConfig) -> None:
    fact = trusted.kwargs_fact(config.task, config.env_kwargs)
    if fact is None or trusted.is_trusted(fact):
        return
    pairs = " ".join(shlex.quote(f"{name}={json.dumps(value)}") for name, value in config.env_kwargs.items())
    raise InputError(
        f"{run.folder} gives its environment arguments that you have never given (env_kwargs in its config.json): "
        f"if you trust them, give them again with --env-kwargs {_shown(pairs)} (env_kwargs= in Python)."
    )


def _shown(text: str) -> str:
    return one_line(text, MAX_SHOWN)
