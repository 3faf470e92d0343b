"""A run that is refused before its first step leaves no folder; a folder that existed stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.small_settings import TINY_VECTOR
from support.tiny_runs import counting, train_tiny
from support.toy_envs import Toy, replying

from capax.core.errors import EnvironmentFailed, InputError
from capax.runs.run import Run


def break_down(toy: Toy) -> None:
    """Stands for a step that fails."""
    raise RuntimeError("the engine is broken")


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong kappa": (dict(kappa="conformall"), "did you mean conformal?"),
    "a rule without update": (dict(kappa=object()), "kappa is "),
    "an unknown method": (dict(method="capp"), "the method is 'capp'"),
    "an unknown setting": (dict(settings={"gane": 1.0}), "did you mean gain"),
    "no cost in the first step": (dict(env=lambda: replying(1.0, False, False), episode_steps=4), "reports no cost"),
    "an error in the first step": (dict(env=counting(on_step=break_down)), "the engine is broken"),
    "an error in the reset": (dict(env=counting(show=lambda x: 1 / 0)), "after the reset: fix its reset."),
    "a policy that fails at once": (dict(initial_policy=lambda obs: "left"), "initial_policy failed"),
    "an on_episode that is no function": (dict(on_episode=3), "on_episode is 3: give a function"),
    "arguments without names": (dict(env_kwargs=[3]), "env_kwargs is [3]: give names with values."),
    "a logger without log": (dict(loggers=[object()]), "has no method log"),
}
"""Options of a run, and words of its refusal."""


def refuse(out: Path, name: str) -> str:
    """The one sentence with which the run is refused."""
    options, words = REFUSALS[name]
    with pytest.raises((InputError, EnvironmentFailed)) as error:
        train_tiny(out, **options)
    message = str(error.value)
    assert words in message and "\n" not in message and message[-1] in ".?"
    return message


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_start_leaves_no_folder(name, tmp_path):
    message = refuse(tmp_path / "runs" / "toy" / "first", name)
    assert not list(tmp_path.iterdir())
    assert "resume" not in message  # nothing is there that could be resumed


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_start_leaves_the_folders_that_existed(name, tmp_path):
    (tmp_path / "runs" / "other").mkdir(parents=True)
    refuse(tmp_path / "runs" / "toy" / "first", name)
    assert [path.name for path in tmp_path.rglob("*")] == ["runs", "other"]


@pytest.mark.parametrize("name", REFUSALS)
def test_a_folder_that_existed_stays_with_what_is_in_it(name, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    refuse(out, name)
    assert (out / "notes.txt").read_text() == "mine"
    run = train_tiny(out)  # and it can be used
    assert len(run.episodes) == 3


def break_in_step_2(toy: Toy) -> None:
    if toy.count == 1:
        break_down(toy)


def test_a_run_that_took_a_step_keeps_its_folder(tmp_path):
    with pytest.raises(EnvironmentFailed, match=r"capax\.resume\(.*\) in Python continues from there\)\.$"):
        train_tiny(tmp_path / "run", counting(on_step=break_in_step_2))
    assert [(row["episode"], row["cost"]) for row in Run(tmp_path / "run").interrupted] == [(0, 10.0)]


def test_the_advice_to_resume_names_the_objects_that_are_needed_again(tmp_path):
    def free(*_: object) -> float:
        return 0.0

    with pytest.raises(EnvironmentFailed, match=r"run', env=\.\.\., cost=\.\.\.\) in"):
        train_tiny(tmp_path / "run", counting(on_step=break_in_step_2), cost=free)


def test_a_refused_continuation_changes_nothing(tmp_path):
    run = train_tiny(tmp_path / "run")
    files = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file() and path.name != ".lock"}
    changes: dict[str, dict[str, Any]] = {
        "seed 0": dict(seed=1),
        "kappa 'conformal'": dict(kappa="adam"),
        "preset 'fast'": dict(preset="paper"),  # of its many sizes none is listed
        "gain by default, horizon 2": dict(settings={**TINY_VECTOR, "horizon": 3, "gain": 0.2}),
    }
    for words, options in changes.items():
        with pytest.raises(InputError, match=rf"begun with other settings \({words}\): give these again"):
            train_tiny(tmp_path / "run", resume=True, **options)
    with pytest.raises(InputError, match="already holds"):
        train_tiny(tmp_path / "run")
    assert {path: path.read_bytes() for path in files} == files
