"""Open arguments get a default, and chosen ones reach the environment, the method and the rule for κ."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import pytest
from support.small_settings import GRADIENT, TINY_VECTOR
from support.tiny_runs import counting, train_tiny, without_times
from support.toy_envs import Toy, walk

import capax
from capax.cli.main import main
from capax.core.contracts import Agent
from capax.core.errors import EnvironmentFailed, InputError
from capax.envs.make import make
from capax.kappa.adam import Adam
from capax.kappa.conformal import Conformal
from capax.kappa.pi import PI
from capax.runs.config import RunConfig
from capax.training.build import build
from capax.training.presets import default_preset
from capax.training.request import Request, resolve

INTEGRATOR = "capax/Integrator-v0"


def rule_of(config: RunConfig) -> Any:
    """The rule for κ that a run with this configuration gets."""
    agent: Any = build(config).agent
    assert isinstance(agent, Agent)
    return agent.rule


# Defaults.


def test_the_default_preset_is_fast_without_a_gpu(tmp_path, monkeypatch):
    assert jax.default_backend() == "cpu" and default_preset() == "fast"
    config = train_tiny(tmp_path, settings={"start_steps": 4}, method="random").config
    # the rest is fast's
    assert config.preset == "fast" and config.settings["cem"]["population"] == 64
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert default_preset() == "paper"


def test_a_run_that_continues_keeps_its_preset_where_another_is_the_default(tmp_path, monkeypatch):
    options = dict(method="random", settings={"start_steps": 4})
    train_tiny(tmp_path, **options)
    monkeypatch.setattr("capax.training.request.default_preset", lambda: "paper")
    run = train_tiny(tmp_path, steps=20, resume=True, **options)
    assert run.config.preset == "fast" and run.episodes[-1]["steps"] == 20
    assert capax.resume(run, steps=24, env=counting()).config.preset == "fast"


@pytest.mark.parametrize(("env", "options", "folder"), [
    (INTEGRATOR, {}, "runs/Integrator-v0-cap-0"), ("my_tasks:Road-v1", {"method": "ppo"}, "runs/my-tasks-Road-v1-ppo-0"),
    (walk, {"seed": 3}, "runs/walk-cap-3"), (Toy, {}, "runs/Toy-cap-0"), (partial(Toy), {}, "runs/partial-cap-0"),
    (INTEGRATOR, {"out": "here/it"}, "here/it"),
])  # fmt: skip
def test_the_default_folder_names_the_task_the_method_and_the_seed(env, options, folder):
    assert Request(env, **options).folder == Path(folder)


def test_a_run_without_options_has_100_000_steps():
    assert Request(INTEGRATOR).steps == 100_000


# Arguments of the environment's constructor.


def road(*, length: int = 4, toll: float = 1.0) -> Any:
    """A toy whose parts are arguments."""
    reply = lambda toy: (toy.obs(), 1.0, False, False, {"cost": toll})  # noqa: E731
    return gym.wrappers.TimeLimit(Toy(reply=reply), length)


def test_a_function_gets_its_arguments_again_when_the_run_is_resumed_and_evaluated(tmp_path):
    options = dict(env=road, env_kwargs={"length": 5, "toll": 3.0}, method="random", steps=10)
    run = train_tiny(tmp_path, **options)
    assert [(row["length"], row["cost"]) for row in run.episodes] == [(5, 15.0)] * 2
    assert run.config.env_kwargs == {"length": 5, "toll": 3.0}
    capax.resume(run, env=road, steps=15)
    assert [(row["length"], row["cost"]) for row in run.episodes] == [(5, 15.0)] * 3
    assert [(row["length"], row["cost"]) for row in capax.evaluate(run, env=road, episodes=1).rows] == [(5, 15.0)]
    with pytest.raises(
        InputError, match=r"other settings \(env_kwargs \{'length': 5, 'toll': 3\.0\}\): give these again"
    ):
        train_tiny(tmp_path, resume=True, **options | {"env_kwargs": {"length": 5}})


@pytest.fixture
def road_id(monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a registered task with arguments."""
    monkeypatch.setitem(gym.registry, "test/Road-v0", gym.envs.registration.EnvSpec("test/Road-v0", entry_point=road))
    return "test/Road-v0"


def test_an_id_gets_its_arguments_from_the_command_line(road_id, tmp_path):
    arguments = ["--method", "random", "--steps", "6", "--cost-limit", "1", "--out", str(tmp_path / "run")]
    main(["train", road_id, *arguments, "--env-kwargs", "length=3", "toll=0.5"])
    run = capax.open_run(tmp_path / "run")
    assert run.config.env_kwargs == {"length": 3, "toll": 0.5}
    assert [(row["length"], row["cost"]) for row in run.episodes] == [(3, 1.5)] * 2
    main(["resume", str(run.folder), "--steps", "9"])
    assert [(row["length"], row["cost"]) for row in run.episodes] == [(3, 1.5)] * 3


@pytest.mark.parametrize(("env_kwargs", "words"), [
    ({"width": 3}, "width"), ({3: 3}, "give names with values"), ({"toll": object()}, "give names with numbers"),
])  # fmt: skip
def test_arguments_that_the_environment_does_not_take_are_refused(env_kwargs, words, road_id, tmp_path):
    for env in (road, road_id):
        with pytest.raises((InputError, EnvironmentFailed)) as error:
            train_tiny(tmp_path / "run", env, env_kwargs=env_kwargs, method="random")
        message = str(error.value)
        assert words in message and "\n" not in message and not (tmp_path / "run").exists()


# Parameters of the rule for κ.


@pytest.mark.parametrize(("kappa", "settings", "rule"), [
    (None, {"gain": 0.2, "window": 20.0}, Conformal(rate=0.1, gain=0.2, window=20)),
    ("conformal", {"gain": 0.2}, Conformal(rate=0.1, gain=0.2)),
    ("adam", {"rate": 0.03, "start": 2}, Adam(rate=0.03, start=2.0)),
    ("pi", {"alpha": 0.5}, PI(alpha=0.5, start=1.0)),
    ("pi", {}, PI(start=1.0)),
])  # fmt: skip
def test_settings_reach_the_rule_and_are_kept(kappa, settings, rule, tmp_path):
    run = train_tiny(tmp_path, kappa=kappa, violation_rate=0.1, settings=TINY_VECTOR | settings, steps=4)
    assert run.config.rule == settings  # those that differ from the defaults
    assert rule_of(run.config) == rule
    assert json.loads((tmp_path / "config.json").read_text())["rule"] == settings
    assert run.config.settings["ensemble"]["hidden"] == TINY_VECTOR["hidden"]


def test_a_resumed_run_has_the_parameters_of_its_rule(tmp_path):
    options = dict(kappa="pi", settings=TINY_VECTOR | {"alpha": 0.5, "start": 0.25}, steps=18)
    whole = train_tiny(tmp_path / "whole", **options)
    costs, kappas = ([row[name] for row in whole.episodes[2:]] for name in ("cost", "kappa"))
    assert costs[0] == 100.0 and kappas[:2] == [0.25, 0.25 + 0.5 * (100.0 - 65.0)]  # Eq. 6, unless nothing was feasible
    cut = train_tiny(tmp_path / "cut", on_episode=lambda row: row["episode"] < 2, **options)
    capax.resume(cut, env=counting())
    assert without_times(cut.episodes) == without_times(whole.episodes) and len(cut.episodes) == 5


def test_the_command_line_sets_the_parameters_of_the_rule(tmp_path):
    sizes = [f"{name}={value}" for name, value in TINY_VECTOR.items()]
    main(["train", INTEGRATOR, "--steps", "50", "--out", str(tmp_path), "--set", *sizes, "gain=0.2"])
    config = capax.open_run(tmp_path).config
    assert config.rule == {"gain": 0.2} and rule_of(config) == Conformal(gain=0.2, rate=config.violation_rate)


@pytest.mark.parametrize(("options", "words"), [
    ({"settings": {"gane": 0.2}}, "there is no setting 'gane': did you mean gain"),
    ({"settings": {"gain": 0.0}}, "gain is 0.0: give a number above 0"),
    ({"settings": {"window": 2.5}}, "window is 2.5: give a whole number"),
    ({"settings": {"gain": 0.2}, "kappa": "pi"}, "there is no setting 'gain'"),
    ({"settings": {"gain": 0.2}, "kappa": 0.3}, "there is no setting 'gain'"),
    ({"settings": {"gain": 0.2}, "method": "ccem"}, "there is no setting 'gain'"),
    ({"settings": GRADIENT | {"gain": 0.2}, "method": "ppo-lag"}, "there is no setting 'gain'"),
])  # fmt: skip
def test_parameters_of_another_rule_are_refused(options, words, tmp_path):
    with pytest.raises(InputError) as error:
        train_tiny(tmp_path / "run", **options)
    assert str(error.value).startswith(words) and not (tmp_path / "run").exists()


def test_a_termination_may_be_the_goal():
    request = Request("capax-suite/Docking-v0", termination_cost=0.0)
    with closing(make("capax-suite/Docking-v0")) as task:
        assert resolve(request, task).settings["termination_cost"] == 0.0
        assert resolve(replace(request, termination_cost=None), task).settings["termination_cost"] < 0.0
        with pytest.raises(InputError, match=r"^termination_cost is -1"):
            resolve(replace(request, termination_cost=-1.0), task)
        with pytest.raises(InputError, match=r"^termination_cost is 0.0, but ppo-lag does not imagine"):
            resolve(replace(request, method="ppo-lag"), task)


def test_an_undiscounted_limit_is_planned_for_with_more_sight():
    with closing(make("capax-suite/Docking-v0")) as task:
        budget = resolve(Request("capax-suite/Docking-v0", preset="fast"), task).settings
        rate = resolve(Request("capax-suite/Docking-v0", preset="fast", discounted=True), task).settings
    assert (budget["cem"]["horizon"], rate["cem"]["horizon"]) == (40, 20)
