"""The Python of README.md runs as it is printed, but for the method where a model would be trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capax

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run_block(words: str) -> dict[str, Any]:
    """The names that a block defines; `words` occur in this block alone."""
    (block,) = (block for block in BLOCKS if words in block)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_the_first_example_trains_a_plain_class_without_a_time_limit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = capax.train
    # random actions: nothing is compiled, and the class, its limit, the folder and the policy are the same
    monkeypatch.setattr(capax, "train", lambda env, **options: train(env, method="random", **options))
    names = run_block("class Push")
    assert [row["length"] for row in names["run"].episodes] == [50] * 20  # the class truncates them itself
    policy = names["policy"]
    policy.reset()
    assert -1.0 <= policy(np.zeros(1)).item() <= 1.0


def test_the_example_of_a_finite_world_keeps_the_limit(capsys):
    names = run_block("from capax.tabular import")
    assert 0.0 < float(capsys.readouterr().out) <= 0.1 + 1e-9
    assert names["safe"].cost <= names["best"].cost + 1e-9


def test_the_gridworld_is_an_environment():
    env = run_block("capax/Gridworld-v0")["env"]
    env.reset(seed=0)
    assert env.step(env.action_space.sample())[-1]["cost"] >= 0.0


@pytest.mark.parametrize("name", sorted(set(re.findall(r"capax\.(\w+)\(", README))))
def test_functions_that_the_text_names_are_public(name):
    assert name in capax.__all__
