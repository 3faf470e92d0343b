"""`capax train`, and `resume` and `evaluate` of its runs: the options that the command line turns into Python objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support import toy_envs
from support.small_settings import TINY_VECTOR

import capax
from capax.cli.main import main
from capax.cli.options import assignment, count
from capax.envs.cost_function import import_cost
from capax.runs.run import Run
from capax.runs.tensorboard import installed
from capax.runtime.modules import current_folder_offered

RANDOM = ["train", "capax/Integrator-v0", "--method", "random", "--steps", "50"]
COSTS = """
def position(obs, action, next_obs, info):
    return abs(float(next_obs[0]))

def signed_position(obs, action, next_obs, info):
    return float(next_obs[0])

def fails(obs, action, next_obs, info):
    raise KeyError("position")

limit = 25.0
"""


@pytest.fixture
def costs(workspace: Path) -> Path:
    """A folder with the module `my_costs`."""
    (workspace / "my_costs.py").write_text(COSTS)
    return workspace


@pytest.fixture
def pushed() -> Iterator[list[dict[str, Any]]]:
    """Registers an environment that takes arguments; the list holds the arguments of each instance."""
    arguments: list[dict[str, Any]] = []

    def make(push: float = 0.0, wind: bool = False, name: str = "", **more: Any) -> toy_envs.Toy:
        arguments.append({"push": push, "wind": wind, "name": name})
        return toy_envs.counting(**more)

    gym.register("test/Pushed-v0", make, max_episode_steps=5)
    yield arguments
    gym.registry.pop("test/Pushed-v0")


def events(run: Path) -> list[Path]:
    """The files for TensorBoard in a run folder."""
    return [*run.glob("events.out.tfevents.*")]


# --steps.


@pytest.mark.parametrize(("text", "number"), [
    ("100000", 100_000), ("1e5", 100_000), ("100_000", 100_000), ("2.5e1", 25), ("7.0", 7)
])  # fmt: skip
def test_a_count_is_written_as_people_write_it(text, number):
    assert count([text]) == number and isinstance(count([text]), int)


@pytest.mark.parametrize("text", ["1.5", "many", "", "nan", "inf", "1e400", "1e-3"])
def test_a_count_that_is_no_whole_number_is_refused(text, tmp_path, capsys):
    with pytest.raises(ValueError):  # noqa: PT011  tyro turns it into its message
        count([text])
    with pytest.raises(SystemExit) as stop:
        main(["train", "capax/Integrator-v0", "--out", str(tmp_path / "run"), "--steps", text])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == "" and "--steps" in err and "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_steps_in_scientific_notation(tmp_path):
    main([*RANDOM, "--steps", "1.2e2", "--out", str(tmp_path / "run")])
    assert Run(tmp_path / "run").config.steps == 120
    main(["resume", str(tmp_path / "run"), "--steps", "2e2"])
    assert Run(tmp_path / "run").config.steps == 200 and Run(tmp_path / "run").episodes[-1]["steps"] == 200


def test_too_many_steps_are_refused(tmp_path, refusal):
    assert refusal(*RANDOM, "--steps", "1e300", "--out", str(tmp_path / "run")).startswith("steps is 1000")
    assert not (tmp_path / "run").exists()


# --cost.


def test_a_cost_function_that_is_named_in_train_is_used_by_resume_and_evaluate(costs, capsys):
    run = costs / "run"
    settings = [f"{name}={value}" for name, value in TINY_VECTOR.items()]
    main(["train", "capax/Integrator-v0", "--steps", "100", "--cost", "my_costs:position", "--out", str(run), "--set",
          *settings])  # fmt: skip
    assert Run(run).config.own_cost and Run(run).config.cost_function == "my_costs:position"
    main(["resume", str(run), "--steps", "150"])
    assert Run(run).episodes[-1]["steps"] >= 150
    costs_of_an_episode = []
    for option in ([], ["--cost", "my_costs:position"]):
        capsys.readouterr()
        main(["evaluate", str(run), *option, "--episodes", "1", "--json"])
        costs_of_an_episode.append(json.loads(capsys.readouterr().out)["mean_cost"])
    assert costs_of_an_episode[0] == costs_of_an_episode[1] > 0.0


def test_a_cost_function_without_a_name_is_named_in_resume_and_evaluate(costs, refusal, capsys):
    run, random = costs / "run", {"method": "random", "steps": 50}
    capax.train("capax/Integrator-v0", out=run, cost=lambda obs, action, next_obs, info: 1.0, **random)
    for command in ("resume", "evaluate"):
        message = refusal(command, str(run))
        assert message.startswith(f"{run} was trained with a cost function: ") and "--cost MODULE:FUNCTION" in message
    main(["resume", str(run), "--cost", "my_costs:position", "--steps", "100"])
    assert len(Run(run).episodes) == 2
    main([*RANDOM, "--cost", "my_costs:position", "--steps", "150", "--out", str(run), "--resume"])
    assert len(Run(run).episodes) == 3


def test_negative_costs_need_a_flag_and_a_resumed_run_keeps_it(costs, refusal):
    signed = [*RANDOM, "--cost", "my_costs:signed_position"]
    message = refusal(*signed, "--out", "refused", code=3)
    assert "let no cost be negative, or, if it may offset other costs, give --allow-negative-costs" in message
    main([*signed, "--allow-negative-costs", "--out", "run"])
    main(["resume", "run", "--cost", "my_costs:signed_position", "--steps", "100"])
    assert Run(Path("run")).config.allow_negative_costs and len(Run(Path("run")).episodes) == 2


def test_the_cost_of_an_episode_is_that_of_the_function(costs):
    main([*RANDOM, "--out", "with_function", "--cost", "my_costs:position"])
    main([*RANDOM, "--out", "with_own_cost"])
    with_function, with_own_cost = (Run(costs / name).episodes[0] for name in ("with_function", "with_own_cost"))
    assert with_function["return"] == with_own_cost["return"] != 0.0
    # the reward is the position x, so Σ|x| is |Σx| or more; the environment's own cost is x², and Σx² ≥ (Σx)²/n
    count, earned = with_function["length"], abs(with_function["return"])
    assert with_function["cost"] >= earned and with_own_cost["cost"] >= earned**2 / count
    assert with_function["cost"] ** 2 / count <= with_own_cost["cost"] * (1.0 + 1e-6)  # the same by Cauchy and Schwarz
    assert with_function["cost"] != with_own_cost["cost"]


@pytest.mark.parametrize(("name", "message"), [
    ("my_costs", "--cost is 'my_costs': write MODULE:FUNCTION, as in my_costs:speed."),
    (":position", "--cost is ':position': write MODULE:FUNCTION, as in my_costs:speed."),
    ("my_costs:", "--cost is 'my_costs:': write MODULE:FUNCTION, as in my_costs:speed."),
    ("my_costs:nothing", "--cost is my_costs:nothing, but my_costs has no function nothing: name one of its functions."),
    ("my_costs:limit", "--cost is my_costs:limit, but my_costs has no function limit: name one of its functions."),
    ("no_such_module:f", "the module of --cost no_such_module:f cannot be imported, ModuleNotFoundError (No module named "
                         "'no_such_module'): install it."),
])  # fmt: skip
@pytest.mark.parametrize("command", ["train", "resume", "evaluate"])
def test_a_cost_that_is_no_function_is_refused(costs, refusal, command, name, message):
    if command == "train":
        assert refusal(*RANDOM, "--cost", name, "--out", "run") == message
    else:
        main([*RANDOM, "--cost", "my_costs:position", "--out", "run"])
        assert refusal(command, "run", "--cost", name) == message
    assert (costs / "run").exists() == (command != "train")


def test_a_module_that_raises_is_the_users_to_fix(workspace, refusal):
    (workspace / "broken_costs.py").write_text("raise RuntimeError('first\\nsecond')")
    message = refusal(*RANDOM, "--cost", "broken_costs:position", "--out", "run", code=3)
    assert message == "the module of --cost broken_costs:position raised RuntimeError (first second): fix it."
    (workspace / "lacking_costs.py").write_text("import no_such_module")
    message = refusal(*RANDOM, "--cost", "lacking_costs:position", "--out", "run")
    assert "No module named 'no_such_module'" in message
    assert not (workspace / "run").exists()


def test_a_cost_function_that_raises_leaves_no_folder(costs, refusal):
    message = refusal(*RANDOM, "--cost", "my_costs:fails", "--out", "run", code=3)
    assert message.startswith("the cost function raised KeyError ('position') in step 1 of the episode: fix it.")
    assert not (costs / "run").exists()


def test_a_module_of_the_current_folder_does_not_hide_an_installed_one(workspace):
    (workspace / "json.py").write_text("def dumps(*arguments): raise AssertionError")
    with current_folder_offered():
        assert import_cost("json:dumps") is json.dumps


# --env-kwargs.


def test_arguments_of_the_environment_are_kept_for_resume_and_evaluate(tmp_path, pushed):
    run = str(tmp_path / "run")
    settings = [f"{name}={value}" for name, value in TINY_VECTOR.items()]
    main(["train", "test/Pushed-v0", "--steps", "10", "--cost-limit", "500", "--out", run, "--env-kwargs", "push=2.5",
          "wind=True", "name=north wind", "--set", *settings])  # fmt: skip
    arguments = {"push": 2.5, "wind": True, "name": "north wind"}
    assert Run(tmp_path / "run").config.env_kwargs == arguments and pushed and all(each == arguments for each in pushed)
    pushed.clear()
    main(["resume", run, "--steps", "15"])
    main(["evaluate", run, "--episodes", "1"])
    assert len(pushed) == 2 and all(each == arguments for each in pushed)


@pytest.mark.parametrize(("argument", "message"), [
    ("wind", "--env-kwargs 'wind' is no setting: write NAME=VALUE, as in frame_skip=2."),
    ("=1", "--env-kwargs '=1' is no setting: write NAME=VALUE, as in frame_skip=2."),
    ("wind=", "--env-kwargs 'wind=' is no setting: write NAME=VALUE, as in frame_skip=2."),
    ("snow=1", "capax/Integrator-v0 does not take snow: "),
])  # fmt: skip
def test_arguments_that_the_environment_does_not_take_are_refused(tmp_path, refusal, argument, message):
    assert refusal(*RANDOM, "--out", str(tmp_path / "run"), "--env-kwargs", argument).startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("text", "pair"), [
    ("population=200", ("population", 200)), ("learning-rate=1e-3", ("learning_rate", 1e-3)), ("exact=True", ("exact", True)),
    ("exact=false", ("exact", False)), ("execute=mean", ("execute", "mean")), ("name=a=b", ("name", "a=b")),
    ("sizes=[1, 2]", ("sizes", [1, 2])), ("limit=null", ("limit", None)), ("limit=None", ("limit", None)),
])  # fmt: skip
def test_the_value_of_an_assignment_is_json_or_text(text, pair):
    assert assignment(text) == pair


# --logger.


def test_a_run_without_loggers_writes_no_events(tmp_path):
    run = tmp_path / "run"
    main([*RANDOM, "--logger", "--out", str(run)])
    main(["resume", str(run), "--steps", "100", "--logger"])
    assert len(Run(run).episodes) == 2 and not events(run)


@pytest.mark.skipif(not installed(), reason="tensorboardX is not installed")
def test_tensorboard_is_a_logger_by_default_and_by_name(tmp_path):
    for number, option in enumerate(([], ["--logger", "tensorboard"])):
        run = tmp_path / f"{number}"
        main([*RANDOM, *option, "--out", str(run)])
        assert len(events(run)) == 1
        main(["resume", str(run), "--steps", "100", *option])
        assert len(events(run)) == 2


def test_an_unknown_logger_is_refused(tmp_path, refusal):
    message = refusal(*RANDOM, "--out", str(tmp_path / "run"), "--logger", "tensorbord")
    assert message == "there is no logger 'tensorbord': did you mean tensorboard?"
    assert not (tmp_path / "run").exists()


# --out, --force, --resume.


def test_the_default_folder_names_task_method_and_seed(workspace):
    main([*RANDOM, "--seed", "3"])
    assert Run(workspace / "runs" / "Integrator-v0-random-3").config.seed == 3


def test_a_folder_with_a_run_names_resume_before_force(tmp_path, refusal, capsys):
    out = ["--out", str(tmp_path / "run")]
    main([*RANDOM, *out])
    message = refusal(*RANDOM, *out)
    assert "already holds" in message and message.index("--resume") < message.index("--force")
    assert message.index("resume=True") < message.index("force=True")  # the same words for Python
    assert "contradict" in refusal(*RANDOM, *out, "--force", "--resume")
    capsys.readouterr()
    main([*RANDOM, *out, "--resume"])
    assert capsys.readouterr().out.startswith("already complete: ")
    main([*RANDOM, *out, "--steps", "100", "--resume"])
    assert Run(tmp_path / "run").episodes[-1]["steps"] == 100
    main([*RANDOM, *out, "--force"])
    assert len(Run(tmp_path / "run").episodes) == 1


def test_parameters_of_the_rule_are_settings(tmp_path, refusal):
    fast = ["train", "capax/Integrator-v0", "--steps", "50", "--out", str(tmp_path / "run"), "--set", "start_steps=50"]
    main([*fast, "gain=0.2", "window=20"])
    assert Run(tmp_path / "run").config.rule == {"gain": 0.2, "window": 20}
    message = refusal("train", "capax/Integrator-v0", "--out", str(tmp_path / "other"), "--set", "windwo=20")
    assert "did you mean window" in message
